"""Rules of aggregation: against NumPy, in algorithms and strategies, and against clients that lie.

The rounds have seven clients, cohorts of five (which neither two nor four divides), unequal weights and
unequal numbers of steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import fedjax_opt as fo
from fedjax_opt import aggregators as rules
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

NUM_CLIENTS, SIZE, STEPS, LR = 7, 5, 3, 0.2

# Rules by themselves --------------------------------------------------------------------------

# Weiszfeld's gap to the optimum falls like 1 / iterations where two points nearly balance: for two
# points at a distance r it is at most r / (2 e iterations), whatever their weights.
ITERATIONS = 5000


@jax.jit
def _by_rule(values, weights, fraction):
    made = {
        "weighted": rules.weighted_mean(),
        "uniform": rules.uniform_mean(),
        "median": rules.coordinate_median(),
        "trimmed": rules.trimmed_mean(fraction),
        "geometric": rules.geometric_median(ITERATIONS),
    }
    return {name: rule(values, weights) for name, rule in made.items()}


def _numpy_rules(values, weights, fraction):
    """What NumPy says of the values `[n, d]` of those who have a say."""
    ordered, n = np.sort(values, axis=0), len(values)
    cut = int(np.floor(fraction * n))
    return {
        "weighted": np.average(values, axis=0, weights=weights),
        "uniform": np.mean(values, axis=0),
        "median": np.median(values, axis=0),
        "trimmed": np.mean(ordered[cut : n - cut], axis=0),
    }


def _sum_of_distances(point, values, weights):
    return weights @ np.linalg.norm(values - point, axis=1)


def _smallest_sum_of_distances(values, weights):
    """By brute force: at every value, and where a search without derivatives ends."""
    search = optimize.minimize(
        _sum_of_distances,
        np.average(values, axis=0, weights=weights),
        args=(values, weights),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 2000},
    )
    return min(search.fun, *(_sum_of_distances(v, values, weights) for v in values))


def _as_tree(array):
    """Two leaves of different ranks, so that distances are over a tree."""
    return {"a": jnp.asarray(array[:, :2]), "b": jnp.asarray(array[:, 2])}


def _as_array(tree):
    return np.concatenate([np.asarray(tree["a"], float), np.asarray(tree["b"], float)[..., None]])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 5, 8]),
    dtype=st.sampled_from([np.float32, np.float64]),
    ties=st.booleans(),
    fraction=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4, 0.49]),
)
def test_rules_are_those_of_numpy(seed, size, dtype, ties, fraction):
    """Weights of zero have no say, even over NaN; the order of the clients does not matter."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(size, 3))
    values = (np.round(values) if ties else values).astype(dtype)
    weights = rng.uniform(0.1, 1.0, size) * (rng.random(size) < 0.7)
    weights[rng.integers(size)] = 0.5
    weights /= weights.sum()
    heard = weights > 0
    values[~heard] = np.nan
    found = _by_rule(_as_tree(values), jnp.asarray(weights), fraction)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(found))
    honest, their_weights = values[heard].astype(float), weights[heard]
    # A sum of eight terms of size four, each rounded twice.
    tolerance = {np.float32: 5e-6, np.float64: 1e-14}[dtype]
    for name, expected in _numpy_rules(honest, their_weights, fraction).items():
        np.testing.assert_allclose(
            _as_array(found[name]), expected, rtol=0, atol=tolerance, err_msg=name
        )
    order = rng.permutation(size)
    again = _by_rule(_as_tree(values[order]), jnp.asarray(weights[order]), fraction)
    # Where the sum of distances is nearly flat, its minimum is anywhere: the sums are compared.
    reached, reached_again = (
        _sum_of_distances(_as_array(made.pop("geometric")), honest, their_weights)
        for made in (found, again)
    )
    allowed = np.ptp(honest, axis=0).max() * 3 / (2 * np.e * ITERATIONS) + 2e-6
    assert reached <= _smallest_sum_of_distances(honest, their_weights) + allowed
    np.testing.assert_allclose(reached_again, reached, rtol=0, atol=tolerance)
    for name in found:
        np.testing.assert_allclose(
            _as_array(again[name]), _as_array(found[name]), rtol=0, atol=tolerance, err_msg=name
        )


