"""One door for tables: whatever holds named columns becomes examples, labels and clients."""

import collections
import hashlib
import json
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.data import files, text
from fedjax_opt.data.files import Where

KINDS = ("numeric", "categorical", "image", "text")
_FEW = 50  # a column of text with at most so many different values is a category
_MOST_TOKENS = 256  # of a text; one long text would make all rows as long
_BYTES_UNQUESTIONED, _LIKELY_RATIO = 2**30, 200
_IMAGES = (".png", ".jpg", ".jpeg")
_HOLDS = (
    "a CSV, TSV, Parquet or .npz file, or a folder of images, of Parquet files or of `datasets`"
)


class Column(NamedTuple):
    """What a column of a table was taken for.

    Attributes:
      name: its name.
      kind: 'client', 'label', 'numeric', 'categorical', 'image' or 'text'.
      classes: the names of the classes of a label or a category, the tokens of a text.
      note: what it became.
    """

    name: str
    kind: str
    classes: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        few = ", ".join(self.classes[:5]) + (", ..." if len(self.classes) > 5 else "")
        said = f"{len(self.classes)} {'tokens' if self.kind == 'text' else 'classes'}: {few}"
        return "; ".join(filter(None, [self.note, said if self.classes else ""]))


class Table(NamedTuple):
    """A table as examples. Printed, it says what each column was taken for.

    Attributes:
      source: where it is from.
      sha256: of its file or files, or of the values where it was in memory.
      examples: arrays `[n, ...]`: inputs `x`, and `y` if there is a label; or inputs under their own
        names, where they cannot be one array.
      columns: what each column was taken for.
      client_ids: the client of each example, int32 `[n]`; None without a column of clients.
      client_names: the names of the clients.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> columns = {"age": [31, 45, 28], "city": ["Rome", "Oslo", "Rome"], "ill": ["no", "yes", "no"]}
      >>> table = fo.data.read_table(columns, label="ill", kinds={"city": "categorical"})
      >>> print(table)
      a table in memory: 3 examples
        age   numeric      x[:, 0]
        city  categorical  x[:, 1:3]; 2 classes: Oslo, Rome
        ill   label        y; 2 classes: no, yes
      >>> table.examples["x"].tolist()
      [[31.0, 0.0, 1.0], [45.0, 1.0, 0.0], [28.0, 0.0, 1.0]]
    """

    source: str
    sha256: str
    examples: dict[str, chex.ArrayNumpy]
    columns: tuple[Column, ...]
    client_ids: chex.ArrayNumpy | None = None
    client_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f"{len(next(iter(self.examples.values())))} examples"
        whose = f" of {len(self.client_names)} clients" if self.client_names else ""
        wide, kind = (max(len(c[i]) for c in self.columns) for i in (0, 1))
        rows = [f"  {c.name:{wide}}  {c.kind:{kind}}  {c}".rstrip() for c in self.columns]
        return "\n".join([f"{self.source}: {count}{whose}", *rows])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the label's classes in the order of their ids; nothing without classes."""
        return next((c.classes for c in self.columns if c.kind == "label"), ())

    def client_data(self) -> ClientData:
        """The examples by client; see also `clients`, for `fo.data.store`."""
        if self.client_ids is None:
            raise ValueError(
                f"{self.source} was read without a column of clients. Name it as client=..., or split"
                " the examples, as in ClientData.from_arrays(table.examples, fo.data.iid(n, 10))."
            )
        return ClientData.from_arrays(self.examples, self.client_ids, len(self.client_names))

    def clients(self) -> Iterator[tuple[str, dict[str, chex.ArrayNumpy]]]:
        """Pairs of a client's name and its examples, for `fo.data.collect` and `fo.data.store`."""
        data = self.client_data()
        for client, name in enumerate(self.client_names):
            yield name, data[client]


