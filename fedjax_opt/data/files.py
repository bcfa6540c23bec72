"""What readers share: errors that name file and row, optional packages, images, numbers for JAX."""

import contextlib
import hashlib
import importlib
import io
import os
import pathlib
import types
import warnings
from collections.abc import Callable, Iterable, Iterator

import chex
import numpy as np

Encode = Callable[[list[str]], chex.ArrayNumpy]

_PIECE = 2**24
_MOST_PIXELS = 2**24  # a small file may unpack to any number
_PACKAGES = {"PIL": "Pillow"}  # where the module has another name than its package


class RowError(ValueError):
    """A value that is wrong, in a row that is known: who reads a table adds whose row that is."""

    def __init__(self, message: str, row: int, advice: str = "", client: str = "") -> None:
        whose = f" (client {client!r:.60})" if client else ""
        super().__init__(f"{message} in row {row}{whose}.{advice}")
        self.message, self.row, self.advice = message, row, advice


def require(
    right: chex.ArrayNumpy, origin: str, wanted: str, got: chex.ArrayNumpy | str, advice: str = ""
) -> None:
    """Refuses values, or rows, that are not right, and names the first of them."""
    if not np.all(right):
        at = np.unravel_index(int(np.argmin(right)), np.shape(right))
        found = got if isinstance(got, str) else got[at]
        raise RowError(f"{origin} must {wanted}, got {found}", int(at[0]), advice)


def optional(module: str, purpose: str, extra: str) -> types.ModuleType:
    """Imports a package that only some readers need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{purpose} needs {_PACKAGES.get(package, package)}: pip install 'fedjax_opt[{extra}]'."
        ) from error


@contextlib.contextmanager
def named(path: str | os.PathLike[str], wrong: str) -> Iterator[None]:
    """Makes an error that names the file of whatever a parser raises at a damaged one."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # those of many packages, which have no class in common
        if isinstance(error, ValueError) and os.fspath(path) in str(error):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} {wrong}: {said:.200}.") from error


def digest(paths: Iterable[pathlib.Path], root: pathlib.Path) -> str:
    """The SHA-256 of a file, or of the names and contents of those in a folder."""
    whole = hashlib.sha256()
    for path in paths:
        own = whole if path == root else hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                own.update(piece)
        if path != root:
            whole.update(f"{path.relative_to(root).as_posix()}\0{own.hexdigest()}\n".encode())
    return whole.hexdigest()


def texts(values: Iterable[object], origin: str) -> chex.ArrayNumpy:
    """Strings as an array of objects: NumPy's own strings are as long as the longest."""
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise ValueError(f"{origin} must be text, got a {type(value).__name__}.")
    return np.fromiter(found, object, len(found))


def encoded(values: chex.ArrayNumpy, encode: Encode | None, origin: str) -> chex.ArrayNumpy:
    """Texts through the user's function, if there is one."""
    if encode is None:
        return values
    array = np.asarray(encode(values.tolist()))
    if array.shape[:1] != values.shape:
        raise ValueError(
            f"encode must return one row a text, {len(values)} of them for {origin}, got shape"
            f" {list(array.shape)}."
        )
    return array


def values(array: chex.ArrayNumpy, origin: str) -> chex.ArrayNumpy:
    """Numbers as a model can take them: finite, and whole ones within int32.

    JAX has 32 bits for a number unless told otherwise, and would cut longer ones without a word: here
    they become int32 or float32, or are refused. Shorter ones keep their types.
    """
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes no other order
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int32)):
        return array
    if array.dtype.kind in "iu":
        return labels(array, origin)
    return numbers(array, origin, np.float32 if array.itemsize > 4 else array.dtype)


def numbers(values: object, origin: str, dtype: object = np.float32) -> chex.ArrayNumpy:
    """Finite numbers in floating point, all rows of one shape."""
    array = _array(values, "iuf", origin, "numbers in rows of one shape")
    with np.errstate(over="ignore"):  # it is looked for below
        found = array.astype(dtype)  # type: ignore[call-overload]
    require(np.isfinite(found), origin, "be finite numbers that fit float32", array)
    return found


def labels(values: object, origin: str) -> chex.ArrayNumpy:
    """Whole numbers as int32."""
    wanted = "whole numbers that fit int32"
    array = _array(values, "iufb", origin, wanted)
    limits = np.iinfo(np.int32)
    whole = (array >= limits.min) & (array <= limits.max) & (array == np.trunc(array))
    require(whole, origin, f"be {wanted}", array)
    return array.astype(np.int32)


def _array(values: object, kinds: str, origin: str, wanted: str) -> chex.ArrayNumpy:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must be {wanted}: {error!s:.100}") from error
    if array.dtype.kind not in kinds:
        raise ValueError(f"{origin} must be {wanted}, got {array.dtype}.")
    return array


def read_image(
    source: pathlib.Path | bytes, origin: str, size: int | None = None
) -> chex.ArrayNumpy:
    """The pixels of a PNG or JPEG file, uint8: [h, w] where they are grey, else [h, w, 3]."""
    images = optional("PIL.Image", "Reading images", "tables")
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(source, pathlib.Path) and not source.is_file():
        raise ValueError(f"{origin} is missing.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", images.DecompressionBombWarning)
            picture = images.open(opened, formats=["JPEG", "PNG"])
        with picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels")
            if picture.mode[0] in "IF":  # Pillow would cut its values off at 255
                raise ValueError("it has more than 8 bits a pixel")
            picture = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
            return np.asarray(picture if size is None else picture.resize((size, size)))
    except images.UnidentifiedImageError as error:
        raise ValueError(f"{origin} cannot be read as an image: it is no PNG or JPEG.") from error
    except (
        *(OSError, SyntaxError, ValueError),
        *(images.DecompressionBombError, images.DecompressionBombWarning),
    ) as error:
        raise ValueError(f"{origin} cannot be read as an image: {error!s:.80}.") from error