def test_geometric_median_is_fermats_point():
    """Of a triangle: under the apex at a height of 1 / sqrt(3), however high the apex stands."""
    values = jnp.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    found = rules.geometric_median(200)(values, jnp.full(3, 1 / 3))
    np.testing.assert_allclose(found, [0.0, 1 / np.sqrt(3)], atol=1e-12)


ROBUST = {
    "median": rules.coordinate_median(),
    "trimmed": rules.trimmed_mean(0.4),
    "geometric": rules.geometric_median(),
}


@jax.jit
def _robustly(values):
    weights = jnp.full(values.shape[0], 1 / values.shape[0])
    return {name: rule(values, weights) for name, rule in ROBUST.items()}


@pytest.mark.parametrize("lie", [1e9, 1e200, np.inf])
@pytest.mark.parametrize("name", ROBUST)
def test_two_liars_of_five_move_a_robust_rule_no_further_than_the_honest_are_apart(name, lie):
    """However far away they say that they are."""
    honest = np.array([[1.0, -1.0], [1.1, -1.2], [0.9, -0.8]])
    values = np.concatenate([honest, np.full((2, 2), lie)])
    found = np.asarray(_robustly(values)[name])
    assert np.linalg.norm(found - honest.mean(0)) <= _bound(honest, share_of_liars=0.4)


def _bound(honest, share_of_liars):
    """How far from the honest mean a geometric median can be: two triangle inequalities.

    The sum of distances is no larger at the median than at the mean, D away. For a liar the two
    distances differ by at most D; for an honest client one is at least D - r, the other at most r. So
    (1 - 2a) D <= 2 (1 - a) r. A rule that stays within the honest values in each coordinate is nearer.
    """
    radius = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    return 2 * (1 - share_of_liars) / (1 - 2 * share_of_liars) * radius


# In a round -----------------------------------------------------------------------------------


def _inputs(seed=0, rounds=2):
    """Arguments of a few rounds, all random."""
    rng = np.random.default_rng(seed)

    def examples(*axes):
        return {"x": rng.normal(size=(*axes, 4, 3)), "y": rng.normal(size=(*axes, 4))}

    return [
        {
            "cohort": rng.permutation(NUM_CLIENTS)[:SIZE],
            "batches": examples(SIZE, STEPS),
            "weights": rng.uniform(0.2, 3.0, size=SIZE),
            "num_steps": rng.integers(1, STEPS + 1, size=SIZE),
            "probe_batches": examples(SIZE, 2),
        }
        for _ in range(rounds)
    ]


def _start(algorithm, params=None):
    params = {"w": np.array([0.3, -0.8, 0.5])} if params is None else params
    return fo.first_state(algorithm, params, NUM_CLIENTS)


def _play(algorithm, inputs, strategy="scan", model=helpers.LINEAR, params=None):
    """The state after the rounds, without its key, and the infos."""
    round_fn = fo.make_round(algorithm, model, strategy=helpers.STRATEGIES[strategy])
    state, infos = helpers.place(_start(algorithm, params), strategy), []
    for arguments in inputs:
        state, info = round_fn(state, **arguments)
        infos.append(info)
    return state, infos


def _kept(state):
    return state.server, state.clients, state.round


def _own_mean(values, weights):
    """A user's rule: the weighted mean, of all uploads at once."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), values)


FEDAVG = fo.fedavg(opt.sgd(LR), 0.7)
PLAIN = {
    "fedavg": FEDAVG,
    "scaffold": fo.scaffold(opt.sgd(LR), 2, 0.7),
    "feddyn": fo.feddyn(opt.sgd(LR), 2.0),
    "mime": fo.mime(opt.sgdm(LR, 0.5)),
}
BY_NAME = pytest.mark.parametrize("name", PLAIN)


@BY_NAME
def test_weighted_mean_is_the_algorithm_itself(name):
    """Bit for bit by name; up to rounding by a user's own rule that sees all uploads at once."""
    inputs = _inputs()
    plain, _ = _play(PLAIN[name], inputs)
    named, _ = _play(fo.aggregated(PLAIN[name], rules.weighted_mean()), inputs)
    helpers.assert_same_bits(_kept(named), _kept(plain))
    own, infos = _play(fo.aggregated(PLAIN[name], _own_mean), inputs)
    helpers.assert_close(_kept(own), _kept(plain), 1e-12)
    assert all(bool(info.finite) for info in infos)


