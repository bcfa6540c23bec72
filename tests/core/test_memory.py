"""A run that does not fit is refused before it begins; 'auto' takes the fastest strategy that fits."""

import re

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.execution import memory, strategies
from tests.core import problems

WIDE = fo.ClientData.from_list([{"x": np.ones((2, 500)), "y": np.ones(2)} for _ in range(2)])
EIGHT = fo.ClientData.from_list([{"x": np.ones((2, 500)), "y": np.ones(2)} for _ in range(8)])


def _federation(data, **options):
    options = {"local_steps": 1, "batch_size": 2} | options
    return fo.Federation(problems.MODEL, data, cohort=data.num_clients, **options)


def _simulate(strategy, data=WIDE, **options):
    federation = _federation(data, **options)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    return fo.simulate(algorithm, federation, 1, strategy=strategy, progress=False)


def _needs(name, limit=1, **options):
    """The bytes of a refused run, by part and in all."""
    with pytest.raises(ValueError, match=f"more than memory_limit={limit},") as error:
        _simulate(fo.Strategy(name, memory_limit=limit), **options)
    sizes = re.findall(r"([\d.]+) (B|KiB)", str(error.value))[:4]
    total, *parts = (float(n) * {"B": 1, "KiB": 1024}[unit] for n, unit in sizes)
    return total, dict(zip(("data", "state", "program"), parts, strict=True)), str(error.value)


def test_a_named_strategy_that_does_not_fit_is_refused_with_the_one_that_would():
    most, parts, text = _needs("vmap")
    least, *_ = _needs("scan")
    assert parts["data"] == pytest.approx(2 * 2 * 501 * 8, rel=1e-3)
    assert parts["state"] == pytest.approx(2 * 500 * 8, rel=0.01)  # and a copy
    assert "Keep the data on the host" in text and "would fit" not in text
    between = int((least + most) / 2)
    with pytest.raises(ValueError, match='strategy="scan" would fit'):
        _simulate(fo.Strategy("vmap", memory_limit=between))
    assert _simulate(fo.Strategy("scan", memory_limit=between)).stopped == "1 rounds done"


def test_auto_takes_the_fastest_that_fits(monkeypatch):
    """Several CPU devices have a copy of the arrays each; one alone needs less."""
    asked = []

    class Program:
        temp_size_in_bytes = 100

        def memory_analysis(self):
            return self

    def compiled(option):
        asked.append(option.name)
        return Program()

    def fit(limit):
        asked.clear()
        auto = strategies.resolve(fo.Strategy("auto", memory_limit=limit))
        return memory.fit(auto, 8, compiled, np.ones(100), np.ones(25))

    spread = fit(4 * 1100)
    assert (spread.name, spread.inner) == ("sharded", "scan")
    assert spread == strategies.resolve("auto"), "a limit is not compiled in"
    assert fit(4 * 1100 - 1) == fo.Strategy("scan") and asked == ["sharded", "scan"]
    assert fit(1100) == fo.Strategy("scan")
    with pytest.raises(
        ValueError, match=r'strategy="scan" needs 1.074 KiB .*data 800 B, state 200 B'
    ):
        fit(1099)


def test_a_run_is_the_same_within_a_limit():
    free = _simulate("scan", EIGHT)
    for strategy in (
        fo.Strategy("auto", memory_limit=2**30),
        fo.Strategy("vmap", memory_limit="device"),
    ):
        kept = _simulate(strategy, EIGHT)
        problems.assert_close(kept.state, free.state)
    federation, algorithm = _federation(EIGHT), fo.fedavg(fo.optimizers.sgd(0.1))
    with pytest.raises(ValueError, match=r'strategy="vmap" needs .*data 62.* KiB'):
        fo.run_rounds(
            algorithm, federation, fo.init_state(algorithm, federation), 1,
            strategy=fo.Strategy("vmap", memory_limit=1),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["test", "client_test", "validation"])
def test_examples_to_evaluate_count(name):
    examples = {"x": np.ones((64, 500)), "y": np.ones(64)}
    found = examples if name != "client_test" else fo.ClientData.from_list([examples, examples])
    rows = 128 if name == "client_test" else 64
    steps = fo.controllers.steps_on_plateau(1) if name == "validation" else 1
    without = _needs("scan")[1]["data"]
    with_them = _needs("scan", **{name: found}, local_steps=steps)[1]["data"]
    assert with_them - without == pytest.approx(rows * 501 * 8, rel=0.01)


def test_candidates_go_from_the_fastest_to_the_smallest(monkeypatch):
    (scan,) = memory.candidates(10, num_devices=1)
    assert scan == fo.Strategy("scan")
    assert [option.name for option in memory.candidates(10, num_devices=4)] == ["sharded", "scan"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    options = memory.candidates(10, num_devices=1)
    assert [option.name for option in options] == ["vmap", "chunked", "chunked", "scan"]
    assert [option.size for option in options[1:3]] == [5, 2]
    assert [option.name for option in memory.candidates(1, 1)] == ["vmap"], "which is one at a time"
    several = memory.candidates(10, num_devices=4)
    assert [(option.name, option.inner) for option in several] == [
        ("sharded", "vmap"),
        ("sharded", "scan"),
    ]
    assert memory.smaller_than(fo.Strategy("chunked", size=5), 10)[0].size == 2


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        (float("inf"), "vmap"),
        (1250, "vmap"),  # 1000 bytes are just within four fifths of it
        (1249, "chunked 5"),
        (500, "chunked 2"),
        (249, "scan"),
    ],
)
def test_the_first_option_that_fits_is_taken(available, chosen):
    needs = {"vmap": 1000, "chunked 5": 500, "chunked 2": 200}  # the last resort is not asked
    options = [*needs, "scan"]
    assert memory.first_that_fits(options, needs.__getitem__, available) == chosen


def test_auto_asks_the_compiled_program(monkeypatch):
    """An accelerator of 1000 free bytes, and programs that need 300 bytes per client at once.

    What the run itself has placed there already is not in its way: it is part of what it needs.
    """
    placed = jax.numpy.ones(50, np.float32)

    class Device:
        platform = "gpu"

        def memory_stats(self):
            return {"bytes_limit": 3000, "bytes_in_use": 2000 + placed.nbytes}

    class Program:
        def __init__(self, option):
            self.temp_size_in_bytes = 300 * {"vmap": 8, "scan": 1}.get(option.name, option.size)

        def memory_analysis(self):
            return self

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chosen = memory.fit(fo.Strategy("auto"), 8, Program, placed)
    assert (chosen.name, chosen.size) == ("chunked", 2)
    assert memory.fit(fo.Strategy("auto"), 8, Program, np.ones(50, np.float32)).name == "scan"


def test_what_there_is_is_found():
    assert 2**28 < memory.available_bytes() < 2**50
    with pytest.raises(ValueError, match=r"memory_limit must be a whole number .* got 'lots'"):
        _simulate(fo.Strategy("scan", memory_limit="lots"))


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "0::/pod/own\n",
            {"pod/own/memory.max": "max", "pod/memory.max": "70000", "memory.max": "max"},
        ),
        ("0::/pod/own\n", {"memory.max": "70000"}),  # in a container whose root is the group
        (
            "4:cpu:/a\n5:memory,hugetlb:/a\n",
            {"memory/a/memory.limit_in_bytes": "70000", "memory/memory.limit_in_bytes": "9" * 18},
        ),
    ],
)
def test_the_limits_of_nested_control_groups_count(tmp_path, monkeypatch, line, files):
    (tmp_path / "own").write_text(line)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    assert memory.available_bytes() == 70000
