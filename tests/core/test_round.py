"""One round over explicit minibatches, against a plain NumPy loop and under JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems

CLIENTS, COHORT, STEPS, ROWS = 6, 3, 4, 5
RATE = 0.1
IDS = np.array([4, 0, 3])
FEDAVG = fo.fedavg(fo.optimizers.sgd(RATE))
# One round function for all tests: its programs are shared.
ROUND = fo.make_round(FEDAVG, problems.MODEL, strategy="scan")


def batches(seed=0, cohort=COHORT, steps=STEPS):
    generator = np.random.default_rng(seed)
    return {
        "x": generator.normal(size=(cohort, steps, ROWS, problems.DIMENSION)),
        "y": generator.normal(size=(cohort, steps, ROWS)),
    }


def numpy_round(w, data, weights, num_steps, mask=None):
    """FedAvg by hand: the new model, and what `Info` should say."""
    weights = np.asarray(weights, float) / np.sum(weights)
    moved, losses, first, distances = [], [], [], []
    for i, steps in enumerate(num_steps):
        y, seen, apart = w.copy(), [], []
        for k in range(steps):
            rows = slice(None) if mask is None else mask[i, k]
            x, target = data["x"][i, k][rows], data["y"][i, k][rows]
            seen.append(problems.mean_loss(y, x, target))
            apart.append(np.mean(np.abs(x @ y - target)))
            y = y - RATE * problems.gradient(y, x, target)
        moved.append(y - w)
        losses.append(np.mean(seen))
        first.append(seen[0])
        distances.append(np.mean(apart))
    change = weights @ np.array(moved)
    return w + change, {
        "loss": weights @ losses,
        "first_loss": weights @ first,
        "metrics": {"distance": weights @ distances},
        "client_loss": np.array(losses),
        "update_norm": np.linalg.norm(change),
    }


def check(state, info, expected):
    w, facts = expected
    problems.assert_close(state.variables.params["w"], w)
    for name, value in facts.items():
        problems.assert_close(getattr(info, name), value)


def model_of(state):
    return np.asarray(state.variables.params["w"])


def test_info_and_model_match_numpy():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    num_steps, weights = np.array([2, 4, 1]), np.array([3.0, 1.0, 2.0])
    mask = np.random.default_rng(1).random((COHORT, STEPS, ROWS)) < 0.6
    mask[..., 0] = True
    after, info = ROUND(state, IDS, data, weights, num_steps, mask=mask)
    check(after, info, numpy_round(model_of(state), data, weights, num_steps, mask))
    np.testing.assert_array_equal(info.num_steps, num_steps)
    np.testing.assert_array_equal(info.cohort, IDS)
    np.testing.assert_array_equal(info.bad_step, [-1, -1, -1])
    assert int(info.round) == 0 and int(after.round) == 1 and bool(info.finite)


def test_num_steps_may_be_left_out_one_number_or_one_per_client():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    runs = [ROUND(state, IDS, data, num_steps=k) for k in (None, STEPS, np.full(COHORT, STEPS))]
    expected = numpy_round(model_of(state), data, np.ones(COHORT), [STEPS] * COHORT)
    for after, info in runs:
        check(after, info, expected)
    problems.assert_identical(runs[1], runs[2])
    shorter = jax.tree.map(lambda x: x[:, :2], data)
    problems.assert_close(ROUND(state, IDS, data, None, 2), ROUND(state, IDS, shorter))


def test_weights_are_normalised_and_uniform_by_default():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    weights = np.array([1.0, 5.0, 2.0])
    problems.assert_close(ROUND(state, IDS, data, weights), ROUND(state, IDS, data, weights * 1e3))
    problems.assert_close(ROUND(state, IDS, data), ROUND(state, IDS, data, np.full(3, 7.0)))


def test_a_client_of_weight_zero_works_and_does_not_count():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    after, info = ROUND(state, IDS, data, np.array([1.0, 0.0, 2.0]))
    check(
        after, info,
        numpy_round(model_of(state), data, np.array([1.0, 0.0, 2.0]), [STEPS] * COHORT),
    )  # fmt: skip
    assert info.num_steps.tolist() == [STEPS] * COHORT


@pytest.mark.parametrize("anything", [1e6, np.nan])
def test_masked_rows_may_hold_anything(anything):
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    mask = np.ones((COHORT, STEPS, ROWS), bool)
    mask[1, 2, 3:] = False
    data["x"][1, 2, 3:] = data["y"][1, 2, 3:] = anything
    after, info = ROUND(state, IDS, data, mask=mask)
    check(after, info, numpy_round(model_of(state), data, np.ones(3), [STEPS] * 3, mask))


def test_ragged_probes_give_the_exact_full_gradient():
    """MimeLite's momentum after one round is (1 - beta) times the mean full gradient at x."""
    beta, sizes = 0.9, [7, 2, 5]
    algorithm = fo.mimelite(fo.optimizers.sgdm(RATE, beta))
    data, state = problems.ragged(sizes), problems.start(algorithm, CLIENTS)
    parts, rows = 3, 3
    probes = {"x": np.full((3, 9, 3), 1e3), "y": np.full((3, 9), -1e3)}
    mask = np.arange(9) < np.array(sizes)[:, None]
    for i, size in enumerate(sizes):
        probes["x"][i, :size], probes["y"][i, :size] = data[i]["x"], data[i]["y"]
    probes = jax.tree.map(lambda x: x.reshape(3, parts, rows, *x.shape[2:]), probes)
    weights = np.array([1.0, 2.0, 4.0])
    after, _ = fo.make_round(algorithm, problems.MODEL, strategy="scan")(
        state, IDS, batches(), weights,
        probe_batches=probes, probe_mask=mask.reshape(3, parts, rows),
    )  # fmt: skip
    w = model_of(state)
    gradients = [problems.gradient(w, data[i]["x"], data[i]["y"]) for i in range(3)]
    expected = (1 - beta) * np.average(gradients, axis=0, weights=weights)
    problems.assert_close(after.server.optimizer.m["w"], expected)


