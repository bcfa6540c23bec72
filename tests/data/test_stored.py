"""Clients in a directory: what is written is what is opened, and damage is named."""

import io
import json
import os
import tracemalloc

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo

DTYPES = st.sampled_from([np.uint8, np.int32, np.float32, np.float64, "U3"])


def some(count=3):
    generator = np.random.default_rng(0)
    return [
        (f"client {i}", {"x": generator.normal(size=(i + 1, 2)), "y": np.arange(i + 1)})
        for i in range(count)
    ]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4), DTYPES)
def test_what_is_stored_is_opened(tmp_path_factory, data, sizes, dtype):
    shape = data.draw(st.sampled_from([(), (2,), (2, 0)]))
    clients = [
        (f"né {i}", {"x": data.draw(arrays.arrays(dtype, (n, *shape))), "n": np.full(n, i)})
        for i, n in enumerate(sizes)
    ]
    home = tmp_path_factory.mktemp("stored") / "here"
    stored = fo.data.store(iter(clients), home)
    opened = fo.data.open_stored(home, verify=True)
    collected, names = fo.data.collect(iter(clients))
    assert names == fo.data.stored_names(home) == [name for name, _ in clients]
    for found in (stored, opened, collected):
        assert found.sizes.tolist() == sizes
        for i, (_, examples) in enumerate(clients):
            for key, array in examples.items():
                assert found[i][key].dtype == array.dtype
                assert found[i][key].tobytes() == array.tobytes()


def test_gathering_takes_the_memory_of_the_data_once():
    total = 2**24

    def clients():
        for i in range(64):
            yield str(i), {"x": np.full((4, total // 64 // 32), i, np.float64)}

    tracemalloc.start()
    try:
        data, _ = fo.data.collect(clients())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data.examples["x"].nbytes == total and peak < 1.4 * total
    assert data.examples["x"].flags.writeable and data[63]["x"].tolist()[3][-1] == 63


def test_a_client_data_can_be_stored_and_is_read_only(tmp_path):
    data = fo.data.collect(some())[0]
    stored = fo.data.store(data, tmp_path / "a" / "b")
    assert stored.sizes.tolist() == data.sizes.tolist()
    assert np.array_equal(stored.examples["x"], data.examples["x"])
    assert fo.data.stored_names(tmp_path / "a" / "b") == ["0", "1", "2"]
    with pytest.raises(ValueError, match="read-only"):
        stored.examples["x"][0] = 0
    assert not isinstance(stored[[0, 2]].examples["x"], np.memmap)


def interrupted():
    yield from some()
    raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing_and_what_exists_is_not_overwritten(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fo.data.store(interrupted(), tmp_path / "a")
    assert os.listdir(tmp_path) == []
    fo.data.store(some(), tmp_path / "a")
    with pytest.raises(ValueError, match="must not exist"):
        fo.data.store(some(1), tmp_path / "a")
    assert fo.data.open_stored(tmp_path / "a").num_clients == 3


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "at least one client"),
        ([*some(1), *some(1)], "'client 0' comes twice"),
        (
            [*some(1), ("b", {"x": np.zeros((1, 2))})],
            r"client 'b' must be like.*got x: float64\[2\]",
        ),
        ([*some(1), ("b", {"x": np.zeros((1, 3)), "y": np.arange(1)})], r"got x: float64\[3\]"),
        ([("b", {"x": np.zeros((0, 3))})], "'b' does not"),
        ([("b", {"x": np.zeros((2, 3)), "y": np.zeros(3)})], "client 'b'.*leading axes"),
        ([("b", np.zeros(3))], "'b' must be a mapping"),
        ([(7, {"x": np.zeros(3)})], "named by strings, got 7"),
    ],
)
def test_clients_that_do_not_fit_are_refused(tmp_path, clients, message):
    with pytest.raises(ValueError, match=message):
        fo.data.collect(iter(clients))
    with pytest.raises(ValueError, match=message):
        fo.data.store(iter(clients), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"../x": np.zeros(2)}, r"'\.\./x' cannot be the name"),
        ({"a/b": np.zeros(2)}, "'a/b' cannot be the name"),
        ({"sizes": np.zeros(2)}, "'sizes' cannot be the name"),
        ({"x": np.array([{}, {}])}, "must hold numbers or text, got object"),
    ],
)
def test_what_is_no_file_is_not_stored(tmp_path, examples, message):
    with pytest.raises(ValueError, match=message):
        fo.data.store([("a", examples)], tmp_path / "a")


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


X = npy(np.arange(12.0).reshape(6, 2))
DAMAGE = {
    "cut": ("x.npy", X[:-8], ""),
    "of another shape": ("x.npy", npy(np.zeros((5, 2))), r"it holds .*\[5, 2\]"),
    "in another order": ("x.npy", X.replace(b"'<f8'", b"'>f8'"), "it holds .*>f8"),
    "by columns": ("x.npy", X.replace(b"False", b"True "), "it holds"),
    "of objects": ("x.npy", npy(np.array([{}])), ""),
    "no header": ("x.npy", b"\x93NUMPY\x01\x00v\x00" + b"(" * 118, ""),
    "gone": ("x.npy", None, ""),
    "other sizes": ("sizes.npy", npy(np.array([3, 2, 1], np.int32)), "its checksum"),
    "one size": ("sizes.npy", npy(np.int32(3)), "its checksum"),
    "other names": ("names.json", b'["client 0", "client 1", "client 3"]', "its checksum"),
    "no names": ("names.json", None, ""),
    "no json": ("clients.json", b"{", ""),
    "deep json": ("clients.json", b"[" * 10**5, ""),
    "a list": ("clients.json", b"[]", ""),
    "no version": ("clients.json", b"{}", ""),
    "another array": ("clients.json", {"arrays": {"x": {"shape": [7]}}}, "it holds"),
    "no checksum": ("clients.json", {"sha256": {}}, "'sizes.npy'"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path, name):
    file, content, wrong = DAMAGE[name]
    home = tmp_path / "a"
    x = np.arange(12.0).reshape(6, 2)
    fo.data.store([(f"client {i}", {"x": x[2 * i : 2 * i + 2]}) for i in range(3)], home)
    if isinstance(content, dict):
        content = json.dumps(json.loads((home / file).read_text()) | content).encode()
    (home / file).unlink()
    if content is not None:
        (home / file).write_bytes(content)
    read = fo.data.stored_names if file == "names.json" else fo.data.open_stored
    with pytest.raises(ValueError, match=rf"\.(npy|json) is (damaged|missing).*{wrong}"):
        read(home)


def test_a_flipped_bit_shows_when_all_is_read(tmp_path):
    home = tmp_path / "a"
    fo.data.store(some(), home)
    content = (home / "x.npy").read_bytes()
    (home / "x.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    fo.data.open_stored(home)
    with pytest.raises(ValueError, match=r"x\.npy is damaged: its checksum"):
        fo.data.open_stored(home, verify=True)


def test_other_versions_and_other_folders_are_refused(tmp_path):
    home = tmp_path / "a"
    fo.data.store(some(), home)
    index = json.loads((home / "clients.json").read_text())
    (home / "clients.json").write_text(json.dumps({**index, "version": 1}))
    with pytest.raises(ValueError, match=r"version 4, got .* of version 1"):
        fo.data.open_stored(home)
    with pytest.raises(ValueError, match=r"clients\.json is missing"):
        fo.data.open_stored(tmp_path)
