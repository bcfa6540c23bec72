"""What may hold a table, and its columns as arrays: files, folders, Arrow and DataFrames, mappings.

All but mappings, `.npz` files and folders of images are read by pyarrow.
"""

import collections
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import numpy as np

from fedjax_opt.data import files
from fedjax_opt.data.files import require

_IMAGES = (".png", ".jpg", ".jpeg")
_HOLDS = (
    "a CSV, TSV, Parquet or .npz file, or a folder of images, of Parquet files or of `datasets`"
)
_KINDS = "numbers, images or text throughout"


class Coded(NamedTuple):
    """Categories as the table itself has them: numbers, and the name of each."""

    codes: chex.ArrayNumpy
    names: tuple[str, ...]


Raw = chex.ArrayNumpy | Coded  # text is an array of objects


class Source(NamedTuple):
    """A table whose columns are read when they are asked for, by what errors call them."""

    origin: str
    columns: Mapping[str, Callable[[str], Raw]]
    sha256: str = ""  # in memory
    label: str | None = None


def open_source(source: Any, split: str | None, image_size: int | None) -> Source:
    """The table in whatever holds it; for the arguments see `read_table`."""
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        return (_open_folder if path.is_dir() else _open_file)(path, split, image_size)
    package = type(source).__module__.split(".")[0]
    if package == "datasets" and isinstance(source, dict):
        return open_source(source[_split_of(split, list(source), "the dataset")], None, image_size)
    if split is not None:
        raise ValueError(f"split must be None for a table without splits, got {split!r}.")
    origin = "a table in memory"
    if package == "datasets" and hasattr(source, "with_format"):
        names = {n: f.names for n, f in source.features.items() if getattr(f, "names", None)}
        return _of_arrow(source.with_format("arrow")[:], origin, image_size, names=names)
    if isinstance(source, Mapping):
        _check_names(list(source), origin)
        columns = {n: partial(_from_array, source[n], image_size) for n in source}
        return Source(origin, columns)
    if hasattr(source, "__arrow_c_stream__") and hasattr(source, "columns"):
        arrow = files.optional("pyarrow", "Reading a DataFrame", "tables")
        with files.named(origin, "cannot be read"):
            if package == "pandas":  # else the index would become a column
                return _of_arrow(
                    arrow.Table.from_pandas(source, preserve_index=False), origin, image_size
                )
            return _of_arrow(arrow.table(source), origin, image_size)
    raise ValueError(
        "source must be a path, a DataFrame, a Dataset, a pyarrow.Table or a mapping of arrays, got"
        f" a {type(source).__name__}."
    )


def _open_file(path: pathlib.Path, split: str | None, image_size: int | None) -> Source:
    if split is not None:
        raise ValueError(f"split is for a saved DatasetDict, but {path} is a file; got {split!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"source must be {_HOLDS}, but {path} does not exist.")
    ending = pathlib.PurePath(path.name.lower().removesuffix(".gz")).suffix
    sha256 = files.digest([path], path)
    if ending == ".npz":
        with (
            files.named(path, "is not a .npz file that can be read"),
            path.open("rb") as stream,
            np.load(stream, allow_pickle=False) as arrays,
        ):
            columns = {n: partial(_from_array, arrays[n], image_size) for n in arrays.files}
        return Source(str(path), columns, sha256)
    if ending in (".csv", ".tsv"):
        csv = files.optional("pyarrow.csv", "Reading CSV", "tables")
        with files.named(path, "cannot be read"):
            options = csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ",")
            table = csv.read_csv(path, parse_options=options)
            _check_csv(table, path)
        return _of_arrow(table, str(path), image_size, sha256)
    if ending in (".parquet", ".pq"):
        return _open_parquet([path], path, sha256, image_size)
    raise ValueError(f"source must be {_HOLDS}, got {path}.")