def read_table(
    source: Any,
    client: str | None = None,
    label: str | None = None,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
    target: str = "classes",
    encode: Callable[[list[str]], chex.ArrayNumpy] | None = None,
    image_size: int | None = None,
    split: str | None = None,
) -> Table:
    """Reads a table with named columns, whatever holds it, as examples for a federation.

    Inputs: numbers, vectors of them and categories (as one column of 0 and 1 for each class) become
    one float32 array x side by side; a single array of numbers, an image (uint8) or a text becomes x
    as it is; of several that cannot stand side by side each keeps its name. A column of text with at
    most 50 different values, which recur, is a category. Numbers of 64 bits become int32 and float32,
    and are refused where they do not fit. Nothing is filled in: a missing value is refused.

    Args:
      source: A path: a `.csv` or `.tsv` file (also `.gz`), `.parquet`, `.npz`, a folder of images by
        class (`class/file.png`), of Parquet files, or of a Hugging Face dataset saved on disk. Or a
        pandas DataFrame, a `datasets.Dataset`, a `pyarrow.Table`, or a mapping of names to arrays.
      client: The column that says whose each row is: text or whole numbers. Clients are in their
        order. None: the table knows no clients.
      label: The column of the labels, y. Text, truth values and categories become class ids, int32,
        and keep their names; whole numbers are ids already. None: the classes of a folder of images,
        else no labels.
      columns: The columns of inputs; or what each array of the examples shall be called,
        `{"x": "pixels", "age": "age"}`, where nothing is put side by side. None: all others.
      kinds: What columns are: 'numeric', 'categorical', 'image' or 'text', where they look like
        something else, such as `{"postcode": "categorical"}`.
      target: 'classes', or 'numbers' for a regression: y is then float32 `[n]`.
      encode: Turns a list of texts into an array, one row a text. None: `fo.data.token_ids` of the
        5,000 most frequent tokens.
      image_size: The side that images in files are brought to. None: they must be of one size.
      split: Which split of a saved `DatasetDict` to read.

    Returns:
      The table as examples, with what its columns were taken for.

    Example:
      >>> import pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> columns = {"who": ["bob", "ann", "bob"], "size": [1.5, 2.5, 0.5], "kind": ["a", "b", "a"]}
      >>> table = fo.data.read_table(columns, client="who", label="kind")
      >>> table.client_names, table.client_ids.tolist(), table.classes
      (('ann', 'bob'), [1, 0, 1], ('a', 'b'))
      >>> table.client_data()[1]["y"].tolist()
      [0, 0]
    """
    checks.choice("target", target, ("classes", "numbers"))
    if image_size is not None:
        checks.integer("image_size", image_size, low=1)
    opened = _open(source, split, image_size)
    label = opened.label if label is None else label
    chosen = _chosen(opened, client, label, columns)
    kinds = _checked_kinds(kinds, opened.origin, chosen)
    reader = _Reader(opened)
    ids, names = (None, ()) if client is None else reader.clients(client)
    inputs = [reader.feature(key, name, kinds.get(name), encode) for key, name in chosen.items()]
    if encode is not None and not any(feature.kind == "text" for feature in inputs):
        raise ValueError(f"encode is for text, but {opened.origin} has no column of text.")
    examples, said = _assembled(inputs, by_name=isinstance(columns, Mapping))
    if label is not None:
        if "y" in examples:
            raise ValueError("columns must not call an array 'y', which is that of the labels.")
        y, classes = reader.label(label, target)
        examples["y"] = y
        said.append(Column(label, "label", classes, "y"))
    if client is not None:
        said.append(Column(client, "client", (), f"{len(names)} clients"))
    return Table(opened.origin, opened.sha256 or reader.digest(), examples, tuple(said), ids, names)


class _Coded(NamedTuple):
    """Categories as the table itself has them: numbers, and the name of each."""

    codes: chex.ArrayNumpy
    names: tuple[str, ...]


Raw = chex.ArrayNumpy | _Coded  # text is an array of objects


class _Opened(NamedTuple):
    """A table whose columns are read when they are asked for."""

    origin: str
    columns: dict[str, Callable[[str, Where], Raw]]  # of how errors call the column and its rows
    sha256: str | None = None
    label: str | None = None


class _Feature(NamedTuple):
    key: str
    name: str
    kind: str
    array: chex.ArrayNumpy
    classes: tuple[str, ...] = ()
    note: str = ""


