"""The IDX files of MNIST and of data sets made in its likeness.

Reference:
  LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. Proceedings
  of the IEEE, 1998.
  Xiao, Rasul, Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine learning
  algorithms, 2017.
"""

import math

import numpy as np

_UNSIGNED_BYTES = 8


def parse(content: bytes, origin: str) -> np.ndarray:
    """The array of unsigned bytes in an IDX file."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise ValueError(
            f"{origin} must be an IDX file of unsigned bytes, and does not begin as one."
        )
    axes = content[3]
    start = 4 * (1 + axes)
    if len(content) < start:
        raise ValueError(f"{origin} ends within its header.")
    shape = tuple(np.frombuffer(content, ">u4", axes, 4).tolist())
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{origin} must hold {list(shape)} bytes after its header, got {len(content) - start}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read(contents: dict[str, bytes]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(train, test) from the four files: x, uint8 [n, 28, 28], and y, int32 [n]."""
    arrays = {name: parse(content, name) for name, content in contents.items()}

    def examples(part: str) -> dict[str, np.ndarray]:
        labels = arrays[f"{part}-labels-idx1-ubyte"]
        return {"x": arrays[f"{part}-images-idx3-ubyte"].copy(), "y": labels.astype(np.int32)}

    return examples("train"), examples("t10k")
