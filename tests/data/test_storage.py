"""Clients in a directory: what is written is what is opened, and damage is named."""

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


def test_a_client_data_can_be_stored(tmp_path):
    data = fo.data.collect(some())[0]
    stored = fo.data.store(data, tmp_path / "a" / "b")
    assert stored.sizes.tolist() == data.sizes.tolist()
    assert np.array_equal(stored.examples["x"], data.examples["x"])
    assert fo.data.stored_names(tmp_path / "a" / "b") == ["0", "1", "2"]


def test_it_is_read_only_and_selections_are_in_memory(tmp_path):
    stored = fo.data.store(some(), tmp_path / "a")
    with pytest.raises(ValueError, match="read-only"):
        stored.examples["x"][0] = 0
    assert not isinstance(stored[[0, 2]].examples["x"], np.memmap)


def interrupted():
    yield from some()
    raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fo.data.store(interrupted(), tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_what_exists_is_not_overwritten(tmp_path):
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


@pytest.mark.parametrize("name", ["../x", "a/b", "sizes"])
def test_names_that_are_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be the name"):
        fo.data.store([("a", {name: np.zeros(2)})], tmp_path / "a")


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(ValueError, match="dtype object"):
        fo.data.store([("a", {"x": np.array([{}, {}])})], tmp_path / "a")


def test_damage_is_named(tmp_path):
    home = tmp_path / "a"
    fo.data.store(some(), home)
    content = (home / "x.npy").read_bytes()

    (home / "x.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    fo.data.open_stored(home)  # a flipped bit shows only when all is read
    with pytest.raises(ValueError, match=r"x\.npy is damaged: its checksum"):
        fo.data.open_stored(home, verify=True)

    (home / "x.npy").write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"x\.npy is damaged"):
        fo.data.open_stored(home)

    np.save(home / "x.npy", np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"x\.npy is damaged: its checksum"):
        fo.data.open_stored(home)

    swapped = content.replace(b"'<f8'", b"'>f8'")  # the same bytes, read in another order
    assert swapped != content
    (home / "x.npy").write_bytes(swapped)
    with pytest.raises(ValueError, match=r"x\.npy is damaged: its checksum"):
        fo.data.open_stored(home)

    np.save(home / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x\.npy is damaged"):
        fo.data.open_stored(home)

    (home / "x.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + b"(" * 118)
    with pytest.raises(ValueError, match=r"x\.npy is damaged"):
        fo.data.open_stored(home)

    (home / "x.npy").unlink()
    with pytest.raises(ValueError, match=r"x\.npy is damaged"):
        fo.data.open_stored(home)


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": ["x", "y"]},
        {"arrays": {"x": 1, "y": 2}},
        {"arrays": {"x": {"crc32": "1"}}},
        {"arrays": {"../x": {"crc32": 1}}},
        {"sizes": None},
        {"sizes": {}},
    ],
)
@pytest.mark.parametrize("verify", [False, True])
def test_an_index_of_other_types_is_damaged(tmp_path, change, verify):
    fo.data.store(some(), tmp_path / "a")
    file = tmp_path / "a" / "clients.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=r"clients\.json is damaged"):
        fo.data.open_stored(tmp_path / "a", verify=verify)


def test_names_that_are_damaged(tmp_path):
    home = tmp_path / "a"
    fo.data.store(some(), home)
    for names in ({}, ["a", "b"], ["a", "b", 3], ["a", "b", "b"], ["a", "b", None]):
        (home / "names.json").write_text(json.dumps(names))
        with pytest.raises(ValueError, match=r"names\.json is damaged: it must hold"):
            fo.data.stored_names(home)
    (home / "names.json").write_text(json.dumps(["client 0", "client 1", "client 3"]))
    with pytest.raises(ValueError, match=r"names\.json is damaged: its checksum"):
        fo.data.stored_names(home)
    np.save(home / "sizes.npy", np.array([3, 2, 1], np.int32))
    with pytest.raises(ValueError, match=r"sizes\.npy is damaged: its checksum"):
        fo.data.open_stored(home)
    np.save(home / "sizes.npy", np.int32(3))
    for function in (fo.data.stored_names, fo.data.open_stored):
        with pytest.raises(ValueError, match=r"sizes\.npy is damaged: it must hold one row"):
            function(home)


def test_other_versions_and_other_folders_are_refused(tmp_path):
    home = tmp_path / "a"
    fo.data.store(some(), home)
    index = json.loads((home / "clients.json").read_text())
    (home / "clients.json").write_text(json.dumps({**index, "version": 1}))
    with pytest.raises(ValueError, match=r"version 2, got .* of version 1"):
        fo.data.open_stored(home)
    for text in ("{", "[" * 10**5):
        (home / "clients.json").write_text(text)
        with pytest.raises(ValueError, match=r"clients\.json is damaged"):
            fo.data.open_stored(home)
    with pytest.raises(ValueError, match=r"clients\.json is missing"):
        fo.data.open_stored(tmp_path)
