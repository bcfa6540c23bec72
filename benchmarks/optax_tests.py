"""Run optax's own tests on the triples of this package.

    python benchmarks/optax_tests.py                # about 20 minutes on two cores
    python benchmarks/optax_tests.py alias combine  # some of the files

The tests are those of the installed version of optax. They are fetched from its source distribution when
the script runs, and nothing of them is kept. Each is run as it is, with our triples in place of the
optimisers that it names: thirteen triples, each with frozen statistics and in its `moving` form. Files
that call `alias.sgd`, `alias.adam` and `alias.adagrad` by name get ours under these names, once in each
form. Rates are ours: a triple with frozen statistics is gradient descent, scaled by where they start.

A test that cannot hold for ours is in `WHY` with its reason, and is counted apart; any other that fails
makes the script fail. docs/errata.md has the counts.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import ast
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
from optax._src import alias

from fedjax_opt import optimizers as opt

Rate = optax.ScalarOrSchedule


def _affine(rate: Any) -> opt.Triple:
    """Normalised momentum from its U and T alone."""
    return opt.affine(
        update=lambda g, m: jax.tree.map(lambda g, m: -rate * (0.9 * m + 0.1 * g), g, m),
        track=lambda g, m: jax.tree.map(lambda g, m: 0.9 * m + 0.1 * g, g, m),
        init=lambda params: jax.tree.map(jax.numpy.zeros_like, params),
    )


def _constant(make: Callable[..., opt.Triple]) -> Callable[..., opt.Triple]:
    return lambda rate: make(lambda count: rate)


# By name: the triple of a learning rate, a rate for it frozen, and one moving.
TRIPLES: dict[str, tuple[Callable[[Any], opt.Triple], float, float]] = {
    "sgd": (opt.sgd, 1.5e-3, 1.5e-3),
    "sgdm": (opt.sgdm, 1.5e-2, 1e-2),
    "rmsprop": (opt.rmsprop, 1.5e-3, 5e-3),
    "adam": (opt.adam, 1.5e-2, 1e-1),
    "yogi": (opt.yogi, 1.5e-2, 1e-1),
    "adagrad": (opt.adagrad, 1.5e-3, 1.0),
    "affine": (_affine, 1.5e-2, 1e-2),
    "clipped_adam": (
        lambda rate: opt.chain(optax.clip_by_global_norm(1e3), opt.adam(rate)), 1.5e-2, 1e-1,
    ),
    "decayed_sgdm": (
        lambda rate: opt.chain(optax.add_decayed_weights(1e-6), opt.sgdm(rate)), 1.5e-2, 1e-2,
    ),
    "of_sgd": (lambda rate: opt.from_optax(optax.sgd(rate)), 1.5e-3, 1.5e-3),
    "of_adam": (lambda rate: opt.from_optax(optax.adam(rate)), 2e-3, 1e-1),
    "scheduled_sgd": (_constant(opt.sgd), 1.5e-3, 1.5e-3),
    "scheduled_adam": (_constant(opt.adam), 1.5e-2, 1e-1),
}  # fmt: skip


def _factory(make: Callable[[Any], opt.Triple], moves: bool) -> Callable[..., Any]:
    def factory(learning_rate):
        triple = make(learning_rate)
        return opt.moving(triple) if moves else triple

    # By the annotation optax's tests know what takes a schedule.
    takes_schedules = make is not _affine and make.__qualname__ != "_constant.<locals>.<lambda>"
    factory.__annotations__["learning_rate"] = Rate if takes_schedules else float
    return factory


def _forms() -> list[dict[str, Any]]:
    """Every triple in both forms, as rows of optax's tables of optimisers; `alias` gets their names."""
    rows = []
    for name, (make, frozen_rate, moving_rate) in TRIPLES.items():
        for moves, rate in ((False, frozen_rate), (True, moving_rate)):
            called = f"our_{name}_{'moving' if moves else 'frozen'}"
            setattr(alias, called, _factory(make, moves))
            rows.append({"opt_name": called, "opt_kwargs": {"learning_rate": rate}})
    return rows


