"""Files with the rows that were replaced, from which a folder of client state goes back in time."""

import pathlib
import re
import zlib
from typing import NamedTuple

import numpy as np

from fedjax_opt.storage import durable
from fedjax_opt.storage.shelves import Undo

_NAME = re.compile(r"undo-(\d+)-(\d+)\.bin")
_MAGIC = b"fo undo1"


class Step(NamedTuple):
    """A file, and the rounds that it leads back from and to."""

    path: pathlib.Path
    first: int
    last: int


def steps(folder: pathlib.Path) -> list[Step]:
    """The files of a folder, the newest last."""
    names = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
    found = [Step(path, int(name[1]), int(name[2])) for path, name in names if name]
    return sorted(found, key=lambda step: (step.last, step.first))


def write(folder: pathlib.Path, undo: Undo) -> None:
    """Writes a file: a checksum, the numbers of rounds and clients, the clients' ids and rows."""
    numbers = np.array([undo.first, undo.last, len(undo.ids)], "<i8")
    parts = [numbers, undo.ids.astype("<i8"), undo.known.astype(np.uint8), undo.rows[undo.known]]
    body = b"".join(part.tobytes() for part in parts)
    checksum = zlib.crc32(body).to_bytes(4, "little")
    durable.replace(folder / f"undo-{undo.first}-{undo.last}.bin", _MAGIC + checksum + body)


def read(path: pathlib.Path, row_bytes: int) -> Undo:
    """Reads a file, and compares its checksum."""
    with durable.named(path, "cannot be read"):
        content = path.read_bytes()
    body = content[12:]
    if content[:8] != _MAGIC or zlib.crc32(body).to_bytes(4, "little") != content[8:12]:
        raise ValueError(f"{path} is damaged: its checksum is not that of what it holds.")
    data = np.frombuffer(body, np.uint8)
    first, last, count = data[:24].view("<i8").tolist()
    ids = data[24 : 24 + 8 * count].view("<i8").astype(np.int64)
    known = data[24 + 8 * count : 24 + 9 * count].astype(bool)
    kept = data[24 + 9 * count :]
    if len(kept) != known.sum() * row_bytes:
        raise ValueError(f"{path} is damaged: it does not hold rows of {row_bytes} bytes.")
    rows = np.zeros((count, row_bytes), np.uint8)
    rows[known] = kept.reshape(-1, row_bytes)
    return Undo(first, last, ids, rows, known)
