"""Members of downloaded archives, found by name and read into memory: nothing is unpacked to disk."""

import gzip
import io
import lzma
import pathlib
import tarfile
import zlib
from collections.abc import Collection, Iterator
from typing import Any

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than a number of bytes."""

    def __init__(self, stream: Any, limit: int, origin: str) -> None:
        self._stream, self._left, self._limit, self._origin = stream, limit, limit, origin

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"{self._origin} unpacks to more than {self._limit} bytes.")
        return content


def members(
    archive: pathlib.Path, wanted: Collection[str], limit: int
) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a `.tar.gz`, `.tgz`, `.tar` or `.deb`, by the last part of their names.

    Args:
      archive: The archive.
      wanted: Names without folders; a member that has such a name is read, others are passed over.
      limit: The bytes that the archive may unpack to.

    Yields:
      Names, as wanted, and contents.
    """
    with archive.open("rb") as file:
        stream = _data_of_deb(file, archive) if archive.suffix == ".deb" else file
        yield from read_tar(stream, str(archive), limit, wanted)


def read_tar(
    stream: Any, origin: str, limit: int, wanted: Collection[str] | None = None
) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, compressed or not, by the last part of their names."""
    try:
        bounded = _Bounded(_decompressed(stream), limit, origin)
        with tarfile.open(fileobj=bounded, mode="r|") as tar:
            for member in tar:
                name = pathlib.PurePosixPath(member.name).name
                # Links and devices are no files; a sparse file may claim to be of any size.
                if (wanted is None or name in wanted) and member.isreg() and not member.issparse():
                    file = tar.extractfile(member)
                    assert file is not None
                    yield name, file.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(f"{origin} is damaged: {error}.") from error


def _decompressed(stream: Any) -> Any:
    magic = stream.read(6)
    stream.seek(-len(magic), io.SEEK_CUR)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    return lzma.LZMAFile(stream) if magic == b"\xfd7zXZ\x00" else stream


def _data_of_deb(file: Any, archive: pathlib.Path) -> io.BytesIO:
    """A Debian package is an `ar` archive of three members; the files are in `data.tar`."""
    if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
        raise ValueError(f"{archive} is not a Debian package.")
    while len(header := file.read(_AR_HEADER)) == _AR_HEADER:
        name, digits = header[:16].decode("ascii", "replace").strip(), header[48:58].strip()
        if not digits.isdigit():
            break
        size = int(digits)
        if name.startswith("data.tar"):
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError(f"{archive} is damaged: it has no data.tar.")
