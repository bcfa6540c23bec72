"""Images in files."""

import pathlib
import warnings
from typing import Any

import numpy as np

from fedjax_opt.data.sources import columns

_MOST_PIXELS = 2**24  # an image of CelebA has 38,804; a small file may unpack to any number


def read_all(folder: pathlib.Path, names: list[str], size: int, origin: str) -> np.ndarray:
    """The named images of a folder, uint8 [n, size, size, 3]."""
    images = columns.optional("PIL.Image", "Reading images")
    bombs = (images.DecompressionBombError, images.DecompressionBombWarning)
    errors = (OSError, SyntaxError, ValueError, *bombs)
    found = np.empty((len(names), size, size, 3), np.uint8)
    for i, name in enumerate(names):
        # A name out of a file of data must not lead out of the folder.
        if not name or pathlib.PurePath(name).name != name or "\\" in name or "\0" in name:
            raise ValueError(f"{origin}: {name!r:.60} is not the name of an image in {folder}.")
        try:
            with _opened(images, folder / name) as picture:
                found[i] = np.asarray(picture.convert("RGB").resize((size, size)))
        except FileNotFoundError as error:
            raise ValueError(f"{origin}: {folder / name} is missing.") from error
        except errors as error:
            raise ValueError(
                f"{folder / name} cannot be read as an image: {error!s:.80}."
            ) from error
    return found


def _opened(images: Any, path: pathlib.Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", images.DecompressionBombWarning)
        picture = images.open(path, formats=["JPEG", "PNG"])
    if picture.width * picture.height > _MOST_PIXELS:
        picture.close()
        raise ValueError(f"it has {picture.width} x {picture.height} pixels")
    return picture
