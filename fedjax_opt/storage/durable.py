"""Files that are there whole or not at all, and that say so when they are damaged."""

import contextlib
import json
import os
import pathlib
import zlib
from collections.abc import Iterator
from io import FileIO
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks: there two runs in one folder go unnoticed.
    fcntl = None


@contextlib.contextmanager
def named(path: pathlib.Path, what: str) -> Iterator[None]:
    """Turns what the system refuses into a ValueError that names the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} {what}: {error.strerror or error}.") from error


@contextlib.contextmanager
def opened(path: pathlib.Path, mode: str) -> Iterator[FileIO]:
    """A file without a buffer of its own; when writing ends, what was written is on the disk."""
    refused = "cannot be read" if mode == "rb" else "cannot be written"
    with named(path, refused), FileIO(path, mode) as file:
        yield file
        if mode != "rb":
            os.fsync(file.fileno())


def write_all(file: FileIO, content: Any) -> None:
    """Writes all bytes: the system may take fewer at once, as it does when the disk is almost full."""
    left = memoryview(content).cast("B")
    while left:
        left = left[file.write(left) :]


def read_all(file: FileIO, target: Any) -> int:
    """Fills a buffer, and returns how much of it the file had."""
    left, total = memoryview(target).cast("B"), 0
    while left and (count := file.readinto(left)):
        left, total = left[count:], total + count
    return total


def replace(path: pathlib.Path, content: bytes) -> None:
    """Puts a file in its place at once: whoever reads it finds the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    try:
        with opened(fresh, "wb") as file:
            write_all(file, content)
        with named(path, "cannot be written"):
            os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    settle(path.parent)


def settle(folder: pathlib.Path) -> None:
    """Makes the names in a folder as durable as what the files hold, where systems can do that."""
    if os.name == "posix":
        with named(folder, "cannot be written"):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a JSON file with its checksum."""
    checked = content | {"crc32": _checksum(content)}
    replace(path, json.dumps(checked, indent=1).encode())


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON file, and compares its checksum."""
    with named(path, "cannot be read"):
        text = path.read_bytes()
    try:
        found = json.loads(text)
        expected = found.pop("crc32")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is no JSON with a checksum.") from error
    if expected != _checksum(found):
        raise ValueError(f"{path} is damaged: its checksum is not that of what it holds.")
    return found


def lock(path: pathlib.Path) -> int:
    """Holds a file for one process, until the handle is closed or the process ends."""
    with named(path, "cannot be opened"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise ValueError(
                f"{path.parent} is in use by another run or another ClientStore; close that first."
            ) from error
    return handle


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
