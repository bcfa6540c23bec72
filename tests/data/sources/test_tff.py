"""TensorFlow Federated's HDF5 and SQLite files."""

import contextlib
import lzma
import sqlite3
import struct

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedjax_opt.data import gathering
from fedjax_opt.data.sources import example_proto
from fedjax_opt.data.sources.tff import read_hdf5, read_sqlite


def varint(value):
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def serialized(packed=True, **features):
    """A tf.train.Example, written from the description of the wire format."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind, content = 1, b"".join(field(1, value) for value in values)
        elif isinstance(values[0], float):
            numbers = [struct.pack("<f", value) for value in values]
            one_by_one = b"".join(varint(1 << 3 | 5) + number for number in numbers)
            kind, content = 2, field(1, b"".join(numbers)) if packed else one_by_one
        else:
            numbers = [varint(value) for value in values]
            one_by_one = b"".join(varint(1 << 3) + number for number in numbers)
            kind, content = 3, field(1, b"".join(numbers)) if packed else one_by_one
        entries += field(1, field(1, name.encode()) + field(2, field(kind, content)))
    return field(1, entries)


@settings(max_examples=30)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.booleans(),
)
def test_examples_are_read_back(integers, floats, texts, packed):
    message = serialized(packed, i=integers, f=floats, t=texts)
    found = example_proto.parse(message, "here")
    assert found["i"].tolist() == integers and found["f"].tolist() == floats
    assert found["t"] == texts


@settings(max_examples=100)
@given(st.integers(0, 200), st.binary(max_size=3), st.booleans())
def test_damaged_examples_give_values_or_a_clear_error(at, junk, cut):
    message = serialized(i=[1, 300], f=[1.0, 2.0], t=[b"abc"])
    damaged = message[:at] + junk + (b"" if cut else message[at + len(junk) :])
    try:
        example_proto.parse(damaged, "file.sqlite")
    except ValueError as error:
        assert "file.sqlite" in str(error)


def test_numbers_have_at_most_ten_bytes():
    endless = field(
        1, field(1, field(1, b"i") + field(2, field(3, field(1, b"\x80" * 10 + b"\1"))))
    )
    with pytest.raises(ValueError, match="here holds a damaged example: a number is too long"):
        example_proto.parse(endless, "here")


def make(path, rows, sizes=None, schema=None):
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            schema
            or """CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,
                  serialized_example_proto BLOB NOT NULL);
                  CREATE INDEX i ON examples (split_name, client_id);
                  CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL,
                  num_examples INTEGER NOT NULL);"""
        )
        if schema:
            return path
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        counts = {}
        for split, client, _ in rows:
            counts[client, split] = counts.get((client, split), 0) + 1
        counts |= sizes or {}
        database.executemany(
            "INSERT INTO client_metadata VALUES (?, ?, ?)", [(*key, n) for key, n in counts.items()]
        )
    return path


def emnist(client, split, label):
    pixels = [float(label)] * 3 + [0.5]
    return split, client, serialized(pixels=pixels, label=[label])


ROWS = [emnist("f2", "train", 1), emnist("f1", "train", 2), emnist("f1", "test", 3),
        emnist("f2", "train", 4)]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_sqlite(tmp_path, packed):
    file = make(tmp_path / "a b?#.sqlite", ROWS)
    if packed:
        content, file = file.read_bytes(), tmp_path / "a.sqlite.lzma"
        file.write_bytes(lzma.compress(content, lzma.FORMAT_ALONE))
    columns = {"x": "pixels", "y": "label"}
    data, names = gathering.collect(read_sqlite(file, "train", columns, {"x": (2, 2)}))
    assert names == ["f1", "f2"] and data.sizes.tolist() == [1, 2]
    assert data.examples["y"].tolist() == [2, 1, 4] and data.examples["y"].dtype == np.int32
    assert data.examples["x"].dtype == np.float32
    assert data.examples["x"][2].tolist() == [[4.0, 4.0], [4.0, 0.5]]


def test_sqlite_text_and_the_only_split(tmp_path):
    text = [("train", "LEAR", serialized(snippets=[line])) for line in (b"Howl!", b"\xff")]
    ((name, examples),) = read_sqlite(make(tmp_path / "a.sqlite", text))
    assert name == "LEAR" and examples["snippets"].tolist() == ["Howl!", b"\xff"]


def test_wrong_sqlite(tmp_path):
    file = tmp_path / "bad.sqlite"

    def refused(wrong, split="train", **arguments):
        with pytest.raises(ValueError, match=r"(?s)bad\.sqlite.*" + wrong):
            list(read_sqlite(file, split, **arguments))

    make(file, ROWS)
    with pytest.raises(ValueError, match=r"split must be one of 'train', 'test' for .*, got None"):
        list(read_sqlite(file))
    with pytest.raises(ValueError, match="got 'other'"):
        list(read_sqlite(file, "other"))
    refused("'pixels' is .4., not .5.", columns={"x": "pixels"}, shapes={"x": (5,)})
    with pytest.raises(ValueError, match=r"columns must name columns of .*got 'image'"):
        list(read_sqlite(file, "train", {"x": "image"}))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    refused("not an SQLite file that can be read")
    file.write_bytes(b"no database at all" * 100)
    refused("not an SQLite file that can be read")
    make(file, ROWS, {("f1", "train"): 3})
    refused("has 1 examples, but client_metadata says 3")
    make(file, [*ROWS, ("train", "f2", b"\x0a\x05ab")])
    refused("client 'f2' holds a damaged example")
    make(file, [*ROWS, ("train", "f2", "text")])
    refused("must hold serialized examples, got a str")
    make(file, [*ROWS, ("train", "f2", serialized(pixels=[1.0], label=[1]))])
    refused("'pixels' must have as many values of one kind in every example")
    make(file, [("train", "f", serialized(label=[2**40]))])
    refused("whole numbers that fit int32")
    for value in (float("nan"), float("-inf")):
        make(file, [("train", "f", serialized(pixels=[value]))])
        refused("client 'f': 'pixels' must be finite numbers")
    make(file, [("train", "f", serialized(label=[value])) for value in (1.0, 1)])
    refused("'label' must have as many values of one kind in every example")
    make(file, [], schema="CREATE TABLE t (x); CREATE VIEW examples AS SELECT * FROM t;")
    refused("must have a table 'examples'")
    with pytest.raises(FileNotFoundError):
        read_sqlite(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize(("size", "wrong"), [(10**8, "too big"), (5000, "than the file can hold")])
def test_examples_that_are_computed(tmp_path, size, wrong):
    """A column that is a formula fills the memory out of a small file."""
    schema = f"""CREATE TABLE examples (split_name TEXT, client_id TEXT,
                 serialized_example_proto AS (zeroblob({size})));
                 CREATE TABLE client_metadata (client_id, split_name, num_examples);
                 INSERT INTO examples (split_name, client_id) VALUES {"('train', 'f')," * 4} ('', '');
                 INSERT INTO client_metadata VALUES ('f', 'train', 4);"""
    file = make(tmp_path / "bad.sqlite", [], schema=schema)
    with pytest.raises(ValueError, match=rf"bad\.sqlite.*{wrong}"):
        list(read_sqlite(file))


@pytest.fixture(scope="module")
def whole_sqlite(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sqlite") / "damaged.sqlite", ROWS).read_bytes()


@settings(max_examples=100)
@given(st.integers(0, 10**5), st.binary(min_size=1, max_size=4))
@example(None, b"CREATE T\xfcBLE examples")
def test_any_damage_to_sqlite_gives_values_or_names_the_file(
    tmp_path_factory, whole_sqlite, at, junk
):
    file = tmp_path_factory.getbasetemp() / "damaged.sqlite"
    content = bytearray(whole_sqlite)
    at = content.index(b"CREATE TABLE examples") if at is None else at % len(content)
    content[at : at + len(junk)] = junk
    file.write_bytes(content)
    try:
        list(read_sqlite(file, "train"))
    except ValueError as error:
        assert "damaged.sqlite" in str(error)


def test_packed_sqlite_that_is_damaged_or_a_bomb(tmp_path):
    file = tmp_path / "bad.sqlite.xz"
    packed = lzma.compress(bytes(2**24))
    file.write_bytes(packed)
    with pytest.raises(ValueError, match=r"bad\.sqlite\.xz unpacks to more than"):
        list(read_sqlite(file))
    for content in (packed[:-30], b"nothing"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.sqlite\.xz (is damaged|unpacks)"):
            list(read_sqlite(file))


@pytest.fixture
def hdf5(tmp_path):
    def build(fill):
        with h5py.File(tmp_path / "bad.h5", "w") as file:
            fill(file)
        return tmp_path / "bad.h5"

    return build


def test_hdf5(hdf5):
    def fill(file):
        for name, size in (("f1", 2), ("f0", 3)):
            group = file.create_group(f"examples/{name}")
            group["pixels"] = np.full((size, 2, 2), size, np.float32)
            group["label"] = np.arange(size, dtype=np.int32)
            group["snippets"] = [f"line {i}".encode() for i in range(size)]

        file.create_group("examples/nobody").update(
            pixels=np.zeros((0, 2, 2)), label=np.zeros(0, int), snippets=np.zeros(0, "S1")
        )

    file = hdf5(fill)
    data, names = gathering.collect(read_hdf5(file, {"x": "pixels", "y": "label", "t": "snippets"}))
    assert names == ["f0", "f1"] and data.sizes.tolist() == [3, 2]
    assert data.examples["x"][0].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert data.examples["y"].tolist() == [0, 1, 2, 0, 1]
    assert data.examples["t"].tolist()[3:] == ["line 0", "line 1"]
    assert set(next(read_hdf5(file))[1]) == {"pixels", "label", "snippets"}


def of_time(file):
    space = h5py.h5s.create_simple((2,))
    group = file.create_group("examples/a")
    h5py.h5d.create(group.id, b"x", h5py.h5t.UNIX_D32LE, space)


def many_texts(file):
    file.create_dataset("examples/a/x", (10**8,), h5py.string_dtype(), chunks=(1024,))


def of_lists(file):
    file.create_dataset("examples/a/x", (2,), h5py.vlen_dtype(np.int32))[0] = [1, 2]


def of(values, dtype=None):
    def fill(file):
        file.create_group("examples/a").create_dataset("x", data=values, dtype=dtype)

    return fill


def bomb(file):
    file.create_group("examples/a").create_dataset("x", (2**40,), "f8", chunks=(1024,))


@pytest.mark.parametrize(
    ("fill", "wrong"),
    [
        (lambda file: None, "must have a group 'examples'"),
        (lambda file: file.create_dataset("examples", data=[1]), "must have a group 'examples'"),
        (lambda file: file.create_dataset("examples/a", data=[1]), "must have a group 'a'"),
        (lambda file: file.create_group("examples/a"), "has no columns"),
        (lambda file: file.create_group("examples/a/x"), "must have a dataset 'x'"),
        (lambda file: file.create_dataset("examples/a/x", data=1), r"'x' must be an array \[n"),
        (of([1j]), "'x' must be numbers, or one text in each example"),
        (of([[b"a", b"b"]]), "'x' must be numbers, or one text in each example"),
        (of(np.array([h5py.Reference()], h5py.ref_dtype)), "'x' must be numbers, or one text"),
        (of_lists, "'x' must be numbers, or one text in each example"),
        (of_time, "is not an HDF5 file that can be read: No NumPy equivalent"),
        (of([1, 2**40]), "client 'a': 'x' must be whole numbers that fit int32"),
        (of([2**63], np.uint64), "client 'a': 'x' must be whole numbers that fit int32"),
        (of([1e300]), "client 'a': 'x' must be finite numbers that fit float32"),
        (of([np.nan], np.float32), "client 'a': 'x' must be finite numbers"),
        (lambda file: (of([1])(file), file["examples/a"].update(y=[1, 2])), "as many examples"),
        (bomb, "would unpack to 8796093022208 bytes"),
        (many_texts, "would unpack to 800000000 bytes"),
    ],
)
def test_wrong_hdf5(hdf5, fill, wrong):
    with pytest.raises(ValueError, match=r"bad\.h5.*" + wrong):
        list(read_hdf5(hdf5(fill)))


def test_hdf5_links_lead_nowhere(hdf5, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as other:
        other["examples/a/x"] = [1]

    def fill(file):
        file["examples"] = h5py.ExternalLink("secret.h5", "/examples")

    with pytest.raises(ValueError, match=r"bad\.h5 must have a group 'examples'"):
        list(read_hdf5(hdf5(fill)))


@pytest.mark.parametrize("damaged", [0, 8, 2**64 - 16])
def test_texts_whose_heap_would_never_end(hdf5, damaged):
    """HDF5 itself waits for the end of an object without length, for ever."""
    file = hdf5(lambda file: file.create_dataset("examples/a/x", data=["one", "two", "three"]))
    assert next(read_hdf5(file))[1]["x"].tolist() == ["one", "two", "three"]
    content = bytearray(file.read_bytes())
    at = content.index(b"GCOL") + 16 + 3 * 24  # behind the header and three objects: free room
    assert struct.unpack_from("<H6xQ", content, at) == (0, 4096 - 88)
    struct.pack_into("<Q", content, at + 8, damaged)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.h5 is damaged: its heap of texts at byte \d+"):
        list(read_hdf5(file))


def test_truncated_hdf5(hdf5):
    file = hdf5(lambda file: file.create_dataset("examples/a/x", data=np.arange(1000)))
    content = file.read_bytes()
    for part in (b"", b"no HDF5", content[: len(content) // 2]):
        file.write_bytes(part)
        with pytest.raises(ValueError, match=r"bad\.h5 is not an HDF5 file that can be read"):
            list(read_hdf5(file))