@BY_NAME
def test_uniform_mean_is_the_algorithm_with_uniform_weights(name):
    """In uploads, in reports, and in the losses that are noted: all of a round has the same weights."""
    inputs = _inputs()
    flat = [{**arguments, "weights": np.ones(SIZE)} for arguments in inputs]
    uniform, infos = _play(fo.aggregated(PLAIN[name], rules.uniform_mean()), inputs)
    expected, expected_infos = _play(PLAIN[name], flat)
    helpers.assert_close(_kept(uniform), _kept(expected), 1e-12)
    helpers.assert_close(infos, expected_infos, 1e-12)
    weighted, weighted_infos = _play(PLAIN[name], inputs)
    assert helpers.distance(uniform.variables, weighted.variables) > 1e-3
    assert helpers.distance(infos[0].first_loss, weighted_infos[0].first_loss) > 1e-3


def test_uniform_mean_counts_local_steps_uniformly_too():
    """The mean K by which GHBM's theory form moves is that of the uploads."""
    algorithm, inputs = fo.ghbm_theory(opt.sgd(LR), 2, 0.5), _inputs(rounds=1)
    flat = [{**arguments, "weights": np.ones(SIZE)} for arguments in inputs]
    uniform, _ = _play(fo.aggregated(algorithm, rules.uniform_mean()), inputs)
    expected, _ = _play(algorithm, flat)
    helpers.assert_close(_kept(uniform), _kept(expected), 1e-12)


@pytest.mark.parametrize("inside", [rules.uniform_mean(), rules.coordinate_median()])
@pytest.mark.parametrize("outside", [rules.weighted_mean(), rules.trimmed_mean(0.2)])
def test_an_aggregator_around_another_is_refused(inside, outside):
    """One of them would be lost."""
    with pytest.raises(ValueError, match="aggregated goes around an algorithm once"):
        fo.aggregated(fo.private(fo.aggregated(FEDAVG, inside), "params/b"), outside)
    assert fo.aggregated(FEDAVG, rules.weighted_mean()) is FEDAVG


def _uploads(arguments, model=helpers.LINEAR, params=None):
    """Each client's y - x: what FedAvg makes of it if nobody else has a weight."""
    whole = fo.fedavg(opt.sgd(LR))
    before = _start(whole, params).variables.params
    changes = []
    for weights in np.eye(SIZE):
        after, _ = _play(whole, [{**arguments, "weights": weights}], model=model, params=params)
        changes.append(jax.tree.map(jnp.subtract, after.variables.params, before))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *changes)


@pytest.mark.parametrize("name", ROBUST)
def test_a_robust_rule_in_a_round(name):
    """The rule of the uploads; the mean of equal ones; one liar of five does not matter."""
    algorithm = fo.aggregated(fo.fedavg(opt.sgd(LR)), ROBUST[name])
    (arguments,) = _inputs(2, rounds=1)
    before = _start(algorithm).variables.params["w"]

    def change(arguments):
        return _play(algorithm, [arguments])[0].variables.params["w"] - before

    uploads = _uploads(arguments)["w"]
    weights = jnp.asarray(arguments["weights"] / arguments["weights"].sum())
    helpers.assert_close(change(arguments), ROBUST[name](uploads, weights), 1e-12)
    # All clients have the data and the steps of the first.
    same = {**arguments, "num_steps": np.full(SIZE, 2)}
    same["batches"] = jax.tree.map(lambda x: np.repeat(x[:1], SIZE, axis=0), same["batches"])
    helpers.assert_close(change(same), _uploads(same)["w"][0], 1e-12)
    # One client's targets are a million.
    honest = np.delete(np.asarray(uploads), 2, axis=0)
    arguments["batches"]["y"][2] = 1e6
    arguments["weights"] = np.ones(SIZE)
    bound = _bound(honest, share_of_liars=0.2)
    assert np.linalg.norm(change(arguments) - honest.mean(0)) <= bound
    mean = np.asarray(_uploads(arguments)["w"]).mean(0)
    assert np.linalg.norm(mean - honest.mean(0)) > 1000 * bound


