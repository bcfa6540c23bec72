"""Data sets that tensorflow-datasets has prepared, read without TensorFlow."""

import os
import pathlib
import re
from typing import Any

import numpy as np

from fedjax_opt.data import files as cells

_NAMES = {
    "image": "x", "text": "x", "label": "y", "polarity": "y", "coarse_label": "coarse",
    "user": "client",
}  # fmt: skip
_FORMAT = "array_record"
_NEUTRAL, _POSITIVE = 2, 4


def read_tfds(
    name: str, split: str, data_dir: str | os.PathLike[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads a split of a data set that tensorflow-datasets has prepared in the array_record format.

    Images become x (uint8, without a channel axis if there is one channel), text becomes x, labels y
    (int32), `coarse_label` coarse and `user` client; other features keep their names. EMNIST's images,
    which are stored mirrored and rotated, are put upright. Of Sentiment140, y is 0 or 1, and neutral
    tweets are left out.

    Nothing is downloaded. Where tensorflow-datasets and TensorFlow are installed, this prepares a set:
    `tfds.builder(name, file_format="array_record").download_and_prepare()`.

    Args:
      name: The data set, with its configuration where it has one: `cifar100`, `emnist/byclass`; and with
        a version, `mnist:3.0.1`, if it shall not be the newest that is prepared.
      split: The split, such as `train` or `test[:10%]`.
      data_dir: The directory of prepared data. None: $TFDS_DATA_DIR or `~/tensorflow_datasets`.

    Returns:
      Arrays `[n, ...]`.

    Example:
      >>> import fedjax_opt as fo
      >>> train = fo.data.read_tfds("cifar100", "train")  # doctest: +SKIP
    """
    folder = _prepared(name, data_dir)  # first: without data there is nothing to import for
    tfds = cells.optional("tensorflow_datasets", "read_tfds", "tfds")
    cells.optional("importlib_resources", "read_tfds", "tfds")
    try:
        builder = tfds.builder_from_directory(folder)
        found = getattr(builder.info.file_format, "value", None)
        if found != _FORMAT:
            raise ValueError(
                f"it is in the format {found}, which needs TensorFlow. {_advice(name)}"
            )
        source = builder.as_data_source(split=split)
        rows = list(source)
    except Exception as error:  # those of three packages, which have no class in common
        raise ValueError(f"{folder}, split {split!r}, cannot be read: {error!s:.300}") from error
    if not rows or not isinstance(rows[0], dict):
        raise ValueError(f"{folder}, split {split!r}, has no examples with named features.")
    arrays = {
        str(_NAMES.get(feature, feature)): _array(
            [row[feature] for row in rows], f"{folder}: {feature}"
        )
        for feature in rows[0]
    }
    return _put_right(re.split("[/:]", name)[0], arrays)


def _advice(name: str) -> str:
    return (
        "Where TensorFlow is installed, prepare it with"
        f" tfds.builder({name!r}, file_format={_FORMAT!r}).download_and_prepare()."
    )


def _prepared(name: str, data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """The version asked for, or the newest: `name/[configuration/]1.0.0` with `dataset_info.json`."""
    home = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    parent = pathlib.Path(home).expanduser()
    plain, _, version = name.partition(":")
    if any(part in ("", "..", ".") for part in plain.split("/")):
        raise ValueError(f"name must be a data set's, such as 'cifar100', got {name!r}.")
    found = [
        path.parent
        for pattern in ("*/dataset_info.json", "*/*/dataset_info.json")
        for path in (parent / plain).glob(pattern)
        if _version(path.parent.name) and version in ("", path.parent.name)
    ]
    if not found:
        raise FileNotFoundError(f"{parent} holds no prepared {name}. {_advice(name)}")
    if len({path.parent for path in found}) > 1:
        choices = sorted({path.parent.relative_to(parent).as_posix() for path in found})
        raise ValueError(f"name must be one of {', '.join(choices)}, got {name!r}.")
    return max(found, key=lambda path: _version(path.name))


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _array(values: list[Any], origin: str) -> np.ndarray:
    if isinstance(values[0], (bytes, str)):
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
        return cells.texts(texts, origin)
    try:
        array = np.stack(values)
    except ValueError as error:
        raise ValueError(f"{origin} must have one shape in all examples: {error}") from error
    return cells.values(array, origin) if array.dtype.kind in "iuf" else array


def _put_right(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = arrays.get("x")
    if x is not None and x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if name == "emnist" and x is not None and x.ndim == 3:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    if x is not None:
        arrays = {**arrays, "x": x}
    if name == "sentiment140":
        polar = arrays["y"] != _NEUTRAL
        arrays = {key: array[polar] for key, array in arrays.items()}
        arrays["y"] = (arrays["y"] == _POSITIVE).astype(np.int32)
    return arrays
