"""Files of other federated libraries: those that are right, and those that are not."""

import json
import tracemalloc

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import read_leaf, read_tfds, text

pytest.importorskip("ijson")
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


def test_rows_may_be_single_numbers(tmp_path):
    ((_, examples),) = read_leaf(write(tmp_path / "a.json", {"a": {"x": [1.5, 2], "y": [0, 1]}}))
    assert examples["x"].tolist() == [1.5, 2.0] and examples["x"].dtype == np.float32


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


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    file = write(tmp_path / "a.json", {"a": {"x": [[1.0]], "y": [0]}})
    for module, extra, read in (
        ("ijson", "leaf", lambda: list(read_leaf(file))),
        ("tensorflow_datasets", "tfds", lambda: read_tfds("mnist", "train", tmp_path)),
    ):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(
            ImportError, match=rf"needs {module}: pip install 'fedjax_opt\[{extra}\]'"
        ):
            read()


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5, 1)
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
    return folder


def test_a_version_may_be_asked_for(home):
    assert read_tfds("mnist:3.9.0", "train", home)["y"].tolist() == [0]
    assert len(read_tfds("mnist:3.10.0", "train", home)["y"]) == 3
    with pytest.raises(FileNotFoundError, match=r"mnist:3\.0\.0 is not prepared"):
        read_tfds("mnist:3.0.0", "train", home)


def test_numbers_have_32_bits_if_they_fit(home):
    found = read_tfds("signals", "train[:31]", home)
    assert found["signal"].dtype == np.float32 and found["signal"].shape == (31, 2)
    assert found["step"].dtype == np.int32 and found["step"][-1] == 2**30
    with pytest.raises(ValueError, match=r"signals: step must be .* fit int32"):
        read_tfds("signals", "train", home)


def test_images_are_as_they_were(home, monkeypatch):
    """The newest version; with the names and types that tasks expect."""
    found = read_tfds("mnist", "train", home)
    assert found["x"].dtype == np.uint8 and found["y"].dtype == np.int32
    np.testing.assert_array_equal(found["x"], IMAGES[..., 0])
    assert found["y"].tolist() == [0, 1, 2]
    monkeypatch.setenv("TFDS_DATA_DIR", str(home))
    found = read_tfds("cifar100", "train")
    assert found["x"].dtype == np.uint8 and found["id"].tolist() == [f"train_{i}" for i in range(3)]
    np.testing.assert_array_equal(found["x"], COLOURS)
    assert (found["y"].tolist(), found["coarse"].tolist()) == ([3, 1, 2], [0, 1, 0])


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
