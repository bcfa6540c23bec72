"""Controllers inside runs: with other algorithms, resumed, vmapped, interrupted, refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.algorithms.matrix import ROWS
from tests.controllers.test_schedules import DATA, ETA0, ROUNDS, SCHEDULES, build, run
from tests.core.problems import MODEL, assert_identical, counted, start

pytestmark = pytest.mark.slow  # every run is compiled


THREE = fo.Federation(MODEL, DATA, cohort=3, local_steps=2, batch_size=2)


def decay(t):
    return ETA0 * 0.8 ** jnp.asarray(t, float)


ALGORITHMS = {
    "fedgbo": lambda eta: fo.proximal(fo.fedgbo(fo.optimizers.adam(eta)), 0.1),
    "scaffold-m": lambda eta: fo.scaffold_m(fo.optimizers.sgd(eta), beta=0.3),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_reaches_all_that_an_algorithm_does_with_it(name):
    """As the same algorithm, made anew for each round's learning rate, in a loop on the host."""
    make = ALGORITHMS[name]
    federation = THREE.replace(local_steps=jnp.asarray(3))
    start_of_both = start(make(ETA0), 5)
    controlled = fo.run_rounds(fo.scheduled(make, decay), federation, start_of_both, 4)
    state = start_of_both
    for t in range(4):
        state = fo.run_rounds(make(decay(t)), federation, state, 1).state
    np.testing.assert_allclose(
        controlled.state.variables.params["w"], state.variables.params["w"], rtol=1e-12
    )
    np.testing.assert_allclose(
        controlled.history.diagnostics["learning_rate"], ETA0 * 0.8 ** np.arange(4), rtol=1e-12
    )


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_every_algorithm_can_be_controlled(row):
    """K by error and eta on a plateau: the run is traced whole, which is where a combination fails."""
    model, data, _ = fo.data.quadratics(num_clients=4, dimension=3)
    state = fo.first_state(row.make(row.learning_rate), {"x": jnp.zeros(3)}, 4)
    steps = fo.controllers.steps_by_error(5, window=2)
    federation = fo.Federation(
        model, data, cohort=2, local_steps=steps, batch_size=1, validation=data.examples
    )

    def play(initial_rate):
        return fo.run_rounds(
            fo.scheduled(row.make, fo.controllers.rate_on_plateau(initial_rate)),
            federation,
            state,
            3,
            strategy="scan",
        )

    after = jax.eval_shape(play, row.learning_rate)
    assert after.history.diagnostics["learning_rate"].shape == (3,)
    assert jax.tree.structure(after.state.server) == jax.tree.structure(state.server)


