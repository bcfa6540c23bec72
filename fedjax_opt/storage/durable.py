"""Files that survive a kill: locks, replacement at once, what is forced to the disk, checksums."""

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
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks: there two runs in one folder go unnoticed.
    fcntl = None

# What a disk answers that has no locks, as Lustre without `-o flock` and NFS without its daemon.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
#: The end of the name of a file that is not whole yet.
PARTIAL = ".new"


class Lock:
    """Holds a file for one owner, until it is closed, or nobody has it any more, or the process ends.

    Where the disk has no locks, `works` is False, and a warning has said so.
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
        why = f"{error.strerror or error}."
        if error.errno in _FULL:
            why = (
                "the disk is full. What was written before is kept: free some space, and start the same"
                " run once more to continue it."
            )
        raise ValueError(f"{path} {what}: {why}") from error


def replace(path: pathlib.Path, content: bytes) -> None:
    """Puts a file in its place at once: whoever reads it finds the old one or the new one."""
    fresh = path.with_name(path.name + PARTIAL)
    try:
        with named(path, "cannot be written"):
            with open(fresh, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    force_names(path.parent)


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
    """Forces a folder and all in it to the disk; the SHA-256 of each file by its path."""
    for path in _files(folder):
        with named(path, "cannot be written"), open(path, "rb+") as file:
            os.fsync(file.fileno())
    for inner in [path for path in folder.rglob("*") if path.is_dir()] + [folder]:
        force_names(inner)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in _files(folder)}


def verify(folder: pathlib.Path, sealed: Mapping[str, str]) -> None:
    """Compares all files in a folder with what `seal` has said of it."""
    found = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if missing := sorted(sealed.keys() - found):
        raise ValueError(f"{folder / missing[0]} is missing.")
    if extra := sorted(found - sealed.keys()):
        raise ValueError(f"{folder / extra[0]} does not belong to what was written.")
    for name, checksum in sealed.items():
        if _sha256(folder / name) != checksum:
            raise ValueError(f"{folder / name} is damaged: its SHA-256 is not what was written.")


class Lines:
    """A file of lines that only grows, kept open and locked against a second writer.

    Args:
      path: the file; made if missing. An incomplete last line is cut off.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._lock = path, Lock(path)
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
        with named(path, "cannot be written"):
            self._file = os.open(path, flags)
            os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)

    def append(self, lines: list[str]) -> None:
        """Adds lines, all of them or none; they are on the disk when it returns."""
        left = memoryview("".join(f"{line}\n" for line in lines).encode())
        end = os.fstat(self._file).st_size
        try:
            with named(self._path, "cannot be written"):
                while left:
                    left = left[os.write(self._file, left) :]
                os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)
        self._lock.close()


def read(path: pathlib.Path) -> bytes:
    """All of a file."""
    with named(path, "cannot be read"):
        return path.read_bytes()


def read_lines(path: pathlib.Path) -> tuple[list[bytes], bool]:
    """The lines of a file, and whether a part of one follows them."""
    *lines, rest = read(path).split(b"\n")
    return lines, bool(rest)


def sealed(content: Mapping[str, Any], indent: int | None = None) -> str:
    """A mapping as JSON, with its checksum."""
    return json.dumps({**content, "crc32": _crc32(content)}, indent=indent)


def unsealed(text: bytes, where: object) -> dict[str, Any]:
    """What was sealed, if it has its checksum still; `where` is named if not."""
    try:
        found = json.loads(text)
        expected = found.pop("crc32")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: it is no JSON with a checksum.") from error
    if expected != _crc32(found):
        raise ValueError(f"{where} is damaged: its checksum is not that of what it holds.")
    return found


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file with its checksum."""
    replace(path, f"{sealed(content, indent=1)}\n".encode())


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON file, and compares its checksum."""
    return unsealed(read(path), path)


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def _sha256(path: pathlib.Path) -> str:
    with named(path, "cannot be read"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _crc32(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