class _Reader:
    """Reads columns that must be equally long, and names the rows in errors."""

    def __init__(self, opened: _Opened) -> None:
        self._opened, self._hash = opened, hashlib.sha256()
        self._length: int | None = None
        self._whose: list[str] = []

    def _read(self, name: str) -> tuple[str, Raw]:
        origin = f"{self._opened.origin}: column {name!r}"
        raw = self._opened.columns[name](origin, self.where)
        values = raw.codes if isinstance(raw, _Coded) else raw
        if not values.ndim or len(values) == 0:
            raise ValueError(f"{origin} has no rows.")
        self._length = self._length or len(values)
        if len(values) != self._length:
            raise ValueError(
                f"{origin} must have {self._length} rows, as those before it, got {len(values)}."
            )
        if self._opened.sha256 is None:  # in memory: what is read is all that there is
            content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
            names = raw.names if isinstance(raw, _Coded) else ()
            about = (name, values.dtype.str, values.shape, names)
            self._hash.update(repr(about).encode() + content)
        return origin, raw

    def digest(self) -> str:
        return self._hash.hexdigest()

    def where(self, row: int) -> str:
        """How an error names a row."""
        return f"row {row}" + (f" (client {self._whose[row]!r:.60})" if self._whose else "")

    def clients(self, name: str) -> tuple[chex.ArrayNumpy, tuple[str, ...]]:
        origin, raw = self._read(name)
        if isinstance(raw, _Coded):
            raw = np.asarray(raw.names, object)[raw.codes]
        if raw.ndim != 1 or raw.dtype.kind not in "biuO":
            raise ValueError(
                f"{origin} must name clients by text or whole numbers, got {_about(raw)}."
            )
        if raw.dtype.kind == "O":
            _refuse(raw == "", origin, "a client's name", "empty text", self.where)
        found, ids = _factorised(raw)
        names = tuple(map(str, found))
        self._whose = [names[i] for i in ids.tolist()]
        return ids.astype(np.int32), names

    def label(self, name: str, target: str) -> tuple[chex.ArrayNumpy, tuple[str, ...]]:
        origin, raw = self._read(name)
        if target == "numbers":
            if isinstance(raw, _Coded) or raw.dtype.kind not in "iuf" or raw.ndim != 1:
                raise ValueError(f"{origin} must be numbers [n], got {_about(raw)}.")
            return files.numbers(raw, origin, self.where), ()
        if not isinstance(raw, _Coded) and raw.dtype.kind in "bO" and raw.ndim == 1:
            if raw.dtype.kind == "O":
                _refuse(raw == "", origin, "a class", "empty text", self.where)
            raw = _coded(raw)
        if isinstance(raw, _Coded):
            _refuse(raw.codes < 0, origin, "a class", "a missing one", self.where)
            return raw.codes.astype(np.int32), raw.names
        return self._class_ids(raw, origin)

    def _class_ids(
        self, raw: chex.ArrayNumpy, origin: str
    ) -> tuple[chex.ArrayNumpy, tuple[str, ...]]:
        if raw.ndim != 1 or raw.dtype.kind not in "iu":
            advice = "For a regression say target='numbers'"
            if raw.ndim == 2 and raw.shape[1] == 1:
                advice = "Take its only column, y[:, 0]"
            elif raw.ndim == 2 and raw.dtype.kind in "biuf" and np.all(raw.sum(1) == 1):
                advice = "It is one-hot: take y.argmax(1)"
            bad = raw if raw.ndim == 1 else raw.reshape(len(raw), -1)[:, 0]
            strange = ~np.isfinite(bad) if raw.dtype.kind == "f" else np.zeros(len(raw), bool)
            row = int(strange.argmax()) if strange.any() else 0
            raise ValueError(
                f"{origin} must be class ids from 0, [n], or classes' names, got {_about(raw)}, such as"
                f" {raw[row]!s:.60} in {self.where(row)}. {advice}."
            )
        _refuse(raw < 0, origin, "a class id from 0", raw, self.where)
        most = max(len(raw), 1000)
        wanted = f"a class id below {most} (text, where numbers are only names of classes)"
        _refuse(raw >= most, origin, wanted, raw, self.where)
        return raw.astype(np.int32), tuple(map(str, range(int(raw.max()) + 1)))

    def feature(
        self,
        key: str,
        name: str,
        kind: str | None,
        encode: Callable[[list[str]], chex.ArrayNumpy] | None,
    ) -> _Feature:
        origin, raw = self._read(name)
        kind = kind or _judged(raw)
        if kind == "categorical":
            if not isinstance(raw, _Coded) and (raw.ndim != 1 or raw.dtype.kind not in "biuO"):
                raise ValueError(f"{origin} must be text or whole numbers, got {_about(raw)}.")
            coded = raw if isinstance(raw, _Coded) else _coded(raw)
            _refuse(coded.codes < 0, origin, "a category", "a missing one", self.where)
            return _Feature(key, name, kind, coded.codes.astype(np.int32), coded.names)
        if isinstance(raw, _Coded):
            raw = np.asarray(raw.names, object)[raw.codes]
        if (raw.dtype.kind == "O") != (kind == "text"):
            raise ValueError(f"{origin} must be of kind {kind!r}, got {_about(raw)}.")
        if kind == "image" and raw.ndim not in (3, 4):
            raise ValueError(f"{origin} must be images [n, h, w, ...], got {_about(raw)}.")
        if kind != "text":
            return _Feature(key, name, kind, files.values(raw, origin, self.where))
        if encode is not None:
            return _Feature(key, name, kind, files.encoded(raw, encode, origin))
        with files.named(origin, "cannot be cut into tokens"):
            words = text.vocabulary(raw)
            ids = text.token_ids(raw, words)
        note = f"its first {_MOST_TOKENS} tokens" if ids.shape[1] > _MOST_TOKENS else ""
        return _Feature(key, name, kind, ids[:, :_MOST_TOKENS], words, note)


