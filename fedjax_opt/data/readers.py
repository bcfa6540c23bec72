"""Files of other federated libraries: LEAF's JSON, and what tensorflow-datasets has prepared.

Open only files that you trust: the parsers are those of ijson and tensorflow-datasets.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data import files, text

LAYOUTS = ("femnist", "sent140", "shakespeare", "numbers")
_TEXT_OF_TWEET = 4
_PIXELS = 28

Clients = Iterator[tuple[str, dict[str, chex.ArrayNumpy]]]


def read_leaf(
    path: str | os.PathLike[str], layout: str | None = None, *, encode: files.Encode | None = None
) -> Clients:
    """Reads federated data that LEAF wrote, client by client.

    No more than one client's examples are in memory, however large a file is. Clients without examples
    are passed over. The layouts are

    - `femnist`: x, float32 `[n, 28, 28]`;
    - `sent140`: x, the texts of the tweets, as objects or through `encode`;
    - `shakespeare`: x, uint8 `[n, L]`, and y are places in `fo.data.text.CHARACTERS`;
    - `numbers`: x, float32 of any shape.

    In all of them y is int32, `[n]` unless the file has a list of labels for each example.

    Args:
      path: A file, or a directory of `.json` files.
      layout: What the examples look like. None: judged by the first client.
      encode: Turns a list of texts into an array, one row a text (for `sent140`).

    Returns:
      Pairs of a client's name and its examples, for `fo.data.collect` or `fo.data.store`.

    Example:
      >>> import json, pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "data.json"
      >>> users = {"ann": {"x": [[1.0, 2.0]], "y": [0]}, "bob": {"x": [[3.0, 4.0]], "y": [1]}}
      >>> _ = file.write_text(json.dumps({"user_data": users}))
      >>> data, names = fo.data.collect(fo.data.read_leaf(file))
      >>> names, data.examples["x"].tolist()
      (['ann', 'bob'], [[1.0, 2.0], [3.0, 4.0]])

    Reference:
      Caldas et al. LEAF: a benchmark for federated settings, 2018.
    """
    if layout is not None:
        checks.choice("layout", layout, LAYOUTS)
    where = pathlib.Path(path)
    found = sorted(where.glob("*.json")) if where.is_dir() else [where]
    if not found:
        raise ValueError(f"{path} must hold .json files, and holds none.")
    if not found[0].is_file():
        raise FileNotFoundError(f"path must be a file or a directory, got {path}.")
    return _leaf_clients(found, layout, encode)


def _leaf_clients(
    found: list[pathlib.Path], layout: str | None, encode: files.Encode | None
) -> Clients:
    for file in found:
        for user, data in _leaf_users(file):
            origin = f"{file}: user {user!r:.60}"
            if not isinstance(data, dict) or not all(isinstance(data.get(k), list) for k in "xy"):
                raise ValueError(f"{origin} must have a list x and a list y.")
            x, y = data["x"], data["y"]
            if len(x) != len(y):
                raise ValueError(f"{origin} has {len(x)} examples but {len(y)} labels.")
            if not x:
                continue
            layout = layout or _judged(x[0], origin)
            if layout == "sent140":
                if not all(isinstance(row, list) and len(row) > _TEXT_OF_TWEET for row in x):
                    raise ValueError(
                        f"{origin}: x must be lists of id, date, query, user, text, ..."
                    )
                tweets = files.texts((row[_TEXT_OF_TWEET] for row in x), f"{origin}: x")
                examples = files.encoded(tweets, encode, origin)
            elif layout == "shakespeare":
                examples = text.character_ids(files.texts(x, f"{origin}: x").tolist())
                following = files.texts(y, f"{origin}: y").tolist()
                if any(len(character) != 1 for character in following):
                    raise ValueError(f"{origin}: y must be single characters.")
                y = text.character_ids(following)[:, 0]
            else:
                examples = files.numbers(x, f"{origin}: x")
            if layout == "femnist":
                if examples.shape[1:] != (_PIXELS**2,):
                    got = list(examples.shape)
                    raise ValueError(f"{origin}: x must be rows of 784 numbers, got shape {got}.")
                examples = examples.reshape(-1, _PIXELS, _PIXELS)
            yield user, {"x": examples, "y": files.labels(y, f"{origin}: y")}


def _leaf_users(file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    ijson = files.optional("ijson", "read_leaf", "leaf")
    count = 0
    with file.open("rb") as stream, files.named(file, "is not whole and valid JSON"):
        for pair in ijson.kvitems(stream, "user_data", use_float=True):
            count += 1
            yield pair
    if not count:
        raise ValueError(f"{file} is not a file of LEAF's: its user_data is empty or missing.")


def _judged(example: object, origin: str) -> str:
    """The layout of which this is the first example."""
    if isinstance(example, str):
        return "shakespeare"
    if isinstance(example, list) and example and isinstance(example[0], str):
        return "sent140"
    if isinstance(example, list) and len(example) == _PIXELS**2:
        return "femnist"
    if isinstance(example, (list, int, float)):
        return "numbers"
    raise ValueError(f"{origin}: x is like no layout of LEAF's: {', '.join(LAYOUTS)}.")


_NAMES = {"image": "x", "text": "x", "label": "y", "coarse_label": "coarse", "user": "client"}
_FORMAT = "array_record"


def read_tfds(
    name: str, split: str, data_dir: str | os.PathLike[str] | None = None
) -> dict[str, chex.ArrayNumpy]:
    """Reads a split of a data set that tensorflow-datasets has prepared in the array_record format.

    Images become x (uint8, without a channel axis if there is one channel), text becomes x, labels y
    (int32), `coarse_label` coarse and `user` client; other features keep their names.

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
    files.optional("importlib_resources", "read_tfds", "tfds")
    files.optional("tensorflow_datasets", "read_tfds", "tfds")
    prepared = files.optional("tensorflow_datasets.core.read_only_builder", "read_tfds", "tfds")
    home = pathlib.Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    origin = f"{home.expanduser()}: {name}"
    advice = (
        "Where TensorFlow is installed, prepare it with"
        f" tfds.builder({name!r}, file_format={_FORMAT!r}).download_and_prepare()."
    )
    try:
        builder = prepared.builder_from_files(name, data_dir=home.expanduser())
        found = getattr(builder.info.file_format, "value", None)
        if found != _FORMAT:
            raise ValueError(f"it is in the format {found}, which needs TensorFlow. {advice}")
        rows = list(builder.as_data_source(split=split))
    except Exception as error:  # those of three packages, which have no class in common
        said = " ".join(str(error).split())
        if type(error).__name__ == "DatasetNotFoundError":
            raise FileNotFoundError(f"{origin} is not prepared: {said:.300} {advice}") from error
        raise ValueError(f"{origin}, split {split!r}, cannot be read: {said:.300}") from error
    if not rows or not isinstance(rows[0], dict):
        raise ValueError(f"{origin}, split {split!r}, has no examples with named features.")
    return {
        str(_NAMES.get(f, f)): _feature([row[f] for row in rows], f"{origin}: {f}") for f in rows[0]
    }


def _feature(values: list[Any], origin: str) -> chex.ArrayNumpy:
    if isinstance(values[0], (bytes, str)):
        decoded = (v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values)
        return files.texts(decoded, origin)
    try:
        array = np.stack(values)
    except ValueError as error:
        raise ValueError(f"{origin} must have one shape in all examples: {error}") from error
    if array.ndim == 4 and array.shape[-1] == 1:
        array = array[..., 0]
    return files.values(array, origin) if array.dtype.kind in "iuf" else array
