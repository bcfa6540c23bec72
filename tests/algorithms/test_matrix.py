"""What every algorithm must do, asked of each row of matrix.py.

The rounds have seven clients, cohorts of five (which neither two nor four divides), unequal weights and
unequal numbers of steps. Most tests share one compiled round per row.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import algorithms
from tests.algorithms import helpers
from tests.algorithms.matrix import COMPOSED, ROWS

NUM_CLIENTS, SIZE, STEPS = 7, 5, 3
TRACES = []


def _counting_loss(variables, batch, key):
    """Softmax regression that notes each time it is traced."""
    TRACES.append(None)
    return helpers.MODELS["logreg"].loss(variables, batch, key)


MODEL = fo.Model(init=None, loss=_counting_loss)


@pytest.fixture(scope="module", params=ROWS | COMPOSED)
def row(request):
    """A row; with this scope, pytest runs all tests of a row together."""
    return (ROWS | COMPOSED)[request.param]


def _inputs(rng, dtype=np.float64):
    """One round's arguments (cohort, batches, weights, num_steps, probe_batches), all random."""

    def examples(*axes):
        x = rng.normal(size=(*axes, 4, 3)).astype(dtype)
        return {"x": x, "y": rng.integers(0, 2, size=(*axes, 4))}

    return {
        "cohort": rng.permutation(NUM_CLIENTS)[:SIZE],
        "batches": examples(SIZE, STEPS),
        "weights": rng.uniform(0.2, 3.0, size=SIZE),
        "num_steps": rng.integers(1, STEPS + 1, size=SIZE),
        "probe_batches": examples(SIZE, 2),
    }


def _start(algorithm, strategy="scan", dtype=np.float64):
    params = helpers.random_params(np.random.default_rng(0), "logreg")
    params = jax.tree.map(lambda p: jnp.asarray(p, dtype), params)
    return helpers.place(fo.first_state(algorithm, params, NUM_CLIENTS), strategy)


def _play(row, seed, rounds=2, strategy="scan", change=lambda inputs: inputs):
    """The states before and after each round, and the infos, of a few random rounds."""
    algorithm, rng = row.make(row.learning_rate), np.random.default_rng(seed)
    round_fn = fo.make_round(algorithm, MODEL, strategy=helpers.STRATEGIES[strategy])
    states, infos = [_start(algorithm, strategy)], []
    for _ in range(rounds):
        state, info = round_fn(states[-1], **change(_inputs(rng)))
        states.append(state)
        infos.append(info)
    return states, infos


# Public, and no rows of the matrix; tests/algorithms/test_personal.py and tests/wrappers ask of these.
ELSEWHERE = {
    "adaptive_fedopt": "its optimisers have rows",
    "independent": "its server learns nothing",
    "ce_fedavg": "is mfl, compressed",
    "compressed_fedavg": "is fedavg, compressed",
}


def test_every_public_algorithm_has_a_row_or_a_reason():
    public = {name for name in dir(algorithms) if callable(getattr(algorithms, name))}
    rows = {name.replace("-", "_") for name in ROWS | COMPOSED}
    without = {n for n in public if not any(r == n or r.startswith(f"{n}_") for r in rows)}
    assert without == set(ELSEWHERE)


def _comparable(state):
    return state.server, state.clients, state.round


def _reordered(inputs, order):
    return jax.tree.map(lambda x: x[order], inputs)


# Limits ---------------------------------------------------------------------------------------

QUADRATICS, DATA, OPTIMUM = fo.data.quadratics(num_clients=4, dimension=3, seed=1)
SAMPLERS = {
    "full": fo.cohorts.cyclic(4),
    "cyclic": fo.cohorts.cyclic(2),
    "random": fo.cohorts.uniform(2),
}


