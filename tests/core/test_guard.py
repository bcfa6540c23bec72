"""Clients that break a rule did not take part: by every strategy, for every kind of algorithm."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core.cohorts import available, cyclic, unreliable
from fedjax_opt.core.model import Variables
from tests.algorithms import helpers
from tests.core import problems

N, S, K, B = 7, 5, 3, 4
RATE = 0.1
FEDAVG, SCAFFOLD = fo.fedavg(opt.sgd(RATE), 0.7), fo.scaffold(opt.sgd(RATE))
ALGORITHMS = {
    "scaffold": SCAFFOLD,
    "fedgbo": fo.fedgbo(opt.adam(RATE, 0.7, 0.9, 0.5)),
    "uniform mean": fo.aggregated(SCAFFOLD, fo.aggregators.uniform_mean()),
    "median": fo.aggregated(SCAFFOLD, fo.aggregators.coordinate_median()),
    "geometric": fo.aggregated(FEDAVG, fo.aggregators.geometric_median(4)),
    "private": fo.private(SCAFFOLD, where="params/b"),
    "compressed": fo.compressed(
        SCAFFOLD, fo.compression.uniform(8, stochastic=False), error_feedback=True
    ),
}
MIME = fo.mime(opt.sgdm(RATE))
COHORT = np.array([4, 0, 6, 2, 5])
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0, 1.5])


def _loss(variables, batch, key):
    del key
    errors = batch["x"] @ variables.params["w"] + variables.params["b"] - batch["y"]
    return jnp.mean(errors**2) / 2, fo.Aux()


MODEL = fo.Model(init=None, loss=_loss)


def _batches(bad=(), value=np.nan):
    rng = np.random.default_rng(0)
    batches = {"x": rng.normal(size=(S, K, B, 3)), "y": rng.normal(size=(S, K, B))}
    batches["y"][list(bad), -1] = value
    return batches


def _start(algorithm):
    return fo.first_state(algorithm, {"w": jnp.array([0.3, -0.2, 0.1]), "b": jnp.ones(())}, N)


def _play(algorithm, guard=None, bad=(), steps=None, strategy="scan", value=np.nan, state=None):
    round_fn = fo.make_round(algorithm, MODEL, strategy=helpers.STRATEGIES[strategy], guard=guard)
    batches = _batches(bad, value)
    probed = {"probe_batches": batches} if algorithm.probe else {}
    steps = np.full(S, K) if steps is None else steps
    state = _start(algorithm) if state is None else state
    return round_fn(state, COHORT, batches, WEIGHTS, steps, **probed)


def _steps(away):
    return np.where(np.isin(np.arange(S), away), 0, K)


def _assert_same_round(found, expected):
    (state, info), (other, reference) = found, expected
    helpers.assert_close((state.server, state.clients), (other.server, other.clients), 1e-12)
    for name in ("loss", "first_loss", "update_norm", "metrics"):
        helpers.assert_close(getattr(info, name), getattr(reference, name), 1e-12)
    for name in ("cohort", "num_steps", "round", "finite"):
        np.testing.assert_array_equal(getattr(info, name), getattr(reference, name))
    assert int(state.round) == int(other.round)


# One round ------------------------------------------------------------------------------------

GUARD = fo.Guard(max_norm=50.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_breaks_a_rule_is_as_good_as_one_that_never_reported(name):
    """One uploads NaN, one loses its mind in the last step, and the others never notice."""
    algorithm = ALGORITHMS[name]
    attacked = fo.attacks.nan_upload(algorithm, [COHORT[1]])
    state, info = _play(attacked, GUARD, bad=[3])
    assert info.faults.code.tolist() == [
        0,
        fo.Fault.UPLOAD_NOT_FINITE,
        0,
        fo.Fault.LOSS_NOT_FINITE,
        0,
    ]
    assert info.faults.client.tolist() == COHORT.tolist() and not info.faults.skipped
    _assert_same_round((state, info), _play(algorithm, steps=_steps([1, 3])))
    assert helpers.distance(state.variables, _start(algorithm).variables) > 1e-3


def test_without_a_guard_one_upload_ends_the_run():
    assert not _play(fo.attacks.nan_upload(SCAFFOLD, [COHORT[1]]))[1].finite


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("scaffold", name) for name in helpers.STRATEGIES]
    + [("median", "vmap"), ("median", "sharded"), ("mime", "sharded")],
)
def test_every_strategy_leaves_out_the_same_clients(name, strategy):
    algorithm = {"mime": MIME, **ALGORITHMS}[name]
    attacked = fo.attacks.scaling(algorithm, COHORT[[0, 4]], 1e6)
    guard = GUARD._replace(max_report_norm=50.0)
    found = _play(attacked, guard, strategy=strategy)
    codes = np.zeros(S, int)
    codes[[0, 4]] = fo.Fault.REPORT_TOO_LARGE if name == "mime" else fo.Fault.UPLOAD_TOO_LARGE
    assert found[1].faults.code.tolist() == codes.tolist()
    _assert_same_round(found, _play(algorithm, steps=_steps([0, 4]), strategy=strategy))
    _assert_same_round(found, _play(attacked, guard))


def test_a_bad_report_reaches_nobody():
    """It would be in every client's correction; whoever sent it is out before the work begins."""
    algorithm = MIME
    found = _play(algorithm, fo.Guard(), bad=[2])
    assert found[1].faults.code.tolist() == [0, 0, fo.Fault.REPORT_NOT_FINITE, 0, 0]
    _assert_same_round(found, _play(algorithm, steps=_steps([2])))
    large = _play(algorithm, fo.Guard(max_report_norm=1e3), bad=[2], value=1e5)
    assert large[1].faults.code.tolist() == [0, 0, fo.Fault.REPORT_TOO_LARGE, 0, 0]
    _assert_same_round(large, _play(algorithm, steps=_steps([2])))


