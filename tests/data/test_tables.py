"""One door for tables: the same examples from every form, and refusals that name row and client."""

import hashlib
import io
import pathlib
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedjax_opt as fo
from fedjax_opt.data import read_table

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = {
    "who": ["bob", "ann", "bob", "cy", "ann", "bob"],
    "size": [1.5, -2.0, 0.25, 1.0, 8.0, 2.0],
    "age": [31, 45, 28, 50, 39, 40],
    "city": ["Rome", "Oslo", "Rome", "Oslo", "Oslo", "Rome"],
    "kind": ["b", "a", "c", "b", "a", "a"],
}
X = [[1.5, 31, 0, 1], [-2, 45, 1, 0], [0.25, 28, 0, 1], [1, 50, 1, 0], [8, 39, 1, 0], [2, 40, 0, 1]]
IDS = [1, 0, 1, 2, 0, 1]
Y = [1, 0, 2, 1, 0, 0]


def as_datasets(folder=None, splits=False):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        who=datasets.Value("string"), size=datasets.Value("float64"), age=datasets.Value("int64"),
        city=datasets.ClassLabel(names=["Oslo", "Rome"]), kind=datasets.ClassLabel(names=list("abc")),
    )  # fmt: skip
    coded = ROWS | {"kind": Y, "city": [1, 0, 1, 0, 0, 1]}
    found = datasets.Dataset.from_dict(coded, features)
    if splits:
        found = datasets.DatasetDict(train=found, test=found.select([0, 1]))
    if folder is None:
        return found
    found.save_to_disk(folder)
    return folder


def saved(folder):
    """What `datasets` saves, written by hand, since that package need not be installed."""
    folder.mkdir(parents=True)
    names = '{"info": {"features": {"kind": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}}'
    table = pa.table(ROWS | {"kind": Y}).replace_schema_metadata({"huggingface": names})
    for part, rows in (("a.arrow", table[:4]), ("b.arrow", table[4:])):
        with pa.ipc.new_stream(str(folder / part), table.schema) as stream:
            stream.write_table(rows)
    state = '{"_data_files": [{"filename": "a.arrow"}, {"filename": "b.arrow"}]}'
    (folder / "state.json").write_text(state)
    return folder


def dataset_dict(folder):
    saved(folder / "train")
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return folder


def written(write, name):
    def make(folder):
        write(pa.table(ROWS), folder / name)
        return folder / name

    return make


def parts(folder):
    (folder / "parts").mkdir()
    table = pa.table(ROWS)
    parquet.write_table(table[:2], folder / "parts" / "0.parquet")
    parquet.write_table(table[2:], folder / "parts" / "1.parquet")
    return folder / "parts"


def npz(folder):
    np.savez(folder / "a.npz", **ROWS)
    return folder / "a.npz"


def tsv(folder):
    names = "\t".join(ROWS)
    lines = ["\t".join(map(str, row)) for row in zip(*ROWS.values(), strict=True)]
    (folder / "a.tsv").write_text("\n".join([names, *lines]))
    return folder / "a.tsv"


def frame(categories):
    pandas = pytest.importorskip("pandas")
    found = pandas.DataFrame(ROWS, index=[7, 7, 1, 2, 3, 4])  # whatever the index
    return found.astype({"kind": "category", "city": "category"}) if categories else found


