"""One door for tables: whatever holds named columns becomes examples, labels and clients."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.data import files, text
from fedjax_opt.data.files import require
from fedjax_opt.data.table_sources import Coded, Raw, Source, open_source

KINDS = ("numeric", "categorical", "image", "text")
_FEW = 50  # a column of text with at most so many different values is a category
_MOST_TOKENS = 256  # of a text; one long text would make all rows as long


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
      sha256: of its file or files; empty for what was in memory.
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
    encode: files.Encode | None = None,
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
        DataFrame of pandas or polars, a `datasets.Dataset`, a `pyarrow.Table`, or a mapping of names to
        arrays.
      client: The column that says whose each row is: text or whole numbers. Clients are in their
        order. None: the table knows no clients.
      label: The column of the labels, y. Text, truth values and categories become class ids, int32,
        and keep their names; whole numbers are ids already. None: the classes of a folder of images,
        else no labels.
      columns: The columns of inputs; or what each array of the examples shall be called,
        `{"x": "pixels", "age": "age"}`, where nothing is put side by side. None: all others.
      kinds: What columns are: 'numeric', 'categorical', 'image' or 'text', where they look like
        something else, such as `{"postcode": "categorical"}`. A 'categorical' label makes class ids of
        any whole numbers, such as -1 and 1, in their order.
      target: 'classes', or 'numbers' for a regression: y is then float32 `[n]`.
      encode: Turns a list of texts into an array, one row a text. None: `fo.data.token_ids` of the
        5,000 most frequent tokens.
      image_size: The side that images in files are brought to. None: they must be of one size.
      split: Which split of a saved `DatasetDict` to read.

    Returns:
      The table as examples, with what its columns were taken for.

    Example:
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
    source = open_source(source, split, image_size)
    label = source.label if label is None else label
    chosen = _chosen(source, client, label, columns)
    kinds = _checked_kinds(kinds or {}, source.origin, chosen, label)
    reader = _Reader(source)
    ids, names = None, ()
    with reader.naming_clients():
        if client is not None:
            ids, names = _categories(*reader.read(client), "client's name")
            reader.whose = [names[i] for i in ids.tolist()]
        inputs = {
            key: _feature(name, *reader.read(name), kinds.get(name), encode)
            for key, name in chosen.items()
        }
        examples, said = _assembled(inputs, by_name=isinstance(columns, Mapping))
        if label is not None:
            if "y" in examples:
                raise ValueError("columns must not call an array 'y', which is that of the labels.")
            examples["y"], classes = _labels(*reader.read(label), target, label in kinds)
            said.append(Column(label, "label", classes, "y"))
    if encode is not None and not any(column.kind == "text" for column, _ in inputs.values()):
        raise ValueError(f"encode is for text, but {source.origin} has no column of text.")
    if client is not None:
        said.append(Column(client, "client", (), f"{len(names)} clients"))
    return Table(source.origin, source.sha256, examples, tuple(said), ids, names)


class _Reader:
    """Reads columns that must be equally long, and knows whose each row is."""

    def __init__(self, source: Source) -> None:
        self._source, self._length = source, 0
        self.whose: list[str] = []

    def read(self, name: str) -> tuple[str, Raw]:
        """What errors call a column, and its values."""
        origin = f"{self._source.origin}: column {name!r}"
        raw = self._source.columns[name](origin)
        codes, names = raw if isinstance(raw, Coded) else (raw, ())
        if not codes.ndim or len(codes) == 0:
            raise ValueError(f"{origin} has no rows.")
        self._length = self._length or len(codes)
        if len(codes) != self._length:
            raise ValueError(
                f"{origin} must have {self._length} rows, as those before it, got {len(codes)}."
            )
        if isinstance(raw, Coded):
            known = (codes >= 0) & (codes < len(names))
            require(known, origin, f"have one of {len(names)} classes in each row", codes)
        return origin, raw

    @contextlib.contextmanager
    def naming_clients(self) -> Iterator[None]:
        """Adds to errors that name a row whose it is."""
        try:
            yield
        except files.RowError as error:
            client = self.whose[error.row] if self.whose else ""
            whose = files.RowError(error.message, error.row, error.advice, client)
            raise ValueError(str(whose)) from error


def _about(raw: Raw) -> str:
    if isinstance(raw, Coded):
        return "categories"
    kind = {"b": "truth values", "i": "whole numbers", "u": "whole numbers", "f": "floats"}
    return "text" if raw.dtype.kind == "O" else f"{kind[raw.dtype.kind]} of shape {list(raw.shape)}"


def _categories(origin: str, raw: Raw, what: str) -> tuple[chex.ArrayNumpy, tuple[str, ...]]:
    """Which of the different values each row has, int32, and their names, in order."""
    if isinstance(raw, Coded):
        if what == "category":  # those of the table, whether or not they occur
            return raw.codes.astype(np.int32), raw.names
        raw = np.asarray(raw.names, object)[raw.codes]
    if raw.dtype.kind == "f" and np.all(np.abs(raw) < 2**53) and np.all(raw == np.trunc(raw)):
        raw = raw.astype(np.int64)  # as pandas keeps whole numbers some of which were missing
    if raw.ndim != 1 or raw.dtype.kind not in "biuO":
        raise ValueError(f"{origin} must be text or whole numbers, [n], got {_about(raw)}.")
    if raw.dtype.kind == "O":
        require(raw != "", origin, f"have a {what} in each row", "empty text")
        found = sorted(set(raw.tolist()))  # faster than sorting all
        places = {value: place for place, value in enumerate(found)}
        codes = np.fromiter((places[value] for value in raw), np.int32, len(raw))
        return codes, tuple(found)
    found, codes = np.unique(raw, return_inverse=True)
    return codes.astype(np.int32), tuple(map(str, found.tolist()))


def _labels(
    origin: str, raw: Raw, target: str, categorical: bool
) -> tuple[chex.ArrayNumpy, tuple[str, ...]]:
    if target == "numbers":
        if isinstance(raw, Coded) or raw.dtype.kind not in "iuf" or raw.ndim != 1:
            raise ValueError(f"{origin} must be numbers [n], got {_about(raw)}.")
        return files.numbers(raw, origin), ()
    if categorical or isinstance(raw, Coded) or (raw.dtype.kind in "bO" and raw.ndim == 1):
        return _categories(origin, raw, "category" if isinstance(raw, Coded) else "class")
    any_whole = (
        f"kinds={{{origin.rsplit(' ', 1)[-1]}: 'categorical'}} makes ids of any whole numbers"
    )
    if raw.ndim != 1 or raw.dtype.kind not in "iu":
        advice = f"For a regression say target='numbers'; {any_whole}"
        if raw.ndim == 2 and raw.shape[1] == 1:
            advice = "Take its only column, y[:, 0]"
        elif raw.ndim == 2 and np.isin(raw, (0, 1)).all() and np.all(raw.sum(1) == 1):
            advice = "It is one-hot: take y.argmax(1)"
        elif raw.ndim > 1:
            advice = "Several numbers a row are an array by name, columns={...}, and no label"
        # The first row that is no number, if there is one, says more than the first row.
        row = int(np.argmin(np.isfinite(raw.reshape(len(raw), -1)).all(1)))
        wanted = "be class ids from 0, [n], or classes' names"
        message = f"{origin} must {wanted}, got {_about(raw)}, such as {raw[row]!s:.60}"
        raise files.RowError(message, row, f" {advice}.")
    most = max(len(raw), 1000)
    wanted = f"be class ids from 0 to {most - 1}"
    require((raw >= 0) & (raw < most), origin, wanted, raw, f" {any_whole}.")
    return raw.astype(np.int32), tuple(map(str, range(int(raw.max()) + 1)))


def _feature(
    name: str, origin: str, raw: Raw, kind: str | None, encode: files.Encode | None
) -> tuple[Column, chex.ArrayNumpy]:
    """What a column of inputs was taken for, and its values."""
    kind = kind or _judged(raw)
    if kind == "categorical":
        codes, classes = _categories(origin, raw, "category")
        return Column(name, kind, classes), codes
    if isinstance(raw, Coded):
        raw = np.asarray(raw.names, object)[raw.codes]
    if (raw.dtype.kind == "O") != (kind == "text"):
        raise ValueError(f"{origin} must be of kind {kind!r}, got {_about(raw)}.")
    if kind == "image" and raw.ndim not in (3, 4):
        raise ValueError(f"{origin} must be images [n, h, w, ...], got {_about(raw)}.")
    if kind != "text":
        return Column(name, kind), files.values(raw, origin)
    if encode is not None:
        return Column(name, kind), files.encoded(raw, encode, origin)
    with files.named(origin, "cannot be cut into tokens"):
        words = text.vocabulary(raw)
        ids = text.token_ids(raw, words)
    note = f"its first {_MOST_TOKENS} tokens" if ids.shape[1] > _MOST_TOKENS else ""
    return Column(name, kind, words, note), ids[:, :_MOST_TOKENS]


def _judged(raw: Raw) -> str:
    """The kind that a column looks like."""
    if isinstance(raw, Coded):
        return "categorical"
    if raw.dtype.kind == "O":
        return "categorical" if len(set(raw.tolist())) <= min(_FEW, len(raw) // 2) else "text"
    image = raw.ndim == 3 or (raw.ndim == 4 and raw.shape[3] in (1, 3, 4))
    return "image" if image and raw.dtype == np.uint8 else "numeric"


def _assembled(
    inputs: dict[str, tuple[Column, chex.ArrayNumpy]], by_name: bool
) -> tuple[dict[str, chex.ArrayNumpy], list[Column]]:
    """The arrays of the examples, and what became of each column."""
    flat = all(c.kind in ("numeric", "categorical") and a.ndim <= 2 for c, a in inputs.values())
    alone = len(inputs) == 1 and all(array.ndim > 1 for _, array in inputs.values())
    said = []
    if by_name or alone or not flat:
        if alone and not by_name:
            inputs = dict(zip("x", inputs.values(), strict=True))
        for key, (column, array) in inputs.items():
            note = f"{key}: {array.dtype}{list(array.shape[1:])}"
            said.append(column._replace(note=", ".join(filter(None, [note, column.note]))))
        return {key: array for key, (_, array) in inputs.items()}, said
    blocks, start = [], 0
    for column, array in inputs.values():
        one_hot = column.kind == "categorical"
        block = np.eye(len(column.classes), dtype=np.float32)[array] if one_hot else array
        block = block.reshape(len(block), -1)
        end = start + block.shape[1]
        note = f"x[:, {start}]" if end == start + 1 else f"x[:, {start}:{end}]"
        if block.dtype.kind in "iu" and np.abs(block.astype(np.int64)).max() > 2**24:
            note += ", rounded to float32"
        blocks.append(block.astype(np.float32))
        said.append(column._replace(note=note))
        start = end
    return {"x": np.concatenate(blocks, axis=1)}, said


def _chosen(
    source: Source,
    client: str | None,
    label: str | None,
    columns: Sequence[str] | Mapping[str, str] | None,
) -> dict[str, str]:
    """Names in the examples -> columns of inputs."""
    for argument, name in (("client", client), ("label", label)):
        if name is not None:
            _check_column(argument, name, source)
    if client is not None and client == label:
        raise ValueError(f"client and label must be different columns, got {client!r} for both.")
    if isinstance(columns, str):
        raise ValueError(f"columns must be a sequence of names or a mapping, got {columns!r}.")
    if columns is None:
        columns = [name for name in source.columns if name not in (client, label)]
    wanted = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if not wanted:
        raise ValueError(f"{source.origin} has no columns of examples.")
    if both := {client, label} & set(wanted.values()):
        raise ValueError(f"columns must be inputs, but {both.pop()!r} is the client or the label.")
    for name in wanted.values():
        _check_column("columns", name, source)
    return wanted


def _check_column(argument: str, name: str, source: Source) -> None:
    if name not in source.columns:
        raise ValueError(
            f"{argument} must name a column of {source.origin}, which are"
            f" {', '.join(map(repr, source.columns))}; got {name!r}."
        )


def _checked_kinds(
    kinds: Mapping[str, str], origin: str, chosen: dict[str, str], label: str | None
) -> Mapping[str, str]:
    for name, kind in kinds.items():
        checks.choice(f"kinds[{name!r}]", kind, ("categorical",) if name == label else KINDS)
        if name not in (label, *chosen.values()):
            raise ValueError(
                f"kinds must name inputs of {origin}, which are"
                f" {', '.join(map(repr, chosen.values()))}, or the label; got {name!r}."
            )
    return kinds
