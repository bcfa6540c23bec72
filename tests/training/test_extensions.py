"""Extensions: what they are told and asked, what they may answer, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems
from tests.core.test_simulate import BASE, DATA, SCAFFOLD, TEST, simulate

INFOS = fo.run_rounds(SCAFFOLD, BASE, problems.start(SCAFFOLD, 6), 2, strategy="scan").history


class Watch(fo.Extension):
    """Writes down all that it is told."""

    def __init__(self, name="watch", answers=(), keeps=()):
        self._name, self._answers, self._keeps = name, dict(answers), keeps
        self.seen = []

    @property
    def name(self):
        return self._name

    def begin(self, run, memory):
        self.seen.append(("begin", run.round, memory))
        return memory or {"chunks": 0}

    def after(self, memory, chunk):
        self.seen.append(("after", chunk.first, chunk.last, chunk.step_scale, dict(memory)))
        answer = self._answers.pop(chunk.last, None)
        return {"chunks": memory["chunks"] + 1}, answer

    def keeps(self, memory):
        return self._keeps

    def end(self, memory, status):
        self.seen.append(("end", memory, status))


def test_what_an_extension_is_told():
    watch, chunks = Watch(), []
    result = simulate(
        12, test=TEST, client_test=DATA, evaluate_every=5, extensions=[watch, chunks.append]
    )
    assert watch.seen == [
        ("begin", 0, None),
        ("after", 0, 5, 1.0, {"chunks": 0}),
        ("after", 5, 10, 1.0, {"chunks": 1}),
        ("after", 10, 12, 1.0, {"chunks": 2}),
        ("end", {"chunks": 3}, "done"),
    ]
    assert [len(chunk.infos.loss) for chunk in chunks] == [5, 5, 2]
    losses = np.concatenate([chunk.infos.loss for chunk in chunks])
    np.testing.assert_array_equal(losses, result.history["loss"])
    for row, chunk in enumerate(chunks):
        assert chunk.finite and 0 < chunk.seconds <= result.seconds
        assert chunk.metrics["loss"] == result.evaluations["loss"][row]
        mean = result.evaluations["client_loss"][row].mean()
        np.testing.assert_allclose(chunk.metrics["mean_client_loss"], mean)


def test_several_reasons_to_stop():
    watch = Watch()

    def enough(chunk):
        return "enough" if chunk.last >= 10 else None

    result = simulate(30, evaluate_every=5, extensions=[enough, stop_after_10("over"), watch])
    assert result.stopped == "enough; over" and int(result.state.round) == 10
    assert watch.seen[-1] == ("end", {"chunks": 2}, "stopped: enough; over")


def stop_after_10(reason):
    return Watch("stop", {10: fo.Stop(reason)})


def test_an_error_is_told_to_all():
    first, last = Watch("first"), Watch("last")

    def fail(chunk):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        simulate(30, evaluate_every=5, extensions=[first, fail, last])
    for watch in (first, last):
        assert watch.seen[-1] == ("end", {"chunks": 0}, "failed: ZeroDivisionError: no")


def test_going_back_beats_stopping_and_restores_what_others_remember():
    back = fo.GoBack(5, 0.5, "because", stop=False)
    asker = Watch("asker", {10: back}, keeps=(5,))
    other = Watch("other", {10: fo.Stop("now")})
    result = simulate(15, evaluate_every=5, extensions=[asker, other])
    assert result.stopped == "15 rounds done"
    assert result.history["step_scale"].tolist() == [1.0] * 5 + [0.5] * 10
    assert result.history["round"].tolist() == list(range(15))
    assert asker.seen[3:6] == [
        ("begin", 5, {"chunks": 2}),  # its own
        ("after", 5, 10, 0.5, {"chunks": 2}),
        ("after", 10, 15, 0.5, {"chunks": 3}),
    ]
    assert other.seen[3:6] == [
        ("begin", 5, {"chunks": 1}),  # as it was then
        ("after", 5, 10, 0.5, {"chunks": 1}),
        ("after", 10, 15, 0.5, {"chunks": 2}),
    ]


def test_of_two_ways_back_the_earlier_round_and_the_smaller_step_count():
    one = Watch("one", {15: fo.GoBack(10, 0.1, "drifts")}, keeps=(5, 10))
    two = Watch("two", {15: fo.GoBack(5, 0.5, "diverged", stop=True)})
    result = simulate(30, evaluate_every=5, extensions=[one, two])
    assert int(result.state.round) == 5 and result.stopped == "drifts diverged"
    assert one.seen[-2:] == [
        ("begin", 5, {"chunks": 3}),
        ("end", {"chunks": 3}, "stopped: drifts diverged"),
    ]
    problems.assert_identical(result.state, simulate(5, evaluate_every=5).state)


def test_a_state_that_nobody_keeps_cannot_be_gone_back_to():
    lost = Watch(answers={10: fo.GoBack(5, 0.5, "because")}, keeps=(0,))
    with pytest.raises(ValueError, match=r"one that the extension keeps, \[0\], got 5"):
        simulate(15, evaluate_every=5, extensions=[lost])


def test_a_run_that_was_stopped_stays_stopped_while_the_extension_is_there(tmp_path):
    options = {"evaluate_every": 5, "test": TEST}
    with fo.Checkpoints(tmp_path) as checkpoints:
        for rounds in (30, 40):
            stop = stop_after_10("enough")
            result = simulate(rounds, checkpoints=checkpoints, extensions=[stop], **options)
            assert result.stopped == "enough" and int(result.state.round) == 10
        assert stop.seen == [
            ("begin", 10, {"chunks": 2}),
            ("end", {"chunks": 2}, "stopped: enough"),
        ]
        result = simulate(15, checkpoints=checkpoints, **options)
        assert result.stopped == "15 rounds done"


def test_memories_may_hold_arrays_and_come_back_to_the_bit(tmp_path):
    memory = {"best": -np.inf, "w": np.arange(3.0) / 3, "half": jnp.bfloat16(0.1), "x": [None, "é"]}

    class Keep(fo.Extension):
        def begin(self, run, memory):
            found.append(memory)
            return ()

        def after(self, _, chunk):
            return memory, None

    found = []
    with fo.Checkpoints(tmp_path) as checkpoints:
        for rounds in (5, 10):
            simulate(rounds, evaluate_every=5, checkpoints=checkpoints, extensions=[Keep()])
    back = found[1]
    assert back["best"] == -np.inf and back["x"] == [None, "é"]
    problems.assert_identical(back["w"], memory["w"])
    assert back["half"] == float(jnp.bfloat16(0.1))


@pytest.mark.parametrize(
    ("extension", "values", "reason"),
    [
        (
            fo.early_stopping("loss", patience=2),
            [3.0, 2.0, 2.5, 1.9, 1.9, np.nan],
            "loss has not improved in 2 evaluations",
        ),
        (
            fo.early_stopping("loss", patience=1, maximise=True),
            [0.5, 0.6, 0.6],
            "loss has not improved in 1 evaluations",
        ),
        (fo.stop_at("loss", 0.9), [0.89, 0.9], "loss reached 0.9"),
        (fo.stop_at("loss", 0.5, maximise=False), [0.6, 0.4], "loss reached 0.5"),
    ],
)
def test_it_stops_at_the_last_of_these_values(extension, values, reason):
    memory, answers = extension.begin(fo.RunFacts(0, 100, ("loss",)), None), []
    for value in values:
        chunk = fo.Chunk(0, 1, INFOS, {"loss": value}, True, 0.0, 1.0, lambda: None)
        memory, answer = extension.after(memory, chunk)
        answers.append(answer)
    assert answers == [None] * (len(values) - 1) + [fo.Stop(reason)]


def test_a_round_that_is_not_finite_is_no_evaluation():
    model = fo.scaffold(fo.optimizers.sgd(1e30))
    extensions = [fo.early_stopping("loss", 1), fo.stop_at("loss", -1.0, maximise=False)]
    result = simulate(
        50, model, evaluate_every=50, test=TEST, extensions=extensions, on_nonfinite="stop"
    )
    assert "the loss is not finite" in result.stopped
