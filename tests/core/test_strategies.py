"""Ways to execute the client axis: the same numbers from all, and the right choice among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_opt as fo
from fedjax_opt.execution import client_table, strategies
from tests.core import problems

SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1), option=1)
DATA = problems.ragged([5, 8, 3, 12, 7, 4, 9])


def mesh(count):
    return Mesh(np.array(jax.devices()[:count]), ("clients",))


def run(strategy):
    """Three rounds of SCAFFOLD with a full-batch probe, five of seven clients in each."""
    federation = fo.Federation(
        problems.MODEL, DATA, cohort=5, local_steps=fo.epochs(2), batch_size=4
    )
    state = problems.start(SCAFFOLD, 7)
    return fo.run_rounds(SCAFFOLD, federation, state, 3, strategy=strategy)


@pytest.fixture(scope="module")
def reference():
    return run("scan")


@pytest.mark.parametrize(
    "strategy",
    [
        "vmap",
        fo.Strategy("chunked", size=1),
        fo.Strategy("chunked", size=2),
        fo.Strategy("chunked", size=5),
        fo.Strategy("chunked", size=50),
        fo.Strategy("sharded", mesh=mesh(4)),
        fo.Strategy("sharded", mesh=mesh(3)),
        fo.Strategy("sharded", mesh=mesh(1)),
        fo.Strategy("sharded", mesh=mesh(2), inner="vmap"),
        "auto",
    ],
    ids=str,
)
def test_all_strategies_agree(strategy, reference):
    found = run(strategy)
    problems.assert_identical(found.history.cohort, reference.history.cohort)
    problems.assert_identical(found.history.num_steps, reference.history.num_steps)
    problems.assert_close(found.history, reference.history)
    problems.assert_close(found.state, reference.state)


def test_auto_spreads_over_cpu_devices():
    chosen = strategies.resolve("auto")
    assert chosen.name == "sharded" and chosen.inner == "scan"
    assert chosen.mesh.size == jax.local_device_count() == 4


def test_auto_on_one_cpu_device_is_scan(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert strategies.resolve("auto") == fo.Strategy("scan")


def test_auto_on_an_accelerator_waits_for_the_shapes(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert strategies.resolve("auto").name == "auto"


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("fast", "strategy must be one of 'auto', .*'sharded', got 'fast'"),
        (3, "strategy must be a name or a Strategy, got 3"),
        (fo.Strategy("fast"), "strategy.name must be one of .* got 'fast'"),
        (fo.Strategy("sharded", inner="chunked"), "strategy.inner must be one of 'scan', 'vmap'"),
        (fo.Strategy("chunked", size=0), "strategy.size must be .*at least 1, got 0"),
        (
            fo.Strategy("sharded", mesh=Mesh(np.array(jax.devices()), ("batch",))),
            r"strategy.mesh must have .*'clients', or 'clients' and 'model', got \('batch',\)",
        ),
        (
            fo.Strategy("sharded", mesh=Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))),
            r"strategy.mesh must have the one axis 'clients', or .*, got \('a', 'b'\)",
        ),
    ],
)
def test_wrong_strategies_are_refused(strategy, message):
    with pytest.raises(ValueError, match=message):
        fo.make_round(SCAFFOLD, problems.MODEL, strategy=strategy)


@pytest.mark.parametrize("limit", [1, 100, 10**6], ids=["row by row", "a few", "all"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_rows_are_written_where_they_belong(count, limit, monkeypatch):
    """Rows that devices computed end up in everybody's table; those with no place, nowhere."""
    monkeypatch.setitem(client_table._EXCHANGED_BYTES, "cpu", limit)
    rng = np.random.default_rng(count)
    table = {"a": rng.normal(size=(9, 2, 3)), "b": rng.integers(9, size=9)}
    size = strategies.round_up(sharded(count), 7)
    places = np.full(size, 9)
    places[:7] = [4, 9, 0, 8, 1, 9, 5]
    rows = {"a": rng.normal(size=(size, 2, 3)), "b": rng.integers(9, size=size)}
    found = jax.jit(lambda *x: client_table.write(sharded(count).mesh, *x))(table, rows, places)
    expected = {name: array.copy() for name, array in table.items()}
    for place, i in ((4, 0), (0, 2), (8, 3), (1, 4), (5, 6)):
        for name in expected:
            expected[name][place] = rows[name][i]
    problems.assert_identical(found, expected)
    elsewhere = client_table.write(None, *jax.tree.map(jnp.asarray, (table, rows, places)))
    problems.assert_identical(elsewhere, expected)


def sharded(count):
    return strategies.resolve(fo.Strategy("sharded", mesh=mesh(count)))
