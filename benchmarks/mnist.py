"""MNIST as the benchmarks of compression and personalisation want it: rows of numbers from 0 to 1."""

import numpy as np

import fedjax_opt as fo


def load(directory=None):
    """(train, test), each a dict of x, float32 [n, 784] in [0, 1], and y, int32 [n]."""
    found = fo.data.load("mnist", directory)

    def flat(part):
        pixels = part["x"].reshape(len(part["y"]), -1).astype(np.float32)
        return {"x": pixels / np.float32(255), "y": part["y"]}

    return flat(found.train), flat(found.test)