def test_one_minibatch_is_probed_where_there_is_one():
    """MimeXlite's probe takes the first part that has a row that counts."""
    beta, data = 0.9, batches()
    algorithm = fo.mimexlite(fo.optimizers.sgdm(RATE, beta))
    state = problems.start(algorithm, CLIENTS)
    mask = np.ones((COHORT, STEPS, ROWS), bool)
    mask[0, 0], mask[2, :2] = False, False
    after, _ = fo.make_round(algorithm, problems.MODEL, strategy="scan")(
        state, IDS, data, probe_batches=data, probe_mask=mask
    )
    parts = [(0, 1), (1, 0), (2, 2)]
    gradients = [problems.gradient(model_of(state), data["x"][at], data["y"][at]) for at in parts]
    expected = (1 - beta) * np.mean(gradients, axis=0)
    problems.assert_close(after.server.optimizer.m["w"], expected)


def test_absent_clients_keep_their_state_bit_for_bit():
    algorithm = fo.scaffold(fo.optimizers.sgd(RATE))
    state = problems.start(algorithm, CLIENTS)
    controls = np.random.default_rng(3).normal(size=(CLIENTS, problems.DIMENSION))
    state = state._replace(clients=jax.tree.map(lambda _: jnp.asarray(controls), state.clients))
    after, _ = fo.make_round(algorithm, problems.MODEL, strategy="scan")(state, IDS, batches())
    new = np.asarray(after.clients.control["w"])
    absent = np.setdiff1d(np.arange(CLIENTS), IDS)
    np.testing.assert_array_equal(new[absent], controls[absent])
    assert np.all(new[IDS] != controls[IDS])


def test_uniform_parts_of_an_upload_ignore_the_weights():
    """SCAFFOLD's c moves by C times the plain mean of the changes, whatever the weights."""
    algorithm = fo.scaffold(fo.optimizers.sgd(RATE))
    state, weights = problems.start(algorithm, CLIENTS), np.array([1.0, 5.0, 2.0])
    after, _ = fo.make_round(algorithm, problems.MODEL, strategy="scan")(
        state, IDS, batches(), weights
    )
    changes = np.asarray(after.clients.control["w"])[IDS]
    expected = COHORT / CLIENTS * changes.mean(0)
    problems.assert_close(after.server.control["w"], expected)


@pytest.mark.parametrize("bad_step", [0, 2])
def test_a_non_finite_loss_is_named_and_not_applied(bad_step):
    algorithm = fo.scaffold(fo.optimizers.sgd(RATE))
    state, data = problems.start(algorithm, CLIENTS), batches()
    data["y"][1, bad_step, 0] = np.nan
    after, info = fo.make_round(algorithm, problems.MODEL, strategy="scan")(state, IDS, data)
    assert not info.finite
    assert info.bad_step.tolist() == [-1, bad_step, -1]
    np.testing.assert_array_equal(np.isfinite(info.client_loss), [True, False, True])
    problems.assert_identical(after, state)