def test_a_run_in_two_parts_is_the_same_run():
    both = fo.controllers.Schedule(
        SCHEDULES["K-error"].local_steps, SCHEDULES["eta-step"].learning_rate
    )
    whole = run(both)
    half = run(both, rounds=ROUNDS // 2)
    assert_identical(whole.state, run(both, rounds=ROUNDS // 2, state=half.state).state)


def test_a_checkpoint_holds_what_the_controllers_remember(tmp_path):
    federation = THREE.replace(local_steps=SCHEDULES["K-error"].local_steps)

    def simulate(rounds, **options):
        algorithm = fo.fedavg(fo.optimizers.sgd(ETA0))
        return fo.simulate(
            algorithm, federation, rounds, evaluate_every=4, progress=False, **options
        )

    whole = simulate(16)
    with fo.Checkpoints(tmp_path) as checkpoints:
        simulate(8, checkpoints=checkpoints)
    with fo.Checkpoints(tmp_path) as checkpoints:
        resumed = simulate(16, checkpoints=checkpoints)
    assert_identical(whole.state, resumed.state)
    np.testing.assert_array_equal(whole.history["num_steps"], resumed.history["num_steps"])
    assert whole.history["num_steps"][-1].max() < whole.history["num_steps"][0].max()


def test_numbers_may_change_without_recompiling():
    model, traces = counted()

    def simulate(initial_steps, initial_rate, rounds):
        steps = fo.controllers.steps_by_error(initial_steps, window=2)
        return fo.simulate(
            fo.scheduled(build, fo.controllers.rate_by_rounds(initial_rate)),
            fo.Federation(model, DATA, cohort=3, local_steps=steps, batch_size=2),
            rounds,
            evaluate_every=2,
            progress=False,
        )

    simulate(10, 0.02, 4)
    compiled = len(traces)
    assert compiled > 0
    decayed = simulate(200, 0.003, 8)
    assert len(set(decayed.history["num_steps"].max(axis=1))) > 1, "K did change"
    assert len(traces) == compiled


def test_initial_values_are_an_axis_of_vmap():
    def final(initial_steps, initial_rate):
        return fo.run_rounds(
            fo.scheduled(build, fo.controllers.rate_by_rounds(initial_rate)),
            THREE.replace(local_steps=fo.controllers.steps_by_rounds(initial_steps)),
            start(build(ETA0), 5),
            3,
        ).history.loss[-1]

    steps, rates = jnp.array([2, 5]), jnp.array([0.02, 0.05])
    together = jax.vmap(final)(steps, rates)
    alone = [final(k, eta) for k, eta in zip(steps, rates, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_a_controller_of_epochs():
    history = fo.run_rounds(
        build(ETA0),
        THREE.replace(cohort=5, local_steps=fo.epochs(fo.controllers.steps_by_rounds(2))),
        start(build(ETA0), 5),
        8,
    ).history
    per_epoch = np.ceil(DATA.sizes / 2)
    for t, epochs in enumerate((2, 2, 2, 2, 2, 2, 2, 1)):
        np.testing.assert_array_equal(
            np.asarray(history.num_steps[t]), epochs * per_epoch[np.asarray(history.cohort[t])]
        )


def test_a_round_that_nobody_reports_in_changes_nothing():
    sampler = fo.cohorts.unreliable(fo.cohorts.uniform(3), dropout=1.0)
    first = run(SCHEDULES["K-error"], rounds=6)
    after = fo.run_rounds(
        fo.scheduled(build, SCHEDULES["K-error"].learning_rate),
        THREE.replace(cohort=sampler, local_steps=SCHEDULES["K-error"].local_steps),
        first.state,
        3,
    )
    assert_identical(first.state.controllers, after.state.controllers)
    assert int(after.state.round) == 9


def test_a_round_that_is_not_applied_changes_nothing():
    bad = start(build(ETA0), 5)
    bad = bad._replace(server=jax.tree.map(lambda x: x * jnp.nan, bad.server))
    after = run(SCHEDULES["K-error"], rounds=2, state=bad)
    assert not np.any(after.history.finite)
    assert int(after.state.controllers.local_steps.seen) == 0


def test_a_users_own_controller_may_use_plain_numbers():
    controller = fo.Controller(
        init=lambda: (0, 1.5),
        update=lambda state, info: (state[0] + 1, state[1] * 2),
        value=lambda state, round_number: state[0] + 1,
    )
    result = fo.run_rounds(
        build(ETA0),
        THREE.replace(local_steps=controller),
        start(build(ETA0), 5),
        3,
    )
    assert np.max(result.history.num_steps, axis=1).tolist() == [1, 2, 3]
    assert float(result.state.controllers.local_steps[1]) == 12.0


def test_a_controller_learns_from_a_round_in_which_some_are_lost():
    """It counts the rounds in which anybody reports: not all of them, and few in which all do."""
    controller = fo.Controller(lambda: 0, lambda seen, info: seen + 1, lambda seen, t: seen + 1)
    sampler = fo.cohorts.unreliable(fo.cohorts.uniform(3), dropout=0.6)
    result = fo.run_rounds(
        build(ETA0),
        THREE.replace(cohort=sampler, local_steps=controller),
        start(build(ETA0), 5),
        12,
    )
    reported = np.asarray(result.history.num_steps) > 0
    assert reported.all(axis=1).sum() < reported.any(axis=1).sum() < 12
    assert int(result.state.controllers.local_steps) == reported.any(axis=1).sum()


def test_a_controller_per_client():
    steps = jnp.array([1, 2, 3, 4, 5], jnp.int32)
    controller = fo.Controller(lambda: (), lambda state, info: state, lambda state, t: steps + t)
    history = fo.run_rounds(
        build(ETA0),
        THREE.replace(local_steps=controller),
        start(build(ETA0), 5),
        2,
    ).history
    for t in range(2):
        np.testing.assert_array_equal(history.num_steps[t], steps[history.cohort[t]] + np.int32(t))


def play(algorithm=None, state=None, **changes):
    algorithm = build(0.1) if algorithm is None else algorithm
    federation = THREE.replace(**changes)
    return fo.run_rounds(algorithm, federation, state or start(build(0.1), 5), 2)


PLATEAU = SCHEDULES["K-step"].local_steps
ACCURACY = fo.controllers.steps_on_plateau(5, metric="accuracy", maximise=True)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: fo.scheduled(build(0.1), 0.1),
            "a function of the learning rate.*got an Algorithm",
        ),
        (lambda: fo.scheduled(3, 0.1), "must be a function of the learning rate.*got 3"),
        (lambda: fo.scheduled(build, -0.1), "setting must lie in"),
        (lambda: fo.scheduled(build, np.ones(2)), "setting must be one number"),
        (lambda: play(fo.scheduled(lambda eta: eta, 0.1)), "must return an Algorithm"),
        (lambda: fo.init_state(build, THREE), "algorithm must be an Algorithm"),
        (lambda: play(local_steps=PLATEAU), "watches validation_loss.*no validation examples"),
        (
            lambda: play(local_steps=ACCURACY, validation=DATA.examples),
            "validation_accuracy, but the federation has only validation_distance, validation_loss",
        ),
        (
            lambda: play(state=run(SCHEDULES["K-error"], rounds=1).state, local_steps=PLATEAU),
            "what these controllers remember",
        ),
        (
            lambda: THREE.replace(validation=jax.tree.map(lambda x: x[:0], DATA.examples)),
            "validation must hold",
        ),
        (lambda: fo.controllers.constant(0), "value must lie in"),
        (lambda: fo.controllers.steps_by_error(5, window=0), "window must be a whole number"),
        (lambda: fo.controllers.steps_on_plateau(5, every=0), "every must be"),
        (lambda: fo.controllers.steps_on_plateau(5, factor=1.0), "factor must lie in"),
        (lambda: fo.controllers.steps_on_plateau(5, patience=0), "patience must lie in"),
        (lambda: fo.controllers.rate_on_plateau(5, tolerance=-1.0), "tolerance must lie in"),
        (lambda: fo.controllers.rate_on_plateau(5, times=0), "times must lie in"),
    ],
)
def test_what_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("signal", ["rounds", "error", "plateau"])
def test_wrong_initial_values_are_named(signal):
    of = "on" if signal == "plateau" else "by"
    for wrong in (0, -3, 2.5, np.nan, np.ones(2)):
        with pytest.raises(ValueError, match="initial_steps must"):
            getattr(fo.controllers, f"steps_{of}_{signal}")(wrong)
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="initial_rate must lie in"):
            getattr(fo.controllers, f"rate_{of}_{signal}")(wrong)


def test_a_state_with_controllers_may_go_on_without():
    first = run(SCHEDULES["K-error"], rounds=2)
    after = fo.run_rounds(
        build(ETA0),
        THREE,
        first.state,
        1,
    )
    assert_identical(first.state.controllers, after.state.controllers)
