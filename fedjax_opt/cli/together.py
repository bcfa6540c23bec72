"""Commands that several processes carry out together: the first one speaks and writes for all."""

import os
import sys

import fedjax_opt as fo

_ABLE = ("run", "sweep", "compare")


def join(command: str) -> None:
    """Joins the other processes, if this one was started with some; the first alone prints."""
    steps = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    launched = fo.distributed.ADDRESS in os.environ
    if not launched and not (steps.isdecimal() and int(steps) > 1):
        return
    if command not in _ABLE:
        raise ValueError(
            f"Several processes can carry out {', '.join(_ABLE)} together, not {command!r}: start it"
            " alone."
        )
    fo.distributed.initialize()
    if not fo.distributed.is_first():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- until the end


def leave(status: int) -> None:
    """Ends this process at once if it had joined others: tidying up would wait for them."""
    if fo.distributed.is_joined():
        sys.stderr.flush()
        os._exit(status)
