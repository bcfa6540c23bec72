"""SIGTERM and Ctrl-C: a run with checkpoints ends after the chunk that is being played."""

import signal
import threading

import pytest

import fedjax_opt as fo
from fedjax_opt.execution import distributed
from fedjax_opt.training.acting import agreed
from tests.core import problems
from tests.core.test_simulate import DATA, simulate

FEDAVG = fo.fedavg(fo.optimizers.sgd(0.1))


def raising(number, at_round=10, times=1):
    def extension(chunk):
        if chunk.last == at_round:
            for _ in range(times):
                signal.raise_signal(number)

    return extension


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_its_checkpoint(tmp_path, number, capfd):
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    options = {"evaluate_every": 5, "test": DATA.examples}
    with fo.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(fo.Interrupted) as caught:
            simulate(30, FEDAVG, checkpoints=checkpoints, extensions=[raising(number)], **options)
        assert checkpoints.latest_round == 10
        result = caught.value.result
        assert result.stopped == f"{number.name} after round 10 of 30"
        assert result.history["loss"].shape == (10,) and int(result.state.round) == 10
        assert str(tmp_path) in str(caught.value) and caught.value.exit_code == 128 + number
        assert isinstance(caught.value, KeyboardInterrupt)
        assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers
        told = capfd.readouterr().err
        assert f"fedjax_opt: {number.name}: the run ends when" in told and told.count("\n") == 2
        resumed = simulate(30, FEDAVG, checkpoints=checkpoints, **options)
    problems.assert_identical(resumed.state, simulate(30, FEDAVG, **options).state)


def test_a_signal_in_the_last_chunk_is_not_lost(tmp_path):
    with fo.Checkpoints(tmp_path) as checkpoints, pytest.raises(fo.Interrupted, match="10 of 10"):
        simulate(10, FEDAVG, checkpoints=checkpoints, extensions=[raising(signal.SIGTERM)],
                 evaluate_every=5)  # fmt: skip


@pytest.fixture
def usual_interrupt():
    """The handler of SIGINT that Python has by itself; without a terminal it may be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_does_what_it_did_before(tmp_path, usual_interrupt):
    """It is raised while the chunk of round 10 is not saved yet."""
    with fo.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(KeyboardInterrupt) as caught:
            simulate(10, FEDAVG, checkpoints=checkpoints, evaluate_every=5,
                     extensions=[raising(signal.SIGINT, times=2)])  # fmt: skip
        assert type(caught.value) is KeyboardInterrupt
        assert checkpoints.rounds == [5]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_are_left_alone_without_checkpoints_and_in_other_threads(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    seen = []

    def watch(chunk):
        seen.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))

    simulate(5, FEDAVG, evaluate_every=5, extensions=[watch])
    with fo.Checkpoints(tmp_path) as checkpoints:
        thread = threading.Thread(
            target=simulate,
            args=(5, FEDAVG),
            kwargs={"checkpoints": checkpoints, "evaluate_every": 5, "extensions": [watch]},
        )
        thread.start()
        thread.join()
        assert checkpoints.rounds == [5]
    assert seen == [before, before]


def test_the_signal_and_the_wish_of_any_process_count_and_the_first_says_where_to_go_back(
    monkeypatch,
):
    others = [
        [{}, {"Rollback": [6, 0.5, "diverged", False]}, None],
        [{"clock": "an hour"}, {"Rollback": [3, 0.1, "diverged", False]}, "SIGTERM"],
    ]
    monkeypatch.setattr(distributed, "is_joined", lambda: True)
    monkeypatch.setattr(distributed, "from_each", lambda own: others)
    back = {"Rollback": fo.GoBack(6, 0.5, "diverged")}
    assert agreed({}, back, None) == ({"clock": "an hour"}, back, "SIGTERM")
