"""Clients that never report, or report with some of their steps undone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core.cohorts import available, cyclic, uniform, unreliable
from tests.algorithms import helpers
from tests.core import problems

KEY = jax.random.key(5)
LEVEL = 1e-4  # A right implementation fails at this level once in ten thousand seeds.
RATE = 0.1

# Who reports, and how much --------------------------------------------------------------------


@partial(jax.jit, static_argnums=2)
def _draws(sampler, num_clients, rounds):
    numbers = jnp.arange(rounds, dtype=jnp.int32)
    return jax.vmap(lambda t: sampler.draw(KEY, t, num_clients))(numbers)


def _many(sampler, num_clients, rounds):
    """Ids, and how much of their work is done, of many rounds `[rounds, S]`."""
    return jax.tree.map(np.asarray, _draws(sampler, jnp.int32(num_clients), rounds))


def _agrees(count, total, chance):
    return stats.binomtest(int(count), int(total), chance).pvalue > LEVEL


MANY = 4000


def test_clients_drop_out_and_straggle_as_often_as_they_should():
    """Independently of each other, of the other clients and of the last round."""
    dropout, stragglers, slowest = 0.3, 0.6, 0.25
    _, done = _many(unreliable(cyclic(3), dropout, stragglers, slowest), 8, MANY)
    lost, slow = done == 0, (done > 0) & (done < 1)
    assert _agrees(lost.sum(), lost.size, dropout)
    assert _agrees(slow.sum(), (~lost).sum(), stragglers)
    assert _agrees((lost[:, 0] & lost[:, 1]).sum(), MANY, dropout**2)
    assert _agrees((lost[1:, 0] & lost[:-1, 0]).sum(), MANY - 1, dropout**2)
    both = slow[:, 0] & slow[:, 1]
    assert _agrees(both.sum(), (~lost[:, 0] & ~lost[:, 1]).sum(), stragglers**2)
    fractions = done[slow]
    assert slowest <= fractions.min() and fractions.max() < 1
    assert stats.kstest(fractions, stats.uniform(slowest, 1 - slowest).cdf).pvalue > LEVEL


def test_certainty_is_certain():
    never = _many(unreliable(cyclic(3), dropout=1.0), 8, MANY)[1]
    always = _many(unreliable(cyclic(3), 0.0, 0.0), 8, MANY)[1]
    halves = _many(unreliable(cyclic(3), 0.0, 1.0, 0.5), 8, MANY)[1]
    prompt = _many(unreliable(cyclic(3), 0.0, 1.0, 1.0), 8, MANY)[1]
    assert not never.any()
    assert np.all(always == 1) and np.all(prompt == 1)
    assert halves.min() >= 0.5 and halves.max() < 1


def test_every_client_may_have_chances_of_its_own():
    """They go with the client, not with its place in the cohort."""
    dropout, stragglers = np.array([0.0, 1.0, 0.5, 0.2]), np.array([0.0, 0.5, 1.0, 0.3])
    ids, done = _many(unreliable(cyclic(3), dropout, stragglers), 4, MANY)
    for client in range(4):
        mine = done[ids == client]
        assert _agrees((mine == 0).sum(), mine.size, dropout[client])
        reported = mine[mine > 0]
        assert _agrees((reported < 1).sum(), max(reported.size, 1), stragglers[client])


def test_who_is_asked_does_not_depend_on_who_answers():
    """The ids are the sampler's own; a slot that it left empty stays so."""
    sampler = available(3, np.full(8, 0.3))
    may_fail = unreliable(sampler, dropout=0.5)

    @jax.jit
    @jax.vmap
    def draw(t):
        return *sampler.draw(KEY, t, 8), *may_fail.draw(KEY, t, 8)

    ids, present, asked, done = map(np.asarray, draw(jnp.arange(50, dtype=jnp.int32)))
    np.testing.assert_array_equal(asked, ids)
    assert not np.any(done[~present])
    assert np.any(done[present] == 0) and np.any(done[present] == 1)
    assert (may_fail.size, may_fail.population) == (3, sampler.population)


def test_two_reasons_to_drop_out_are_independent():
    """The network and the battery, say: who escapes one may fall to the other."""
    twice = unreliable(unreliable(cyclic(3), dropout=0.4), dropout=0.4)
    _, done = _many(twice, 8, 2000)
    assert _agrees((done == 0).sum(), done.size, 1 - 0.6**2)


# Runs -----------------------------------------------------------------------------------------

# A client's rows are copies of one, so that every minibatch, and each local step, is known.
SIZES = np.array([2, 4, 3, 1, 4])
EXAMPLES = problems.ragged(np.ones(5, int)).examples
DATA = fo.ClientData.from_list(
    [{name: np.repeat(rows[i : i + 1], n, axis=0) for name, rows in EXAMPLES.items()}
     for i, n in enumerate(SIZES)]
)  # fmt: skip
K = np.array([6, 5, 4, 6, 3])
SCAFFOLD = fo.scaffold(opt.sgd(RATE))
MODEL, TRACES = problems.counted()


