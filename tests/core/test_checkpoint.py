"""Checkpoints: resumed runs are the uninterrupted ones, and what does not fit is refused."""

import json
import pathlib
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.storage import durable
from tests.core import problems
from tests.core.test_simulate import DATA, SCAFFOLD, TEST, N, simulate, without_times

WATCHED = {"test": TEST, "client_test": DATA, "evaluate_every": 10}


def after_20(chunk):
    return "interrupted" if chunk.last >= 20 else None


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A directory with the checkpoints of a run that was stopped at round 20 of 50."""
    directory = tmp_path_factory.mktemp("run")
    with fo.Checkpoints(directory) as checkpoints:
        result = simulate(50, checkpoints=checkpoints, extensions=[after_20], **WATCHED)
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
        simulate(10, checkpoints=checkpoints, extensions=[lambda _: time.sleep(1)],
                 test=TEST, evaluate_every=5)  # fmt: skip
        resumed = simulate(15, checkpoints=checkpoints, test=TEST, evaluate_every=5)
    assert np.all(np.diff(resumed.evaluations["seconds"]) > 0)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (lambda: problems.start(fo.fedavg(fo.optimizers.sgd(0.1)), N), "control.* missing here"),
        (lambda: fo.first_state(SCAFFOLD, {"w": jnp.zeros(5)}, N), r"\[3\] there and float64\[5\]"),
        (lambda: fo.first_state(SCAFFOLD, {"v": jnp.zeros(3)}, N), "'v'.*missing there.*'w'"),
        (lambda: problems.start(SCAFFOLD, N + 1), rf"\[{N}, 3\] there and float64\[{N + 1}, 3\]"),
    ],
    ids=["algorithm", "shape", "model", "population"],
)
def test_the_state_of_another_run_is_refused(copy, state, named):
    with fo.Checkpoints(copy) as checkpoints, pytest.raises(ValueError, match=named) as caught:
        checkpoints.restore(state())
    assert f"round 20 in {copy}" in str(caught.value)


def test_another_population_is_refused_without_client_state(tmp_path):
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    with fo.Checkpoints(tmp_path) as checkpoints:
        simulate(5, algorithm, checkpoints=checkpoints)
        with pytest.raises(ValueError, match=rf"{N}.*{N - 1}|{N - 1}.*{N}"):
            simulate(10, algorithm, clients=DATA[: N - 1], checkpoints=checkpoints)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path):
    path.write_bytes(b"\x00\xff not what it was" * 7)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil", [cut, garble, flip, pathlib.Path.unlink], ids=["cut", "garbled", "flipped", "lost"]
)
def test_damage_is_named_with_the_way_on(copy, tmp_path, spoil):
    """Every file of a checkpoint in turn, before anything else reads it."""
    template = problems.start(SCAFFOLD, N)
    files = [path.relative_to(copy) for path in copy.rglob("20/**/*") if path.is_file()]
    assert len(files) > 5
    files += [path.relative_to(copy) for path in (copy / "history").iterdir()]
    for name in files:
        kept = (copy / name).read_bytes()
        spoil(copy / name)
        with fo.Checkpoints(copy) as checkpoints, pytest.raises(ValueError) as caught:
            checkpoints.restore(template)
        message = str(caught.value)
        assert f"round 20 in {copy} cannot be read" in message
        assert "/".join(name.parts[1:]) in message
        assert f"Move {copy / '20'} away to resume from round 10." in message
        (copy / name).write_bytes(kept)
    with fo.Checkpoints(copy) as checkpoints:
        assert int(checkpoints.restore(template)[0].round) == 20


def test_the_way_on_is_the_way_on(copy):
    """What the message says: the run goes on from the one before, to the same end."""
    garble(copy / "20" / "about.json")
    whole = (copy / "10" / "about.json").read_text()
    with (
        fo.Checkpoints(copy) as checkpoints,
        pytest.raises(ValueError, match="to resume from round 10"),
    ):
        simulate(50, checkpoints=checkpoints, **WATCHED)
    shutil.rmtree(copy / "20")
    cut(copy / "10" / "about.json")
    with (
        fo.Checkpoints(copy) as checkpoints,
        pytest.raises(ValueError, match="No earlier one is there"),
    ):
        simulate(50, checkpoints=checkpoints, **WATCHED)
    (copy / "10" / "about.json").write_text(whole)
    with fo.Checkpoints(copy) as checkpoints:
        resumed = simulate(50, checkpoints=checkpoints, **WATCHED)
    problems.assert_identical(resumed.state, simulate(50, **WATCHED).state)


def test_foreign_folders_are_refused(copy):
    template = problems.start(SCAFFOLD, N)
    (copy / "20" / "more").write_text("what is this?")
    with fo.Checkpoints(copy) as checkpoints, pytest.raises(ValueError, match="more does not bel"):
        checkpoints.restore(template)
    (copy / "30").mkdir()
    with (
        fo.Checkpoints(copy) as checkpoints,
        pytest.raises(ValueError, match=r"about\.json cannot be"),
    ):
        checkpoints.restore(template)
    shutil.rmtree(copy / "30")
    shutil.copytree(copy / "10", copy / "30")
    with fo.Checkpoints(copy) as checkpoints, pytest.raises(ValueError, match="that of round 10"):
        checkpoints.restore(template)
    for name in ("notes", "007", ".partial-40"):
        (copy / name).mkdir()
    with fo.Checkpoints(copy) as checkpoints:
        assert checkpoints.rounds == [10, 20, 30]
        with pytest.raises(ValueError, match=r"round 15 to restore; it has \[10, 20, 30\]"):
            checkpoints.restore(template, round=15)
        assert int(checkpoints.restore(template, round=10)[0].round) == 10


def test_another_format_is_refused_by_name(copy):
    about = durable.read_json(copy / "10" / "about.json")
    durable.write_json(copy / "10" / "about.json", about | {"version": 99})
    with (
        fo.Checkpoints(copy) as checkpoints,
        pytest.raises(ValueError, match="version 99; this ver"),
    ):
        checkpoints.restore(problems.start(SCAFFOLD, N), round=10)


def test_what_is_restored_is_the_checkpoint_and_nothing_of_the_template(copy):
    template = problems.start(SCAFFOLD, N, seed=99)
    with fo.Checkpoints(copy) as checkpoints:
        state, _ = checkpoints.restore(template)
    problems.assert_identical(state, simulate(20, **WATCHED).state)
    types = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (state, template)]
    assert types[0] == types[1]


def test_what_a_person_wants_to_know_is_there_to_read(copy):
    about = json.loads((copy / "20" / "about.json").read_text())
    assert about["round"] == 20 and about["versions"]["jax"] == jax.__version__
    assert about["machine"]["backend"] == "cpu" and about["metrics"].keys() >= {"loss"}
    assert about["hyperparameters"]["batch_size"] == "4"
    files = {p.relative_to(copy / "20").as_posix() for p in (copy / "20").rglob("*") if p.is_file()}
    assert about["sealed"].keys() == files - {"about.json"}
    assert all(len(checksum) == 64 for checksum in about["sealed"].values())
    assert about["functions"]["algorithm.step"] == "fedjax_opt.algorithms.local_training._step"


def test_written_on_some_devices_resumed_on_others(tmp_path):
    """The state is the same to the bit, wherever it goes; sums over devices may round differently."""

    def on(count):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("clients",))
        return fo.Strategy("sharded", mesh=mesh) if count > 1 else "scan"

    whole = simulate(10)
    for number, (first, second) in enumerate([(4, 1), (1, 4)]):
        directory = tmp_path / str(number)
        with fo.Checkpoints(directory) as checkpoints:
            written = simulate(5, strategy=on(first), checkpoints=checkpoints)
            template = fo.place(problems.start(SCAFFOLD, N), on(second))
            restored, _ = checkpoints.restore(template)
            problems.assert_identical(restored, written.state)
            assert restored.server.variables.params["w"].sharding.num_devices == second
            resumed = simulate(10, strategy=on(second), checkpoints=checkpoints)
        expected = simulate(10, strategy=on(second), state=restored)
        problems.assert_identical(resumed.state, expected.state)
        problems.assert_close(resumed.state, whole.state)
