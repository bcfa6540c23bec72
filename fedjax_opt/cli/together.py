"""Commands that several processes carry out together: the first one speaks and writes for all."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import fedjax_opt as fo
from fedjax_opt.cli.files import said
from fedjax_opt.experiments.rundir import RunDirectory

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


def open_directory(path: Any, config: str, seeds: Sequence[int], facts: dict[str, Any]) -> Any:
    """The run's directory in the first process; in the others what they must know of it.

    A directory that is refused is refused in all processes, else the others would wait for the first.
    """
    directory, found = None, {"error": "", "records": []}
    if fo.distributed.is_first():
        try:
            directory = RunDirectory(path, config, seeds, facts)
            found["records"] = directory.records
        except (ValueError, OSError) as error:
            found["error"] = said(error)
    found = fo.distributed.from_first(found)
    if found["error"]:
        raise ValueError(found["error"])
    return directory or _Elsewhere(found["records"])


class _Elsewhere:
    """A directory that another process writes to."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records

    def append(self, records: Any) -> None:
        """Nothing: the first process has the same records."""

    def save_model(self, label: str, variables: Any) -> None:
        """Nothing: the first process has the same model."""

    def __enter__(self) -> "_Elsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""
