"""Results on disk: what was written is there whatever happens, and damage is named."""

import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments import rundir
from fedjax_opt.experiments.rundir import RunDirectory, read, read_model
from fedjax_opt.storage import durable

CONFIG = 'title = "Bäume"\nrounds = 20\n'
LABEL = "fedavg(learning_rate=0.1)/1"
VARIABLES = fo.Variables(
    params={"layer": {"kernel": jnp.arange(6.0).reshape(2, 3)}, "scale": jnp.ones(2, jnp.bfloat16)},
    state=[jnp.int32(7)],
)


def record(seed, number, **scalars):
    return {
        "label": LABEL, "hyperparameters": {"learning_rate": 0.1, "kind": "sgd", "at": [1, 2]},
        "seed": seed, "round": number, **scalars,
    }  # fmt: skip


RECORDS = [
    record(seed, number, loss=1 / (seed + number), accuracy=np.float32(0.5))
    for seed in (0, 1)
    for number in (10, 20)
]


@pytest.fixture
def finished(tmp_path):
    """A directory of a run that has finished."""
    with RunDirectory(tmp_path / "run", CONFIG, {"seeds": [0, 1]}) as run:
        run.append(RECORDS[:2])
        run.append(RECORDS[2:])
        run.save_model(LABEL, VARIABLES)
    return run.path


def test_what_is_written_is_read(finished):
    found = read(finished)
    assert found.config == CONFIG and found.records == RECORDS and found.labels == [LABEL]
    about = found.about
    assert about["status"] == "finished" and about["seeds"] == [0, 1] and about["seconds"] > 0
    assert set(about["versions"]) == {"python", "jax", "jaxlib", "numpy", "optax", "fedjax_opt"}
    assert about["machine"]["backend"] == "cpu" and about["machine"]["devices"] == 4
    assert (finished / "config.toml").read_text(encoding="utf-8") == CONFIG
    assert not [path for path in finished.rglob("*") if path.name.endswith(durable.PARTIAL)]


