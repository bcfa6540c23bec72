"""What is in the packages of `downloads`: IDX files, CIFAR-10's pictures, activities by person.

The bytes of a package are those of its checksum, so the parsers need not expect damage.

Reference:
  LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. Proceedings
  of the IEEE, 1998. (IDX.)
  Krizhevsky. Learning multiple layers of features from tiny images. Technical report, 2009.
  Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using
  smartphones. Neurocomputing 171, 2016.
"""

import gzip
import io
import json
import pathlib
import subprocess
import tarfile
from collections.abc import Iterator

import chex
import numpy as np

from fedjax_opt.data import files, pickled

Arrays = dict[str, chex.ArrayNumpy]

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
_SIGNALS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
_LENGTH, _STRIDE = 128, 64
_TEST_FRACTION = 0.2


def members(archive: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """The files of a `.tar.gz`, `.tgz` or `.deb`, by the last part of their names, without `.gz`."""
    with files.named(archive, "is damaged"):
        plain = None
        if archive.suffix == ".deb":  # whatever it is compressed with
            unpack = ["dpkg-deb", "--fsys-tarfile", str(archive)]
            plain = io.BytesIO(subprocess.run(unpack, capture_output=True, check=True).stdout)
        with tarfile.open(archive if plain is None else None, fileobj=plain) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is not None:
                    name, content = pathlib.PurePosixPath(member.name).name, file.read()
                    plain_name = name.removesuffix(".gz")
                    yield plain_name, content if plain_name == name else gzip.decompress(content)


def read_mnist(archive: pathlib.Path) -> tuple[Arrays, Arrays]:
    """(train, test) from four IDX files: x, uint8 [n, 28, 28], and y, int32 [n]."""
    arrays = {n: _idx(content) for n, content in members(archive) if n.endswith("-ubyte")}

    def examples(part: str) -> Arrays:
        labels = arrays[f"{part}-labels-idx1-ubyte"]
        return {"x": arrays[f"{part}-images-idx3-ubyte"].copy(), "y": labels.astype(np.int32)}

    return examples("train"), examples("t10k")


def _idx(content: bytes) -> chex.ArrayNumpy:
    """Two zeros, the type (8: unsigned bytes), the number of axes, their lengths, the values."""
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 * (1 + axes)).reshape(shape)


def read_cifar10(archive: pathlib.Path) -> tuple[Arrays, Arrays]:
    """(train, test) from pictures whose rows are images: x, uint8 [n, 32, 32, 3], and y, int32 [n]."""
    images = files.optional("PIL.Image", "Reading CIFAR-10", "tables")
    found: Arrays = {}
    for name, content in members(archive):
        if name.endswith("batch.png") or name.startswith("data_batch_"):
            with images.open(io.BytesIO(content)) as picture:
                found[name] = np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)
        elif name.endswith("_lables.json"):  # so spelled
            found[name] = np.asarray(json.loads(content), np.int32)
    parts = [found[name] for name in sorted(found) if name.startswith("data_batch_")]
    train = {"x": np.concatenate(parts), "y": found["train_lables.json"]}
    return train, {"x": found["test_batch.png"], "y": found["test_lables.json"]}


def read_activity(archive: pathlib.Path) -> tuple[Arrays, Arrays, tuple[str, ...]]:
    """(train, test, names of the clients): x, float32 [n, 128, 6], y, int32 [n], client, int32 [n].

    Signals at 50 Hz are cut into windows of 128 samples, one every 64, as the authors do; windows within
    one activity are kept. The last fifth of each person's windows of each activity is for testing.
    Windows overlap by half, so those for training that share samples with one for testing are left out.
    """
    (content,) = (content for name, content in members(archive) if name == "HAPT.pkl")
    people = pickled.read(content, str(archive))
    parts: tuple[list[Arrays], list[Arrays]] = ([], [])
    with files.named(archive, "holds a table that cannot be read"):
        for client, recordings in enumerate(people.values()):  # type: ignore[attr-defined]
            signals, labels, starts, recorded = _windows(map(_recording, recordings))
            in_test = _last_of_each(labels)
            for part, chosen in zip(parts, _apart(in_test, starts, recorded), strict=True):
                owner = np.full(chosen.sum(), client, np.int32)
                part.append({"x": signals[chosen], "y": labels[chosen], "client": owner})
    train, test = (
        {key: np.concatenate([p[key] for p in part]) for key in part[0]} for part in parts
    )
    return train, test, tuple(f"person {name}" for name in people)  # type: ignore[attr-defined]


def _recording(table) -> tuple[chex.ArrayNumpy, chex.ArrayNumpy]:
    """The signals, [time, 6], and the labels, out of a record of pandas' table of 2020."""
    _, blocks, names, _ = table.state["_data"].state
    columns = {}
    for block, index in zip(blocks, names, strict=True):
        columns |= zip(index.args[1]["data"], block, strict=True)
    return np.stack([columns[name] for name in _SIGNALS], axis=1), columns["label"]


def _windows(
    recordings: Iterator[tuple[chex.ArrayNumpy, chex.ArrayNumpy]],
) -> tuple[chex.ArrayNumpy, ...]:
    """Windows, their labels, where they start, and in which recording."""
    found = []
    for number, (signals, labels) in enumerate(recordings):
        starts = np.arange(0, max(len(labels) - _LENGTH + 1, 0), _STRIDE)
        rows = starts[:, None] + np.arange(_LENGTH)
        first = labels[starts]
        pure = np.all(labels[rows] == first[:, None], axis=1)
        kept = pure & (first >= 1) & (first <= len(ACTIVITIES))
        found.append(
            (signals[rows[kept]], first[kept] - 1, starts[kept], np.full(kept.sum(), number))
        )
    x, y, starts, recorded = (np.concatenate(column) for column in zip(*found, strict=True))
    return x.astype(np.float32), y.astype(np.int32), starts, recorded


def _last_of_each(labels: chex.ArrayNumpy) -> chex.ArrayNumpy:
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen[members[len(members) - round(_TEST_FRACTION * len(members)) :]] = True
    return chosen


def _apart(
    in_test: chex.ArrayNumpy, starts: chex.ArrayNumpy, recorded: chex.ArrayNumpy
) -> tuple[chex.ArrayNumpy, chex.ArrayNumpy]:
    """Who is for training and who for testing, without training windows that overlap with tests."""
    gap = np.abs(starts[:, None] - starts[in_test])
    shares = (gap < _LENGTH) & (recorded[:, None] == recorded[in_test])
    return ~in_test & ~shares.any(axis=1), in_test
