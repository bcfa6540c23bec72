"""Clients by natural key."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.data.keys import by_key

KEYS = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1),
    st.lists(st.text(max_size=2), min_size=1),
    st.lists(st.one_of(st.integers(0, 2), st.sampled_from(["0", "1", ("a", 1)])), min_size=1),
)


@given(KEYS, st.integers(1, 4))
def test_clients_are_their_keys(keys, min_size):
    counts = Counter(keys)
    kept = [key for key in dict.fromkeys(keys) if counts[key] >= min_size]
    if not kept:
        with pytest.raises(ValueError, match=f"at most {max(counts.values())}, .* got {min_size}"):
            by_key(keys, min_size)
        return
    ids, names = by_key(keys, min_size)
    assert ids.dtype == np.int32 and ids.shape == (len(keys),)
    assert list(names) == kept
    for key, client in zip(keys, ids.tolist(), strict=True):
        assert client == (kept.index(key) if key in kept else -1)


@given(st.lists(st.integers(-3, 3), min_size=1))
def test_arrays_are_sequences(keys):
    for array in (np.array(keys), np.array(list(map(str, keys))), np.array(keys, object)):
        ids, names = by_key(array)
        np.testing.assert_array_equal(ids, by_key(keys)[0])
        assert names == tuple(array[np.unique(ids, return_index=True)[1]].tolist())


def test_dropped_examples_cannot_slip_in():
    keys, x = np.array(["ann", "bob", "ann"]), np.arange(3.0)
    ids, names = by_key(keys, min_size=2)
    with pytest.raises(ValueError, match="client_ids must lie in"):
        fo.ClientData.from_arrays({"x": x}, ids)
    data = fo.ClientData.from_arrays({"x": x[ids >= 0]}, ids[ids >= 0], len(names))
    assert data.sizes.tolist() == [2]


@pytest.mark.parametrize(
    ("keys", "min_size", "message"),
    [
        ([], 1, "keys must hold at least one key, got none"),
        (np.array([], int), 1, "keys must hold at least one key, got none"),
        ("ann", 1, "keys must be a sequence with one key per example, got 'ann'"),
        (3, 1, "keys must be a sequence with one key per example, got 3"),
        ({"ann"}, 1, "keys must be a sequence"),
        (np.zeros((2, 2)), 1, r"keys must be a vector, got shape \[2, 2\]"),
        (["ann", None], 1, r"keys must not be missing, but keys\[1\] is None"),
        (["ann", float("nan")], 1, r"keys must not be missing, but keys\[1\] is nan"),
        (np.array([1.0, np.nan]), 1, r"keys must not be missing, but keys\[1\] is nan"),
        ([1, [2]], 1, r"keys must be hashable, but keys\[1\] is \[2\]"),
        ([np.zeros(2)], 1, r"keys must be hashable, but keys\[0\] is array"),
        (["ann"], 0, "min_size must be a whole number of at least 1, got 0"),
    ],
)
def test_refused(keys, min_size, message):
    with pytest.raises(ValueError, match=message):
        by_key(keys, min_size)
