"""Arrays and tables with a column of clients."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.data import gathering
from fedjax_opt.data.sources import tables
from fedjax_opt.data.sources.tables import read_npz, read_table


def test_npz_by_number_and_by_name(tmp_path):
    file = tmp_path / "a.npz"
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    np.savez_compressed(file, images=images, y=np.arange(4), who=np.array([10, 9, 10, 9]))
    data, names = gathering.collect(read_npz(file, "who", {"x": "images"}))
    assert names == ["9", "10"] and list(data.examples) == ["x"]
    np.testing.assert_array_equal(data.examples["x"], images[[1, 3, 0, 2]])
    np.savez(file, x=images, client=np.array(["b", "a", "b", "b"]))
    assert [(name, len(e["x"])) for name, e in read_npz(file)] == [("a", 1), ("b", 3)]


def bomb(path, claimed):
    """An array whose header claims more than the file has."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (claimed,)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("client.npy", header.getvalue())


def test_hostile_npz(tmp_path):
    file = tmp_path / "a.npz"
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    np.savez(file, x=np.array([Bomb()], object), client=np.zeros(1, int))
    with pytest.raises(
        ValueError, match=r"a\.npz is not a \.npz file that can be read: Object arrays"
    ):
        read_npz(file)
    assert not ran.exists()
    bomb(file, 2**60)
    with pytest.raises(ValueError, match=r"a\.npz is not a \.npz file that can be read"):
        read_npz(file)
    good = io.BytesIO()
    np.savez(good, x=np.arange(100), client=np.zeros(100, int))
    for content in (b"", b"PK\3\4", good.getvalue()[:-40], b"\x80\x04K\x01."):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz is not a \.npz file"):
            read_npz(file)
    damaged = bytearray(good.getvalue())
    damaged[200] ^= 0xFF
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"a\.npz is not a \.npz file"):
        read_npz(file)


@pytest.mark.parametrize(
    ("member", "content", "wrong"),
    [
        ("x.npy", b"\x93NUMPY\x01\x00v\x00" + b"(" * 118, ".*EOF in multi-line statement"),
        ("README.txt", b"what this is", "'README.txt' in it is no array"),
        ("x.npy", b"", "'x' in it is no array"),
    ],
)
def test_a_member_that_is_no_array(tmp_path, member, content, wrong):
    file = tmp_path / "a.npz"
    np.savez(file, client=np.zeros(1, int))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(member, content)
    with pytest.raises(ValueError, match=rf"a\.npz is not a \.npz file that can be read: {wrong}"):
        read_npz(file)


@settings(max_examples=100)
@given(st.integers(0, 10**4), st.binary(min_size=1, max_size=4))
def test_any_damage_to_npz_gives_values_or_names_the_file(tmp_path_factory, at, junk):
    whole = io.BytesIO()
    np.savez(whole, x=np.arange(3.0), client=np.arange(3))
    content = bytearray(whole.getvalue())
    at %= len(content)
    content[at : at + len(junk)] = junk
    file = tmp_path_factory.getbasetemp() / "damaged.npz"
    file.write_bytes(content)
    try:
        list(read_npz(file))
    except ValueError as error:
        assert "damaged.npz" in str(error)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        (np.array([1, 2**40]), "whole numbers that fit int32"),
        (np.array([1, 2**63], np.uint64), "whole numbers that fit int32"),
        (np.array([1, 2**31], np.uint32), "whole numbers that fit int32"),
        (np.array([1.0, 1e300]), "finite numbers that fit float32"),
        (np.array([1.0, np.nan]), "finite numbers that fit float32"),
        (np.array([1.0, np.inf], np.float16), "finite numbers that fit float32"),
        (np.array([1j, 0]), "must be numbers, got complex128"),
        (np.array(["2020", "2021"], "M8[Y]"), "must be numbers, got datetime64"),
    ],
)
def test_npz_of_numbers_that_would_be_cut(tmp_path, values, wrong):
    file = tmp_path / "a.npz"
    np.savez(file, y=values, client=np.zeros(2, int))
    with pytest.raises(
        ValueError, match=rf"a\.npz: 'y' must be .*{wrong.removeprefix('must be ')}"
    ):
        read_npz(file)


def test_numbers_are_as_jax_takes_them(tmp_path):
    """Those of 64 bits have 32, others keep theirs, all in the order of this machine."""
    types = {"i8": "int32", "u4": "int32", ">i2": "int16", "u1": "uint8", "?": "bool",
             "f8": "float32", ">f4": "float32", "f2": "float16", "U3": "<U3"}  # fmt: skip
    file = tmp_path / "a.npz"
    np.savez(file, **{key: np.ones(2, key) for key in types}, client=np.zeros(2, int))
    ((_, found),) = read_npz(file)
    assert {key: str(array.dtype) for key, array in found.items()} == types
    assert all(array.dtype.isnative and array.tolist() == ["1" if key == "U3" else 1] * 2
               for key, array in found.items())  # fmt: skip


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.zeros(10**6), client=np.zeros(10**6, np.int8))
    assert len(list(read_npz(file))) == 1  # nine megabytes raise no question
    monkeypatch.setattr(tables, "_BYTES_UNQUESTIONED", 2**20)
    with pytest.raises(ValueError, match="it would unpack to 9000"):
        read_npz(file)


