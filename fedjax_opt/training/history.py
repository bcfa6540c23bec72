"""What a simulated run writes down, on the host: a row per round, its result, what went wrong."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from fedjax_opt.core.guard import Fault
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Variables
from fedjax_opt.core.state import FederatedState

LOGGER = logging.getLogger("fedjax_opt")

_COLUMNS = ("round", "loss", "first_loss", "update_norm", "cohort", "client_loss", "num_steps")
# A fleet may lose thousands of clients in a round; all of them are in the history.
_NAMED = 20


class Result(NamedTuple):
    """What a simulated run gave.

    Attributes:
      state: the final state; pass it to another run to go on.
      history: arrays with one row per round: `round`, `loss`, `first_loss`, `update_norm`, `cohort`,
        `client_loss`, `num_steps`, the model's metrics as `train_<name>`, diagnostics by name; with a
        guard `fault` and `asked` `[rounds, S]`, `excluded` and `skipped`; with an extension that may go
        back, `step_scale`.
      evaluations: arrays with one row per evaluation: `round`, `seconds`, and the test set's metrics
        by name; with a `client_test`, also `client_<name>` `[evaluations, N]`; and what measurements
        return.
      seconds: wall-clock seconds, compilation included; of a resumed run, also those before.
      stopped: why the run ended.
    """

    state: FederatedState
    history: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    seconds: float
    stopped: str

    @property
    def variables(self) -> Variables:
        """The final global model."""
        return self.state.variables


class NonFiniteLossError(FloatingPointError):
    """A loss or an update became NaN or infinite. `result` holds the run up to the last good round."""

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result


class Columns:
    """Arrays by name that rows are appended to. They have room to grow: no row is copied often."""

    def __init__(self) -> None:
        self._room: dict[str, np.ndarray] = {}
        self._length = 0

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Adds rows, of the same columns each time."""
        length = self._length
        for name, new in rows.items():
            end, room = length + len(new), self._room.get(name, new[:0])
            if end > len(room):
                self._room[name] = np.empty((max(end, 2 * len(room)), *new.shape[1:]), new.dtype)
                self._room[name][:length] = room[:length]
            self._room.setdefault(name, room)[length:end] = new
            self._length = end

    def cut(self, last: int) -> None:
        """Forgets the rows whose round is a later one."""
        if self._length:
            self._length = int(np.sum(self.views["round"] <= last))

    @property
    def views(self) -> dict[str, np.ndarray]:
        """The rows so far by name, not copied."""
        return {name: room[: self._length] for name, room in self._room.items()}


def rows_of(infos: Info, step_scale: float | None = None) -> dict[str, np.ndarray]:
    """A history's rows of some rounds. One that was not finite was not applied, and is left out."""
    rows = {}
    for name in _COLUMNS:
        rows[name] = getattr(infos, name)
    for name, values in infos.metrics.items():
        rows[f"train_{name}"] = values
    rows |= infos.diagnostics
    if infos.faults:
        rows |= _excluded(infos)
    if step_scale is not None:
        rows["step_scale"] = np.full(len(infos.round), step_scale)
    return rows if infos.finite.all() else {name: x[infos.finite] for name, x in rows.items()}


def describe_failure(infos: Info) -> str:
    """Names client and local step where a number stopped being one, in the last of these rounds."""
    info = jax.tree.map(lambda x: x[-1], infos)
    bad = np.flatnonzero((info.num_steps > 0) & ~np.isfinite(info.client_loss))
    if not len(bad):
        return (
            f"Round {info.round}: every loss was finite, but the server's update was not. The last"
            " good state is kept."
        )
    names = ", ".join(
        f"client {info.cohort[i]} (loss {info.client_loss[i]} from local step {info.bad_step[i]} on)"
        for i in bad[:3]
    )
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return (
        f"Round {info.round}: the loss is not finite on {names}{more}. The last good state is kept;"
        " a smaller learning rate or fewer local steps may help."
    )


def _excluded(infos: Info) -> dict[str, np.ndarray]:
    """The columns about what a guard did, whose excluded clients are named in the log."""
    client, code, skipped = infos.faults
    for t, clients, codes, was_skipped in zip(infos.round, client, code, skipped, strict=True):
        found = []
        for fault in filter(None, Fault):
            ids = clients[codes == fault]
            if len(ids):
                names = ", ".join(map(str, ids[:_NAMED])) + (", ..." if len(ids) > _NAMED else "")
                why = fault.name.lower().replace("_", " ")
                found.append(f"client{'s' * (len(ids) > 1)} {names} ({why})")
        if found:
            LOGGER.warning("Round %d: left out %s.", t, "; ".join(found))
        if was_skipped:
            left = int(np.sum((clients >= 0) & (codes == 0)))
            LOGGER.warning(
                "Round %d: skipped, with %d clients left; the model is unchanged.", t, left
            )
    count = np.asarray(np.sum(code > 0, axis=1, dtype=np.int32))
    return {"asked": client, "fault": code, "excluded": count, "skipped": skipped}
