"""Handwritten digits that come with the package, so that examples run without a download."""

from importlib import resources

import numpy as np

from fedjax_opt.core import checks


def load_digits(
    test_fraction: float = 0.2, seed: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loads 1,797 handwritten digits of 8x8 pixels as a training and a test set.

    The split is drawn within each digit, so both sets hold the ten digits in nearly the same
    proportions, and both are shuffled. The same arguments give the same split.

    Args:
      test_fraction: Share of the examples in the test set, strictly between 0 and 1. Every digit
        keeps at least one example in each set.
      seed: Seed of the split and of the shuffling.

    Returns:
      `(train, test)`, each a dict of `x`, float32 `[n, 64]` in [0, 1], and `y`, int32 `[n]`.

    Example:
      >>> train, test = load_digits()
      >>> train["x"].shape, train["y"].shape, test["x"].shape
      ((1438, 64), (1438,), (359, 64))

    Reference:
      E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning
      Repository, 1998. doi:10.24432/C50P49. Licence: CC BY 4.0, see DIGITS_LICENSE.md.
    """
    checks.number("test_fraction", test_fraction, low=0.0, high=1.0, open_low=True, open_high=True)
    checks.integer("seed", seed, low=0)
    file = resources.files("fedjax_opt.data").joinpath("digits.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    in_test = np.zeros(len(labels), bool)
    for digit in range(10):
        members = order[labels[order] == digit]
        in_test[members[: np.clip(round(test_fraction * len(members)), 1, len(members) - 1)]] = True

    def examples(chosen: np.ndarray) -> dict[str, np.ndarray]:
        x = images[chosen].reshape(len(chosen), -1).astype(np.float32) / np.float32(16)
        return {"x": x, "y": labels[chosen].astype(np.int32)}

    return examples(order[~in_test[order]]), examples(order[in_test[order]])