@pytest.mark.parametrize("name", ["scaffold", "median", "mime"])
def test_a_guard_that_leaves_out_nobody_changes_no_bit(name):
    algorithm = {"mime": MIME, **ALGORITHMS}[name]
    guard = fo.Guard(max_norm=1e9, max_report_norm=1e9, min_clients=S)
    (state, info), (other, reference) = _play(algorithm, guard), _play(algorithm)
    problems.assert_identical(state, other)
    problems.assert_identical(info._replace(faults=()), reference)
    assert reference.faults == ()


def test_too_few_clients_skip_the_round():
    """Not a bit of server or clients changes, even if the server's step would be NaN; time goes on."""
    start = _play(SCAFFOLD)[0]
    for min_clients, skipped in ((3, False), (4, True)):
        guard = fo.Guard(min_clients=min_clients)
        state, info = _play(SCAFFOLD, guard, bad=[1, 3], state=start)
        assert bool(info.faults.skipped) == skipped and bool(info.finite)
        assert int(state.round) == int(start.round) + 1
        same = all(
            np.array_equal(a, b)
            for a, b in zip(*map(jax.tree.leaves, (state.server, start.server)), strict=True)
        )
        assert same == skipped
        if skipped:
            helpers.assert_same_bits((state.server, state.clients), (start.server, start.clients))
            assert float(info.update_norm) == 0
    everyone = _play(SCAFFOLD, fo.Guard(), bad=range(S), state=start)
    helpers.assert_same_bits(everyone[0].server, start.server)
    assert everyone[1].faults.skipped and everyone[1].finite
    assert float(everyone[1].update_norm) == 0
    # There is no mean of nobody: 0 would be the lowest loss of the run.
    assert np.isnan(everyone[1].loss) and np.isnan(everyone[1].first_loss)
    assert np.all(np.isfinite(everyone[1].client_loss))


def test_a_client_keeps_its_state_and_the_server_counts_without_it():
    """SCAFFOLD's c moves by C times the mean change, with C of those who are left."""
    before = _play(SCAFFOLD)[0]
    attacked = fo.attacks.nan_upload(SCAFFOLD, COHORT[:2])
    after = _play(attacked, fo.Guard(), state=before)[0]
    change = np.asarray(after.clients.control["w"] - before.clients.control["w"])
    assert np.flatnonzero(change.any(axis=1)).tolist() == sorted(COHORT[2:])
    moved = after.server.control["w"] - before.server.control["w"]
    np.testing.assert_allclose(moved, change.sum(axis=0) / N, rtol=1e-12)


def test_a_state_that_is_not_finite_is_not_kept():
    """The upload looks well; what the client would keep does not."""
    finish = SCAFFOLD.finish

    def broken(local, context):
        upload, state = finish(local, context)
        return upload, jax.tree.map(
            lambda x: jnp.where(context.id == int(COHORT[0]), jnp.nan, x), state
        )

    algorithm = SCAFFOLD._replace(finish=jax.tree_util.Partial(broken))
    found = _play(algorithm, fo.Guard())
    assert found[1].faults.code.tolist() == [fo.Fault.STATE_NOT_FINITE, 0, 0, 0, 0]
    _assert_same_round(found, _play(SCAFFOLD, steps=_steps([0])))