def test_npz_arguments(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, x=np.zeros(3), client=np.zeros(3, int), short=np.zeros(2))
    with pytest.raises(ValueError, match=r"client must name an array of .*; got 'user'"):
        read_npz(file, "user")
    with pytest.raises(ValueError, match=r"columns must name columns of .*; got 'z'"):
        read_npz(file, columns={"x": "z"})
    with pytest.raises(ValueError, match=r"one entry for each row of 'short'"):
        read_npz(file)
    with pytest.raises(ValueError, match="named by text or whole numbers"):
        list(read_npz(file, "x", {"y": "client"}))
    np.savez(file, x=np.zeros(2), client=np.array([b"ann", b"bob"]))
    with pytest.raises(ValueError, match="named by text or whole numbers"):
        list(read_npz(file))
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz")


class Plain(dict):
    """The least that a table must have."""

    column_names = property(list)


class Lazy(Plain):
    """A table that can be read in rows, as a `datasets.Dataset` can; it counts what is read."""

    read = 0

    def with_format(self, kind):
        raise NotImplementedError

    def select(self, rows):
        part = Lazy({name: [column[i] for i in rows] for name, column in self.items()})
        Lazy.read += len(rows)
        return part


@pytest.mark.parametrize("kind", [Plain, Lazy])
def test_tables(kind):
    table = kind(
        user=["u2", "u1", "u2"], text=["a", "bb", "ccc"], label=[0, 1, 2],
        vector=[[0.5, 1.0]] * 3, image=[np.full((2, 2), i, np.uint8) for i in range(3)],
    )  # fmt: skip
    clients = list(
        read_table(table, "user", {"x": "image", "y": "label", "t": "text", "v": "vector"})
    )
    assert [name for name, _ in clients] == ["u1", "u2"]
    examples = clients[1][1]
    assert examples["x"].dtype == np.uint8 and examples["x"][:, 0, 0].tolist() == [0, 2]
    assert examples["y"].dtype == np.int32 and examples["y"].tolist() == [0, 2]
    assert examples["t"].tolist() == ["a", "ccc"]
    assert examples["v"].dtype == np.float32 and examples["v"].tolist() == [[0.5, 1.0]] * 2
    assert set(next(read_table(table, "user"))[1]) == {"text", "label", "image", "vector"}


def test_tables_of_hugging_face():
    """Images, class labels, lists and text, where that package is installed."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        user=datasets.Value("string"), image=datasets.Image(), text=datasets.Value("string"),
        label=datasets.ClassLabel(num_classes=3), vector=datasets.List(datasets.Value("float64")),
    )  # fmt: skip
    columns = {
        "user": ["u2", "u1", "u2"], "image": [np.full((2, 2), i, np.uint8) for i in range(3)],
        "text": ["a", "bb", "ccc"], "label": [0, 1, 2], "vector": [[0.5, 1.0]] * 3,
    }  # fmt: skip
    table = datasets.Dataset.from_dict(columns, features)
    for form in (table, table.with_format("numpy"), table.to_iterable_dataset()):
        clients = list(read_table(form, "user"))
        assert [name for name, _ in clients] == ["u1", "u2"]
        examples = clients[1][1]
        assert examples["image"].dtype == np.uint8 and examples["image"][:, 0, 0].tolist() == [0, 2]
        assert examples["label"].dtype == np.int32 and examples["label"].tolist() == [0, 2]
        assert examples["text"].tolist() == ["a", "ccc"]
        assert examples["vector"].tolist() == [[0.5, 1.0]] * 2
    with pytest.raises(ValueError, match="must have column_names, and be one split"):
        read_table(datasets.DatasetDict(train=table), "user")
    with pytest.raises(ValueError, match="named by text or whole numbers"):
        list(read_table(datasets.Dataset.from_dict({"user": [1, None], "y": [1, 2]}), "user"))


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_clients_have_any_number(kind):
    """Numbers of clients are names: they are not the model's."""
    table = Plain(user=kind([2**40, -5, 2**40]), y=[0, 1, 2])
    assert [(name, e["y"].tolist()) for name, e in read_table(table, "user")] == [
        ("-5", [1]), (str(2**40), [0, 2]),
    ]  # fmt: skip


def test_rows_are_read_as_needed():
    Lazy.read = 0
    clients = read_table(Lazy(user=[1, 0, 1, 1], y=[0, 1, 2, 3]), "user")
    next(clients)
    assert Lazy.read == 1
    next(clients)
    assert Lazy.read == 4


@pytest.mark.parametrize(
    ("table", "client", "wrong"),
    [
        ({"y": [1]}, "y", "must have column_names"),
        (Plain(y=[1]), "user", "client must be one of 'y', got 'user'"),
        (Plain(user=[], y=[]), "user", "no rows"),
        (Plain(user=[1, 2], y=[1]), "user", "'y' must have 2 rows, got 1"),
        (Plain(user=[1, 2], y=[[1], [1, 2]]), "user", "'y' must have rows of one shape"),
        (Plain(user=[1, 2], y=[1, None]), "user", "'y' must be numbers, images or text"),
        (Plain(user=[1, 2], y=[1, 10**30]), "user", "'y' must be numbers, images or text"),
        (Plain(user=[1, 2], y=[1, 2**40]), "user", "'y' must be whole numbers that fit int32"),
        (Plain(user=[1, 2], y=[0.5, 1e300]), "user", "'y' must be finite numbers that fit float32"),
        (Plain(user=[0.5, 1.0], y=[1, 2]), "user", "named by text or whole numbers"),
        (Plain(user=["a", 1], y=[1, 2]), "user", "all by text or all by numbers"),
        (Plain(user=[[1], [2]], y=[1, 2]), "user", "named by text or whole numbers"),
        (Plain(user=[1, 2], y=["a", 1]), "user", "'y' must be numbers, images or text throughout"),
        (Plain(user=["a"]), "user", "no columns of examples"),
    ],
)
def test_wrong_tables(table, client, wrong):
    with pytest.raises(ValueError, match=wrong):
        list(read_table(table, client))
