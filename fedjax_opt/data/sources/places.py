"""Where data sets are kept, and the files in them, checked before they are believed."""

import gzip
import hashlib
import os
import pathlib
import zlib

from fedjax_opt.data.sources.packages import PACKAGES, File


def cache_directory(directory: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The directory that keeps data sets, one folder each.

    Args:
      directory: The directory, if the user named one. None: $FEDJAX_OPT_DATA, or else `fedjax_opt` in
        $XDG_CACHE_HOME or in `~/.cache`.

    Returns:
      The directory, which need not exist.

    Example:
      >>> cache_directory("/somewhere").name
      'somewhere'
    """
    named = directory or os.environ.get("FEDJAX_OPT_DATA")
    if named:
        return pathlib.Path(named).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache") / "fedjax_opt"


def find(name: str, directory: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """The folder that holds all files of a data set, or None.

    Looked at are the data set's folder in the cache, the named directory itself (for files put there by
    hand) and the system's data sets.
    """
    package = PACKAGES[name]
    cache = cache_directory(directory)
    folders = [cache / name] + ([cache] if directory is not None else [])
    if package.system and directory is None:
        shares = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
        folders += [
            pathlib.Path(share) / "datasets" / package.system for share in shares.split(":")
        ]
    for folder in folders:
        if all(path_of(folder, file) for file in package.files):
            return folder
    return None


def forms(folder: pathlib.Path, file: str) -> tuple[pathlib.Path, pathlib.Path]:
    """Where a file may be, plain and gzipped; the first that is there counts."""
    return folder / file, folder / f"{file}.gz"


def path_of(folder: pathlib.Path, file: str) -> pathlib.Path | None:
    """The file, plain or gzipped, or None."""
    return next((path for path in forms(folder, file) if path.is_file()), None)


def damage(name: str, folder: pathlib.Path) -> str | None:
    """What is wrong with the first file of a data set that is not as it should be, or None."""
    try:
        for file, expected in PACKAGES[name].files.items():
            read_checked(folder, file, expected)
    except ValueError as error:
        return str(error)
    return None


def read_checked(folder: pathlib.Path, name: str, file: File) -> bytes:
    """The content of a file of the folder, after its size and checksum were seen to be right."""
    path = path_of(folder, name)
    if path is None:
        raise FileNotFoundError(f"{folder} must hold {name} (plain or .gz), and does not.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(file.size + 1)  # no more, so that a bomb cannot fill the memory
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    check(str(path), content, file)
    return content


def check(origin: str, content: bytes, file: File) -> None:
    """Refuses a content that is not the expected one."""
    if len(content) != file.size:
        found = f"over {file.size}" if len(content) > file.size else f"{len(content)}"
        raise ValueError(f"{origin} must hold {file.size} bytes, got {found}: it is damaged.")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ValueError(f"{origin} is not the file of that name: its sha256 is another.")
