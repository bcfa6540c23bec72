"""Files that are there whole or not at all, and that say so when they are damaged."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import warnings
import weakref
import zlib
from collections.abc import Iterator, Mapping
from io import FileIO
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks: there two runs in one folder go unnoticed.
    fcntl = None

# What a disk answers that has no locks, as Lustre without `-o flock` and NFS without its daemon.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class Lock:
    """Holds a file for one owner, until it is closed, or nobody has it any more, or the process ends.

    Args:
      path: the file; made if it is missing, with its folder. It is the folder that the error names.

    Attributes:
      works: False if the disk has no locks; then a warning has said so.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.works = True
        with named(path, "cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        # A reference to `self` here would keep it alive for ever.
        self._let_go = weakref.finalize(self, os.close, handle)
        if fcntl is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise ValueError(
                f"{path.parent} is in use by another run, or was opened before in this one. Wait for"
                " that one to end, close what has it open, or choose another directory."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.close()
                raise ValueError(f"{path} cannot be locked: {error.strerror}.") from error
            self.works = False
            warnings.warn(
                f"The disk of {path.parent} has no locks: a second run in it would go unnoticed.",
                stacklevel=2,
            )

    def close(self) -> None:
        """Lets go of the file."""
        self._let_go()


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


def force_names(folder: pathlib.Path) -> None:
    """Forces to the disk which files are in a folder, where systems can do that."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    with named(folder, "cannot be written"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def seal(folder: pathlib.Path) -> dict[str, str]:
    """Forces a folder to the disk: all files in it, however deep, and their names.

    Returns:
      The SHA-256 of each file, by its path in the folder; `verify` compares them.
    """
    for path in _files(folder):
        with named(path, "cannot be written"), open(path, "rb+") as file:
            os.fsync(file.fileno())
    for inner in [path for path in folder.rglob("*") if path.is_dir()] + [folder]:
        force_names(inner)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in _files(folder)}


def verify(folder: pathlib.Path, sealed: Mapping[str, str]) -> None:
    """Compares all files in a folder with what `seal` has said of it.

    Raises:
      ValueError: if one is missing, is another, or was not there; the message names it.
    """
    found = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if missing := sorted(sealed.keys() - found):
        raise ValueError(f"{folder / missing[0]} is missing.")
    if extra := sorted(found - sealed.keys()):
        raise ValueError(f"{folder / extra[0]} does not belong to what was written.")
    for name, checksum in sealed.items():
        if _sha256(folder / name) != checksum:
            raise ValueError(f"{folder / name} is damaged: its SHA-256 is not what was written.")


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


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def _sha256(path: pathlib.Path) -> str:
    with named(path, "cannot be read"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
