"""Images in files."""

import pathlib

import numpy as np

from fedjax_opt.data.sources import columns


def read_all(folder: pathlib.Path, names: list[str], size: int, origin: str) -> np.ndarray:
    """The named images of a folder, uint8 [n, size, size, 3]."""
    images = columns.optional("PIL.Image", "Reading images")
    errors = (OSError, SyntaxError, ValueError, images.DecompressionBombError)
    found = np.empty((len(names), size, size, 3), np.uint8)
    for i, name in enumerate(names):
        # A name out of a file of data must not lead out of the folder.
        if not name or pathlib.PurePath(name).name != name or "\\" in name or "\0" in name:
            raise ValueError(f"{origin}: {name!r:.60} is not the name of an image in {folder}.")
        try:
            with images.open(folder / name, formats=["JPEG", "PNG"]) as picture:
                found[i] = np.asarray(picture.convert("RGB").resize((size, size)))
        except FileNotFoundError as error:
            raise ValueError(f"{origin}: {folder / name} is missing.") from error
        except errors as error:
            raise ValueError(
                f"{folder / name} cannot be read as an image: {error!s:.80}."
            ) from error
    return found