def test_each_part_of_an_upload_has_a_norm_of_its_own():
    """One has 3 and 4, which is 5 together, the other 0 and 5, and the limit is 4."""

    def of_norms(delta, control):
        params = {"w": jnp.array([0.0, delta, 0.0]), "b": jnp.zeros(())}
        change = {"w": jnp.zeros(3), "b": jnp.asarray(control)}
        return lambda upload, key: type(upload)(Variables(params), fo.Uniform(change))

    attacked = fo.attacks.replaced(SCAFFOLD, COHORT[:1], of_norms(3.0, 4.0))
    attacked = fo.attacks.replaced(attacked, COHORT[1:2], of_norms(0.0, 5.0))
    _, info = _play(attacked, fo.Guard(max_norm=4.0))
    assert info.faults.code.tolist() == [0, fo.Fault.UPLOAD_TOO_LARGE, 0, 0, 0]


# Many rounds ----------------------------------------------------------------------------------

SIZES = (5, 8, 3, 12, 7, 4)
DATA = problems.ragged(SIZES)
BASE = fo.Federation(problems.MODEL, DATA, cohort=3, local_steps=jnp.int32(2), batch_size=4)


def _run(guard, algorithm=SCAFFOLD, model=problems.MODEL, rounds=4, cohort=3):
    federation = BASE.replace(model=model, cohort=cohort, guard=guard)
    start = problems.start(algorithm, len(SIZES))
    return fo.run_rounds(algorithm, federation, start, rounds, strategy="scan")


def test_numbers_of_a_guard_compile_nothing_and_can_be_swept():
    model, traces = problems.counted()
    attacked = fo.attacks.scaling(SCAFFOLD, [0, 1, 2], 1e3)
    loose = _run(fo.Guard(max_norm=1e30), attacked, model)
    compiled = len(traces)
    tight = _run(fo.Guard(max_norm=20.0, min_clients=2), attacked, model)
    other = _run(fo.Guard(max_norm=20), fo.attacks.scaling(SCAFFOLD, [0, 1, 5], 1e4), model)
    assert len(traces) == compiled > 0
    assert not np.any(loose.history.faults.code) and np.any(tight.history.faults.code)
    bad = np.isin(np.asarray(other.history.faults.client), [0, 1, 5])
    np.testing.assert_array_equal(np.asarray(other.history.faults.code) == 5, bad)
    limits = jnp.array([20.0, 1e30])
    swept = jax.vmap(lambda m: _run(fo.Guard(max_norm=m, min_clients=2), attacked).state)(limits)
    for i, alone in enumerate((tight, loose)):
        mine = jax.tree.map(lambda x, i=i: x[i], (swept.server, swept.clients))
        problems.assert_close(mine, (alone.state.server, alone.state.clients), 1e-10)


def test_those_who_were_asked_in_vain_have_names():
    """Unreliable clients do; a slot that nobody could fill has none."""
    few = available(3, np.array([1.0, 0, 0, 1, 0, 0]))
    sampler = unreliable(unreliable(few, dropout=0.4), dropout=0.3)
    faults = _run(fo.Guard(), cohort=sampler, rounds=12).history.faults
    np.testing.assert_array_equal(np.sort(faults.client, axis=1), [[-1, 0, 3]] * 12)
    codes, asked = np.asarray(faults.code), np.asarray(faults.client) >= 0
    assert not codes[~asked].any()
    assert set(codes[asked].tolist()) == {0, fo.Fault.DROPPED_OUT}
    drawn = unreliable(cyclic(3), dropout=1.0).outcome(jax.random.key(0), jnp.int32(1), 6)
    assert drawn.asked.tolist() == [3, 4, 5] and not np.any(drawn.done)