def _wrapped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The moving forms inside of three wrappers, with the rates that these need.

    The first finds its own from 1; the last makes a large one small before it has done its work.
    """

    def rate(wrapper, own):
        return {"mechanize": 1.0, "reduce_on_plateau": own / 10 if own > 0.05 else own}.get(
            wrapper, own
        )

    wrappers = {
        "mechanize": {"weight_decay": 0.0},
        "schedule_free": {"learning_rate": 1e-2},
        "reduce_on_plateau": {},
    }
    return [
        {
            "opt_name": row["opt_name"],
            "opt_kwargs": {"learning_rate": rate(name, row["opt_kwargs"]["learning_rate"])},
            "wrapper_name": name,
            "wrapper_kwargs": given,
        }
        for name, given in wrappers.items()
        for row in rows
        if row["opt_name"].endswith("moving")
    ]


def _names(moves: bool) -> dict[str, Callable[..., Any]]:
    """Ours by optax's names, with the arguments of optax's that they have."""

    def form(triple):
        return opt.moving(triple) if moves else triple

    def sgd(learning_rate: Rate, momentum: float | None = None):
        if momentum is None:
            return form(opt.sgd(learning_rate))
        return form(opt.sgdm(learning_rate / (1 - momentum), momentum))

    def adam(learning_rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8):
        return form(opt.adam(learning_rate, b1, b2, eps, initial_v=0.0 if moves else 1.0))

    def adagrad(learning_rate: Rate, initial_v: float = 0.1, eps: float = 1e-7):
        return form(opt.adagrad(learning_rate, eps, initial_v))

    return {"sgd": sgd, "adam": adam, "adagrad": adagrad}


# Files whose tables of optimisers become ours, and which of their tests read those.
TABLES = {
    "_src/alias_test.py": "AliasTest",
    "schedules/_schedule_test.py": "ScheduleAsLearningRateTest",
    "_src/float64_test.py": "Float64Test",
    "_src/sharding_test.py": "ShardingTest",
    "contrib/_common_test.py": "ContribTest",
}
# Files that call optimisers by name.
CALLS = (
    "_src/combine_test.py", "transforms/_combining_test.py", "transforms/_masking_test.py",
    "transforms/_conditionality_test.py", "transforms/_accumulation_test.py",
    "transforms/_freezing_test.py", "_src/lookahead_test.py", "tree_utils/_state_utils_test.py",
    "contrib/_sam_test.py", "contrib/_schedule_free_test.py", "experimental/_aggregating_test.py",
)  # fmt: skip
# What of those tests has nothing to do with ours.
LEFT_OUT = ("test_explicit_dtype", "test_microbatch")
# Why a test cannot hold for ours, by what matches its name and what it says.
WHY = {
    r"learning_rate must lie in \(0.0, inf\)": "a known learning rate of 0 is refused",
    r"masking.* no attribute 'trace'": "it reads optax's own field of a state",
    r"state_utils.* ScaleBy": "it compares with optax's own types of states",
    r"accumulation.* mu_dtype": "an argument that ours do not have",
    r"(frozen|our_(of_|scheduled_|)sgd_moving)'.*_setup_rosenbrock.*complex64.*Not equal": (
        "gradient descent: optax.sgd of the same rate ends at the same point after 10,000 steps"
    ),
    r"of_adam_frozen'.*Not equal": "bias-corrected Adam that is frozen descends by signs",
    r"reduce_on_plateau.* missing 1 required keyword-only argument: 'value'": (
        "optax's test gives the loss only to optimisers in a list of names of its own"
    ),
}


def sources(folder: Path) -> Path:
    """The source distribution of the installed optax, unpacked in a folder."""
    version = importlib.metadata.version("optax")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*fetch, "-d", str(folder), f"optax=={version}"], check=True)
    [archive] = folder.glob("optax-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"optax-{version}" / "optax"


def module(path: Path, name: str, given: dict[str, Any]) -> types.ModuleType:
    """A file of tests as a module, in which some values are set before its first class is made."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.ClassDef))
    tree.body[first:first] = ast.parse("globals().update(_GIVEN)").body
    found = types.ModuleType(name)
    vars(found).update(_GIVEN=given, __file__=str(path))
    sys.modules[name] = found
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(found))
    return found


