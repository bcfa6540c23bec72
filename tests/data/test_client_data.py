"""Federated data: nothing is lost on the way in, by slicing or by splitting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo


@st.composite
def assignments(draw, allow_empty=False):
    """The owner of each example, and the number of clients."""
    num_clients = draw(st.integers(1, 6))
    ids = draw(st.lists(st.integers(0, num_clients - 1), min_size=1, max_size=40))
    if not allow_empty:
        ids = draw(st.permutations(ids + list(range(num_clients))))
    return np.array(ids), num_clients


def examples(total):
    """Examples that can be told apart: `row` is where one came from."""
    row = np.arange(total)
    return {"row": row, "x": np.stack([row, row**2], axis=1).astype(np.float32), "y": row % 3}


def make(ids, num_clients):
    return fo.ClientData.from_arrays(examples(len(ids)), ids, num_clients, allow_empty=True)


def assert_same(left, right):
    np.testing.assert_array_equal(left.sizes, right.sizes)
    np.testing.assert_array_equal(left.offsets, right.offsets)
    assert left.examples.keys() == right.examples.keys()
    for name in left.examples:
        np.testing.assert_array_equal(left.examples[name], right.examples[name], strict=True)


@given(assignments())
def test_the_ways_in_agree_and_lose_nothing(assignment):
    ids, num_clients = assignment
    flat = examples(len(ids))
    data = fo.ClientData.from_arrays(flat, ids)
    parts = [{name: x[ids == i] for name, x in flat.items()} for i in range(num_clients)]
    assert_same(data, fo.ClientData.from_list(parts))
    assert len(data) == data.num_clients == num_clients and data.num_examples == len(ids)
    assert data.sizes.dtype == data.offsets.dtype == np.int32
    np.testing.assert_array_equal(np.sort(data.examples["row"]), np.arange(len(ids)))
    for i, part in enumerate(parts):
        for name in part:
            np.testing.assert_array_equal(data[i][name], part[name], strict=True)


@given(assignments(allow_empty=True), st.data())
def test_slices_lists_and_masks_select_clients(assignment, draws):
    data = make(*assignment)
    everyone = range(len(data))
    start, stop = sorted(draws.draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    chosen = draws.draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=8))
    mask = np.isin(everyone, chosen)
    selections = [
        (chosen, chosen),
        (mask, np.flatnonzero(mask)),
        (slice(None, None, -1), everyone[::-1]),
    ]
    if start < stop:
        selections.append((slice(start, stop), everyone[start:stop]))
    for selection, expected in selections:
        taken = data[selection]
        assert len(taken) == len(expected)
        for i, client in enumerate(expected):
            np.testing.assert_array_equal(taken[i]["row"], data[int(client)]["row"])
            np.testing.assert_array_equal(taken[i - len(taken)]["row"], data[int(client)]["row"])


@given(assignments(), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_split_is_disjoint_exhaustive_and_by_client(assignment, fraction, seed):
    data = make(*assignment)
    train, test = data.split(fraction, seed)
    for i in range(len(data)):
        size = int(data.sizes[i])
        both = np.concatenate([train[i]["row"], test[i]["row"]])
        np.testing.assert_array_equal(np.sort(both), np.sort(data[i]["row"]))
        assert train.sizes[i] >= 1
        assert test.sizes[i] >= min(size - 1, 1)
        # Rounded to the nearest, and then kept within those bounds.
        assert abs(test.sizes[i] - size * fraction) <= 0.5 or test.sizes[i] in (1, size - 1)
        np.testing.assert_array_equal(test[i]["y"], test[i]["row"] % 3)
    assert_same(train, data.split(fraction, seed)[0])


def test_splits_differ_by_seed():
    data = make(np.zeros(50, int), 1)
    assert np.any(data.split(0.5, 0)[1].examples["row"] != data.split(0.5, 1)[1].examples["row"])


def test_a_summary_of_sizes():
    summary = make(np.array([0, 0, 0, 1, 2, 2]), 4).summary(label="nothing")
    assert summary == fo.data.Summary(4, 6, smallest=0, median=1.5, largest=3, label_skew=None)
    text = "6 examples on 4 clients (smallest 0, median 1.5, largest 3)"
    assert str(summary) == text


def labelled(*labels):
    return fo.ClientData.from_list([{"y": np.array(part)} for part in labels])


@pytest.mark.parametrize(
    ("labels", "skew"),
    [
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], 0),
        # Each is all of one class where the whole has 1/C of it: a distance of 1 - 1/C.
        *([[[c] * 4 for c in range(classes)], 1 - 1 / classes] for classes in (2, 5, 10)),
        # All: 3/4 and 1/4. The first is off by 1/4 in both classes, the second the other way.
        ([[0, 0], [0, 1]], 0.25),
    ],
)
def test_label_skew(labels, skew):
    summary = labelled(*labels).summary()
    assert summary.label_skew == pytest.approx(skew, abs=1e-15)
    assert str(summary).endswith(f"label skew {skew:.2f}")


def test_labels_that_are_not_classes_have_no_skew():
    assert labelled([0.5, 1.5]).summary().label_skew is None
    assert fo.ClientData.from_list([np.zeros(3)]).summary().label_skew is None


X = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fo.ClientData.from_list([]), "clients must hold at least one client"),
        (
            lambda: fo.ClientData.from_list([{"x": X}, {"z": X}]),
            r"clients\[1\] must have the tree structure of clients\[0\]",
        ),
        (
            lambda: fo.ClientData.from_list([{"x": X, "y": np.zeros(3)}]),
            r"clients\[0\]\['y'\] must have leading axes \[n=4\], got shape \[3\]",
        ),
        (
            lambda: fo.ClientData.from_list([X, np.zeros((4, 3))]),
            "clients must agree in the shape of an example",
        ),
        (
            lambda: fo.ClientData.from_list([X, X[:0]]),
            "1 of 2 hold none: 1. Leave them out, or pass allow_empty=True",
        ),
        (lambda: fo.ClientData.from_arrays(X, [0, 0, 2, 2]), "1 of 3 hold none: 1"),
        (lambda: fo.ClientData.from_arrays(X, [0, 1]), r"client_ids must be 4 .* got int64\[2\]"),
        (lambda: fo.ClientData.from_arrays(X, [0.0] * 4), r"client_ids .* got float64\[4\]"),
        (lambda: fo.ClientData.from_arrays(X, [0, 0, 0, -1]), r"client_ids .* \[0, 0\], got -1"),
        (lambda: fo.ClientData.from_arrays(X, [0, 1, 2, 3], 3), r"\[0, 2\], got 0 to 3"),
        (
            lambda: fo.ClientData.from_arrays(X, [0] * 4, 0),
            "num_clients must be .*at least 1, got 0",
        ),
        (lambda: fo.ClientData.from_arrays(X[:0], np.zeros(0, int)), "at least one example"),
        (lambda: make(np.zeros(4, int), 1).split(0.0), r"test_fraction must lie in \(0\.0, 1\.0\)"),
        (lambda: make(np.zeros(4, int), 1).split(1.0), r"test_fraction must lie .* got 1\.0"),
        (lambda: make(np.zeros(4, int), 1)[1:1], "at least one client, but none was selected"),
    ],
)
def test_client_data_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("client", [2, -3])
def test_a_client_that_does_not_exist(client):
    with pytest.raises(IndexError, match=f"client {client} of 2 does not exist"):
        make(np.array([0, 1]), 2)[client]