def _refuse(
    wrong: chex.ArrayNumpy,
    origin: str,
    wanted: str,
    got: chex.ArrayNumpy | str,
    where: Where,
) -> None:
    """Names the first row that is wrong."""
    if np.any(wrong):
        row = int(np.argmax(wrong))
        found = got if isinstance(got, str) else got[row]
        raise ValueError(f"{origin} must have {wanted} in each row, got {found} in {where(row)}.")


def _about(raw: Raw) -> str:
    if isinstance(raw, _Coded):
        return "categories"
    if raw.dtype.kind == "O":
        return "text"
    kind = {"b": "truth values", "i": "whole numbers", "u": "whole numbers", "f": "floats"}
    return f"{kind.get(raw.dtype.kind, str(raw.dtype))} of shape {list(raw.shape)}"


def _factorised(values: chex.ArrayNumpy) -> tuple[list[Any], chex.ArrayNumpy]:
    """The different values in order, and which of them each is."""
    if values.dtype.kind != "O":
        found, codes = np.unique(values, return_inverse=True)
        return found.tolist(), codes
    found = sorted(set(values.tolist()))  # faster than sorting all
    places = {value: place for place, value in enumerate(found)}
    return found, np.fromiter((places[value] for value in values), np.int64, len(values))


def _coded(values: chex.ArrayNumpy) -> _Coded:
    found, codes = _factorised(values)
    return _Coded(codes, tuple(map(str, found)))