def written_by_dictionary(table, path):
    for name in ("kind", "city"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    parquet.write_table(table, path)


FORMS = {
    "mapping": lambda folder: ROWS,
    "arrays": lambda folder: {name: np.array(column) for name, column in ROWS.items()},
    "csv": written(csv.write_csv, "a.csv"),
    "gzip": written(
        lambda t, p: csv.write_csv(t, pa.CompressedOutputStream(p, "gzip")), "a.csv.gz"
    ),
    "tsv": tsv,
    "npz": npz,
    "parquet": written(parquet.write_table, "a.parquet"),
    "parts": parts,
    "arrow": lambda folder: pa.table(ROWS),
    "dictionary": written(written_by_dictionary, "a.parquet"),
    "saved": lambda folder: saved(folder / "saved"),
    "saved dict": lambda folder: dataset_dict(folder / "saved"),
    "frame": lambda folder: frame(False),
    "categories": lambda folder: frame(True),
    "datasets": lambda folder: as_datasets(),
    "datasets saved": lambda folder: as_datasets(folder / "saved"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_examples(form, tmp_path):
    source = FORMS[form](tmp_path)
    kinds = {"city": "categorical"}
    table = read_table(source, "who", "kind", kinds=kinds)
    assert {name: (a.dtype.name, a.shape) for name, a in table.examples.items()} == {
        "x": ("float32", (6, 4)), "y": ("int32", (6,)),
    }  # fmt: skip
    # A dictionary of Arrow has its own order of classes.
    names = table.columns[2].classes
    order = [0, 1, *(2 + names.index(city) for city in ("Oslo", "Rome"))]
    assert table.examples["x"][:, order].tolist() == X
    assert [table.classes[y] for y in table.examples["y"]] == ROWS["kind"]
    assert table.client_ids.dtype == np.int32 and table.client_ids.tolist() == IDS
    assert table.client_names == ("ann", "bob", "cy")
    assert table.client_data()[1]["x"][:, 0].tolist() == [1.5, 0.25, 2.0]
    kinds_said = " ".join(column.kind for column in table.columns)
    assert kinds_said == "numeric numeric categorical label client"
    if form in ("csv", "parquet", "npz"):
        assert table.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    in_memory = not isinstance(source, pathlib.Path)
    assert bool(table.sha256) != in_memory


def test_what_was_read_is_said():
    table = read_table(ROWS, "who", "kind")
    assert str(table) == (
        "a table in memory: 6 examples of 3 clients\n"
        "  size  numeric      x[:, 0]\n"
        "  age   numeric      x[:, 1]\n"
        "  city  categorical  x[:, 2:4]; 2 classes: Oslo, Rome\n"
        "  kind  label        y; 3 classes: a, b, c\n"
        "  who   client       3 clients"
    )


def test_clients_are_in_the_order_of_their_names_or_numbers(tmp_path):
    table = read_table({"u": np.array([10, 9, -(2**40), 9]), "x": np.arange(4.0)}, "u")
    assert table.client_names == (str(-(2**40)), "9", "10")
    data, names = fo.data.collect(table.clients())
    assert names == list(table.client_names) and data.examples["x"].tolist() == [[2], [1], [3], [0]]
    stored = fo.data.store(table.clients(), tmp_path / "stored")
    assert stored.sizes.tolist() == [1, 2, 1]
    with pytest.raises(ValueError, match=r"without a column of clients.*fo\.data\.iid"):
        read_table({"x": [1.0]}).client_data()


def test_arrays_of_examples():
    """Alone as they are; several that do not stand side by side under their own names."""
    images, vectors = np.zeros((3, 4, 5), np.uint8), np.arange(6, dtype=np.int8).reshape(3, 2)
    alone = read_table({"pixels": images}).examples["x"]
    assert alone.shape == (3, 4, 5) and alone.dtype == np.uint8
    assert read_table({"v": vectors}).examples["x"].dtype == np.int8
    assert read_table({"n": [1, 2, 3]}).examples["x"].tolist() == [[1.0], [2.0], [3.0]]
    both = read_table({"pixels": images, "v": vectors})
    assert {k: a.shape for k, a in both.examples.items()} == {"pixels": (3, 4, 5), "v": (3, 2)}
    assert [c.kind for c in both.columns] == ["image", "numeric"]
    flat = read_table({"n": [1, 2, 3], "v": vectors, "b": [True, False, True]}).examples["x"]
    assert flat.tolist() == [[1, 0, 1, 1], [2, 2, 3, 0], [3, 4, 5, 1]] and flat.dtype == np.float32
    named = read_table(ROWS, "who", "kind", columns={"a": "age", "where": "city"})
    assert named.examples["a"].dtype == np.int32
    assert named.examples["where"].tolist() == [1, 0, 1, 0, 0, 1]
    assert list(read_table(ROWS, columns=["size"]).examples) == ["x"]
    long = read_table({"n": [2**24 + 1, 0], "m": [0, 0]})
    assert long.columns[0].note == "x[:, 0], rounded to float32"


def test_text_becomes_tokens_or_what_the_user_makes_of_it():
    texts = ["to be or not", "that is the question", "to be"]
    table = read_table({"said": texts})
    assert table.columns[0].kind == "text" and table.columns[0].classes[:2] == ("be", "to")
    assert (
        table.examples["x"].tolist() == fo.data.token_ids(texts, table.columns[0].classes).tolist()
    )
    table = read_table({"said": texts}, encode=lambda t: np.array([[len(s)] for s in t]))
    assert table.examples["x"].tolist() == [[12], [20], [5]]
    wide = read_table({"said": [" ".join(map(str, range(300))), "1"]})
    assert wide.examples["x"].shape == (2, 256) and "first 256 tokens" in wide.columns[0].note
    # What recurs is a category, unless somebody knows better.
    assert read_table({"c": ["a", "b"] * 3}).columns[0].kind == "categorical"
    assert read_table({"c": ["a", "b"] * 3}, kinds={"c": "text"}).columns[0].kind == "text"
    assert read_table({"c": list(map(str, range(51))) * 3}).columns[0].kind == "text"
    assert read_table({"c": [5, 7, 5]}, kinds={"c": "categorical"}).examples["x"].shape == (3, 2)


def test_labels():
    """Names and truth values become ids; numbers are ids; those of a regression stay numbers."""
    for given_, ids, names in (
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (np.array([2, 0, 2], np.uint8), [2, 0, 2], ("0", "1", "2")),
        (np.array([2, 0, 2], np.int64), [2, 0, 2], ("0", "1", "2")),
    ):
        table = read_table({"x": [1.0, 2.0, 3.0], "y": given_}, label="y")
        assert table.examples["y"].dtype == np.int32 and table.examples["y"].tolist() == ids
        assert table.classes == names
    # Any whole numbers are names, if they are called so.
    for given_, ids, names in (
        ([-1, 1, -1], [0, 1, 0], ("-1", "1")),
        ([7.0, 5.0], [1, 0], ("5", "7")),
    ):
        columns = {"x": np.arange(len(ids)), "y": given_}
        table = read_table(columns, label="y", kinds={"y": "categorical"})
        assert table.examples["y"].tolist() == ids and table.classes == names
    table = read_table({"x": [1.0, 2.0], "y": [0.5, 7]}, label="y", target="numbers")
    assert table.examples["y"].dtype == np.float32 and table.classes == ()


def folder_of_images(home, sizes=((6, 4), (6, 4), (6, 4)), modes=("L", "L", "L")):
    for i, (name, size, mode) in enumerate(zip(("cat", "cat", "dog"), sizes, modes, strict=True)):
        (home / name).mkdir(exist_ok=True)
        Image.new(mode, size, 40 * i if mode == "L" else (40 * i, 0, 0)).save(
            home / name / f"{i}.png"
        )
    return home


def test_a_folder_of_images_by_class(tmp_path):
    table = read_table(folder_of_images(tmp_path))
    assert table.examples["x"].shape == (3, 4, 6) and table.examples["x"].dtype == np.uint8
    assert table.examples["x"][:, 0, 0].tolist() == [0, 40, 80]
    assert table.examples["y"].tolist() == [0, 0, 1] and table.classes == ("cat", "dog")
    folder_of_images(tmp_path, modes=("L", "RGB", "L"))
    coloured = read_table(tmp_path)
    assert coloured.examples["x"][:, 0, 0].tolist() == [[0] * 3, [40, 0, 0], [80] * 3]
    assert coloured.sha256 != table.sha256
    folder_of_images(tmp_path, sizes=((6, 4), (3, 3), (6, 4)))
    with pytest.raises(ValueError, match=r"1\.png must have \[4, 6\] pixels.*image_size"):
        read_table(tmp_path)
    assert read_table(tmp_path, image_size=5).examples["x"].shape == (3, 5, 5)
    Image.fromarray(np.full((4, 6), 999, np.uint16)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"0\.png cannot be read.* more than 8 bits a pixel"):
        read_table(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cat/0\.png cannot be read as an image"):
        read_table(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"class/file\.png, but .*empty holds no images"):
        read_table(tmp_path)


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def test_images_and_vectors_in_parquet(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    cells = [{"bytes": png(image), "path": "a.png"} for image in images]
    table = pa.table(
        {"image": cells, "raw": list(map(png, images)), "v": [[[1.0, 2.0]], [[3.0, 4.0]]]}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    found = read_table(tmp_path / "a.parquet").examples
    assert found["image"].tolist() == found["raw"].tolist() == images.tolist()
    assert found["v"].tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]] and found["v"].dtype == np.float32
    parquet.write_table(pa.table({"image": [b"no image"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: column 'image', row 0 cannot be read as an"):
        read_table(tmp_path / "b.parquet")


def test_images_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), v=datasets.List(datasets.Value("float64")))
    columns = {"image": [np.full((2, 2), i, np.uint8) for i in range(3)], "v": [[0.5, 1.0]] * 3}
    found = read_table(datasets.Dataset.from_dict(columns, features).select([2, 0]))
    assert found.examples["image"][:, 0, 0].tolist() == [2, 0]
    assert found.examples["v"].tolist() == [[0.5, 1.0]] * 2
    splits = as_datasets(splits=True)
    assert len(read_table(splits, "who", "kind", split="test").examples["y"]) == 2
    with pytest.raises(ValueError, match=r"split must be one of 'train', 'test' .*, got None"):
        read_table(splits, "who")


def test_columns_that_only_arrow_has():
    tensors = np.arange(12.0).reshape(2, 3, 2)
    table = pa.table(
        {
            "price": pa.array([1, 250], pa.decimal128(5, 2)),
            "t": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors),
            "who": pa.array(["bob", "ann"], pa.string_view()),
        }
    )
    found = read_table(table, "who")
    assert found.examples["price"].tolist() == [1.0, 250.0]
    assert found.examples["t"].tolist() == tensors.tolist()
    assert found.client_names == ("ann", "bob") and found.client_ids.tolist() == [1, 0]


def test_frames_of_other_libraries_come_by_arrow():
    class Frame:  # as those of polars
        columns = tuple(ROWS)

        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table(ROWS).__arrow_c_stream__(requested_schema)

    assert str(read_table(Frame(), "who", "kind")) == str(read_table(ROWS, "who", "kind"))


def test_bytes_are_images_in_lists_and_text_in_arrays():
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    columns = {"image": list(map(png, images)), "who": np.array([b"b", "é".encode()])}
    table = read_table(columns, "who")
    assert table.examples["x"].tolist() == images.tolist() and table.client_names == ("b", "é")


WRONG_LABELS = {
    "negative": ([0, 1, -1], r"class ids from 0 to 999, got -1 in row 2 \(client 'bob'\)"),
    "large": ([0, 10**6, 1], r"to 999, got 1000000 in row 1 \(client 'ann'\).*'categorical'} makes"),
    "floats": ([0.0, 1.0, 0.5], r"class ids from 0.*floats of shape \[3\], such as 0\.0 in row 0"),
    "nan": ([0, 1, np.nan], r"such as nan in row 2 \(client 'bob'\)\. For a regression"),
    "one-hot": (np.eye(3, dtype=int), r"shape \[3, 3\].*one-hot: take y\.argmax\(1\)"),
    "soft": (np.full((3, 2), 0.5), r"such as \[0\.5 0\.5\] in row 0 .* are an array by name"),
    "a column": ([[0], [1], [2]], r"shape \[3, 1\].*Take its only column, y\[:, 0\]"),
    "empty": (["a", "", "b"], r"have a class in each row, got empty text in row 1 \(client 'ann'\)"),
    "missing": (["a", None, "b"], r"have a value in each row, got none in row 1 \(client 'ann'\)"),
    "mixed": (["a", 1, "b"], r"be numbers, images or text throughout, got 1 in row 1 \(client"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_labels_that_are_wrong(name):
    y, wrong = WRONG_LABELS[name]
    columns = {"who": ["ann", "ann", "bob"], "x": [1.0, 2.0, 3.0], "y": y}
    with pytest.raises(ValueError, match=f"a table in memory: column 'y' must .*{wrong}"):
        read_table(columns, "who", "y")


@pytest.mark.parametrize("role", ["client", "label"])
def test_a_category_that_a_table_lacks(role):
    for missing in (pa.array([0, None]), pa.array(["a", None])):
        table = pa.table({"x": [1.0, 2.0], "y": missing})
        with pytest.raises(ValueError, match=r"'y' must have a value .*none in row 1"):
            read_table(table, **{role: "y"})
    for code in (-1, 1):
        table = pa.table({"x": [1.0, 2.0], "y": [0, code]}).replace_schema_metadata(
            {"huggingface": '{"info": {"features": {"y": {"names": ["a"]}}}}'}
        )
        with pytest.raises(ValueError, match=f"must have one of 1 classes .*, got {code} in row 1"):
            read_table(table, **{role: "y"})


GOOD = {"who": ["a", "b"], "x": [1.0, 2.0], "t": ["one word", "two words"]}


@pytest.mark.parametrize(
    ("change", "options", "wrong"),
    [
        ({}, {"client": "user"}, "client must name a column of .*'who', 'x', 't'; got 'user'"),
        ({}, {"label": "kind"}, "label must name a column of .*; got 'kind'"),
        ({}, {"client": "who", "label": "who"}, "client and label must be different columns"),
        ({}, {"columns": ["z"]}, "columns must name a column of .*; got 'z'"),
        ({}, {"columns": "x"}, "columns must be a sequence of names or a mapping, got 'x'"),
        ({}, {"client": "who", "columns": ["who"]}, "but 'who' is the client or the label"),
        ({}, {"label": "who", "columns": {"y": "x"}}, "must not call an array 'y'"),
        ({}, {"kinds": {"x": "colour"}}, r"kinds\['x'\] must be one of 'numeric'.*got 'colour'"),
        ({}, {"kinds": {"z": "text"}}, "kinds must name inputs of .*, or the label; got 'z'"),
        ({}, {"label": "x", "kinds": {"x": "text"}}, r"kinds\['x'\] must be one of 'categorical', got"),
        ({}, {"kinds": {"t": "numeric"}}, "'t' must be of kind 'numeric', got text"),
        ({}, {"kinds": {"x": "image"}}, r"'x' must be images \[n, h, w, ...\], got floats"),
        ({"x": [0.5, 1]}, {"kinds": {"x": "categorical"}}, "must be text or whole .* got floats"),
        ({}, {"target": "logits"}, "target must be one of 'classes', 'numbers', got 'logits'"),
        ({}, {"label": "t", "target": "numbers"}, r"'t' must be numbers \[n\], got text"),
        ({}, {"columns": ["x"], "encode": np.array}, "no column of text"),
        ({}, {"encode": lambda texts: np.zeros(3)}, "encode must return one row a text, 2 of them"),
        ({}, {"image_size": 0}, "image_size must be a whole number of at least 1, got 0"),
        ({}, {"split": "train"}, "split must be None for a table without splits, got 'train'"),
        ({"who": [0.5, 1.0]}, {"client": "who"}, "must be text or whole numbers"),
        ({"who": [1.0, np.inf]}, {"client": "who"}, "must be text or whole numbers, .* got floats"),
        ({"who": ["a", ""]}, {"client": "who"}, "a client's name in each row, got empty text in row 1"),
        ({"who": ["a", None]}, {"client": "who"}, "'who' must have a value .* none in row 1"),
        ({"who": ["a", 1]}, {"client": "who"}, "numbers, images or text throughout, got 1 in row 1"),
        ({"t": ["a", ""]}, {"kinds": {"t": "categorical"}}, "'t' must have a category in each row"),
        ({"who": []}, {"client": "who"}, "column 'who' has no rows"),
        ({"x": [1.0]}, {"client": "who"}, "'x' must have 2 rows, as those before it, got 1"),
        ({"x": [[1], [1, 2]]}, {}, "'x' must have rows of one shape"),
        ({"x": [1, 2**40]}, {"client": "who"}, r"fit int32, got 1099511627776 in row 1 \(client 'b'\)"),
        ({"x": np.array([0, 2**63], np.uint64)}, {}, "'x' must be whole numbers that fit int32"),
        ({"x": [1.0, 1e300]}, {}, r"'x' must be finite numbers that fit float32, got 1e\+300 in row 1"),
        ({"x": [1.0, np.nan]}, {}, "'x' must be finite numbers that fit float32, got nan in row 1"),
        ({"x": np.array([1, np.inf], np.float16)}, {}, "fit float32, got inf in row 1"),
        ({"x": [1j, 0]}, {}, "numbers, images or text throughout, got complex128"),
        ({"x": np.array(["2020"] * 2, "M8[Y]")}, {}, "'x' must be numbers, .*datetime64"),
        ({"x": ["a", 1]}, {}, "'x' must be numbers, images or text throughout"),
        ({"x": [None, 1.0]}, {}, "'x' must have a value in each row, got none in row 0"),
        ({"t": ["?", "!"]}, {}, "'t' cannot be cut into tokens: texts must hold at least one token"),
        ({3: [1, 2]}, {}, "must have different names of text, but got 3"),
    ],
)  # fmt: skip
def test_tables_and_options_that_are_wrong(change, options, wrong):
    with pytest.raises(ValueError, match=wrong):
        read_table({**GOOD, **change}, **options)


def test_numbers_are_as_jax_takes_them(tmp_path):
    """Those of 64 bits have 32, others keep theirs, all in the order of this machine."""
    types = {"i8": "int32", "u4": "int32", ">i2": "int16", "u1": "uint8", "?": "bool",
             "f8": "float32", ">f4": "float32", "f2": "float16"}  # fmt: skip
    np.savez(tmp_path / "a.npz", **{key: np.ones(2, key) for key in types})
    names = {key: key for key in types}
    found = read_table(tmp_path / "a.npz", columns=names).examples
    assert {key: str(array.dtype) for key, array in found.items()} == types
    assert all(a.dtype.isnative and a.tolist() == [1, 1] for a in found.values())


def whole_npz():
    stream = io.BytesIO()
    np.savez(stream, x=np.arange(3.0), y=np.arange(3))
    return stream.getvalue()


def npz_of(name, content):
    stream = io.BytesIO(whole_npz())
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def claims_too_much():
    header, stream = io.BytesIO(), io.BytesIO()
    claimed = {"descr": "<f8", "fortran_order": False, "shape": (2**60,)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("a.npz", b"", "is not a .npz file"),
        ("a.npz", whole_npz()[:-40], "is not a .npz file"),
        ("a.npz", npz_of("README.txt", "hello"), "column 'README.txt' has no rows"),
        ("a.npz", npz_of("z.npy", b"\x93NUMPY\x01\x00v\x00" + b"(" * 118), "is not a .npz file"),
        ("a.npz", claims_too_much(), "is not a .npz file"),
        ("a.csv", b"", "cannot be read"),
        ("a.csv", b"a,b\n1,2\n3\n", "cannot be read: .*Expected 2 columns, got 1"),
        ("a.csv", b"a,b\n", "has no rows"),
        ("a.csv", b"a;b\n1;2\n", "must have commas between its columns .*got 'a;b'"),
        ("a.csv", b"a,a\n1,2\n", "different names of text, but 'a' comes 2 times"),
        ("a.csv", b"5.1,3.5\n4.9,3.0\n", "must name its columns in the first row, which is 5.1, 3.5"),
        ("a.csv", b"a,b\n1,\n", "column 'b' must have a value in each row, got none in row 0"),
        ("a.csv", b"when\n2024-01-02\n", "column 'when' must be numbers, images or text, got date32"),
        ("a.csv", b"a\n\xff\xfe\n", "column 'a' must be text in UTF-8"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.xlsx", b"", "source must be a CSV, TSV, Parquet or .npz file"),
    ],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path, name, content, wrong):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s){name}.*{wrong}|{wrong}.*{name}"):
        read_table(tmp_path / name)


def test_what_is_not_there_or_no_table(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv does not exist"):
        read_table(tmp_path / "none.csv")
    dataset_dict(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    for source, split, wrong in (
        ([1, 2], None, r"source must be a path, a DataFrame.*got a list"),
        (tmp_path / "empty", None, "holds neither"),
        (tmp_path / "saved", "test", r"split must be one of 'train' .*got 'test'"),
        (tmp_path / "saved" / "train", "test", "split is for a saved DatasetDict, which"),
    ):
        with pytest.raises(ValueError, match=wrong):
            read_table(source, split=split)


def test_nothing_unpickles(tmp_path):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], object))
    with pytest.raises(ValueError, match=r"a\.npz is not a \.npz file .*: Object arrays"):
        read_table(tmp_path / "a.npz")
    assert not ran.exists()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**4), st.binary(min_size=1, max_size=4))
def test_any_damage_to_npz_gives_values_or_names_the_file(tmp_path_factory, at, junk):
    content = bytearray(whole_npz())
    at %= len(content)
    content[at : at + len(junk)] = junk
    file = tmp_path_factory.getbasetemp() / "damaged.npz"
    file.write_bytes(content)
    try:
        read_table(file)
    except ValueError as error:
        assert "damaged.npz" in str(error)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("a\n1\n")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.csv", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'fedjax_opt\[tables\]'"):
        read_table(tmp_path / name)