def test_those_who_would_be_late_are_named_and_counted_as_such(caplog):
    """By a sampler with a deadline, around or inside of one whose clients drop out by chance."""
    fleet = fo.costs.devices(20.0, 5.0, [0.1, 9.0, 0.1, 0.1, 0.1, 9.0])

    def on_time(sampler):
        return fo.costs.on_time(sampler, fleet, 2, 4.0, 4.0, deadline=10.0)

    for sampler in (on_time(unreliable(cyclic(3), 0.4)), unreliable(on_time(cyclic(3)), 0.4)):
        federation = BASE.replace(cohort=sampler, guard=fo.Guard(min_clients=1))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
            result = fo.simulate(SCAFFOLD, federation, 8, strategy="scan", progress=False)
        history = result.history
        late = np.isin(history["asked"], [1, 5])
        np.testing.assert_array_equal(history["asked"], [[0, 1, 2], [3, 4, 5]] * 4)
        np.testing.assert_array_equal(history["fault"] == fo.Fault.TIMED_OUT, late)
        dropped = history["fault"] == fo.Fault.DROPPED_OUT
        assert dropped.any() and not dropped.all() and np.all(history["num_steps"][late] == 0)
        np.testing.assert_array_equal(history["excluded"], (late | dropped).sum(axis=1))
        assert sum("client 5 (timed out)." in message for message in caplog.messages) == 4
    plain = _run(None, cohort=on_time(cyclic(3)), rounds=8)
    guarded = _run(fo.Guard(), cohort=on_time(cyclic(3)), rounds=8)
    problems.assert_close(plain.state, guarded.state)  # another program, rounded as it likes


def test_a_simulated_run_names_counts_and_goes_on(caplog):
    attacked = fo.attacks.nan_upload(SCAFFOLD, [0, 1, 2])
    guard = fo.Guard(min_clients=2)
    options = {"evaluate_every": 5, "progress": False, "strategy": "scan"}
    options["state"] = problems.start(SCAFFOLD, len(SIZES))
    with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
        result = fo.simulate(attacked, BASE.replace(guard=guard), 12, **options)
    history = result.history
    bad = np.isin(history["asked"], [0, 1, 2])
    np.testing.assert_array_equal(history["fault"] == fo.Fault.UPLOAD_NOT_FINITE, bad)
    np.testing.assert_array_equal(history["excluded"], bad.sum(axis=1))
    np.testing.assert_array_equal(history["skipped"], bad.sum(axis=1) > 1)
    assert 0 < history["skipped"].sum() < 12 and int(result.state.round) == 12
    assert np.all(history["num_steps"][bad] == 0) and np.all(history["cohort"][bad] == -1)
    assert sum("skipped, with" in m for m in caplog.messages) == history["skipped"].sum()
    t = int(np.flatnonzero(history["excluded"] == 1)[0])
    client = history["asked"][t][bad[t]][0]
    assert f"Round {t}: left out client {client} (upload not finite)." in caplog.messages
    reference = _run(guard, attacked, rounds=12)
    problems.assert_identical(result.state, reference.state)
    with pytest.raises(fo.NonFiniteLossError, match="the server's update was not"):
        fo.simulate(attacked, BASE, 12, **options)


# Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        (5.0, "guard must be a Guard or None, got 5.0"),
        (fo.Guard(max_norm=0), r"guard.max_norm must lie in \(0.0, inf\], got 0"),
        (fo.Guard(max_norm=[1.0, 2.0]), r"guard.max_norm must be one number, got shape \[2\]"),
        (fo.Guard(max_report_norm=-1), "guard.max_report_norm must lie in"),
        (fo.Guard(min_clients=0), "guard.min_clients must be a whole number from 1 to 3, got 0"),
        (fo.Guard(min_clients=4), "guard.min_clients must be a whole number from 1 to 3, got 4"),
        (fo.Guard(max_norm="little"), "guard.max_norm must be a number, got 'little'"),
    ],
)
def test_wrong_rules_are_refused(guard, message):
    with pytest.raises(ValueError, match=message):
        _run(guard)


def test_uploads_of_another_shape_are_refused_by_name():
    """While the round is traced: shapes are part of the program, for all clients alike."""
    finish = FEDAVG.finish

    def longer(local, context):
        upload, state = finish(local, context)
        wrong = jax.tree.map(lambda x: jnp.zeros((*x.shape, 1)), upload)
        assert any(isinstance(x, Variables) for x in (upload, *upload))
        return wrong, state

    algorithm = FEDAVG._replace(finish=jax.tree_util.Partial(longer))
    with pytest.raises(
        ValueError, match=r"upload.*params\['b'\] must have the shape \[\], got \[1\]"
    ):
        _play(algorithm, fo.Guard())

    def forgetful(server, mean, facts):
        return jax.tree.map(lambda x: x[None], FEDAVG.server_step(server, mean, facts))

    algorithm = FEDAVG._replace(server_step=jax.tree_util.Partial(forgetful))
    with pytest.raises(ValueError, match=r"server_step\(...\).*\['b'\] must have the shape \[\]"):
        _play(algorithm, fo.Guard())