def _run(state, dropout, stragglers=0.0, slowest=0.0, steps=K):
    """One round, which asks four of five clients."""
    return fo.run_rounds(
        SCAFFOLD,
        fo.Federation(
            MODEL,
            DATA,
            cohort=unreliable(cyclic(4), dropout, stragglers, slowest),
            local_steps=steps,
            batch_size=1,
            batching="replacement",
        ),
        state,
        1,
        strategy="scan",
    )


def _start():
    return problems.start(SCAFFOLD, len(SIZES))


@pytest.fixture(scope="module")
def played():
    """The states before and after each of sixty rounds, and the infos: all by one program."""
    states, infos, traces = [_start()], [], []
    for t in range(60):
        run = _run(states[-1], dropout=0.2 + 0.005 * t, stragglers=0.5 + 0.005 * t, slowest=0.3)
        states.append(run.state)
        infos.append(jax.tree.map(lambda x: np.asarray(x[0]), run.history))
        traces.append(len(TRACES))
    return states, infos, traces


def test_other_chances_compile_nothing(played):
    _, _, traces = played
    assert traces == [traces[0]] * 60 and traces[0] > 0


def test_steps_are_between_one_and_all(played):
    """At least `slowest` of them, rounded up, for who reports; none for who does not."""
    _, infos, _ = played
    seen = set()
    for info in infos:
        reported = info.num_steps > 0
        np.testing.assert_array_equal(info.cohort == -1, ~reported)
        allowed = K[info.cohort[reported]]
        steps = info.num_steps[reported]
        assert np.all(steps <= allowed) and np.all(steps >= np.ceil(0.3 * allowed))
        seen |= set(steps[allowed == 6].tolist())
        assert bool(info.finite)
    assert seen == {2, 3, 4, 5, 6}


def test_who_is_noted_is_who_was_asked_and_reported(played):
    """The cohorts are those of a run in which all report."""
    states, infos, _ = played
    state = _start()
    for t in (0, 1, 17):
        asked = _run(state._replace(round=jnp.int32(t)), dropout=0.0).history.cohort[0]
        noted = infos[t].cohort
        np.testing.assert_array_equal(noted[noted >= 0], np.asarray(asked)[noted >= 0])


def test_clients_that_do_not_report_keep_their_state_bit_for_bit(played):
    states, infos, _ = played
    for before, after, info in zip(states[:-1], states[1:], infos, strict=True):
        away = np.setdiff1d(np.arange(len(SIZES)), info.cohort)
        helpers.assert_same_bits(*(helpers.entry(s.clients, away) for s in (before, after)))
        present = info.cohort[info.cohort >= 0]
        changed = np.any(before.clients.control["w"] != after.clients.control["w"], axis=1)
        np.testing.assert_array_equal(np.flatnonzero(changed), np.sort(present))


def test_a_run_is_the_rounds_of_those_who_reported(played):
    """Weighted by their samples, with the steps that each of them took."""
    states, infos, _ = played
    round_fn = fo.make_round(SCAFFOLD, problems.MODEL, strategy="scan")
    batches = {name: np.repeat(rows[:, None, None], 6, axis=1) for name, rows in EXAMPLES.items()}
    for before, after, info in list(zip(states[:-1], states[1:], infos, strict=True))[:12]:
        steps, reported = np.zeros(5, int), info.cohort >= 0
        steps[info.cohort[reported]] = info.num_steps[reported]
        expected, noted = round_fn(before, np.arange(5), batches, SIZES, steps)
        helpers.assert_close(after.server, expected.server, 1e-12)
        helpers.assert_close(after.clients, expected.clients, 1e-12)
        helpers.assert_close(info.loss, noted.loss, 1e-12)