def _judged(raw: Raw) -> str:
    """The kind that a column looks like."""
    if isinstance(raw, _Coded):
        return "categorical"
    if raw.dtype.kind == "O":
        different = len(set(raw.tolist()))
        return "categorical" if different <= min(_FEW, len(raw) // 2) else "text"
    image = raw.ndim == 3 or (raw.ndim == 4 and raw.shape[3] in (1, 3, 4))
    return "image" if image and raw.dtype == np.uint8 else "numeric"


def _assembled(
    inputs: list[_Feature], by_name: bool
) -> tuple[dict[str, chex.ArrayNumpy], list[Column]]:
    """The arrays of the examples, and what became of each column."""
    flat = all(f.kind in ("numeric", "categorical") and f.array.ndim <= 2 for f in inputs)
    alone = len(inputs) == 1 and (inputs[0].array.ndim > 1)
    if by_name or alone or not flat:
        examples, said = {}, []
        for f in inputs:
            key = "x" if alone and not by_name else f.key
            examples[key] = f.array
            kind = f"{key}: {f.array.dtype}{list(f.array.shape[1:])}"
            said.append(Column(f.name, f.kind, f.classes, ", ".join(filter(None, [kind, f.note]))))
        return examples, said
    blocks, said, start = [], [], 0
    for f in inputs:
        one_hot = f.kind == "categorical"
        block = np.eye(len(f.classes), dtype=np.float32)[f.array] if one_hot else f.array
        block = block.reshape(len(block), -1)
        end = start + block.shape[1]
        note = f"x[:, {start}]" if end == start + 1 else f"x[:, {start}:{end}]"
        if block.dtype.kind in "iu" and np.abs(block.astype(np.int64)).max() > 2**24:
            note += ", rounded to float32"
        blocks.append(block.astype(np.float32))
        said.append(Column(f.name, f.kind, f.classes, note))
        start = end
    return {"x": np.concatenate(blocks, axis=1)}, said


def _chosen(
    opened: _Opened,
    client: str | None,
    label: str | None,
    columns: Sequence[str] | Mapping[str, str] | None,
) -> dict[str, str]:
    """Names in the examples -> columns of inputs."""
    available = ", ".join(map(repr, opened.columns))
    for argument, name in (("client", client), ("label", label)):
        if name is not None and name not in opened.columns:
            raise ValueError(
                f"{argument} must be a column of {opened.origin}, which are {available};"
                f" got {name!r}."
            )
    if client is not None and client == label:
        raise ValueError(f"client and label must be different columns, got {client!r} for both.")
    if isinstance(columns, str):
        raise ValueError(f"columns must be a sequence of names or a mapping, got {columns!r}.")
    wanted = {name: name for name in columns} if isinstance(columns, Sequence) else columns
    both = {client, label} & set((wanted or {}).values())
    if both:
        raise ValueError(f"columns must be inputs, but {both.pop()!r} is the client or the label.")
    leave_out = tuple(name for name in (client, label) if name is not None)
    return files.choose(opened.columns, wanted, leave_out, opened.origin)


def _checked_kinds(
    kinds: Mapping[str, str] | None, origin: str, chosen: dict[str, str]
) -> Mapping[str, str]:
    for name, kind in (kinds or {}).items():
        checks.choice(f"kinds[{name!r}]", kind, KINDS)
        if name not in chosen.values():
            raise ValueError(
                f"kinds must name inputs of {origin}, which are"
                f" {', '.join(map(repr, chosen.values()))}; got {name!r}."
            )
    return kinds or {}


def _open(source: Any, split: str | None, image_size: int | None) -> _Opened:
    if isinstance(source, (str, os.PathLike)):
        return _open_path(pathlib.Path(source), split, image_size)
    package = type(source).__module__.split(".")[0]
    if package == "datasets" and isinstance(source, dict):
        return _open(source[_split_of(split, list(source), "the dataset")], None, image_size)
    if split is not None:
        raise ValueError(f"split must be None for a table without splits, got {split!r}.")
    origin = "a table in memory"
    if package == "datasets" and hasattr(source, "with_format") and hasattr(source, "num_rows"):
        names = {n: f.names for n, f in source.features.items() if getattr(f, "names", None)}
        return _open_arrow(source.with_format("arrow")[:], origin, image_size, names=names)
    if package == "pyarrow" and hasattr(source, "column_names"):
        return _open_arrow(source, origin, image_size)
    if package == "pandas" and hasattr(source, "columns"):
        _check_names(list(source.columns), origin)
        return _Opened(
            origin, {n: partial(_from_pandas, source.iloc[:, i]) for i, n in enumerate(source)}
        )
    if isinstance(source, Mapping):
        _check_names(list(source), origin)
        return _Opened(origin, {name: partial(_from_array, source[name]) for name in source})
    raise ValueError(
        f"source must be a path, a DataFrame, a Dataset, a pyarrow.Table or a mapping of arrays, got"
        f" a {type(source).__name__}."
    )


def _open_path(path: pathlib.Path, split: str | None, image_size: int | None) -> _Opened:
    if path.is_dir():
        return _open_folder(path, split, image_size)
    if split is not None:
        raise ValueError(f"split is for a saved DatasetDict, but {path} is a file; got {split!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"source must be {_HOLDS}, but {path} does not exist.")
    ending = pathlib.PurePath(path.name.lower().removesuffix(".gz")).suffix
    sha256 = files.digest([path], path)
    if ending == ".npz":
        arrays = _load_npz(path)
        read = {name: partial(_from_array, array) for name, array in arrays.items()}
        return _Opened(str(path), read, sha256)
    if ending in (".csv", ".tsv"):
        csv = files.optional("pyarrow.csv", "Reading CSV", "tables")
        with files.named(path, "cannot be read"):
            options = csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ",")
            table = csv.read_csv(path, parse_options=options)
            _check_csv(table, path)
        return _open_arrow(table, str(path), image_size, sha256)
    if ending in (".parquet", ".pq"):
        return _open_parquet([path], path, sha256, image_size)
    raise ValueError(f"source must be {_HOLDS}, got {path}.")


def _open_parquet(
    parts: list[pathlib.Path], path: pathlib.Path, sha256: str, image_size: int | None
) -> _Opened:
    parquet = files.optional("pyarrow.parquet", "Reading Parquet", "tables")
    arrow = files.optional("pyarrow", "Reading Parquet", "tables")
    with files.named(path, "cannot be read"):
        table = arrow.concat_tables([parquet.ParquetFile(part).read() for part in parts])
    return _open_arrow(table, str(path), image_size, sha256)


def _open_folder(path: pathlib.Path, split: str | None, image_size: int | None) -> _Opened:
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
        return _open_arrow(table, str(path), image_size, files.digest(parts, path))
    if parts := sorted(path.glob("*.parquet")):
        return _open_parquet(parts, path, files.digest(parts, path), image_size)
    return _open_images(path, image_size)


def _open_images(path: pathlib.Path, image_size: int | None) -> _Opened:
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    images = [sorted(p for p in f.iterdir() if p.suffix.lower() in _IMAGES) for f in folders]
    if not folders:
        raise ValueError(f"source must be {_HOLDS}, but {path} holds neither.")
    for folder, found in zip(folders, images, strict=True):
        if not found:
            raise ValueError(f"{path} must hold class/file.png, but {folder} holds no images.")
    codes = np.repeat(np.arange(len(folders)), [len(found) for found in images])
    paths = [image for found in images for image in found]
    label = _Coded(codes, tuple(folder.name for folder in folders))
    columns: dict[str, Callable[[str, Where], Raw]] = {
        "image": lambda origin, where: _images(list(paths), list(map(str, paths)), image_size),
        "label": lambda origin, where: label,
    }
    return _Opened(str(path), columns, files.digest(paths, path), "label")


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
    def is_number(name: str) -> bool:
        try:
            return float(name) is not None
        except ValueError:
            return False

    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if str(kind) == "binary":
            raise ValueError(f"{path}: column {name!r} must be text in UTF-8, and is not.")
    if all(map(is_number, table.column_names)):
        first = ", ".join(table.column_names[:3])
        raise ValueError(f"{path} must name its columns in the first row, which is {first}, ...")


def _open_arrow(
    table: Any,
    origin: str,
    image_size: int | None,
    sha256: str | None = None,
    names: Mapping[str, list[str]] | None = None,
) -> _Opened:
    _check_names(table.column_names, origin)
    if names is None:  # as `datasets` writes them into its files
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = about.get("info", {}).get("features", {})
        names = {n: f["names"] for n, f in features.items() if isinstance(f, dict) and "names" in f}
    columns = {
        name: partial(_from_arrow, table[name], names.get(name), image_size)
        for name in table.column_names
    }
    return _Opened(origin, columns, sha256)


def _from_arrow(
    column: Any, names: list[str] | None, size: int | None, origin: str, where: Where
) -> Raw:
    arrow = files.optional("pyarrow", "Reading tables", "tables")
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = array.type
    if isinstance(kind, arrow.BaseExtensionType):
        array, kind = array.storage, array.storage.type
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        _refuse(missing, origin, "a value", "none", where)
    if arrow.types.is_dictionary(kind):
        return _Coded(array.indices.to_numpy(), tuple(map(str, array.dictionary.to_pylist())))
    if names is not None:
        return _Coded(array.to_numpy(zero_copy_only=False), tuple(names))
    if arrow.types.is_struct(kind) and {f.name for f in kind} >= {"bytes", "path"}:
        cells = [c["bytes"] or pathlib.Path(c["path"] or "") for c in array.to_pylist()]
        return _images(cells, [f"{origin}, {where(i)}" for i in range(len(cells))], size)
    if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
        cells = array.to_pylist()
        return _images(cells, [f"{origin}, {where(i)}" for i in range(len(cells))], size)
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
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
    kind = array.type
    numeric = arrow.types.is_integer(kind) or arrow.types.is_floating(kind)
    if array.null_count or not (numeric or arrow.types.is_boolean(kind)):
        what = f"missing values in {kind}" if array.null_count else str(kind)
        raise ValueError(
            f"{origin} must be numbers, images or text, got {what}. Leave it out, by columns=..., or"
            " make numbers of it."
        )
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _from_pandas(series: Any, origin: str, where: Where) -> Raw:
    missing = series.isna().to_numpy()
    _refuse(missing, origin, "a value", "none", where)
    if hasattr(series, "cat"):
        names = tuple(map(str, series.cat.categories))
        return _Coded(series.cat.codes.to_numpy(), names)
    return _from_array(series.to_numpy(), origin, where)


def _from_array(values: Any, origin: str, where: Where) -> Raw:
    """Numbers as they are, text as objects, objects that are arrays or images as one array."""
    ragged = f"{origin} must have rows of one shape"
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{ragged}: {error!s:.100}") from error
    if array.dtype.kind == "U":
        if isinstance(values, (list, tuple)) and not all(isinstance(v, str) for v in values):
            raise ValueError(f"{origin} must be numbers, images or text throughout.")
        return array.astype(object)
    if array.dtype.kind == "O":
        cells = array.tolist()
        if array.ndim == 1 and all(isinstance(cell, str) for cell in cells):
            return array
        _refuse(np.array([cell is None for cell in cells]), origin, "a value", "none", where)
        if any(isinstance(cell, (str, bytes)) for cell in cells):
            raise ValueError(f"{origin} must be numbers, images or text throughout.")
        try:
            array = np.stack([np.asarray(cell) for cell in cells])
        except ValueError as error:
            raise ValueError(f"{ragged}: {error!s:.100}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{origin} must be numbers, images or text throughout, got {array.dtype}.")
    return array


def _images(
    cells: Sequence[bytes | pathlib.Path], origins: list[str], size: int | None
) -> chex.ArrayNumpy:
    """Images of one shape; where some are grey and some are not, all have colours."""
    found = [files.read_image(c, o, size) for c, o in zip(cells, origins, strict=True)]
    if len({image.ndim for image in found}) > 1:
        found = [np.stack([i] * 3, axis=-1) if i.ndim == 2 else i for i in found]
    for image, origin in zip(found, origins, strict=True):
        if image.shape != found[0].shape:
            raise ValueError(
                f"{origin} must have {list(found[0].shape)} pixels, as the first image, got"
                f" {list(image.shape)}. image_size=... brings all to one size."
            )
    return np.stack(found)


def _load_npz(path: pathlib.Path) -> dict[str, chex.ArrayNumpy]:
    with files.named(path, "is not a .npz file that can be read"):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > max(_BYTES_UNQUESTIONED, _LIKELY_RATIO * path.stat().st_size):
            raise ValueError(f"it would unpack to {unpacked} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name!r} in it is no array")
    return found
