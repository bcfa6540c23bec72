"""The JSON files of LEAF, read one client at a time.

Each file holds `users`, `num_samples` and `user_data`, and in that, for each user, `x` and `y`; a split
is a directory of such files. No more than one client's examples are in memory, however large a file is.

Reference:
  Caldas et al. LEAF: a benchmark for federated settings, 2018.
"""

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data import files as columns
from fedjax_opt.data import text
from fedjax_opt.data.sources.shallow import Shallow

LAYOUTS = ("femnist", "sent140", "shakespeare", "celeba", "numbers")
_TEXT_OF_TWEET = 4
_PIXELS = 28
_NO_JSON = "is not whole and valid JSON"


def read_leaf(
    path: str | os.PathLike[str],
    layout: str | None = None,
    *,
    encode: Callable[[list[str]], Any] | None = None,
    images: str | os.PathLike[str] | None = None,
    image_size: int = 84,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads federated data that LEAF wrote, client by client.

    Clients without examples are passed over. The layouts are

    - `femnist`: x, float32 `[n, 28, 28]`;
    - `sent140`: x, the texts of the tweets, as objects or through `encode`;
    - `shakespeare`: x, uint8 `[n, L]`, and y are places in `fo.data.text.CHARACTERS`;
    - `celeba`: x, uint8 `[n, image_size, image_size, 3]`;
    - `numbers`: x, float32 of any shape.

    In all of them y is int32, `[n]` unless the file has a list of labels for each example.

    Args:
      path: A file, or a directory of `.json` files.
      layout: What the examples look like. None: judged by the first client.
      encode: Turns a list of texts into an array, one row a text (for `sent140`).
      images: The directory of CelebA's images.
      image_size: The side that CelebA's images are brought to.

    Returns:
      Pairs of a client's name and its examples, for `fo.data.collect` or `fo.data.store`.

    Example:
      >>> import json, pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "data.json"
      >>> users = {"ann": {"x": [[1.0, 2.0]], "y": [0]}, "bob": {"x": [[3.0, 4.0]], "y": [1]}}
      >>> whole = {"users": ["ann", "bob"], "num_samples": [1, 1], "user_data": users}
      >>> _ = file.write_text(json.dumps(whole))
      >>> data, names = fo.data.collect(fo.data.read_leaf(file))
      >>> names, data.examples["x"].tolist()
      (['ann', 'bob'], [[1.0, 2.0], [3.0, 4.0]])

    Reference:
      Caldas et al. LEAF: a benchmark for federated settings, 2018.
    """
    if layout is not None:
        checks.choice("layout", layout, LAYOUTS)
    if layout == "celeba" and images is None:
        raise ValueError("images must be the directory of CelebA's images, got None.")
    checks.integer("image_size", image_size, low=1)
    return _clients(_files(pathlib.Path(path)), layout, encode, images, image_size)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise ValueError(f"{path} must hold .json files, and holds none.")
        return files
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file or a directory, got {path}.")
    return [path]


def _clients(files, layout, encode, images, image_size):
    seen = set()
    for file in files:
        for user, data in _users(file):
            origin = f"{file}: user {user!r:.60}"
            if user in seen:
                raise ValueError(f"{origin} comes twice.")
            seen.add(user)
            x, y = data["x"], data["y"]
            if not x:
                continue
            layout = layout or _judge(x[0], origin)
            if layout == "femnist":
                examples = columns.numbers(x, f"{origin}: x")
                if examples.shape[1:] != (_PIXELS**2,):
                    wrong = f"got shape {list(examples.shape)}"
                    raise ValueError(f"{origin}: x must be rows of {_PIXELS**2} numbers, {wrong}.")
                examples = examples.reshape(-1, _PIXELS, _PIXELS)
            elif layout == "numbers":
                examples = columns.numbers(x, f"{origin}: x")
            elif layout == "sent140":
                tweets = columns.texts((_tweet(row, origin) for row in x), f"{origin}: x")
                examples = columns.encoded(tweets, encode, origin)
            elif layout == "shakespeare":
                examples = text.character_ids(columns.texts(x, f"{origin}: x").tolist())
                following = columns.texts(y, f"{origin}: y").tolist()
                if any(len(character) != 1 for character in following):
                    raise ValueError(f"{origin}: y must be single characters.")
                y = text.character_ids(following)[:, 0]
            else:
                if images is None:
                    raise ValueError("images must be the directory of CelebA's images, got None.")
                names = columns.texts(x, f"{origin}: x").tolist()
                examples = _pictures(pathlib.Path(images), names, image_size, origin)
            yield user, {"x": examples, "y": columns.labels(y, f"{origin}: y")}


def _users(file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """The users of a file, whose sizes must be those that the file announces."""
    ijson = columns.optional("ijson", "read_leaf", "leaf")
    with columns.named(file, _NO_JSON):
        sizes = _announced(file, ijson, early=True)
    found: dict[str, int] = {}
    with file.open("rb") as stream, columns.named(file, _NO_JSON):
        for user, data in ijson.kvitems(Shallow(stream, str(file)), "user_data", use_float=True):
            if sizes is not None and user not in sizes:
                raise ValueError(f"{file}: user {user!r:.60} is not among its users.")
            size = len(_lists(data, f"{file}: user {user!r:.60}")[0])
            if sizes is not None and size != sizes[user]:
                wrong = f"num_samples says {sizes[user]}"
                raise ValueError(f"{file}: user {user!r:.60} has {size} examples, but {wrong}.")
            found[user] = size
            yield user, data
    if sizes is None:
        with columns.named(file, _NO_JSON):
            sizes = _announced(file, ijson, early=False)
        if sizes is not None and {u: n for u, n in sizes.items() if n} != {
            u: n for u, n in found.items() if n
        }:
            raise ValueError(f"{file}: users and num_samples are not those of user_data.")
    missing = [user for user, size in (sizes or {}).items() if size and user not in found]
    if missing or not found:
        wrong = f"lacks {missing[0]!r:.60}" if missing else "is empty or missing"
        raise ValueError(f"{file} is not a file of LEAF's: its user_data {wrong}.")


def _announced(file: pathlib.Path, ijson: Any, early: bool) -> dict[str, int] | None:
    """`users` with their `num_samples`; early: only if both come before the data."""
    users, sizes = [], []
    with file.open("rb") as stream:
        for prefix, event, value in ijson.parse(Shallow(stream, str(file)), use_float=True):
            if prefix == "users.item":
                users.append(value)
            elif prefix == "num_samples.item":
                sizes.append(value)
            elif early and event == "map_key" and prefix == "" and value == "user_data":
                break
    if not users and not sizes:
        return None
    if early and not (users and sizes):
        return None
    if len(users) != len(sizes) or not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"{file} must have one whole number in num_samples for each of its users.")
    if len(set(users)) < len(users):
        raise ValueError(f"{file} must name each of its users once, and names some twice.")
    return dict(zip(users, sizes, strict=True))


def _lists(data: Any, origin: str) -> tuple[list, list]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
        raise ValueError(f"{origin} must have a list x and a list y.")
    if len(data["x"]) != len(data["y"]):
        raise ValueError(f"{origin} has {len(data['x'])} examples but {len(data['y'])} labels.")
    return data["x"], data["y"]


def _judge(example: Any, origin: str) -> str:
    """The layout of which this is the first example."""
    if isinstance(example, str):
        return "celeba" if example.lower().endswith((".jpg", ".png")) else "shakespeare"
    if isinstance(example, list) and example and isinstance(example[0], str):
        return "sent140"
    if isinstance(example, list) and len(example) == _PIXELS**2:
        return "femnist"
    if isinstance(example, (list, int, float)):
        return "numbers"
    raise ValueError(f"{origin}: x is like no layout of LEAF's: {', '.join(LAYOUTS)}.")


def _tweet(row: Any, origin: str) -> str:
    if not isinstance(row, list) or len(row) <= _TEXT_OF_TWEET:
        raise ValueError(f"{origin}: x must be lists of id, date, query, user, text and more.")
    return row[_TEXT_OF_TWEET]


def _pictures(folder: pathlib.Path, names: list[str], size: int, origin: str) -> np.ndarray:
    for name in names:  # a name out of a file of data must not lead out of the folder
        if not name or pathlib.PurePath(name).name != name or "\\" in name or "\0" in name:
            raise ValueError(f"{origin}: {name!r:.60} is not the name of an image in {folder}.")
    return np.stack(
        [columns.read_image(folder / name, str(folder / name), size, "RGB") for name in names]
    )
