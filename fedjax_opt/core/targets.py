"""When a curve first reached a target: what metrics and costs both ask of a run."""

from typing import Any

import numpy as np


def first_reached(values: Any, target: Any, maximise: bool = True) -> int | None:
    """The index of the first value that is as good as the target; None if none is. NaN never is."""
    values = np.asarray(values)
    reached = np.flatnonzero(values >= target if maximise else values <= target)
    return int(reached[0]) if len(reached) else None