def test_any_reader_of_json_lines_can_read_it(finished):
    lines = (finished / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [r["loss"] for r in RECORDS]


def test_models_are_read_as_they_were(finished):
    found = read_model(finished, LABEL, like=VARIABLES)
    assert found.params["scale"].dtype == jnp.bfloat16 and found.state[0] == 7
    np.testing.assert_array_equal(found.params["layer"]["kernel"], [[0, 1, 2], [3, 4, 5]])
    (file,) = (finished / "models").glob("*.npz")
    with np.load(file, allow_pickle=False) as arrays:
        assert sorted(arrays.files) == ["params/layer/kernel", "params/scale", "state/0"]


def test_a_model_of_another_kind_is_refused(finished):
    params = VARIABLES.params
    wide = VARIABLES._replace(params=params | {"layer": {"kernel": jnp.ones((2, 4))}})
    with pytest.raises(ValueError, match=r"kernel' must be float64\[2, 4\], as in `like`"):
        read_model(finished, LABEL, like=wide)
    with pytest.raises(ValueError, match=r"lacks 'params/bias': it is of another model"):
        read_model(finished, LABEL, VARIABLES._replace(params=params | {"bias": jnp.ones(1)}))
    with pytest.raises(ValueError, match=r"also holds 'state/0': it is of another model"):
        read_model(finished, LABEL, VARIABLES._replace(state=()))
    with pytest.raises(ValueError, match=r"models/fedprox.npz cannot be read"):
        read_model(finished, "fedprox", like=VARIABLES)


def test_numbers_that_are_none_come_back(tmp_path):
    with RunDirectory(tmp_path, CONFIG) as run:
        run.append([record(0, 10, loss=np.inf, accuracy=jnp.float32(np.nan), diverged="Round 3")])
    (found,) = read(tmp_path).records
    assert np.isnan(found["loss"]) and np.isnan(found["accuracy"])
    assert found["diverged"] == "Round 3"
    assert "NaN" not in (tmp_path / "history.jsonl").read_text(encoding="utf-8")


def test_a_run_is_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunDirectory(tmp_path, CONFIG) as run:
        run.append(RECORDS[:3])
        raise KeyboardInterrupt
    first = read(tmp_path)
    assert first.about["status"] == "interrupted" and first.records == RECORDS[:3]
    again = record(1, 10, loss=0.25)
    with RunDirectory(tmp_path, CONFIG) as run:
        assert run.records == RECORDS[:3]
        run.append([again, RECORDS[3]])
    found = read(tmp_path)
    assert found.about["status"] == "finished"
    assert found.records == [*RECORDS[:2], again, RECORDS[3]], (
        "the last of a trial and round counts"
    )
    assert found.about["started"] == first.about["started"]
    assert found.about["seconds"] > first.about["seconds"]


def test_a_run_that_fails_says_so(tmp_path):
    with pytest.raises(ZeroDivisionError), RunDirectory(tmp_path, CONFIG):
        raise ZeroDivisionError
    assert read(tmp_path).about["status"] == "failed"


KILLED = """
import os, signal, sys
from fedjax_opt.experiments.rundir import RunDirectory
run = RunDirectory(sys.argv[1], sys.argv[2])
record = {"label": "a", "hyperparameters": {}, "seed": 0, "loss": 0.5}
run.append([record | {"round": 1}, record | {"round": 2}])
os.write(run._lines._file, b'{"label": "a", "hyper')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_what_was_done(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path, CONFIG], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    found = read(tmp_path)
    assert found.about["status"] == "running" and [r["round"] for r in found.records] == [1, 2]
    with RunDirectory(tmp_path, CONFIG) as run:
        run.append([found.records[0] | {"round": 3}])
    assert [r["round"] for r in read(tmp_path).records] == [1, 2, 3]


@pytest.mark.parametrize("left", [[], ["config.toml"], ["config.toml", "about.json.new"]])
def test_a_kill_before_the_beginning_leaves_nothing_in_the_way(tmp_path, left):
    for name in left:
        (tmp_path / name).write_bytes(CONFIG.encode())
    with RunDirectory(tmp_path, CONFIG) as run:
        run.append(RECORDS)
    assert read(tmp_path).records == RECORDS


def test_another_run_is_refused(finished):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*"))
    with pytest.raises(ValueError, match="another run: rounds is 20 there and 10 here"):
        RunDirectory(finished, CONFIG.replace("20", "10"))
    with pytest.raises(ValueError, match=r"more is left out there and 1 here. Choose another"):
        RunDirectory(finished, CONFIG + "more = 1\n")
    assert sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*")) == before


WIDE = 'rounds = 20\nseeds = [0, 1]\nmetric = "loss"\n[grid]\nmu = [1, 2]\n[algorithms]\na = "x"\n'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("20", "30"), ("[0, 1]", "[2, 0, 1]"), ('"loss"', '"accuracy"'), ("[1, 2]", "[1, 2, 3]"),
        ('a = "x"', 'b = "y"\na = "x"'),
    ],
)  # fmt: skip
def test_a_run_is_extended_and_not_shrunk(tmp_path, old, new, monkeypatch):
    """A kill between the two files that change leaves a run as well."""
    wider = WIDE.replace(old, new)
    RunDirectory(tmp_path / "run", WIDE).close()
    about = (tmp_path / "run" / "about.json").read_bytes()
    RunDirectory(tmp_path / "run", wider).close()
    assert read(tmp_path / "run").config == wider
    if "loss" not in old:
        with pytest.raises(ValueError, match="holds another run"):
            RunDirectory(tmp_path / "run", WIDE)
    (tmp_path / "run" / "about.json").write_bytes(about)
    with pytest.raises(ValueError, match=r"config.toml is damaged"):
        read(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(WIDE)
    original = durable.replace

    def killed(path, content):
        if path.name == "config.toml":
            raise KeyboardInterrupt
        original(path, content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(durable, "replace", killed)
        RunDirectory(tmp_path / "run", wider)
    assert read(tmp_path / "run").config == WIDE
    (tmp_path / "run" / "config.toml").write_text(wider)
    assert read(tmp_path / "run").config == wider


def test_a_trial_of_other_numbers_is_refused(tmp_path):
    RunDirectory(tmp_path, CONFIG, trials={"a": "1", "b": "2"}).close()
    RunDirectory(tmp_path, CONFIG, trials={"c": "3", "b": "2"}).close()
    with pytest.raises(ValueError, match="another run: a has other data, numbers or functions"):
        RunDirectory(tmp_path, CONFIG, trials={"a": "9"})


def test_a_run_is_the_same_with_other_comments(finished):
    with RunDirectory(finished, f"# What it means.\n{CONFIG}") as run:
        assert run.records == RECORDS
    assert read(finished).config == CONFIG


def test_other_versions_are_refused(finished, monkeypatch):
    monkeypatch.setattr(rundir, "_versions", lambda: {"jax": "0.0.1"})
    with pytest.raises(ValueError, match=r"begun with jax .*, not 0.0.1, .* Choose another"):
        RunDirectory(finished, CONFIG)


@pytest.mark.parametrize(
    ("name", "content"),
    [("thesis.tex", b""), ("config.toml", b"mine = 1"), ("history.jsonl", b"{}\n")],
)
def test_other_files_are_left_alone(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path} must be empty, .*{name} among them. Choose"):
        RunDirectory(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == content


def test_a_second_writer_is_refused(tmp_path):
    with RunDirectory(tmp_path, CONFIG) as run:
        run.append(RECORDS)
        with pytest.raises(ValueError, match=f"{tmp_path} is in use by another run"):
            RunDirectory(tmp_path, CONFIG)
    assert read(tmp_path).records == RECORDS


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be written: File exists"):
        RunDirectory(tmp_path / "file", CONFIG)


class FullDisk:
    """Lets so many bytes through `os.write`, and then says that there is no room."""

    def __init__(self, room, write=os.write):
        self.room, self.write = room, write

    def __call__(self, file, content):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write(file, content[: self.room])
        self.room -= written
        return written


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path, CONFIG)
    run.append(RECORDS[:1])
    monkeypatch.setattr(os, "write", FullDisk(room=300))
    with pytest.raises(
        ValueError, match=r"history.jsonl cannot be written: the disk is full.*free"
    ):
        run.append(RECORDS[1:])
    monkeypatch.undo()
    assert read(tmp_path).records == RECORDS[:1]
    run.append(RECORDS[1:])
    run.close()
    assert read(tmp_path).records == RECORDS


def test_a_full_disk_at_the_beginning_is_no_obstacle_later(tmp_path, monkeypatch):
    def no_room(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(ValueError, match=r"config.toml cannot be written: the disk is full"):
        RunDirectory(tmp_path, CONFIG)
    monkeypatch.undo()
    RunDirectory(tmp_path, CONFIG).close()
    assert read(tmp_path).records == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    def no_room(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunDirectory(tmp_path, CONFIG) as run:
        run.save_model(LABEL, VARIABLES)
        monkeypatch.setattr(os, "fsync", no_room)
        with pytest.raises(ValueError, match="npz cannot be written: the disk is full"):
            run.save_model(LABEL, VARIABLES._replace(state=[jnp.int32(8)]))
        monkeypatch.undo()
    assert read_model(tmp_path, LABEL, like=VARIABLES).state[0] == 7
    assert len(list((tmp_path / "models").iterdir())) == 2  # and what it is


def everything(path):
    """All that can be read from a directory."""
    found = read(path)
    model = read_model(path, LABEL, like=VARIABLES)
    return found.config, found.about, found.records, str(model)


FILES = ["config.toml", "about.json", "history.jsonl", "models"]


def damaged(finished, name):
    path = finished / name
    return next(path.glob("*.npz")) if path.is_dir() else path


def assert_named_or_harmless(finished, path, expected):
    """Reading says which file is damaged, unless the same was read; tells whether it said so."""
    try:
        assert everything(finished) == expected
    except ValueError as error:
        assert str(finished) in str(error) and path.name in str(error)
        return True
    return False


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(finished, name):
    path = damaged(finished, name)
    content, expected = path.read_bytes(), everything(finished)
    for length in {0, 1, len(content) // 3, len(content) // 2, content.rfind(b"\n", 0, -1) + 1}:
        path.write_bytes(content[:length])
        assert assert_named_or_harmless(finished, path, expected), length
    path.unlink()
    assert assert_named_or_harmless(finished, path, expected)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff not what it was" * 9, b"[1, 2]\n", b'{"crc32": 0}\n', b'{"a": 1}\n']
)
def test_a_foreign_file_is_named(finished, name, content):
    path, expected = damaged(finished, name), everything(finished)
    path.write_bytes(content)
    assert assert_named_or_harmless(finished, path, expected)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named(finished, name):
    path = damaged(finished, name)
    content, expected = path.read_bytes(), everything(finished)
    rng = np.random.default_rng(0)
    noticed = 0
    places = rng.permutation(8 * len(content))[:400]
    for place in places:
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        noticed += assert_named_or_harmless(finished, path, expected)
    # What is left is indentation.
    assert noticed > 0.7 * len(places)


def test_a_line_that_is_no_record_is_named(tmp_path):
    with RunDirectory(tmp_path, CONFIG) as run:
        run.append([{"label": "a", "hyperparameters": {}, "seed": "x", "round": 1}])
    with pytest.raises(ValueError, match=r"Line 1 of .*history.jsonl must have a seed of type int"):
        read(tmp_path)


def test_a_later_version_is_refused(finished):
    about = durable.unsealed((finished / "about.json").read_bytes(), "")
    (finished / "about.json").write_text(durable.sealed(about | {"version": 2}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"about.json must describe .* of version 1, got .* version 2"
    ):
        read(finished)


def test_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run: about.json is missing"):
        read(tmp_path)


def test_a_copy_is_as_good(finished, tmp_path):
    copy = pathlib.Path(shutil.copytree(finished, tmp_path / "copy"))
    assert everything(copy) == everything(finished)


@pytest.mark.parametrize("label", ["a/b", "..", "50% + 1", "Bäume", "a b(c=[1, 2])"])
def test_any_label_names_a_file(tmp_path, label):
    with RunDirectory(tmp_path, CONFIG) as run:
        run.save_model(label, VARIABLES)
    assert read(tmp_path).labels == [label]
    assert len(list(tmp_path.rglob("*.npz"))) == 1 and (tmp_path / "models").is_dir()
    assert read_model(tmp_path, label, like=VARIABLES).state[0] == 7


def test_leaves_must_have_paths_of_their_own(tmp_path):
    with (
        RunDirectory(tmp_path, CONFIG) as run,
        pytest.raises(ValueError, match="Two arrays have the path"),
    ):
        run.save_model("a", fo.Variables({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}))


def test_a_status_is_one_of_three(tmp_path):
    run = RunDirectory(tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"status must be one of 'finished', .*got 'done'"):
        run.close("done")
    run.close()
