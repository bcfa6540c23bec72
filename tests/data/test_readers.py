"""Files of other federated libraries: those that are right, and those that are not."""

import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import read_hdf5, read_leaf, read_tfds, text

pytest.importorskip("ijson")
h5py = pytest.importorskip("h5py")
Image = pytest.importorskip("PIL.Image")
tfds = pytest.importorskip("tensorflow_datasets")


def write(path, users, **changes):
    whole = {
        "users": list(users),
        "num_samples": [len(data["x"]) for data in users.values()],
        "user_data": users,
    }
    path.write_text(json.dumps(whole | changes), encoding="utf-8")
    return path


def test_femnist_over_several_files(tmp_path):
    """Users spread over the files of a directory, images upright, the pixels as they were."""
    rng = np.random.default_rng(0)
    pixels = rng.random((5, 784)).round(3)
    ann = {"x": pixels[:2].tolist(), "y": [3, 61]}
    bob = {"x": pixels[2:].tolist(), "y": [0, 1, 2]}
    write(tmp_path / "all_data_0.json", {"f0001_ann": ann, "nobody": {"x": [], "y": []}})
    write(tmp_path / "all_data_1.json", {"f0002_bob": bob})
    (tmp_path / "notes.txt").write_text("not data")
    data, names = fo.data.collect(read_leaf(tmp_path))
    assert names == ["f0001_ann", "f0002_bob"]
    assert data.examples["x"].dtype == np.float32 and data.examples["y"].dtype == np.int32
    np.testing.assert_array_equal(data.examples["x"], pixels.reshape(5, 28, 28).astype(np.float32))
    assert data.examples["y"].tolist() == [3, 61, 0, 1, 2]
    assert data.sizes.tolist() == [2, 3]


def test_sent140_texts_and_a_user_s_encoding(tmp_path):
    rows = [["1", "Mon", "NO_QUERY", "ann", "so [happy] {", "training"],
            ["2", "Tue", "NO_QUERY", "ann", 'a "quoted" \\ sad', "training"]]  # fmt: skip
    file = write(tmp_path / "a.json", {"ann": {"x": rows, "y": [1, 0]}})
    ((name, examples),) = read_leaf(file)
    assert name == "ann" and examples["y"].tolist() == [1, 0]
    assert examples["x"].tolist() == ["so [happy] {", 'a "quoted" \\ sad']
    ((_, examples),) = read_leaf(
        file, "sent140", encode=lambda texts: text.token_ids(texts, ("sad", "so"), max_tokens=2)
    )
    assert examples["x"].tolist() == [[1, -1], [0, -1]]
    with pytest.raises(ValueError, match="encode must return one row a text, 2 of them"):
        list(read_leaf(file, encode=lambda texts: np.zeros(3)))


def test_shakespeare_windows(tmp_path):
    line = "To be, or not to be: that is the question: Whether 'tis nobler in the mind to su"
    file = write(tmp_path / "a.json", {"HAMLET": {"x": [line, line[1:] + "f"], "y": ["f", "f"]}})
    ((name, examples),) = read_leaf(file)
    assert name == "HAMLET" and examples["x"].shape == (2, 80)
    assert text.character_text(examples["x"]) == [line, line[1:] + "f"]
    assert [text.CHARACTERS[y] for y in examples["y"]] == ["f", "f"]
    assert examples["y"].dtype == np.int32