def _open_parquet(
    parts: list[pathlib.Path], path: pathlib.Path, sha256: str, image_size: int | None
) -> Source:
    parquet = files.optional("pyarrow.parquet", "Reading Parquet", "tables")
    arrow = files.optional("pyarrow", "Reading Parquet", "tables")
    with files.named(path, "cannot be read"):
        table = arrow.concat_tables([parquet.ParquetFile(part).read() for part in parts])
    return _of_arrow(table, str(path), image_size, sha256)


def _open_folder(path: pathlib.Path, split: str | None, image_size: int | None) -> Source:
    if (path / "dataset_dict.json").is_file():
        with files.named(path / "dataset_dict.json", "is damaged"):
            splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return _open_folder(path / _split_of(split, splits, str(path)), None, image_size)
    if split is not None:
        raise ValueError(f"split is for a saved DatasetDict, which {path} is not; got {split!r}.")
    if (path / "state.json").is_file():
        arrow = files.optional("pyarrow", "Reading a saved dataset", "tables")
        with files.named(path, "is not a saved dataset that can be read"):
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            parts = [path / part["filename"] for part in state["_data_files"]]
            tables = [arrow.ipc.open_stream(arrow.memory_map(str(p))).read_all() for p in parts]
            table = arrow.concat_tables(tables)
        return _of_arrow(table, str(path), image_size, files.digest(parts, path))
    if parts := sorted(path.glob("*.parquet")):
        return _open_parquet(parts, path, files.digest(parts, path), image_size)
    return _open_images(path, image_size)


def _open_images(path: pathlib.Path, image_size: int | None) -> Source:
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    images = [sorted(p for p in f.iterdir() if p.suffix.lower() in _IMAGES) for f in folders]
    if not folders:
        raise ValueError(f"source must be {_HOLDS}, but {path} holds neither.")
    for folder, found in zip(folders, images, strict=True):
        if not found:
            raise ValueError(f"{path} must hold class/file.png, but {folder} holds no images.")
    codes = np.repeat(np.arange(len(folders)), [len(found) for found in images])
    paths = [image for found in images for image in found]
    label = Coded(codes, tuple(folder.name for folder in folders))
    columns = {
        "image": lambda origin: _images(paths, origin, image_size),
        "label": lambda origin: label,
    }
    return Source(str(path), columns, files.digest(paths, path), "label")


