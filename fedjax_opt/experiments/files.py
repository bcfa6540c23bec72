"""Files that a kill leaves whole: replaced at once, or grown by whole lines; with checksums inside."""

import contextlib
import errno
import json
import os
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # On Windows two runs at once in one directory go unnoticed.
    fcntl = None

PARTIAL = ".partial"  # the end of the name of a file that is not whole yet

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def read_bytes(path: pathlib.Path) -> bytes:
    """All of a file; a missing one is named."""
    if not path.is_file():
        raise ValueError(f"{path} is missing.")
    return path.read_bytes()


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Writes or replaces a file: whoever looks finds the old one or the new one, whole."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            if os.name == "posix":  # elsewhere a directory cannot be opened
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class Lines:
    """A file of lines that only grows, kept open and locked against a second writer.

    Args:
      path: the file; made if missing. An incomplete last line is cut off.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        with explained(path):
            self._file = os.open(path, flags, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ValueError(
                f"{path.parent} is being written to by another run. Wait for it to end, or choose"
                " another directory."
            ) from None
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)

    def append(self, lines: list[str]) -> None:
        """Adds lines, all of them or none; they are on the disk when it returns."""
        left = memoryview("".join(f"{line}\n" for line in lines).encode())
        end = os.fstat(self._file).st_size
        try:
            with explained(self._path):
                while left:
                    left = left[os.write(self._file, left) :]
                os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)


def read_lines(path: pathlib.Path) -> tuple[list[bytes], bool]:
    """The lines of a file, and whether a part of one follows them."""
    *lines, rest = read_bytes(path).split(b"\n")
    return lines, bool(rest)


def sealed(content: dict[str, Any], indent: int | None = None) -> str:
    """A mapping as JSON that holds a checksum of its content."""
    return json.dumps({**content, "crc32": _checksum(content)}, indent=indent)


def unsealed(text: bytes, where: str) -> dict[str, Any]:
    """What was sealed, if it still has its checksum; `where` is named if not."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}.") from error
    if not isinstance(content, dict) or "crc32" not in content:
        raise ValueError(f"{where} is damaged, or not of this library: it has no checksum.")
    expected = content.pop("crc32")
    if expected != _checksum(content):
        raise ValueError(f"{where} is damaged: its content does not have the checksum {expected}.")
    return content


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


@contextlib.contextmanager
def explained(path: pathlib.Path) -> Iterator[None]:
    """Says what to do where a file cannot be written."""
    try:
        yield
    except OSError as error:
        advice = f"{error.strerror}. Choose another directory."
        if error.errno in _FULL:
            advice = (
                "the disk is full. What was written before is kept: free some space, and start the same"
                " run once more to continue it."
            )
        raise OSError(error.errno, f"{path} cannot be written: {advice}") from error


def said(error: Exception) -> str:
    """The message of an error, without the system's number for it where `explained` wrote it."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)