def test_stragglers_take_every_number_of_steps_alike():
    """A fraction that is uniform in [0, 1), rounded up: K equal chances."""
    counts, start = np.zeros(5, int), _start()
    for t in range(150):
        run = _run(start._replace(round=jnp.int32(t)), 0.0, 1.0, steps=np.full(5, 4))
        counts += np.bincount(np.asarray(run.history.num_steps[0]), minlength=5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > LEVEL


def test_if_nobody_ever_reports_nothing_ever_changes(played):
    """But the number of the round; there is no mean of nobody, and nobody did anything."""
    states, _, _ = played
    start = state = states[7]
    for t in range(3):
        run = _run(state, dropout=1.0)
        state = run.state
        assert int(state.round) == 7 + t + 1
        assert run.history.num_steps.tolist() == [[0, 0, 0, 0]]
        assert run.history.cohort.tolist() == [[-1, -1, -1, -1]]
        assert np.isnan(run.history.loss) and run.history.update_norm.tolist() == [0]
        assert run.history.finite.all() and np.all(run.history.client_loss == 0)
    helpers.assert_same_bits((state.server, state.clients), (start.server, start.clients))


def test_chances_may_be_traced_and_mapped_over():
    """One program for a sweep; each run is the one by itself."""
    chances = jnp.array([0.0, 0.5, 1.0])

    @jax.jit
    def sweep(chances):
        return jax.vmap(lambda p: _run(_start(), p, p, 0.3).state)(chances)

    together = sweep(chances)
    for i, chance in enumerate(chances):
        alone = _run(_start(), float(chance), float(chance), 0.3).state
        mine = jax.tree.map(lambda x, i=i: x[i], (together.server, together.clients))
        problems.assert_close(mine, (alone.server, alone.clients))


# Rounds over explicit minibatches -------------------------------------------------------------

ALGORITHMS = {
    "fedavg": fo.fedavg(opt.sgd(RATE), 0.7),
    "scaffold": SCAFFOLD,
    "fedgbo": fo.fedgbo(opt.adam(RATE, 0.7, 0.9, 0.5)),
    "feddyn": fo.feddyn(opt.sgd(RATE), 2.0),
    "ghbm": fo.ghbm(opt.sgd(RATE), 2, 0.5),
}


def _rounds(num_clients=7, size=5, steps=3, rounds=4):
    """Arguments of a few rounds in which two of five never report."""
    rng = np.random.default_rng(0)
    return [
        {
            "cohort": rng.permutation(num_clients)[:size],
            "batches": {
                "x": rng.normal(size=(size, steps, 4, 3)),
                "y": rng.normal(size=(size, steps, 4)),
            },
            "weights": rng.uniform(0.2, 3.0, size=size),
            "num_steps": rng.permutation([0, 0, 1, 2, steps]),
        }
        for _ in range(rounds)
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_of_zero_steps_is_as_good_as_one_that_was_not_asked(name):
    """For the server, whose C counts those who reported, and for every client."""
    algorithm = ALGORITHMS[name]
    round_fn = fo.make_round(algorithm, helpers.LINEAR, strategy="scan")
    start = fo.first_state(algorithm, {"w": np.array([0.3, -0.2, 0.1])}, 7)
    state = fewer = start
    for arguments in _rounds():
        reported = np.flatnonzero(arguments["num_steps"])
        state, info = round_fn(state, **arguments)
        left = jax.tree.map(lambda x: x[reported], arguments)  # noqa: B023
        fewer, other = round_fn(fewer, **left)
        helpers.assert_close(state.server, fewer.server, 1e-12)
        helpers.assert_close(state.clients, fewer.clients, 1e-12)
        helpers.assert_close((info.loss, info.update_norm), (other.loss, other.update_norm), 1e-12)
        np.testing.assert_array_equal(info.cohort[reported], other.cohort)
        assert info.cohort.tolist().count(-1) == 2
    assert helpers.distance(start.variables, state.variables) > 1e-2
    # Nobody at all: the state that there is, momentum and count of rounds included, stays.
    nobody = {**arguments, "num_steps": np.zeros(5, int)}
    after, info = round_fn(state, **nobody)
    helpers.assert_same_bits((after.server, after.clients), (state.server, state.clients))
    assert bool(info.finite) and int(after.round) == int(state.round) + 1


# Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.5}, r"dropout must lie in \[0\.0, 1\.0\], got 1\.5"),
        ({"dropout": -0.1}, r"dropout must lie in \[0\.0, 1\.0\], got -0\.1"),
        ({"dropout": np.nan}, "dropout must lie in .* got nan"),
        ({"dropout": [0.1, 2.0]}, r"dropout must lie in \[0\.0, 1\.0\]"),
        ({"dropout": "often"}, "dropout must be a number, got 'often'"),
        ({"dropout": [[0.1, 0.2]]}, r"dropout must be .* per client, got shape \(1, 2\)"),
        ({"dropout": lambda t: 0.1}, "dropout must be a number"),
        ({"stragglers": 2}, r"stragglers must lie in \[0\.0, 1\.0\], got 2"),
        (
            {"dropout": [0.1] * 3, "stragglers": [0.1] * 4},
            r"stragglers must be .* got shape \(4,\)",
        ),
        ({"slowest": 1.1}, r"slowest must lie in \[0\.0, 1\.0\], got 1\.1"),
        ({"slowest": [0.1, 0.2]}, "slowest must be a number"),
    ],
)
def test_wrong_chances_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        unreliable(uniform(2), **options)


def test_chances_of_another_population_are_refused():
    with pytest.raises(ValueError, match=r"dropout must be .* per client, got shape \(3,\)"):
        unreliable(available(2, np.ones(4)), dropout=[0.1] * 3)
    with pytest.raises(ValueError, match="cohort was made for 3 clients, but there are 5"):
        _run(_start(), dropout=np.full(3, 0.1))


def test_only_a_sampler_can_be_unreliable():
    with pytest.raises(ValueError, match=r"sampler must be a Sampler .* got 10"):
        unreliable(10)
