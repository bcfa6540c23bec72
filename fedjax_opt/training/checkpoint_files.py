"""Folders that are there whole or not at all, with a checksum of each of their files.

A folder is written under a name that nobody reads, its files are forced to the disk, `manifest.json`
with the size and the SHA-256 of every one of them comes last, and only then is the folder renamed to its
number. A kill at any moment leaves a folder that is complete, or one that is ignored. Folders are
deleted the other way round.

Other processes may put files of theirs into the folder. Each forces its own to the disk and then says so
in a file `sealed-<process>.json`, with their checksums; the first process waits for all of these.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

try:
    import fcntl
except ImportError:  # On Windows two runs at once in one directory go unnoticed.
    fcntl = None

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "fedjax_opt checkpoint", 2
_PARTIAL, _DELETED, _LOCK = ".partial-", ".deleted-", ".lock"
_SEALED = "sealed-{}.json"
_LOOK_SECONDS = 0.05  # between two looks for what other processes have written


class Damaged(ValueError):
    """A folder that does not hold what was written into it."""


def numbers(directory: pathlib.Path) -> list[int]:
    """The numbers of the folders that are there, in order."""
    if not directory.is_dir():
        return []
    names = [entry.name for entry in directory.iterdir() if entry.name.isdecimal()]
    return sorted(int(name) for name in names if str(int(name)) == name)


def begin(directory: pathlib.Path, number: int) -> None:
    """Makes the folder that is to be filled, before any process writes into it."""
    partial = directory / f"{_PARTIAL}{number}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def contribute(
    directory: pathlib.Path, number: int, process: int, fill: Callable[[pathlib.Path], str]
) -> None:
    """Puts what a process other than the first has into a folder that was begun.

    Args:
      directory: where the folders are.
      number: of the folder.
      process: which process this is.
      fill: writes into a folder, and names the one in it that is this process's alone.
    """
    partial = directory / f"{_PARTIAL}{number}"

    def say(what: dict[str, Any]) -> None:
        fresh = partial / (_SEALED.format(process) + ".new")
        fresh.write_text(json.dumps(what), encoding="utf-8")
        os.replace(fresh, partial / _SEALED.format(process))

    try:
        own = partial / fill(partial)
        sealed = {f"{own.name}/{name}": _seal(own / name) for name in _names(own)}
        _sync_tree(own)
        say({"files": sealed})
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first process need not wait for it
            say({"error": f"{type(error).__name__}: {error}"})
        raise


def write(
    directory: pathlib.Path,
    number: int,
    fill: Callable[[pathlib.Path], Any],
    others: tuple[int, ...] = (),
) -> None:
    """Fills a folder, and lets it appear under its number.

    Args:
      directory: where the folders are.
      number: of the folder.
      fill: writes into a folder.
      others: processes that put something into it as well; then it was begun.
    """
    partial = directory / f"{_PARTIAL}{number}"
    try:
        if not others:
            begin(directory, number)
        fill(partial)
        files = _sealed_by(partial, others)
        files |= {name: _seal(partial / name) for name in _names(partial) if name not in files}
        content = {"format": _FORMAT, "version": _VERSION, "files": files}
        sealed = content | {"sha256": _checksum(content)}
        (partial / MANIFEST).write_text(json.dumps(sealed, indent=1), encoding="utf-8")
        _seal(partial / MANIFEST)
        _sync_tree(partial)
        os.rename(partial, directory / str(number))
        sync_folder(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sealed_by(partial: pathlib.Path, others: tuple[int, ...]) -> dict[str, Any]:
    """What other processes have written, by name, when all of them have."""
    files: dict[str, Any] = {}
    for process in others:
        path = partial / _SEALED.format(process)
        while not path.exists():  # if that process has died, this one is ended too
            time.sleep(_LOOK_SECONDS)
        said = json.loads(path.read_text(encoding="utf-8"))
        if "error" in said:
            raise OSError(f"Process {process} could not write its part: {said['error']}")
        files |= said["files"]
        path.unlink()
    return files


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


def way_on(directory: pathlib.Path, number: int) -> str:
    """How to resume in spite of a damaged folder."""
    for earlier in reversed([n for n in numbers(directory) if n < number]):
        try:
            verify(directory, earlier)
        except Damaged:
            continue
        between = [n for n in numbers(directory) if earlier < n <= number]
        folders = " and ".join(str(directory / str(n)) for n in between)
        return f"Move {folders} away to resume from round {earlier}, which is whole."
    return "No earlier one is whole: move the directory away to begin anew."


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


def _sync_tree(folder: pathlib.Path) -> None:
    for inner in [path for path in folder.rglob("*") if path.is_dir()] + [folder]:
        sync_folder(inner)


def sync_folder(folder: pathlib.Path) -> None:
    """Forces the names in a folder to the disk."""
    if os.name != "posix":  # elsewhere a directory cannot be opened
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