def _split_of(split: str | None, splits: list[str], origin: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        names = ", ".join(map(repr, splits))
        raise ValueError(f"split must be one of {names} of {origin}, got {split!r}.")
    return split


def _check_names(names: list[Any], origin: str) -> None:
    for name, count in collections.Counter(names).items():
        if not isinstance(name, str) or count > 1:
            wrong = f"{name!r} comes {count} times" if count > 1 else f"got {name!r}"
            raise ValueError(f"{origin}: columns must have different names of text, but {wrong}.")


def _check_csv(table: Any, path: pathlib.Path) -> None:
    names = table.column_names
    if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
        raise ValueError(
            f"{path} must have commas between its columns (.tsv: tabs), got {names[0]!r}."
        )
    for name, kind in zip(names, table.schema.types, strict=True):
        if str(kind) == "binary":
            raise ValueError(f"{path}: column {name!r} must be text in UTF-8, and is not.")
    if all(re.fullmatch(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*", name) for name in names):
        first = ", ".join(names[:3])
        raise ValueError(f"{path} must name its columns in the first row, which is {first}, ...")


def _of_arrow(
    table: Any,
    origin: str,
    image_size: int | None,
    sha256: str = "",
    names: Mapping[str, list[str]] | None = None,
) -> Source:
    _check_names(table.column_names, origin)
    if not table.num_rows:
        raise ValueError(f"{origin} has no rows.")
    if names is None:  # as `datasets` writes them into its files
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = about.get("info", {}).get("features", {})
        names = {n: f["names"] for n, f in features.items() if isinstance(f, dict) and "names" in f}
    columns = {
        name: partial(_from_arrow, table[name], names.get(name), image_size)
        for name in table.column_names
    }
    return Source(origin, columns, sha256)


def _from_arrow(column: Any, names: list[str] | None, size: int | None, origin: str) -> Raw:
    arrow = files.optional("pyarrow", "Reading tables", "tables")
    is_a = arrow.types
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    require(
        ~array.is_null().to_numpy(zero_copy_only=False), origin, "have a value in each row", "none"
    )
    if isinstance(array.type, arrow.FixedShapeTensorType):
        return array.to_numpy_ndarray()
    if isinstance(array.type, arrow.BaseExtensionType) and is_a.is_nested(array.storage.type):
        array = array.storage  # lists of one shape, as `datasets` has them
    kind = array.type
    if is_a.is_dictionary(kind):
        return Coded(array.indices.to_numpy(), tuple(map(str, array.dictionary.to_pylist())))
    if names is not None:
        return Coded(array.to_numpy(zero_copy_only=False), tuple(names))
    if is_a.is_struct(kind) and {f.name for f in kind} >= {"bytes", "path"}:
        cells = [c["bytes"] or pathlib.Path(c["path"] or "") for c in array.to_pylist()]
        return _images(cells, origin, size)
    if is_a.is_binary(kind) or is_a.is_large_binary(kind):
        return _images(array.to_pylist(), origin, size)
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return array.to_numpy(zero_copy_only=False)
    shape = [len(array)]
    while hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        lengths = np.unique(arrow.compute.list_value_length(array).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise ValueError(
                f"{origin} must have rows of one shape, got {lengths[0]} to {lengths[-1]} values."
            )
        shape += lengths.tolist()
        array = array.flatten()
    if is_a.is_decimal(array.type):
        array = array.cast(arrow.float64())
    kind = array.type
    numeric = is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind)
    if array.null_count or not numeric:
        what = f"missing values in {kind}" if array.null_count else str(kind)
        raise ValueError(
            f"{origin} must be numbers, images or text, got {what}. Leave it out, by columns=..., or"
            " make numbers or text of it."
        )
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _from_array(values: Any, size: int | None, origin: str) -> chex.ArrayNumpy:
    """Numbers as they are, text as objects, objects that are arrays or images as one array."""
    listed = isinstance(values, (list, tuple))
    if listed and values and all(isinstance(v, bytes) for v in values):
        return _images(values, origin, size)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "S":
            array = np.strings.decode(array, "utf-8")
        if array.dtype.kind == "O" or (array.dtype.kind == "U" and listed):
            # NumPy reads the list ["a", 1] as text, and keeps an array of images as objects.
            cells = array.tolist() if array.dtype.kind == "O" else list(values)
            is_text = np.array([isinstance(cell, str) for cell in cells])
            require(
                np.array([c is not None for c in cells]), origin, "have a value in each row", "none"
            )
            if is_text.any():
                require(is_text, origin, f"be {_KINDS}", np.array(list(map(repr, cells))))
                return np.fromiter(cells, object, len(cells))
            array = np.stack([np.asarray(cell) for cell in cells])
    except files.RowError:
        raise
    except ValueError as error:
        raise ValueError(f"{origin} must have rows of one shape: {error!s:.100}") from error
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{origin} must be {_KINDS}, got {array.dtype}.")
    return array


def _images(
    cells: Sequence[bytes | pathlib.Path], origin: str, size: int | None
) -> chex.ArrayNumpy:
    """Images of one shape; where some are grey and some are not, all have colours."""
    origins = [
        str(cell) if isinstance(cell, pathlib.Path) else f"{origin}, row {row}"
        for row, cell in enumerate(cells)
    ]
    found = [files.read_image(cell, o, size) for cell, o in zip(cells, origins, strict=True)]
    if len({image.ndim for image in found}) > 1:
        found = [np.stack([i] * 3, axis=-1) if i.ndim == 2 else i for i in found]
    for image, own in zip(found, origins, strict=True):
        if image.shape != found[0].shape:
            raise ValueError(
                f"{own} must have {list(found[0].shape)} pixels, as the first image, got"
                f" {list(image.shape)}. image_size=... brings all to one size."
            )
    return np.stack(found)
