"""A run driven from the host: the same rounds as `run_rounds`, with all that goes on between them."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems

SIZES = (5, 8, 3, 12, 7, 4)
DATA = problems.ragged(SIZES)
TEST = DATA.examples
N = len(SIZES)
SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1))
BASE = fo.Federation(problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4)
OPTIONS = {"strategy": "scan", "progress": False}


def simulate(rounds=20, algorithm=SCAFFOLD, **options):
    federation, options = problems.changed(BASE, options)
    return fo.simulate(algorithm, federation, rounds, **OPTIONS | options)


def without_times(evaluations):
    return {name: values for name, values in evaluations.items() if name != "seconds"}


@pytest.mark.parametrize("evaluate_every", [1, 7, 10])
def test_chunks_change_nothing(evaluate_every):
    state = problems.start(SCAFFOLD, N)
    result = simulate(23, state=state, evaluate_every=evaluate_every)
    traced = BASE.replace(local_steps=jnp.int32(2))
    reference = fo.run_rounds(SCAFFOLD, traced, state, 23, strategy="scan")
    problems.assert_identical(result.state, reference.state)
    for name in (
        "round",
        "loss",
        "first_loss",
        "update_norm",
        "cohort",
        "client_loss",
        "num_steps",
    ):
        np.testing.assert_array_equal(result.history[name], getattr(reference.history, name))
    np.testing.assert_array_equal(
        result.history["train_distance"], reference.history.metrics["distance"]
    )
    assert result.stopped == "23 rounds done" and result.seconds > 0 and result.evaluations == {}
    problems.assert_identical(result.variables, result.state.variables)


def test_numbers_may_change_without_recompiling():
    model, traces = problems.counted()

    def play(rounds=12, rate=0.1, steps=2, weights=(1.0,) * N, **options):
        sampler = fo.cohorts.weighted(3, weights)
        algorithm = fo.scaffold(fo.optimizers.sgd(rate))
        options = {"model": model, "cohort": sampler, "local_steps": steps, **options}
        return simulate(rounds, algorithm, evaluate_every=5, **options)

    first = play()
    compiled = len(traces)
    assert compiled > 0
    assert play(steps=9).history["num_steps"].max() == 9
    assert len(play(rounds=8).history["loss"]) == 8
    play(rate=0.01)
    play(seed=3)
    assert play(weights=(1.0, 2.0, 3.0, 4.0, 5.0, 0.0)).history["cohort"].max() < 5
    assert len(play(rounds=20, state=first.state).history["loss"]) == 8
    assert len(traces) == compiled


def test_evaluations_on_a_test_set_and_by_client():
    held_out = problems.ragged((3, 1, 4, 2, 5, 6), seed=9)
    states = {}

    def keep(chunk):
        states[chunk.last] = jax.tree.map(np.asarray, chunk.state().variables.params["w"])

    result = simulate(
        12, test=held_out.examples, client_test=held_out, evaluate_every=5, extensions=[keep]
    )
    found = result.evaluations
    assert found["round"].tolist() == [5, 10, 12] == list(states)
    assert np.all(np.diff(found["seconds"]) > 0)
    for row, w in enumerate(states.values()):
        x, y = held_out.examples["x"], held_out.examples["y"]
        np.testing.assert_allclose(found["loss"][row], problems.mean_loss(w, x, y), rtol=1e-12)
        np.testing.assert_allclose(found["distance"][row], np.abs(x @ w - y).mean(), rtol=1e-12)
        by_client = [
            problems.mean_loss(w, c["x"], c["y"]) for c in map(held_out.__getitem__, range(N))
        ]
        np.testing.assert_allclose(found["client_loss"][row], by_client, rtol=1e-12)


def diverging(**options):
    """Steps far too long: after a few rounds a loss overflows."""
    return simulate(50, fo.scaffold(fo.optimizers.sgd(1e30)), **options)


def test_measurements_are_evaluated_too():
    """A number and one per client, at the same times as the test set, under the names that they have."""

    def size(algorithm, federation, state):
        del algorithm, federation
        w = state.variables.params["w"]
        return {"size": jnp.linalg.norm(w), "by_client": jnp.array(SIZES, w.dtype) * w[0]}

    seen = []
    result = simulate(
        10, test=TEST, evaluate_every=5, measurements=[size], extensions=[
            lambda chunk: seen.append(dict(chunk.metrics)), fo.stop_at("size", -1.0)
        ]
    )  # fmt: skip
    w = np.asarray(result.variables.params["w"])
    assert result.stopped == "size reached -1.0" and int(result.state.round) == 5
    np.testing.assert_allclose(result.evaluations["size"], [np.linalg.norm(w)])
    np.testing.assert_allclose(result.evaluations["by_client"], [np.array(SIZES) * w[0]])
    assert sorted(seen[0]) == ["distance", "loss", "mean_by_client", "size"]


def test_there_is_a_history_where_nothing_was_left_to_do():
    done = simulate(5)
    again = simulate(5, state=done.state, guard=fo.Guard())
    assert again.history.keys() >= done.history.keys() | {"excluded"}
    assert again.history["loss"].shape == (0,) and again.history["cohort"].shape == (0, 3)
    problems.assert_identical(again.state, done.state)


def test_a_non_finite_loss_names_round_client_and_step():
    with pytest.raises(fo.NonFiniteLossError) as caught:
        diverging(evaluate_every=7)
    result = caught.value.result
    good = int(result.state.round)
    # The round that failed, played once more from the last good state.
    algorithm = fo.scaffold(fo.optimizers.sgd(1e30))
    info = jax.tree.map(np.asarray, play_one(algorithm, result.state).history)
    bad = np.flatnonzero(info.bad_step[0] >= 0)
    assert good > 0 and len(bad) and not info.finite[0]
    message = str(caught.value)
    assert f"Round {good}:" in message and result.stopped == message
    for i in bad[:3]:
        assert f"client {info.cohort[0][i]} " in message
        assert f"local step {info.bad_step[0][i]} " in message
    assert result.history["round"].tolist() == list(range(good))
    assert np.isfinite(result.history["loss"]).all()
    assert np.isfinite(result.variables.params["w"]).all()


def play_one(algorithm, state):
    traced = BASE.replace(local_steps=jnp.int32(2))
    return fo.run_rounds(algorithm, traced, state, 1, strategy="scan")


def test_the_last_good_state_can_go_on():
    """One poisoned example on client 3: what came before its first turn stays, and can go on."""
    poisoned = jax.tree.map(np.copy, DATA)
    poisoned.examples["y"][poisoned.offsets[3]] = np.nan
    # Cohorts are 0-1, 2-3, 4-5; round 1 fails on client 3.
    options = {"cohort": fo.cohorts.cyclic(2), "local_steps": 3}
    with pytest.raises(fo.NonFiniteLossError, match=r"Round 1: .* client 3 \(loss nan") as caught:
        simulate(9, clients=poisoned, **options)
    assert "client 2" not in str(caught.value)
    continued = simulate(9, state=caught.value.result.state, **options)
    problems.assert_identical(continued.state, simulate(9, **options).state)


def test_a_non_finite_loss_may_just_stop():
    result = diverging(on_nonfinite="stop")
    assert result.stopped.startswith(f"Round {int(result.state.round)}: the loss is not finite")
    assert np.isfinite(result.variables.params["w"]).all()


def test_the_given_state_stays_usable():
    state = problems.start(SCAFFOLD, N)
    first, again = simulate(state=state), simulate(state=state)
    assert np.isfinite(np.asarray(state.variables.params["w"])).all()
    problems.assert_identical(first.state, again.state)
    further = simulate(25, state=first.state)
    assert int(first.state.round) == 20 and int(further.state.round) == 25
    problems.assert_identical(further.state, simulate(25, state=state).state)


class Terminal:
    """A stream that says it is a terminal, or not, and keeps what is written to it."""

    def __init__(self, is_terminal):
        self.text, self.is_terminal = "", is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "progress", "shown"),
    [(False, True, False), (True, True, True), (True, False, False)],
)
def test_progress_is_shown_on_terminals_alone(monkeypatch, is_terminal, progress, shown):
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    result = simulate(progress=progress, test=TEST)
    assert int(result.state.round) == 20
    assert (
        "training" in stream.text and "20/20" in stream.text and "loss=" in stream.text
    ) == shown
    assert bool(stream.text) == shown