def _distance_to_optimum(row, learning_rate, repeats, participation="full"):
    """How far repeats * row.rounds rounds with K = 5 end from the optimum."""
    algorithm = row.make(learning_rate)
    state = fo.first_state(algorithm, {"x": jnp.zeros(3)}, 4)
    for _ in range(repeats):
        run = fo.run_rounds(
            algorithm,
            fo.Federation(
                QUADRATICS,
                DATA,
                cohort=SAMPLERS[participation],
                local_steps=5,
                batch_size=1,
                batching="replacement",
            ),
            state,
            row.rounds,
            strategy="vmap",
        )
        state = run.state
    assert bool(jnp.all(run.history.finite))
    return helpers.distance(state.variables.params["x"], OPTIMUM)


@pytest.mark.slow
def test_reaches_its_stated_limit(row):
    """Exact: the optimum. Else not the optimum, but nearer with a smaller step, unless biased."""
    if not row.limit:
        pytest.skip("it does not fit the quadratics")
    for participation in row.exact:
        repeats = 1 if participation == "full" else 4
        far = _distance_to_optimum(row, row.learning_rate, repeats, participation)
        assert far <= 1e-10, participation
    if row.exact:
        return
    far = _distance_to_optimum(row, row.learning_rate, repeats=1)
    near = _distance_to_optimum(row, row.learning_rate / 4, repeats=4)
    assert 1e-6 < near < 0.05
    assert far < 0.1
    # A biased one ends at the same place whatever the step; any other must come nearer.
    assert (near <= far / 2) != row.biased


# Compilation ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiles_once_for_changing_steps_cohort_and_learning_rate(row):
    """Fifty rounds by fifty round functions of fifty algorithms: the model is traced for the first."""
    rng = np.random.default_rng(1)
    state = _start(row.make(row.learning_rate))
    traces = []
    for t in range(50):
        round_fn = fo.make_round(row.make(row.learning_rate / (1 + t)), MODEL, strategy="scan")
        state, _ = round_fn(state, **_inputs(rng))
        traces.append(len(TRACES))
    assert traces[0] > 0
    assert traces == [traces[0]] * 50
    assert int(state.round) == 50


@pytest.mark.slow
def test_float32_and_types_are_stable_in_a_scan_with_a_traced_learning_rate(row):
    """float32 stays float32 with x64 on; another learning rate traces nothing."""
    rng = np.random.default_rng(2)
    rounds = [_inputs(rng, np.float32) for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rounds)

    @jax.jit
    def run(learning_rate, state):
        round_fn = fo.make_round(row.make(learning_rate), MODEL, strategy="scan")
        return jax.lax.scan(lambda state, inputs: round_fn(state, **inputs), state, stacked)

    state = _start(row.make(row.learning_rate), dtype=np.float32)
    slow, _ = run(row.learning_rate / 2, state)
    traces = len(TRACES)
    fast, infos = run(row.learning_rate, state)
    assert len(TRACES) == traces
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(fast.variables))
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(fast), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert after.dtype != np.float64
    assert helpers.distance(slow.variables, fast.variables) > 1e-5
    # The same rounds in float64, outside of jit, are the same up to float32's precision.
    algorithm = row.make(row.learning_rate)
    exact = _start(algorithm)
    for inputs in rounds:
        wide = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, inputs)
        exact, _ = fo.make_round(algorithm, MODEL, strategy="scan")(exact, **wide)
    helpers.assert_close(exact.variables, fast.variables, 1e-4)
    assert bool(jnp.all(infos.finite))


# Symmetry and state ---------------------------------------------------------------------------


def test_order_of_the_cohort_changes_nothing(row):
    """Server, clients and losses are those of the same cohort in another order."""
    order = np.random.default_rng(3).permutation(SIZE)
    states, infos = _play(row, seed=4)
    permuted, permuted_infos = _play(row, seed=4, change=lambda i: _reordered(i, order))
    helpers.assert_close(_comparable(states[-1]), _comparable(permuted[-1]), 1e-12)
    helpers.assert_close(infos[-1].loss, permuted_infos[-1].loss, 1e-12)
    helpers.assert_close(infos[-1].client_loss[order], permuted_infos[-1].client_loss, 1e-12)