def test_who_does_not_take_part_has_no_bad_step():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    data["y"][1] = np.nan
    _, info = ROUND(state, IDS, data, num_steps=np.array([2, 0, 1]))
    assert info.finite and info.bad_step.tolist() == [-1, -1, -1]


def test_inside_jit():
    state, data = problems.start(FEDAVG, CLIENTS), batches()
    inside = jax.jit(lambda s, ids, b: ROUND(s, ids, b, num_steps=jnp.int32(3)))
    problems.assert_close(
        inside(state, jnp.asarray(IDS, jnp.int32), data), ROUND(state, IDS, data, num_steps=3)
    )


def test_vmap_over_keys():
    """A model with random numbers in its loss: each key gives its own round."""

    def noisy(variables, batch, key):
        loss, aux = problems.MODEL.loss(variables, batch, key)
        return loss + jax.random.normal(key) * jnp.sum(variables.params["w"]), aux

    round_fn = fo.make_round(FEDAVG, fo.Model(problems.MODEL.init, noisy), strategy="scan")
    data, keys = batches(), jax.random.split(jax.random.key(7), 3)

    def final(key):
        state = fo.first_state(FEDAVG, {"w": jnp.zeros(3)}, CLIENTS, key)
        return round_fn(state, IDS, data)[0].variables.params["w"]

    together, alone = jax.vmap(final)(keys), jnp.stack([final(key) for key in keys])
    problems.assert_close(together, alone)
    assert len(np.unique(together[:, 0])) == 3


def test_vmap_over_stacked_algorithms():
    data, rates = batches(), [0.01, 0.1, 0.3]
    algorithms = [fo.fedadam(fo.optimizers.sgd(rate), rate / 10) for rate in rates]
    as_arrays = [jax.tree.map(jnp.asarray, algorithm) for algorithm in algorithms]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *as_arrays)

    def play(algorithm):
        state = problems.start(algorithm, CLIENTS)
        return fo.make_round(algorithm, problems.MODEL, strategy="scan")(state, IDS, data)[0].server

    together = jax.vmap(play)(stacked)
    for i, algorithm in enumerate(algorithms):
        problems.assert_close(jax.tree.map(lambda x, i=i: x[i], together), play(algorithm))


def final_loss(rate, num_steps=None):
    """The loss at the model that a round leads to, as a function of the learning rate."""
    algorithm, data = fo.fedavg(fo.optimizers.sgd(rate)), batches()
    round_fn = fo.make_round(algorithm, problems.MODEL, strategy="scan")
    after, _ = round_fn(problems.start(algorithm, CLIENTS), IDS, data, num_steps=num_steps)
    held_out = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), batches(9))
    return problems.MODEL.loss(after.variables, held_out, None)[0]


def test_the_gradient_with_respect_to_the_learning_rate():
    step = 1e-5
    finite = (final_loss(RATE + step) - final_loss(RATE - step)) / (2 * step)
    reverse = jax.grad(final_loss)(RATE)
    # A central difference is off by f''' h^2 / 6, and by rounding of about 1e-16 / h = 1e-11.
    np.testing.assert_allclose(reverse, finite, rtol=1e-8)
    _, forward = jax.jvp(final_loss, (RATE,), (1.0,))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def test_dynamic_steps_refuse_reverse_mode_and_serve_forward_mode():
    with pytest.raises(ValueError, match="local_steps as a Python int"):
        jax.grad(final_loss)(RATE, jnp.int32(STEPS))
    _, forward = jax.jvp(lambda rate: final_loss(rate, jnp.int32(STEPS)), (RATE,), (1.0,))
    np.testing.assert_allclose(forward, jax.grad(final_loss)(RATE), rtol=1e-12)


def test_counters_in_the_models_state_are_averaged_and_rounded():
    """An integer in `variables.state` moves by the rounded mean of what the clients counted."""

    def counting(variables, batch, key):
        loss, aux = problems.MODEL.loss(variables, batch, key)
        return loss, aux._replace(state={"seen": variables.state["seen"] + 1})

    variables = fo.Variables({"w": jnp.zeros(3)}, {"seen": jnp.int32(10)})
    state = fo.first_state(FEDAVG, variables, CLIENTS)
    round_fn = fo.make_round(FEDAVG, fo.Model(problems.MODEL.init, counting), strategy="scan")
    after, _ = round_fn(state, IDS, batches(), np.array([1.0, 1.0, 2.0]), np.array([4, 1, 2]))
    # The weighted mean of 4, 1 and 2 steps is 2.25.
    assert after.variables.state["seen"] == 12
    assert after.variables.state["seen"].dtype == jnp.int32
