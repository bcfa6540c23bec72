"""What readers share: errors that name the file, optional packages, images, numbers for JAX."""

import contextlib
import hashlib
import importlib
import io
import os
import pathlib
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import chex
import numpy as np

Columns = Mapping[str, str]
Where = Callable[[int], str]  # how an error names a row

_PIECE = 2**24
_MOST_PIXELS = 2**24  # a small file may unpack to any number
_PACKAGES = {"PIL": "Pillow"}  # where the module has another name than its package


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
    except Exception as error:  # those of many packages, which have no class in common
        if isinstance(error, ImportError):
            raise
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


def choose(
    available: Iterable[str], columns: Columns | None, leave_out: tuple[str, ...], origin: str
) -> dict[str, str]:
    """Names in the result -> names in the file: those asked for, or all."""
    names = list(available)
    chosen = {name: name for name in names if name not in leave_out}
    if columns is not None:
        chosen = dict(columns)
    if not chosen:
        raise ValueError(f"{origin} has no columns of examples, only {names}.")
    for name in chosen.values():
        if name not in names:
            raise ValueError(
                f"columns must name columns of {origin}, which are {', '.join(map(repr, names))};"
                f" got {name!r}."
            )
    return chosen


def texts(values: Iterable[object], origin: str) -> chex.ArrayNumpy:
    """Strings as an array of objects: NumPy's own strings are as long as the longest."""
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise ValueError(f"{origin} must be text, got a {type(value).__name__}.")
    return objects(found)


def objects(values: list) -> chex.ArrayNumpy:
    """A vector of objects, however long they are themselves."""
    return np.fromiter(values, object, len(values))


def encoded(
    values: chex.ArrayNumpy, encode: Callable[[list[str]], chex.ArrayNumpy] | None, origin: str
) -> chex.ArrayNumpy:
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


def row(number: int) -> str:
    """The name of a row that is counted from 0."""
    return f"row {number}"


def values(array: chex.ArrayNumpy, origin: str, where: Where = row) -> chex.ArrayNumpy:
    """Numbers as a model can take them: finite, and whole ones within int32.

    JAX has 32 bits for a number unless told otherwise, and would cut longer ones without a word: here
    they become int32 or float32, or are refused. Shorter ones keep their types.
    """
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes no other order
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int32)):
        return array
    if array.dtype.kind in "iu":
        return labels(array, origin, where)
    if array.dtype.kind != "f":
        raise ValueError(f"{origin} must be numbers, got {array.dtype}.")
    return numbers(array, origin, where) if array.itemsize > 4 else _finite(array, origin, where)


def numbers(values: object, origin: str, where: Where = row) -> chex.ArrayNumpy:
    """Finite numbers as float32, all rows of one shape."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must be rows of one shape: {error!s:.100}") from error
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{origin} must be numbers in rows of one length, and are not.")
    with np.errstate(over="ignore"):  # it is looked for below
        return _finite(array.astype(np.float32), origin, where, shown=array)


def labels(values: object, origin: str, where: Where = row) -> chex.ArrayNumpy:
    """Whole numbers as int32."""
    wanted = "whole numbers that fit int32"
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must be {wanted}: {error!s:.100}") from error
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{origin} must be {wanted}, and are not.")
    limits = np.iinfo(np.int32)
    whole = (array >= limits.min) & (array <= limits.max) & (array == np.trunc(array))
    _all(whole, array, wanted, origin, where)
    return array.astype(np.int32)


def _finite(
    array: chex.ArrayNumpy, origin: str, where: Where, shown: chex.ArrayNumpy | None = None
) -> chex.ArrayNumpy:
    wanted = "finite numbers that fit float32"
    _all(np.isfinite(array), array if shown is None else shown, wanted, origin, where)
    return array


def _all(
    right: chex.ArrayNumpy,
    array: chex.ArrayNumpy,
    wanted: str,
    origin: str,
    where: Where,
) -> None:
    if not right.all():
        at = np.unravel_index(int(right.argmin()), right.shape)
        raise ValueError(f"{origin} must be {wanted}, got {array[at]} in {where(int(at[0]))}.")


def read_image(
    source: pathlib.Path | bytes, origin: str, size: int | None = None, mode: str | None = None
) -> chex.ArrayNumpy:
    """The pixels of a PNG or JPEG file, uint8: [h, w] where they are grey, else [h, w, 3]."""
    images = optional("PIL.Image", "Reading images", "tables")
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    errors = (SyntaxError, ValueError, images.DecompressionBombError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", images.DecompressionBombWarning)
            picture = images.open(opened, formats=["JPEG", "PNG"])
        with picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels")
            mode = mode or ("L" if picture.mode in ("1", "L") else "RGB")
            picture = picture.convert(mode)
            return np.asarray(picture if size is None else picture.resize((size, size)))
    except FileNotFoundError as error:
        raise ValueError(f"{origin} is missing.") from error
    except (OSError, images.DecompressionBombWarning, *errors) as error:
        raise ValueError(f"{origin} cannot be read as an image: {error!s:.80}.") from error
