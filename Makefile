# Needs make and Python 3.11 or newer; everything else is installed into .venv.
# Another interpreter: make PYTHON=/path/to/python3.11 demo

PYTHON ?=
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
MINIMUM := import sys; sys.exit(sys.version_info < (3, 11))
VERSION := import sys; print("%d.%d.%d" % sys.version_info[:3])

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint types docs bench clean

help:  ## Print this list
	@echo "Usage: make TARGET [PYTHON=/path/to/python]"
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)$$/  \1\t\2/p' Makefile

demo: .venv/.bench  ## Train on the digits that come with the package
	@$(BIN)/fedjax-opt demo

test: .venv/.dev  ## Run all tests
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore=tests/docs tests

lint: .venv/.dev  ## Check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: .venv/.dev  ## Check types
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

docs: .venv/.dev  ## Run the code in the README, the docs, the examples and the docstrings
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/docs
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --doctest-modules fedjax_opt

bench: .venv/.bench  ## Measure speed
	@$(BIN)/python benchmarks/speed/run.py --output benchmarks/results/speed.json
	@$(BIN)/python benchmarks/speed/growth.py --output benchmarks/results/speed_growth.json
	@$(BIN)/python benchmarks/speed/sweep.py --output benchmarks/results/speed_sweep.json
	@$(BIN)/python benchmarks/speed/draw.py

clean:  ## Remove environments and caches
	rm -rf .venv .ci-venvs build dist .hypothesis .pytest_cache .ruff_cache
	find fedjax_opt tests docs examples benchmarks -name __pycache__ -prune -exec rm -rf {} + \
	    2>/dev/null || true

# The installs are editable, so only a change of pyproject.toml asks for another one.
.venv/.bench: .venv/.python pyproject.toml
	@echo "Installing fedjax_opt[bench] into .venv; this can take a minute or two."
	@$(PIP_INSTALL) --editable ".[bench]"
	@touch $@

.venv/.dev: .venv/.python pyproject.toml
	@echo "Installing fedjax_opt[dev] into .venv; this can take a minute or two."
	@$(PIP_INSTALL) --editable ".[dev]"
	@touch $@ .venv/.bench

.venv/.python:
	@chosen=; found=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	    version=$$("$$candidate" -c '$(VERSION)' 2>/dev/null) || continue; \
	    found="$${found:+$$found, }$$version"; \
	    if "$$candidate" -c '$(MINIMUM)'; then chosen=$$candidate; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	    echo "fedjax_opt needs Python 3.11 or newer; found $${found:-none};" \
	        "set PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	echo "Creating .venv with Python $$version."; \
	"$$chosen" -m venv --clear .venv || { rm -rf .venv; exit 1; }
	@touch $@