class Found(unittest.TestResult):
    """How each test ended: "passed", "skipped", or what was wrong with it."""

    def __init__(self):
        super().__init__()
        self.ends: dict[str, str] = {}

    def startTest(self, test):
        super().startTest(test)
        self.ends[test.id()] = "passed"

    def addSkip(self, test, reason):
        self.ends[test.id()] = "skipped"

    def _bad(self, test, error):
        self.ends[test.id()] = f"{type(error[1]).__name__}: {error[1]}"

    addError = addFailure = _bad

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self._bad(test, error)


def play(found: types.ModuleType, of: str = "") -> dict[str, str]:
    """Runs the tests of a module, or of one of its classes."""
    result = Found()
    for suite in unittest.defaultTestLoader.loadTestsFromModule(found):
        for test in suite:  # type: ignore[union-attr]
            if of in type(test).__name__ and not any(name in test.id() for name in LEFT_OUT):
                test.run(result)
    return result.ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="parts of names of files; all by default")
    parts = parser.parse_args().parts
    warnings.simplefilter("ignore")
    jax.__version__ = "9.0"  # optax compares it as text, and 0.10 comes before 0.7
    rows = _forms()
    built = {row["opt_name"]: getattr(alias, row["opt_name"])(**row["opt_kwargs"]) for row in rows}
    given = {
        "_OPTIMIZERS_UNDER_TEST": tuple(rows),
        "_MAIN_OPTIMIZERS_UNDER_TEST": tuple(_wrapped(rows)),
        "_ALL_OPTIMIZERS_UNDER_TEST": tuple(_wrapped(rows)),
        "ALL_MODULES": [
            (r["opt_name"], getattr(alias, r["opt_name"]), r["opt_kwargs"]) for r in rows
        ],
        "OPTIMIZERS": built,
    }
    with tempfile.TemporaryDirectory() as folder:
        root = sources(Path(folder))
        from optax import _src

        for name in ("sklearn", "sklearn.datasets", "sklearn.linear_model"):
            # Which tests of L-BFGS import, that are not run here.
            sys.modules.setdefault(name, types.ModuleType(name))
        sklearn: Any = sys.modules["sklearn"]
        sklearn.datasets, sklearn.linear_model = object(), object()
        for name in ("test_utils", "alias_test"):
            known = module(root / f"_src/{name}.py", f"optax._src.{name}", given)
            setattr(_src, name, known)
        ends: dict[str, dict[str, str]] = {}
        wanted = [x for x in (*TABLES, *CALLS) if not parts or any(part in x for part in parts)]
        for path in wanted:
            stem = Path(path).stem.strip("_")
            if path in TABLES:
                ends[path] = play(module(root / path, f"ours_{stem}", given), TABLES[path])
                report(path, ends[path])
                continue
            for moves in (False, True):
                before = {name: getattr(alias, name) for name in _names(moves)}
                vars(alias).update(_names(moves))
                called = f"{path} ({'moving' if moves else 'frozen'})"
                ends[called] = play(module(root / path, f"ours_{stem}_{moves}", given))
                vars(alias).update(before)
                report(called, ends[called])
    report(
        "sum", {f"{path} {name}": end for path, each in ends.items() for name, end in each.items()}
    )
    if any(kind(name, end) == "failed" for each in ends.values() for name, end in each.items()):
        sys.exit("Some failed without a reason.")


def kind(name: str, end: str) -> str:
    """What an end counts as."""
    if end in ("passed", "skipped"):
        return end
    known = any(re.search(why, f"{name} {end}", re.DOTALL) for why in WHY)
    return "cannot hold" if known else "failed"


def report(path: str, ends: dict[str, str]) -> None:
    """One line of counts, and what failed without a reason."""
    counts = Counter(kind(name, end) for name, end in ends.items())
    print(
        path, ", ".join(f"{counts[k]} {k}" for k in ("passed", "cannot hold", "failed", "skipped"))
    )
    if path != "sum":
        for name, end in ends.items():
            if kind(name, end) == "failed":
                print("   ", name.split(".", 2)[-1], "|", " ".join(end.split())[:200])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