def test_clients_outside_of_the_cohort_keep_their_state_bit_for_bit(row):
    """And those inside change theirs, if they have any."""
    states, infos = _play(row, seed=5, rounds=3)
    for before, after, info in zip(states[:-1], states[1:], infos, strict=True):
        inside = np.isin(np.arange(NUM_CLIENTS), info.cohort)
        rest = [jax.tree.map(lambda x: x[~inside], s.clients) for s in (before, after)]  # noqa: B023
        helpers.assert_same_bits(*rest)
        pairs = zip(jax.tree.leaves(before.clients), jax.tree.leaves(after.clients), strict=True)
        changed = [np.any(old != new, axis=tuple(range(1, old.ndim))) for old, new in pairs]
        if changed:
            np.testing.assert_array_equal(np.any(changed, axis=0), inside)


def test_a_client_of_weight_zero_does_not_move_the_model(row):
    """Whatever its data are, unless the rule has a sum that ignores weights."""

    def without_first(scale):
        def change(inputs):
            inputs["weights"][0] = 0.0
            inputs["batches"]["x"][0] *= scale
            inputs["probe_batches"]["x"][0] *= scale
            return inputs

        return change

    kept, _ = _play(row, seed=6, rounds=1, change=without_first(1.0))
    scaled, _ = _play(row, seed=6, rounds=1, change=without_first(3.0))
    weighted, _ = _play(row, seed=6, rounds=1)
    if row.uniform:
        assert helpers.distance(kept[-1].variables, scaled[-1].variables) > 1e-6
    else:
        helpers.assert_same_bits(kept[-1].variables, scaled[-1].variables)
    assert helpers.distance(kept[-1].variables, weighted[-1].variables) > 1e-6


def test_scaling_all_weights_changes_nothing(row):
    """Weights are normalised."""

    def scaled(inputs):
        return {**inputs, "weights": 64 * inputs["weights"]}

    plain, heavy = _play(row, seed=7)[0], _play(row, seed=7, change=scaled)[0]
    helpers.assert_close(_comparable(plain[-1]), _comparable(heavy[-1]), 1e-12)


# Strategies -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sharded", "chunked", "vmap"])
def test_every_strategy_gives_the_same_numbers(row, strategy):
    """Server, clients and infos agree with `scan` for a cohort that does not divide evenly.

    One client never reports, and another one has no weight.
    """

    def with_absence(inputs):
        inputs["num_steps"][1], inputs["weights"][3] = 0, 0.0
        return inputs

    states, infos = _play(row, seed=8, change=with_absence)
    others, other_infos = _play(row, seed=8, strategy=strategy, change=with_absence)
    for a, b in zip(states, others, strict=True):
        helpers.assert_close(_comparable(a), _comparable(b), 1e-10)
    for a, b in zip(infos, other_infos, strict=True):
        helpers.assert_close(a, b, 1e-10)
    assert helpers.distance(states[0].variables, states[-1].variables) > 1e-4


def test_a_mesh_of_explicit_axes_can_be_sharded_over():
    """`jax.make_mesh` is how JAX's documentation makes a mesh; `Strategy` accepts it."""
    mesh = jax.make_mesh((jax.local_device_count(),), ("clients",))
    row, rng = ROWS["fedavg"], np.random.default_rng(9)
    algorithm, inputs = row.make(row.learning_rate), _inputs(rng)
    state, _ = fo.make_round(algorithm, MODEL, strategy=fo.Strategy("sharded", mesh=mesh))(
        _start(algorithm), **inputs
    )
    expected, _ = fo.make_round(algorithm, MODEL, strategy="scan")(_start(algorithm), **inputs)
    helpers.assert_close(_comparable(state), _comparable(expected), 1e-10)
