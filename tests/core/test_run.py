"""Many rounds as one program: resumable, vmappable, differentiable, compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems

SIZES = (5, 8, 3, 12, 7, 4)
DATA = problems.ragged(SIZES)
N = len(SIZES)
SGD = fo.optimizers.sgd(0.1)
BASE = fo.Federation(problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4)


def run(algorithm, rounds=5, state=None, **options):
    federation, options = problems.changed(BASE, options)
    state = problems.start(algorithm, N) if state is None else state
    return fo.run_rounds(algorithm, federation, state, rounds, **{"strategy": "scan"} | options)


@pytest.mark.parametrize(
    "algorithm", [fo.scaffold(SGD), fo.fedadam(SGD)], ids=["scaffold", "fedadam"]
)
@pytest.mark.parametrize(
    "sampler",
    [fo.cohorts.uniform(3), fo.cohorts.dynamic_pool(3, pool_size=4, every=30)],
    ids=["uniform", "pool"],
)
def test_200_rounds_are_100_and_100_more(algorithm, sampler):
    whole = run(algorithm, 200, cohort=sampler)
    first = run(algorithm, 100, cohort=sampler)
    second = run(algorithm, 100, first.state, cohort=sampler)
    problems.assert_identical(second.state, whole.state)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first.history, second.history)
    problems.assert_identical(joined, whole.history)


def test_a_seed_names_a_run():
    algorithm = fo.fedavg(SGD)
    first, again, other = (run(algorithm, 5, problems.start(algorithm, N, s)) for s in (1, 1, 2))
    problems.assert_identical(first, again)
    assert np.any(first.history.cohort != other.history.cohort)


def test_vmap_over_learning_rates_and_seeds_equals_separate_runs():
    rates, seeds = jnp.array([0.01, 0.1]), jnp.array([3, 4])

    def final(rate, seed):
        algorithm = fo.scaffold(fo.optimizers.sgd(rate))
        result = run(algorithm, 5, problems.start(algorithm, N, jax.random.key(seed)))
        return result.state.server, result.history.loss

    grid = jax.vmap(jax.vmap(final, (None, 0)), (0, None))(rates, seeds)
    for i, rate in enumerate(rates):
        for j, seed in enumerate(seeds):
            entry = jax.tree.map(lambda x, i=i, j=j: x[i, j], grid)
            problems.assert_close(entry, final(rate, seed))
    assert len(np.unique(grid[1][..., -1])) == 4


def final_loss(rate, **options):
    algorithm = fo.fedadam(fo.optimizers.sgd(rate))
    result = run(algorithm, 5, **options)
    return problems.MODEL.loss(result.state.variables, DATA.examples, None)[0]


def test_the_gradient_through_a_run():
    step = 1e-5
    finite = (final_loss(0.1 + step) - final_loss(0.1 - step)) / (2 * step)
    reverse = jax.grad(final_loss)(0.1)
    # A central difference is off by f''' h^2 / 6, and by rounding of about 1e-16 / h = 1e-11.
    np.testing.assert_allclose(reverse, finite, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(final_loss, (0.1,), (1.0,))[1], reverse, rtol=1e-10)


@pytest.mark.slow
def test_the_gradient_through_a_probe_of_clients_of_one_size():
    """Their passes over all of their rows have a known length."""
    data = problems.ragged([6, 5, 6, 5])

    def loss(rate):
        algorithm = fo.mimelite(fo.optimizers.sgdm(rate, 0.9))
        state = problems.start(algorithm, 4)
        federation = BASE.replace(clients=data, cohort=2, batch_size=3)
        found = fo.run_rounds(algorithm, federation, state, 3, strategy="scan")
        return found.history.loss[-1]

    np.testing.assert_allclose(jax.grad(loss)(0.1), jax.jvp(loss, (0.1,), (1.0,))[1], rtol=1e-10)


def test_a_dynamic_number_of_steps_refuses_reverse_mode_and_serves_forward_mode():
    with pytest.raises(
        ValueError, match=r"fixed number of local steps.*Pass local_steps as a Python"
    ):
        jax.grad(lambda rate: final_loss(rate, local_steps=jnp.int32(2)))(0.1)
    dynamic = jax.jvp(lambda rate: final_loss(rate, local_steps=jnp.int32(2)), (0.1,), (1.0,))[1]
    np.testing.assert_allclose(dynamic, jax.grad(final_loss)(0.1), rtol=1e-10)


def test_numbers_may_change_without_recompiling():
    model, traces = problems.counted()

    def play(rate=0.1, steps=2, weights=(1.0,) * N, state=None):
        algorithm = fo.scaffold(fo.optimizers.sgd(rate))
        sampler = fo.cohorts.weighted(3, weights)
        options = {"model": model, "cohort": sampler, "local_steps": jnp.int32(steps)}
        return run(algorithm, 3, state, **options)

    first = play()
    compiled = len(traces)
    assert compiled > 0
    play(rate=0.2)
    assert play(steps=7).history.num_steps.max() == 7
    assert play(weights=(1.0, 2.0, 3.0, 4.0, 5.0, 0.0)).history.cohort.max() < 5
    play(state=first.state)
    play(state=problems.start(fo.scaffold(SGD), N, seed=8))
    assert len(traces) == compiled


def test_local_steps_one_per_client():
    steps = np.array([1, 2, 3, 4, 5, 6])
    history = run(fo.fedavg(SGD), local_steps=steps).history
    np.testing.assert_array_equal(history.num_steps, steps[np.asarray(history.cohort)])


def test_local_steps_as_a_function_of_the_round():
    history = run(fo.fedavg(SGD), local_steps=lambda t: 4 - t).history
    # A schedule that falls below one step is held there.
    np.testing.assert_array_equal(history.num_steps, np.repeat([[4], [3], [2], [1], [1]], 3, 1))


def test_a_fixed_and_a_dynamic_number_of_steps_agree():
    algorithm = fo.fedavg(SGD)
    problems.assert_close(run(algorithm), run(algorithm, local_steps=jnp.int32(2)))


def test_a_non_finite_loss_freezes_the_last_good_state():
    """Steps far too long: the loss overflows after a while, and that round is not applied."""
    algorithm = fo.scaffold(fo.optimizers.sgd(1e30))
    result = run(algorithm, 8)
    finite = np.asarray(result.history.finite)
    good = int(np.argmin(finite))
    assert 0 < good < 8 and finite[:good].all() and not finite[good:].any()
    assert int(result.state.round) == good
    assert np.all(result.history.bad_step[good] >= -1) and np.any(
        result.history.bad_step[good] >= 0
    )
    problems.assert_identical(result.state, run(algorithm, good).state)


def full_gradient_step(w, ids, weights):
    """FedAvg with one step on all of each client's data."""
    gradients = [problems.gradient(w, DATA[i]["x"], DATA[i]["y"]) for i in ids]
    return w - 0.1 * np.average(gradients, axis=0, weights=weights)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weighting(weighting):
    algorithm = fo.fedavg(SGD)
    result = run(algorithm, 2, batch_size=12, local_steps=1, weighting=weighting)
    w = np.asarray(problems.start(algorithm, N).variables.params["w"])
    for ids in np.asarray(result.history.cohort):
        w = full_gradient_step(w, ids, np.array(SIZES)[ids] if weighting == "samples" else None)
    problems.assert_close(result.state.variables.params["w"], w)


