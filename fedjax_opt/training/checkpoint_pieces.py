"""Arrays that are divided over processes, in checkpoints: each process writes the pieces that it has.

    pieces-00001/index.json   of process 1: which file is the piece of which array, and where it begins
    pieces-00001/00000.bin    the bytes of a piece

No process has to hold the whole of such an array. Any number of processes can read what any other number
has written, each what its own devices need. (orbax writes plain arrays in the first process alone, and
arrays of all processes while all of them wait for each other; these are written in the background.)
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np

_FOLDER, _INDEX = "pieces-{:05d}", "index.json"


def is_divided(array: Any) -> bool:
    """Whether no process has the whole of an array."""
    return isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    )


def parted(flat: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The arrays of a plain state that are whole, and copies of this process's pieces of the others."""
    whole = {name: leaf for name, leaf in flat.items() if not is_divided(leaf)}
    pieces = [
        copied(name, shard.data, [part.start or 0 for part in shard.index])
        for name, leaf in flat.items()
        if name not in whole
        for shard in leaf.addressable_shards
        if shard.replica_id == 0  # of equal pieces one is written
    ]
    return whole, pieces


def copied(name: str, array: Any, start: list[int]) -> dict[str, Any]:
    """A copy of a part of an array, which begins at some place of it."""
    content = np.asarray(array).tobytes()
    return {"array": name, "start": start, "shape": list(array.shape), "bytes": content}


def write(folder: pathlib.Path, pieces: list[dict[str, Any]]) -> str:
    """Writes this process's pieces, and names the folder in which they are."""
    name = _FOLDER.format(jax.process_index())
    (folder / name).mkdir()
    index = []
    for number, piece in enumerate(pieces):
        file = f"{number:05d}.bin"
        (folder / name / file).write_bytes(piece["bytes"])
        index.append({"file": file} | {key: piece[key] for key in ("array", "start", "shape")})
    (folder / name / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return name


def read(folder: pathlib.Path, like: dict[str, Any]) -> dict[str, Any]:
    """The divided arrays of a checkpoint by name, on the devices where others like them are."""
    found: dict[str, Pieces] = {}
    for path in sorted(folder.glob(_FOLDER.format(0)[:-5] + "*")):
        for about in json.loads((path / _INDEX).read_bytes()):
            leaf = like[about["array"]]
            # A map: no more is read than is needed.
            piece = np.memmap(path / about["file"], leaf.dtype, "r", shape=tuple(about["shape"]))
            found.setdefault(about["array"], Pieces(leaf)).take(about["start"], piece)
    return {name: pieces.array() for name, pieces in found.items()}


class Pieces:
    """An array that is put together from pieces, as far as this process's devices need it.

    Args:
      leaf: an array of the same shape, on the devices where this one is to be.
    """

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        indices = [(slice(None),) * leaf.ndim]
        if isinstance(leaf, jax.Array):
            indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
        bounds = {self._bounds(index) for index in indices}
        self._parts = {
            bound: np.empty([stop - start for start, stop in bound], leaf.dtype) for bound in bounds
        }
        self._filled = dict.fromkeys(self._parts, 0)

    def take(self, start: list[int], piece: np.ndarray) -> None:
        """Takes from a piece what is needed of it."""
        for bound, part in self._parts.items():
            low = [max(a, b) for a, (b, _) in zip(start, bound, strict=True)]
            ends = zip(start, piece.shape, bound, strict=True)
            high = [min(a + length, b) for a, length, (_, b) in ends]
            if all(a < b for a, b in zip(low, high, strict=True)):
                here = _between(low, high, [b for b, _ in bound])
                part[here] = piece[_between(low, high, start)]
                self._filled[bound] += part[here].size

    def array(self) -> Any:
        """The array on its devices.

        Raises:
          ValueError: if pieces are missing.
        """
        if any(self._filled[bound] != part.size for bound, part in self._parts.items()):
            raise ValueError("pieces of an array are missing")
        if not isinstance(self._leaf, jax.Array):
            return next(iter(self._parts.values()))
        return jax.make_array_from_callback(
            self._leaf.shape, self._leaf.sharding, lambda index: self._parts[self._bounds(index)]
        )

    def _bounds(self, index: Any) -> tuple[tuple[int, int], ...]:
        pairs = zip(index, self._leaf.shape, strict=True)
        return tuple(part.indices(length)[:2] for part, length in pairs)


def _between(low: list[int], high: list[int], origin: list[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))
