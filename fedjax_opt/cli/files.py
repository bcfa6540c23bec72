"""Files that a command is asked to write, checked before hours of work go into them."""

import os
import pathlib

PLOT_FORMATS = (".png", ".pdf", ".svg")


def check_plot_path(path: pathlib.Path) -> None:
    """Refuses a plot's path that could not be written, or whose ending is not a format."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise ValueError(f"--output must end in {', '.join(PLOT_FORMATS)}, got {str(path)!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path if path.exists() else path.parent
    if path.is_dir() or not os.access(target, os.W_OK):
        raise ValueError(f"--output must be a file that can be written, got {str(path)!r}.")
