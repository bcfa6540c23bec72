"""CIFAR-10 in its binary form: records of a label and 3 x 32 x 32 bytes, ten thousand a file.

Reference:
  Krizhevsky. Learning multiple layers of features from tiny images. Technical report, 2009.
"""

import io
import json

import numpy as np

from fedjax_opt.data import files as columns

_SIDE, _RECORDS = 32, 10_000
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_PARTS = (*_TRAIN, "test_batch")


def to_binary(members: dict[str, bytes]) -> dict[str, bytes]:
    """Converts pictures whose rows are images of 32 x 32 pixels to records."""
    labels = {
        part: np.asarray(json.loads(members[f"{part}_lables.json"]), np.uint8)  # so spelled
        for part in ("train", "test")
    }
    batches = [*np.split(labels["train"], len(_TRAIN)), labels["test"]]
    return {
        f"{name}.bin": _records(members[f"{name}.png"], batch)
        for name, batch in zip(_PARTS, batches, strict=True)
    }


def _records(png: bytes, labels: np.ndarray) -> bytes:
    images = columns.optional("PIL.Image", "Unpacking CIFAR-10", "tables")
    with images.open(io.BytesIO(png), formats=["PNG"]) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    planes = pixels.reshape(len(labels), _SIDE, _SIDE, 3).transpose(0, 3, 1, 2)
    flat = planes.reshape(len(labels), -1)
    return np.concatenate([labels[:, None], flat], axis=1).tobytes()


def read(contents: dict[str, bytes]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(train, test) from the six files: x, uint8 [n, 32, 32, 3], and y, int32 [n]."""

    def examples(parts: tuple[str, ...]) -> dict[str, np.ndarray]:
        x = np.empty((len(parts) * _RECORDS, _SIDE, _SIDE, 3), np.uint8)
        y = np.empty(len(x), np.int32)
        for i, part in enumerate(parts):
            rows = slice(i * _RECORDS, (i + 1) * _RECORDS)
            records = np.frombuffer(contents[f"{part}.bin"], np.uint8).reshape(_RECORDS, -1)
            y[rows] = records[:, 0]
            x[rows] = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        return {"x": x, "y": y}

    return examples(_TRAIN), examples(("test_batch",))
