"""Folders that are there whole or not at all, with a checksum of each of their files.

A folder is written under a name that nobody reads, its files are forced to the disk, `manifest.json`
with the size and the SHA-256 of every one of them comes last, and only then is the folder renamed to its
number. A kill at any moment leaves a folder that is complete, or one that is ignored. Folders are
deleted the other way round.
"""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

try:
    import fcntl
except ImportError:  # On Windows two runs at once in one directory go unnoticed.
    fcntl = None

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "fedjax_opt checkpoint", 2
_PARTIAL, _DELETED, _LOCK = ".partial-", ".deleted-", ".lock"


class Damaged(ValueError):
    """A folder that does not hold what was written into it."""


def numbers(directory: pathlib.Path) -> list[int]:
    """The numbers of the folders that are there, in order."""
    if not directory.is_dir():
        return []
    names = [entry.name for entry in directory.iterdir() if entry.name.isdecimal()]
    return sorted(int(name) for name in names if str(int(name)) == name)


def write(directory: pathlib.Path, number: int, fill: Callable[[pathlib.Path], None]) -> None:
    """Makes a folder, lets it be filled, and lets it appear under its number."""
    partial = directory / f"{_PARTIAL}{number}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fill(partial)
        files = {name: _seal(partial / name) for name in _names(partial)}
        content = {"format": _FORMAT, "version": _VERSION, "files": files}
        sealed = content | {"sha256": _checksum(content)}
        (partial / MANIFEST).write_text(json.dumps(sealed, indent=1), encoding="utf-8")
        _seal(partial / MANIFEST)
        for folder in [path for path in partial.rglob("*") if path.is_dir()] + [partial]:
            sync_folder(folder)
        os.rename(partial, directory / str(number))
        sync_folder(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def verify(directory: pathlib.Path, number: int) -> pathlib.Path:
    """A folder, after comparing every file in it with its checksum."""
    folder = directory / str(number)
    content = _read_manifest(folder)
    expected, found = content["files"], set(_names(folder)) - {MANIFEST}
    if missing := sorted(expected.keys() - found):
        raise Damaged(f"{missing[0]} is missing")
    if extra := sorted(found - expected.keys()):
        raise Damaged(f"{extra[0]} does not belong to it")
    for name, about in expected.items():
        if _measure(folder / name) != about:
            raise Damaged(f"{name} is not what was written: its size or its SHA-256 is another")
    return folder


def read_json(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """A file of a folder that holds a mapping."""
    try:
        content = json.loads((folder / name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{name} must hold a mapping")
    return content


def delete(directory: pathlib.Path, number: int) -> None:
    """Removes a folder: at no moment is a part of it there under its number."""
    going = directory / f"{_DELETED}{number}"
    shutil.rmtree(going, ignore_errors=True)
    os.rename(directory / str(number), going)
    shutil.rmtree(going, ignore_errors=True)


class Lock:
    """Keeps a second process from writing into a directory; a process that ends lets go of it."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ValueError(
                f"{directory} is being written to by another run. Wait for it to end, or choose"
                " another directory."
            ) from None
        for entry in directory.iterdir():  # what a kill has left
            if entry.name.startswith((_PARTIAL, _DELETED)):
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Lets go of the directory."""
        os.close(self._file)


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise Damaged(
            f"it has no {MANIFEST}, so it was written by an earlier version or by another program"
        )
    content = read_json(folder, MANIFEST)
    if (content.get("format"), content.get("version")) != (_FORMAT, _VERSION):
        raise Damaged(
            f"{MANIFEST} is of {content.get('format')!r}, version {content.get('version')!r}; this"
            f" version reads {_FORMAT!r}, version {_VERSION}"
        )
    if content.pop("sha256", None) != _checksum(content) or not isinstance(
        content.get("files"), dict
    ):
        raise Damaged(f"{MANIFEST} does not have its own checksum")
    return content


def _names(folder: pathlib.Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _measure(path: pathlib.Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": file.tell(), "sha256": found}
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error}") from error


def _seal(path: pathlib.Path) -> dict[str, Any]:
    """Forces a file to the disk, and gives its size and checksum."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    return _measure(path)


def sync_folder(folder: pathlib.Path) -> None:
    """Forces the names in a folder to the disk."""
    if os.name != "posix":  # elsewhere a directory cannot be opened
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