def test_celeba_images(tmp_path):
    for name, colour in (("000001.png", (255, 0, 0)), ("000002.png", (0, 0, 255))):
        Image.new("RGB", (6, 8), colour).save(tmp_path / name)
    (tmp_path / "000003.jpg").write_bytes(b"no image")
    file = write(tmp_path / "a.json", {"7": {"x": ["000001.png", "000002.png"], "y": [0, 1]}})
    ((_, examples),) = read_leaf(file, images=tmp_path, image_size=4)
    assert examples["x"].shape == (2, 4, 4, 3) and examples["x"].dtype == np.uint8
    assert examples["x"][:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    with pytest.raises(ValueError, match="images must be the directory"):
        list(read_leaf(file))
    (tmp_path / "inner").mkdir()
    for name in ("../000001.png", "/etc/passwd.png", "inner/../000001.png", "..\\a.png"):
        write(file, {"7": {"x": [name], "y": [0]}})
        with pytest.raises(ValueError, match=r"a\.json: user '7': .* is not the name of an image"):
            list(read_leaf(file, "celeba", images=tmp_path))
    for name, wrong in (("000003.jpg", "cannot be read as an image"), ("no.jpg", "is missing")):
        write(file, {"7": {"x": [name], "y": [0]}})
        with pytest.raises(ValueError, match=f"{name} {wrong}"):
            list(read_leaf(file, images=tmp_path))


@pytest.mark.parametrize("side", [5_000, 10_000, 20_000])
def test_a_small_image_that_unpacks_to_a_large_one(tmp_path, side):
    """Pillow reads the first, warns of the second, and refuses the third itself."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    content = b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    )
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    file = write(tmp_path / "a.json", {"7": {"x": ["bomb.png"], "y": [0]}})
    with pytest.raises(ValueError, match=r"bomb\.png cannot be read as an image: .*pixels"):
        list(read_leaf(file, images=tmp_path))


def one(x, y, size=1):
    return (
        f'{{"users": ["a"], "num_samples": [{size}], "user_data": {{"a": {{"x": {x}, "y": {y}}}}}}}'
    )


@pytest.mark.parametrize(
    ("content", "wrong"),
    {
        "empty": ("", "not whole and valid JSON"),
        "a list": ("[1, 2]", "user_data is empty or missing"),
        "no data": ("{}", "user_data is empty or missing"),
        "user is a number": ('{"user_data": {"a": 1}}', "a list x and a list y"),
        "no y": ('{"user_data": {"a": {"x": [[1]]}}}', "a list x and a list y"),
        "unequal": (one("[[1], [2]]", "[0]", 2), "2 examples but 1 labels"),
        "ragged": (one("[[1, 2], [3]]", "[0, 1]", 2), "x must be numbers in rows of one shape"),
        "mixed": (one('[[1, "2"]]', "[0]"), "x must be numbers"),
        "objects": (one("[{}]", "[0]"), "like no layout"),
        "huge float": (one("[[1e400]]", "[0]"), "overflow"),
        "over float32": (one("[[1e39]]", "[0]"), "fit float32"),
        "label over int32": (one("[[1]]", "[2147483648]"), "y must be whole numbers that fit int32"),
        "label with a fraction": (one("[[1]]", "[0.5]"), "y must be whole numbers"),
        "label is text": (one("[[1]]", '["0"]'), "y must be whole numbers"),
        "two characters": (one('["abc"]', '["de"]'), "single characters"),
        "no character": (one('["abc", "bcd"]', '["d", ""]', 2), "single characters"),
        "short tweet": (one('[["a", "b"]]', "[0]"), "id, date, query, user, text"),
    }.values(),
)  # fmt: skip
def test_wrong_files_are_named_with_what_is_wrong(tmp_path, content, wrong):
    file = tmp_path / "bad.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"bad\.json.*" + wrong):
        list(read_leaf(file))


def test_wrong_layout(tmp_path):
    file = write(tmp_path / "a.json", {"a": {"x": [[1.0, 2.0]], "y": [0]}})
    with pytest.raises(ValueError, match="x must be rows of 784 numbers, got shape"):
        list(read_leaf(file, "femnist"))
    with pytest.raises(ValueError, match="layout must be one of 'femnist'"):
        read_leaf(file, "mnist")
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_leaf(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty must hold \.json files"):
        read_leaf(tmp_path / "empty")


def test_one_client_at_a_time(tmp_path):
    """The first client arrives although the file ends in the middle of the second."""
    users = {name: {"x": [[1.0] * 50_000], "y": [0]} for name in ("ann", "bob")}
    file = write(tmp_path / "a.json", users)
    file.write_bytes(file.read_bytes()[:-1000])
    clients = read_leaf(file, "numbers")
    assert next(clients)[0] == "ann"
    with pytest.raises(ValueError, match="not whole and valid JSON"):
        next(clients)


def test_memory_is_that_of_one_client(tmp_path):
    """However many there are, in however many files."""

    def peak(files, users):
        for i in range(files):
            names = [f"{i}-{j}" for j in range(users)]
            write(
                tmp_path / f"{i}.json", {n: {"x": [[0.5] * 500] * 40, "y": [0] * 40} for n in names}
            )
        tracemalloc.start()
        try:
            assert sum(len(client["y"]) for _, client in read_leaf(tmp_path)) == files * users * 40
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    alone = peak(1, 1)
    assert alone > 40 * 500 * 4 and peak(3, 16) < 2.5 * alone


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
            group["label"] = np.arange(size, dtype=np.int64)
            group["snippets"] = [f"line {i}".encode() for i in range(size)]

        file.create_group("examples/nobody").update(
            pixels=np.zeros((0, 2, 2)), label=np.zeros(0, int), snippets=np.zeros(0, "S1")
        )

    file = hdf5(fill)
    data, names = fo.data.collect(read_hdf5(file, {"x": "pixels", "y": "label", "t": "snippets"}))
    assert names == ["f0", "f1"] and data.sizes.tolist() == [3, 2]
    assert data.examples["x"][0].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert data.examples["y"].tolist() == [0, 1, 2, 0, 1] and data.examples["y"].dtype == np.int32
    assert data.examples["t"].tolist()[3:] == ["line 0", "line 1"]
    assert set(next(read_hdf5(file))[1]) == {"pixels", "label", "snippets"}


def of(values, dtype=None):
    def fill(file):
        file.create_group("examples/a").create_dataset("x", data=values, dtype=dtype)

    return fill


def of_lists(file):
    file.create_dataset("examples/a/x", (2,), h5py.vlen_dtype(np.int32))[0] = [1, 2]


@pytest.mark.parametrize(
    ("fill", "wrong"),
    [
        (lambda file: None, "is not such an HDF5 file: .*'examples'"),
        (lambda file: file.create_dataset("examples", data=[1]), "is not such an HDF5 file"),
        (lambda file: file.create_dataset("examples/a", data=[1]), "is not such an HDF5 file"),
        (lambda file: file.create_group("examples/a"), "has no columns"),
        (lambda file: file.create_dataset("examples/a/x", data=1), "is not such an HDF5 file"),
        (of([1j]), "'x' must be numbers or text, got complex128"),
        (of(np.array([h5py.Reference()], h5py.ref_dtype)), "'x' must be numbers or text"),
        (of_lists, "'x' must be numbers or text, got object"),
        (of([1, 2**40]), "client 'a': 'x' must be whole numbers that fit int32"),
        (of([2**63], np.uint64), "client 'a': 'x' must be whole numbers that fit int32"),
        (of([1e300]), "client 'a': 'x' must be finite numbers that fit float32"),
        (of([np.nan], np.float32), "client 'a': 'x' must be finite numbers"),
        (lambda file: (of([1])(file), file["examples/a"].update(y=[1, 2])), "as many examples"),
    ],
)
def test_wrong_hdf5(hdf5, fill, wrong):
    with pytest.raises(ValueError, match=r"bad\.h5.*" + wrong):
        list(read_hdf5(hdf5(fill)))


def test_truncated_hdf5(hdf5, tmp_path):
    file = hdf5(lambda file: file.create_dataset("examples/a/x", data=np.arange(1000)))
    content = file.read_bytes()
    for part in (b"", b"no HDF5", content[: len(content) // 2]):
        file.write_bytes(part)
        with pytest.raises(ValueError, match=r"bad\.h5 is not such an HDF5 file"):
            list(read_hdf5(file))
    with pytest.raises(FileNotFoundError, match=r"none\.h5"):
        read_hdf5(tmp_path / "none.h5")


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    file = write(tmp_path / "a.json", {"a": {"x": [[1.0]], "y": [0]}})
    for module, extra, read in (
        ("ijson", "leaf", lambda: list(read_leaf(file))),
        ("h5py", "hdf5", lambda: list(read_hdf5(file))),
        ("tensorflow_datasets", "tfds", lambda: read_tfds("mnist", "train", tmp_path)),
    ):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(
            ImportError, match=rf"needs {module}: pip install 'fedjax_opt\[{extra}\]'"
        ):
            read()


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5, 1)
TWEETS = [("sad", 0, "ann"), ("meh", 2, "bob"), ("glad", 4, "bob")]
COLOURS = IMAGES * np.array([1, 2, 4], np.uint8)


def build(name, features, rows, folder, version="1.0.0"):
    """Prepares a data set of that name under the folder, in order of the rows."""

    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)

        def _info(self):
            described = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=described, disable_shuffling=True)

        def _split_generators(self, download):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate(rows)

    Tiny.name = name
    Tiny(data_dir=folder, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    grey = {
        "image": tfds.features.Image(shape=(4, 5, 1)),
        "label": tfds.features.ClassLabel(num_classes=62),
    }
    rows = [{"image": Image.fromarray(IMAGES[i, ..., 0]), "label": i} for i in range(3)]
    build("emnist", grey, rows, folder / "byclass_home")
    (folder / "emnist").mkdir()
    (folder / "byclass_home" / "emnist").rename(folder / "emnist" / "byclass")
    build("mnist", grey, rows[:1], folder, "3.9.0")
    build("mnist", grey, rows, folder, "3.10.0")
    coarse = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(4, 5, 3)),
        "label": tfds.features.ClassLabel(num_classes=100),
        "coarse_label": tfds.features.ClassLabel(num_classes=20),
    }
    rows = [
        {"id": f"train_{i}", "image": Image.fromarray(COLOURS[i]), "label": y, "coarse_label": z}
        for i, (y, z) in enumerate([(3, 0), (1, 1), (2, 0)])
    ]
    build("cifar100", coarse, rows, folder)
    signals = {"signal": tfds.features.Tensor(shape=(2,), dtype=np.float64), "step": np.int64}
    rows = [{"signal": [0.5, i], "step": 2**i} for i in range(33)]
    build("signals", signals, rows, folder)
    tweets = {"text": tfds.features.Text(), "polarity": np.int32, "user": tfds.features.Text()}
    rows = [dict(zip(("text", "polarity", "user"), row, strict=True)) for row in TWEETS]
    build("sentiment140", tweets, rows, folder)
    return folder


def test_a_version_may_be_asked_for(home):
    assert read_tfds("mnist:3.9.0", "train", home)["y"].tolist() == [0]
    assert len(read_tfds("mnist:3.10.0", "train", home)["y"]) == 3
    with pytest.raises(FileNotFoundError, match=r"mnist:3\.0\.0 is not prepared"):
        read_tfds("mnist:3.0.0", "train", home)
    for name, version in (("emnist/byclass", "1.0.0"), ("sentiment140", "1.0.0")):
        found, versioned = (read_tfds(n, "train", home) for n in (name, f"{name}:{version}"))
        assert all(np.array_equal(found[key], versioned[key]) for key in found)


def test_numbers_have_32_bits_if_they_fit(home):
    found = read_tfds("signals", "train[:31]", home)
    assert found["signal"].dtype == np.float32 and found["signal"].shape == (31, 2)
    assert found["step"].dtype == np.int32 and found["step"][-1] == 2**30
    with pytest.raises(ValueError, match=r"signals: step must be .* fit int32"):
        read_tfds("signals", "train", home)


def test_images_are_as_they_were_and_emnist_is_put_upright(home, monkeypatch):
    """The newest version; with the names and types that tasks expect."""
    found = read_tfds("mnist", "train", home)
    assert found["x"].dtype == np.uint8 and found["y"].dtype == np.int32
    np.testing.assert_array_equal(found["x"], IMAGES[..., 0])
    assert found["y"].tolist() == [0, 1, 2]
    emnist = read_tfds("emnist/byclass", "train", home)["x"]
    np.testing.assert_array_equal(emnist, IMAGES[..., 0].transpose(0, 2, 1))
    monkeypatch.setenv("TFDS_DATA_DIR", str(home))
    found = read_tfds("cifar100", "train")
    assert found["x"].dtype == np.uint8 and found["id"].tolist() == [f"train_{i}" for i in range(3)]
    np.testing.assert_array_equal(found["x"], COLOURS)
    assert (found["y"].tolist(), found["coarse"].tolist()) == ([3, 1, 2], [0, 1, 0])


def test_sentiment140_has_users_and_two_classes(home):
    found = read_tfds("sentiment140", "train", home)
    assert found["x"].tolist() == ["sad", "glad"] and found["y"].tolist() == [0, 1]
    assert found["client"].tolist() == ["ann", "bob"] and found["y"].dtype == np.int32


def test_what_is_missing_is_said_with_what_to_do(home):
    with pytest.raises(FileNotFoundError, match=r"cifar10 is not prepared: .*download_and_prepare"):
        read_tfds("cifar10", "train", home)
    with pytest.raises(ValueError, match="split 'dev', cannot be read"):
        read_tfds("mnist", "dev", home)
    for name in ("", "../mnist", "a//b"):
        with pytest.raises(
            (ValueError, FileNotFoundError), match=r"cannot be read|is not prepared"
        ):
            read_tfds(name, "train", home)


def test_other_formats_and_damaged_files(home, tmp_path):
    folder = tmp_path / "mnist" / "1.0.0"
    folder.mkdir(parents=True)
    original = home / "mnist" / "3.10.0"
    for path in original.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    info = json.loads((original / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match=r"mnist.*format tfrecord, which needs TensorFlow"):
        read_tfds("mnist", "train", tmp_path)
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match=r"mnist, split .train., cannot be read"):
        read_tfds("mnist", "train", tmp_path)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (records,) = folder.glob("*array_record*")
    records.write_bytes(records.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"mnist, split .train., cannot be read"):
        read_tfds("mnist", "train", tmp_path)
