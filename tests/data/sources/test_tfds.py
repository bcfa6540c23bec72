"""Data that tensorflow-datasets has prepared, written here with its own builders."""

import json
import time

import numpy as np
import pytest
from PIL import Image

from fedjax_opt.data.sources.tfds import read_tfds

tfds = pytest.importorskip("tensorflow_datasets")
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
    with pytest.raises(FileNotFoundError, match=r"holds no prepared mnist:3\.0\.0\."):
        read_tfds("mnist:3.0.0", "train", home)
    for name, version in (("emnist/byclass", "1.0.0"), ("sentiment140", "1.0.0")):
        found, versioned = (read_tfds(n, "train", home) for n in (name, f"{name}:{version}"))
        assert all(np.array_equal(found[key], versioned[key]) for key in found)


def test_numbers_have_32_bits_if_they_fit(home):
    found = read_tfds("signals", "train[:31]", home)
    assert found["signal"].dtype == np.float32 and found["signal"].shape == (31, 2)
    assert found["step"].dtype == np.int32 and found["step"][-1] == 2**30
    with pytest.raises(ValueError, match=r"signals.1\.0\.0: step must be .* fit int32"):
        read_tfds("signals", "train", home)


def test_the_newest_version_is_read_as_it_is(home):
    found = read_tfds("mnist", "train", home)
    assert found["x"].dtype == np.uint8 and found["y"].dtype == np.int32
    np.testing.assert_array_equal(found["x"], IMAGES[..., 0])
    assert found["y"].tolist() == [0, 1, 2]
    assert len(read_tfds("mnist", "train[:1]", home)["y"]) == 1


def test_emnist_is_put_upright(home):
    np.testing.assert_array_equal(
        read_tfds("emnist/byclass", "train", home)["x"], IMAGES[..., 0].transpose(0, 2, 1)
    )


def test_cifar100_has_coarse_labels(home, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(home))
    found = read_tfds("cifar100", "train")
    assert found["x"].dtype == np.uint8 and found["id"].tolist() == [f"train_{i}" for i in range(3)]
    np.testing.assert_array_equal(found["x"], COLOURS)
    assert (found["y"].tolist(), found["coarse"].tolist()) == ([3, 1, 2], [0, 1, 0])


def test_sentiment140_has_users_and_two_classes(home):
    found = read_tfds("sentiment140", "train", home)
    assert found["x"].tolist() == ["sad", "glad"] and found["y"].tolist() == [0, 1]
    assert found["client"].tolist() == ["ann", "bob"] and found["y"].dtype == np.int32


def test_what_is_missing_is_said_at_once(home, tmp_path):
    begun = time.perf_counter()
    with pytest.raises(
        FileNotFoundError, match=r"holds no prepared cifar10\. .*download_and_prepare"
    ):
        read_tfds("cifar10", "train", home)
    assert time.perf_counter() - begun < 1
    with pytest.raises(ValueError, match="split 'dev', cannot be read"):
        read_tfds("mnist", "dev", home)
    for name in ("", "../mnist", "a//b"):
        with pytest.raises(ValueError, match="name must be a data set's"):
            read_tfds(name, "train", home)


def test_other_formats_and_damaged_files(home, tmp_path):
    folder = tmp_path / "mnist" / "1.0.0"
    folder.mkdir(parents=True)
    original = home / "mnist" / "3.10.0"
    for path in original.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    info = json.loads((original / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match=r"mnist.1\.0\.0.*format tfrecord, which needs TensorFlow"):
        read_tfds("mnist", "train", tmp_path)
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match=r"mnist.1\.0\.0"):
        read_tfds("mnist", "train", tmp_path)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (records,) = folder.glob("*array_record*")
    records.write_bytes(records.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"mnist.1\.0\.0"):
        read_tfds("mnist", "train", tmp_path)