@pytest.mark.parametrize("name", [*ROBUST, "uniform"])
def test_a_round_in_which_nobody_reports_changes_nothing(name):
    """Bit for bit, and no mean of nobody is said to be 0."""
    rule = {**ROBUST, "uniform": rules.uniform_mean()}[name]
    algorithm = fo.aggregated(fo.fedavg(opt.sgd(LR)), rule)
    (arguments,) = _inputs(3, rounds=1)
    arguments["num_steps"][:] = 0
    start = _start(algorithm)
    after, (info,) = _play(algorithm, [arguments])
    helpers.assert_same_bits((after.server, after.clients), (start.server, start.clients))
    assert bool(info.finite) and int(after.round) == 1
    assert np.isnan(info.loss) and float(info.update_norm) == 0


def _two_leaves(variables, batch, key):
    del key
    errors = batch["x"] @ variables.params["w"] + variables.params["b"] - batch["y"]
    return jnp.mean(errors**2) / 2, fo.Aux()


TWO_LEAVES = fo.Model(None, _two_leaves)


def test_private_leaves_have_no_part_in_a_robust_rule():
    """Distances are over what is sent; private leaves are each client's own. In either order."""
    rule, fedavg = ROBUST["geometric"], fo.fedavg(opt.sgd(LR))
    params = {"w": np.array([0.3, -0.8, 0.5]), "b": np.array(0.4)}
    (arguments,) = _inputs(4, rounds=1)
    arguments["batches"]["y"][0] += 50.0
    uploads = _uploads(arguments, TWO_LEAVES, params)
    weights = jnp.asarray(arguments["weights"] / arguments["weights"].sum())
    expected = params["w"] + rule(uploads["w"], weights)
    for algorithm in (
        fo.aggregated(fo.private(fedavg, "params/b"), rule),
        fo.private(fo.aggregated(fedavg, rule), "params/b"),
    ):
        state, _ = _play(algorithm, [arguments], model=TWO_LEAVES, params=params)
        helpers.assert_close(state.variables.params["w"], expected, 1e-12)
        own = state.clients.patch.variables.params["b"][arguments["cohort"]]
        helpers.assert_close(own, params["b"] + uploads["b"], 1e-12)
    both = rule(uploads, weights)["w"]
    assert helpers.distance(params["w"] + both, expected) > 1e-3


def test_a_robust_round_can_be_differentiated():
    """In reverse mode, as any other whose number of steps is fixed."""
    (arguments,) = _inputs(6, rounds=1)
    del arguments["num_steps"]

    def end(rate, rule):
        algorithm = fo.aggregated(fo.fedavg(opt.sgd(rate)), rule)
        return _play(algorithm, [arguments])[0].variables.params["w"][0]

    rule, step = rules.geometric_median(4), 1e-5
    difference = (end(LR + step, rule) - end(LR - step, rule)) / (2 * step)
    # A central difference is off by f''' h^2 / 6, and by rounding of about 1e-16 / h.
    np.testing.assert_allclose(jax.grad(end)(LR, rule), difference, rtol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rules.trimmed_mean(0.5), r"fraction must lie in \[0\.0, 0\.5\), got 0\.5"),
        (lambda: rules.trimmed_mean(-0.1), r"fraction must lie in \[0\.0, 0\.5\), got -0\.1"),
        (lambda: rules.trimmed_mean(np.nan), "fraction must lie in .* got nan"),
        (lambda: rules.trimmed_mean("much"), "fraction must be a number, got 'much'"),
        (lambda: rules.geometric_median(0), "iterations must be .*at least 1, got 0"),
        (lambda: rules.geometric_median(2.5), r"iterations must be a whole number .* got 2\.5"),
        (lambda: rules.geometric_median(smoothing=0.0), r"smoothing must lie in \(0\.0, .* 0\.0"),
        (lambda: fo.aggregated(FEDAVG, 0.1), r"aggregator must be a function of .* got 0\.1"),
        (lambda: fo.aggregated(FEDAVG, "median"), "aggregator must be .* got 'median'"),
        (lambda: fo.aggregated(FEDAVG, None), "aggregator must be .* got None"),
    ],
)
def test_wrong_rules_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
