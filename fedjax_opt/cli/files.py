"""Files that a command is asked to write, checked before hours of work go into them."""

import datetime
import pathlib

PLOT_FORMATS = (".png", ".pdf", ".svg")


def new_directory(name: str) -> pathlib.Path:
    """Where results go if nobody says it."""
    return pathlib.Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def check_plot_path(path: pathlib.Path) -> None:
    """Refuses a plot's path that cannot be written, or whose ending is not a format."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise ValueError(f"--output must end in {', '.join(PLOT_FORMATS)}, got {str(path)!r}.")
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()  # the one sure way to know
    except OSError as error:
        raise ValueError(
            f"--output must be a file that can be written, got {str(path)!r}: {error}."
        ) from error
    if not existed:
        path.unlink()
