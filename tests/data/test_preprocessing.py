"""Preprocessing steps: what they do to known images, and that they can live inside a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt.data import preprocessing

KEY = jax.random.key(3)


def images(count, height, width, *channels):
    """Images whose pixels are all different, as far as uint8 allows."""
    shape = (count, height, width, *channels)
    return np.arange(1, np.prod(shape) + 1).astype(np.uint8).reshape(shape)


def crops(image, size, padding):
    """All crops of an image, by place, cut out by hand from the image with its padding."""
    widths = [(padding, padding)] * 2 + [(0, 0)] * (image.ndim - 2)
    padded = np.pad(image, widths)
    rows, columns = padded.shape[0] - size + 1, padded.shape[1] - size + 1
    return {
        (row, column): padded[row : row + size, column : column + size]
        for row in range(rows)
        for column in range(columns)
    }


@pytest.mark.parametrize(
    ("shape", "size", "padding"), [((5, 4), 3, 0), ((3, 4, 2), 4, 1), ((3, 3), 3, 2)]
)
def test_crop_reaches_every_place_equally_often(shape, size, padding):
    image = images(1, *shape)[0]
    count = 3000
    batch = {"x": np.tile(image, (count,) + (1,) * image.ndim), "y": np.arange(count)}
    cropped = preprocessing.random_crop(size, padding)(batch, KEY)
    assert cropped["x"].dtype == jnp.uint8
    np.testing.assert_array_equal(cropped["y"], batch["y"])
    allowed = crops(image, size, padding)
    hits = {
        place: int((np.asarray(cropped["x"]) == crop).reshape(count, -1).all(1).sum())
        for place, crop in allowed.items()
    }
    # Each shows at least one pixel of the image, so all are different.
    assert len({crop.tobytes() for crop in allowed.values()}) == len(allowed)
    assert sum(hits.values()) == count
    expected = count / len(allowed)
    # Binomial counts: five standard deviations, for at most 36 places.
    deviation = np.sqrt(expected * (1 - 1 / len(allowed)))
    assert max(abs(hit - expected) for hit in hits.values()) < 5 * deviation


def test_crop_in_evaluation_is_the_centre():
    batch = {"x": images(2, 5, 6, 2)}
    centre = preprocessing.random_crop(3)(batch, None)["x"]
    np.testing.assert_array_equal(centre, batch["x"][:, 1:4, 1:4])
    same = preprocessing.random_crop(6, padding=4)({"x": images(2, 6, 6)}, None)["x"]
    np.testing.assert_array_equal(same, images(2, 6, 6))
    larger = preprocessing.random_crop(4, padding=2)({"x": images(1, 2, 2)}, None)["x"]
    np.testing.assert_array_equal(larger[0], np.pad(images(1, 2, 2)[0], 1))


def test_randomness_belongs_to_the_key_and_to_the_example():
    x = np.tile(images(1, 8, 8), (64, 1, 1))
    for step in (preprocessing.random_crop(8, padding=4), preprocessing.random_flip()):
        first, again, other = (
            np.asarray(step({"x": x}, key)["x"]) for key in (KEY, KEY, jax.random.key(4))
        )
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()
        assert len({image.tobytes() for image in first}) > 1


def test_crop_rows_columns_and_flips_are_independent():
    """With one key for all: no place determines another, or whether the image is mirrored."""
    count = 4000
    x = np.tile(images(1, 2, 2), (count, 1, 1))
    pixel = np.asarray(preprocessing.random_crop(1)({"x": x}, KEY)["x"]).ravel()
    flipped = np.asarray(preprocessing.random_flip()({"x": x}, KEY)["x"])[:, 0, 0] == 2
    row, column = (pixel - 1) // 2, (pixel - 1) % 2
    signs = [np.where(event, 1.0, -1.0) for event in (row, column, flipped)]
    # Independent fair signs: means of products have standard deviation 1 / sqrt(count).
    for a in range(3):
        assert abs(signs[a].mean()) < 4.5 / np.sqrt(count)
        assert abs((signs[a] * signs[(a + 1) % 3]).mean()) < 4.5 / np.sqrt(count)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_flip_mirrors_left_and_right_or_nothing(channels):
    x = images(40, 2, 3, *channels)
    flipped = np.asarray(preprocessing.random_flip()({"x": x}, KEY)["x"])
    mirrored = (flipped == x[:, :, ::-1]).reshape(40, -1).all(1)
    kept = (flipped == x).reshape(40, -1).all(1)
    assert flipped.dtype == np.uint8
    assert (mirrored ^ kept).all() and 8 < mirrored.sum() < 32
    np.testing.assert_array_equal(preprocessing.random_flip()({"x": x}, None)["x"], x)


def test_scale_and_normalise():
    x = np.array([[[[0, 51], [255, 102]]]], np.uint8)
    scaled = preprocessing.scale()({"x": x}, KEY)["x"]
    assert scaled.dtype == jnp.float32
    np.testing.assert_allclose(scaled, [[[[0, 0.2], [1, 0.4]]]], rtol=1e-6)
    normalised = preprocessing.normalise([0.5, 0.2], [0.25, 0.1])({"x": scaled}, KEY)["x"]
    assert normalised.dtype == scaled.dtype
    np.testing.assert_allclose(normalised, [[[[-2, 0], [2, 2]]]], rtol=1e-6, atol=1e-6)
    grey = jnp.ones((2, 3, 3), jnp.float32)
    grey = preprocessing.normalise(0.5, 2)({"x": grey}, None)["x"]
    assert grey.dtype == jnp.float32
    np.testing.assert_array_equal(grey, 0.25)
    half = np.ones((1, 2), np.float16)
    assert preprocessing.scale()({"x": half}, None)["x"] is half


def test_steps_live_inside_a_program():
    """Compiled and vmapped over clients, with one program for all keys; leaves only where expected."""
    steps = [
        preprocessing.random_crop(4, padding=1),
        preprocessing.random_flip(),
        preprocessing.scale(),
        preprocessing.normalise([0.5], [0.5]),
        preprocessing.flatten(),
    ]
    assert [len(jax.tree.leaves(step)) for step in steps] == [0, 0, 0, 2, 0]
    traces = []

    def prepare(steps, batch, key):
        traces.append(None)
        for step in steps:
            batch = step(batch, key)
        return batch

    clients = {"x": images(6, 5, 5, 1).reshape(2, 3, 5, 5, 1), "y": np.zeros((2, 3), np.int32)}
    keys = jax.random.split(KEY, 2)
    compiled = jax.jit(jax.vmap(prepare, in_axes=(None, 0, 0)))
    together = compiled(steps, clients, keys)
    compiled(steps, clients, keys[::-1])
    assert len(traces) == 1
    assert together["x"].shape == (2, 3, 16)
    for i in range(2):
        alone = prepare(steps, jax.tree.map(lambda leaf, i=i: leaf[i], clients), keys[i])
        # A pixel of [0, 1] is rounded once before 0.5 is taken away, however small the rest is.
        eps = float(np.finfo(np.float32).eps)
        np.testing.assert_allclose(together["x"][i], alone["x"], rtol=0, atol=eps)


@pytest.mark.parametrize(
    ("step", "batch", "message"),
    [
        (
            preprocessing.random_crop(9, 1),
            {"x": images(1, 6, 8)},
            "size must be at most 8, .* got 9",
        ),
        (
            preprocessing.random_crop(1),
            {"x": np.zeros((2, 3))},
            r"random_crop needs images .*\[2, 3\]",
        ),
        (preprocessing.random_flip(), {"x": np.zeros(2)}, r"random_flip needs images .*\[2\]"),
        (preprocessing.scale(), {"x": np.zeros(2, np.int32)}, "scale takes uint8 .* got int32"),
        (preprocessing.scale(), {"image": np.zeros(2)}, r"the key 'x', got \['image'\]"),
        (preprocessing.flatten(), (1, 2), "flatten needs a batch with the key 'x', got .*tuple"),
        (preprocessing.normalise(0, 1), {"x": images(1, 2, 2)}, r"got uint8: scale\(\) first"),
        (
            preprocessing.normalise([0, 0], 1),
            {"x": np.zeros((1, 2, 2, 3))},
            "mean must have one entry for each of the 3 channels .* got 2",
        ),
    ],
)
def test_steps_refuse(step, batch, message):
    with pytest.raises(ValueError, match=message):
        step(batch, None)


@pytest.mark.parametrize(
    ("constructor", "arguments", "message"),
    [
        (preprocessing.random_crop, (0,), "size must be a whole number of at least 1, got 0"),
        (preprocessing.random_crop, (4, -1), "padding must be .* at least 0, got -1"),
        (preprocessing.random_crop, (4.0,), r"size must be a whole number .* got 4\.0"),
        (preprocessing.normalise, (0.0, 0.0), r"std must lie in \(0\.0, inf\], got 0\.0"),
        (preprocessing.normalise, (0.0, np.inf), "std must be a finite number"),
        (preprocessing.normalise, ("a", 1), "mean must be a number, got 'a'"),
        (preprocessing.normalise, ([[0.0]], 1), "mean must be a finite number, or one for each"),
    ],
)
def test_constructors_refuse(constructor, arguments, message):
    with pytest.raises(ValueError, match=message):
        constructor(*arguments)