def test_empty_slots_do_not_count():
    """Clients 1 and 4 are reachable, three are asked for."""
    algorithm, reachable = fo.fedavg(SGD), [1, 4]
    sampler = fo.cohorts.available(3, np.isin(np.arange(N), reachable).astype(float))
    result = run(algorithm, 1, cohort=sampler, batch_size=12, local_steps=1)
    taken = np.asarray(result.history.num_steps[0])
    assert sorted(taken.tolist()) == [0, 1, 1]
    assert set(np.asarray(result.history.cohort[0])[taken > 0]) == set(reachable)
    w = np.asarray(problems.start(algorithm, N).variables.params["w"])
    sizes = [SIZES[i] for i in reachable]
    problems.assert_close(
        result.state.variables.params["w"], full_gradient_step(w, reachable, sizes)
    )
    losses = [problems.mean_loss(w, DATA[i]["x"], DATA[i]["y"]) for i in reachable]
    problems.assert_close(result.history.loss, np.average(losses, weights=sizes)[None])


@pytest.mark.parametrize(
    "algorithm", [fo.scaffold(SGD), fo.fedadam(SGD)], ids=["scaffold", "fedadam"]
)
def test_where_nobody_is_reachable_nothing_changes(algorithm):
    """Round 1 of every two has nobody: the server's momentum does not move either."""
    trace = np.stack([np.ones(N), np.zeros(N)])
    cohort = fo.cohorts.available(3, trace)
    one = run(algorithm, 1, cohort=cohort)
    two = run(algorithm, 1, one.state, cohort=cohort)
    assert one.history.num_steps.all() and not two.history.num_steps.any()
    problems.assert_identical(two.state, one.state._replace(round=jnp.int32(2)))
    assert two.history.finite.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": 7}, "state was made for 7 clients, but the federation has 6"),
        ({"cohort": fo.cohorts.weighted(2, np.ones(4))}, "made for 4 clients, but there are 6"),
        (
            {"cohort": fo.cohorts.available(2, np.ones((3, 7)))},
            "made for 7 clients, but there are 6",
        ),
        ({"cohort": fo.cohorts.dynamic_pool(2, pool_size=7, every=2)}, r"pool.* 7"),
        ({"cohort": fo.cohorts.available(2, lambda t: jnp.ones(N - 1))}, "availability.*5"),
        ({"cohort": fo.cohorts.available(2, lambda t: jnp.ones(N + 1))}, "availability.*7"),
        ({"local_steps": lambda t: jnp.ones(N - 1, jnp.int32)}, "local_steps.*5"),
        ({"local_steps": lambda t: jnp.ones(N + 1, jnp.int32)}, "local_steps.*7"),
    ],
)
def test_the_population_must_be_the_same_everywhere(options, message):
    algorithm = fo.fedavg(SGD)
    if "state" in options:
        options = {"state": problems.start(algorithm, options["state"])}
    with pytest.raises(ValueError, match=message):
        run(algorithm, **options)
