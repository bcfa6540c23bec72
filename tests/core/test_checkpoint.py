"""Checkpoints: resumed runs are the uninterrupted ones, and what does not fit is refused."""

import gc
import pathlib
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems
from tests.core.test_simulate import DATA, SCAFFOLD, TEST, N, simulate, without_times

WATCHED = {"test": TEST, "client_test": DATA, "evaluate_every": 10}


def after_20(event):
    return "interrupted" if event.round >= 20 else None


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A directory with the checkpoints of a run that was stopped at round 20 of 50."""
    directory = tmp_path_factory.mktemp("run")
    with fo.Checkpoints(directory) as checkpoints:
        result = simulate(50, checkpoints=checkpoints, callbacks=[after_20], **WATCHED)
    assert result.stopped == "interrupted"
    return directory


@pytest.fixture
def copy(interrupted, tmp_path):
    """A copy of them, to be spoilt."""
    return pathlib.Path(shutil.copytree(interrupted, tmp_path / "copy"))


def test_a_resumed_run_is_the_uninterrupted_one(copy):
    with fo.Checkpoints(copy) as checkpoints:
        assert checkpoints.latest_round == 20
        resumed = simulate(50, checkpoints=checkpoints, **WATCHED)
    whole = simulate(50, **WATCHED)
    problems.assert_identical(resumed.state, whole.state)
    problems.assert_identical(resumed.history, whole.history)
    problems.assert_identical(without_times(resumed.evaluations), without_times(whole.evaluations))
    with fo.Checkpoints(copy) as checkpoints:
        done = simulate(50, checkpoints=checkpoints, **WATCHED)
    problems.assert_identical((done.state, done.history), (whole.state, whole.history))


def test_the_clock_of_a_resumed_run_goes_on(tmp_path):
    with fo.Checkpoints(tmp_path) as checkpoints:
        simulate(10, checkpoints=checkpoints, callbacks=[lambda _: time.sleep(1)],
                 test=TEST, evaluate_every=5)  # fmt: skip
        resumed = simulate(15, checkpoints=checkpoints, test=TEST, evaluate_every=5)
    assert np.all(np.diff(resumed.evaluations["seconds"]) > 0)


def test_only_the_newest_are_kept(tmp_path):
    with fo.Checkpoints(tmp_path, keep=2) as checkpoints:
        simulate(20, checkpoints=checkpoints, evaluate_every=5)
    kept = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert kept == [15, 20]


def mismatch(copy, state):
    with fo.Checkpoints(copy) as checkpoints, pytest.raises(ValueError) as caught:
        checkpoints.restore(state)
    assert str(copy) in str(caught.value) and "round 20" in str(caught.value)
    return str(caught.value)


def test_another_algorithm_is_refused(copy):
    message = mismatch(copy, problems.start(fo.fedavg(fo.optimizers.sgd(0.1)), N))
    assert "control" in message and "missing here" in message


def test_another_model_is_refused(copy):
    state = fo.init_state(SCAFFOLD, {"w": jnp.zeros(5)}, N)
    assert "float64[3] there and float64[5] here" in mismatch(copy, state)
    state = fo.init_state(SCAFFOLD, {"v": jnp.zeros(3)}, N)
    message = mismatch(copy, state)
    assert "'w'" in message and "'v'" in message


def test_another_population_is_refused(copy):
    message = mismatch(copy, problems.start(SCAFFOLD, N + 1))
    assert f"float64[{N}, 3] there and float64[{N + 1}, 3] here" in message


def test_another_population_is_refused_without_client_state(tmp_path):
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    with fo.Checkpoints(tmp_path) as checkpoints:
        simulate(5, algorithm, checkpoints=checkpoints)
        with pytest.raises(ValueError, match=rf"{N}.*{N - 1}|{N - 1}.*{N}"):
            simulate(10, algorithm, data=DATA[: N - 1], checkpoints=checkpoints)


def test_an_empty_directory_holds_nothing_to_restore(tmp_path):
    with (
        fo.Checkpoints(tmp_path) as checkpoints,
        pytest.raises(ValueError, match=f"{tmp_path} holds no checkpoint"),
    ):
        checkpoints.restore(problems.start(SCAFFOLD, N))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path):
    path.write_bytes(b"\x00\xff not what it was" * 7)


# A read that fails leaves futures of tensorstore behind, which complain to a closed event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "spoil", [cut, garble, pathlib.Path.unlink], ids=["cut", "garbled", "lost"]
)
def test_damage_is_named_and_never_goes_unnoticed(interrupted, tmp_path, spoil):
    """Every file of a checkpoint in turn: restoring gives the right state, or says where it failed."""
    expected = simulate(20, **WATCHED)
    template = problems.start(SCAFFOLD, N)
    files = [
        path.relative_to(interrupted) for path in interrupted.rglob("20/**/*") if path.is_file()
    ]
    refused = []
    for number, name in enumerate(files):
        directory = tmp_path / str(number)
        shutil.copytree(interrupted, directory)
        spoil(directory / name)
        try:
            with fo.Checkpoints(directory) as checkpoints:
                state, history = checkpoints.restore(template)
        except ValueError as error:
            assert str(directory) in str(error), f"{name}: {error}"
            refused.append(name)
        else:
            problems.assert_identical(state, expected.state)
            problems.assert_identical(history["rounds"], expected.history)
    gc.collect()  # so that what is left behind complains here, and in no other test
    assert len(refused) >= 3, f"of {files}, only {refused} mattered"


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match=r"keep must be .*at least 1, got 0"):
        fo.Checkpoints(tmp_path, keep=0)


def test_what_is_restored_is_the_checkpoint_and_nothing_of_the_template(copy):
    template = problems.start(SCAFFOLD, N, seed=99)
    with fo.Checkpoints(copy) as checkpoints:
        state, _ = checkpoints.restore(template)
    problems.assert_identical(state, simulate(20, **WATCHED).state)
    types = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (state, template)]
    assert types[0] == types[1]
