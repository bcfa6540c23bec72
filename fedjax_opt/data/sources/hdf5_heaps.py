"""The heaps of an HDF5 file, where its texts are, looked at before HDF5 itself walks through them.

A heap is a row of objects, each of which says how long it is. At one that takes no room the library of
HDF5 (2.0.0) goes on for ever, and nothing can stop it: a file with such an object must be refused.

Reference:
  The HDF Group. HDF5 file format specification, version 3.0, section III.E, global heap.
"""

import mmap
import pathlib
import struct

_HEAD = b"GCOL\x01\0\0\0"
_OBJECT = struct.Struct("<H6xQ")  # number, references, length; 0 is the number of free room
_HEADER = 16  # bytes of the header of a heap, and of an object


def check(path: pathlib.Path) -> None:
    """Refuses a file with a heap whose objects do not follow one another to its end."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        at = content.find(_HEAD)
        while at >= 0:
            if not _is_whole(content, at):
                raise ValueError(f"{path} is damaged: its heap of texts at byte {at} is not whole.")
            at = content.find(_HEAD, at + 1)


def _is_whole(content: mmap.mmap, start: int) -> bool:
    length = int.from_bytes(content[start + 8 : start + _HEADER], "little")
    at, end = start + _HEADER, start + length
    if end > len(content):
        return False
    while at + _HEADER <= end:  # what is left at the end may be too small for an object
        number, size = _OBJECT.unpack_from(content, at)
        room = _HEADER + -(-size // 8) * 8 if number else size  # objects begin at multiples of 8
        if not 0 < room <= end - at:
            return False
        at += room
    return True
