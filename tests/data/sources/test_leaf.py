"""LEAF's JSON files: those that are right, and those that are not."""

import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_opt.data import gathering, text
from fedjax_opt.data.sources import leaf
from fedjax_opt.data.sources.leaf import read_leaf
from fedjax_opt.data.sources.shallow import Shallow


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
    data, names = gathering.collect(read_leaf(tmp_path))
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
        "truncated": (one("[[1, 2]]", "[0]")[:-9], "not whole and valid JSON"),
        "no text": (b"\xff\xfe\0\1", "not whole and valid JSON"),
        "a list": ("[1, 2]", "user_data is empty or missing"),
        "no data": ("{}", "user_data is empty or missing"),
        "data as a list": ('{"user_data": [1]}', "user_data is empty or missing"),
        "user is a number": ('{"user_data": {"a": 1}}', "a list x and a list y"),
        "no y": ('{"user_data": {"a": {"x": [[1]]}}}', "a list x and a list y"),
        "unequal": (one("[[1], [2]]", "[0]", 2), "2 examples but 1 labels"),
        "wrong count": (one("[[1]]", "[0]", 2), "has 1 examples, but num_samples says 2"),
        "counts are text": ('{"users": ["a"], "num_samples": ["1"], "user_data": {}}', "whole number"),
        "count missing": ('{"users": ["a", "b"], "num_samples": [1], "user_data": {}}', "whole number"),
        "user missing": (
            '{"users": ["a", "b"], "num_samples": [1, 1], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
            "lacks 'b'",
        ),
        "user unknown": (
            '{"users": ["b"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
            "not among its users",
        ),
        "counts last": (
            '{"user_data": {"a": {"x": [[1]], "y": [0]}}, "users": ["a"], "num_samples": [2]}',
            "not those of user_data",
        ),
        "user announced twice": (
            '{"users": ["a", "a"], "num_samples": [2, 1], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
            "each of its users once",
        ),
        "user twice": (
            '{"user_data": {"a": {"x": [[1]], "y": [0]}, "a": {"x": [[1]], "y": [0]}}}',
            "'a' comes twice",
        ),
        "ragged": (one("[[1, 2], [3]]", "[0, 1]", 2), "x must be rows of one shape"),
        "null": (one("[[1, null]]", "[0]"), "x must be numbers"),
        "mixed": (one('[[1, "2"]]', "[0]"), "x must be numbers"),
        "objects": (one("[{}]", "[0]"), "like no layout"),
        "huge float": (one("[[1e400]]", "[0]"), "overflow"),
        "over float32": (one("[[1e39]]", "[0]"), "fit float32"),
        "huge integer": (one(f"[[1{'0' * 30}]]", "[0]"), "overflow"),
        "huge label": (one("[[1]]", f"[1{'0' * 30}]"), "overflow"),
        "label over int32": (one("[[1]]", "[2147483648]"), "y must be whole numbers that fit int32"),
        "label with a fraction": (one("[[1]]", "[0.5]"), "y must be whole numbers"),
        "label is text": (one("[[1]]", '["0"]'), "y must be whole numbers"),
        "labels are lists": (one("[[1]]", "[[0, [1]]]"), "y must be whole numbers"),
        "two characters": (one('["abc"]', '["de"]'), "single characters"),
        "no character": (one('["abc", "bcd"]', '["d", ""]', 2), "single characters"),
        "short tweet": (one('[["a", "b"]]', "[0]"), "id, date, query, user, text"),
        "tweet of numbers": (one('[["a", "b", "c", "d", 5]]', "[0]"), "x must be text"),
        "deep lists": (one("[" * 90_000 + "]" * 90_000, "[0]"), "at most 64 deep"),
        "deep maps": ('{"a":' * 90_000, "at most 64 deep"),
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


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_brackets_in_strings_do_not_count(tmp_path, size):
    """Wherever a piece ends: within a string, between a backslash and a quote."""
    tricky = json.dumps({"a[" * 40: ['\\"{{[', "\\", '"' * 9, "]]]]"] * 20}).encode()
    file = tmp_path / "a.json"
    file.write_bytes(tricky)
    with file.open("rb") as stream:
        shallow = Shallow(stream, "a.json")
        assert b"".join(iter(lambda: shallow.read(size), b"")) == tricky
        assert (shallow._depth, shallow._in_string) == (0, False)


def test_layouts_are_told_apart():
    assert set(leaf.LAYOUTS) == {"femnist", "sent140", "shakespeare", "celeba", "numbers"}
    examples = [[0.0] * 784, ["1", "a"], "abc", "1.jpg", [0.0]]
    assert [leaf._judge(example, "") for example in examples] == list(leaf.LAYOUTS)
