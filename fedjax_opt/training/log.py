"""What a simulated run writes down, on the host: one row per round, one per evaluation."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.evaluate import evaluate
from fedjax_opt.training.fault_log import excluded

_COLUMNS = ("round", "loss", "first_loss", "update_norm", "cohort", "client_loss", "num_steps")


class Log:
    """Collects rows as they come, and gives them out as arrays."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, np.ndarray]] = []
        self._evaluations: list[dict[str, np.ndarray]] = []
        self._failure: dict[str, np.ndarray] | None = None

    @property
    def finite(self) -> bool:
        """Whether all went well so far."""
        return self._failure is None

    def add_rounds(self, infos: Info, played: int) -> None:
        """Adds the rounds of a chunk; one that was not finite was not applied, and is kept apart."""
        infos = jax.tree.map(lambda x: np.asarray(x)[:played], infos)
        rows = {name: getattr(infos, name) for name in _COLUMNS}
        rows |= {f"train_{name}": values for name, values in infos.metrics.items()}
        rows |= infos.diagnostics
        rows |= excluded(infos)
        good = np.asarray(infos.finite)
        if not good.all():
            self._failure = jax.tree.map(lambda x: x[-1], infos)._asdict()
        self._rounds.append({name: values[good] for name, values in rows.items()})

    @property
    def failed_first_loss(self) -> float:
        """The loss that the round began with in which a number stopped being one; NaN if none did."""
        return np.nan if self._failure is None else float(self._failure["first_loss"])

    def newest(self) -> dict[str, np.ndarray]:
        """The rows of the newest chunk of rounds, by name."""
        return self._rounds[-1]

    def note(self, name: str, value: float) -> None:
        """Adds a column to the newest chunk: one value, the same for its rounds."""
        rows = self._rounds[-1]
        rows[name] = np.full(len(rows["round"]), value)

    def go_back(self, done: int) -> None:
        """Forgets all that came after so many rounds, with what went wrong then."""
        kept = [(rows, rows["round"] < done) for rows in self._rounds]
        self._rounds = [
            {name: values[early] for name, values in rows.items()}
            for rows, early in kept
            if early.any()
        ]
        self._evaluations = [row for row in self._evaluations if row["round"] <= done]
        self._failure = None

    def add_evaluation(
        self,
        algorithm: Algorithm,
        model: Model,
        state: FederatedState,
        test: Any,
        client_test: Any,
        started: float,
        evaluate_each: Callable[..., dict[str, Any]],
    ) -> dict[str, float]:
        """Evaluates the global model, and each client's own, and returns the scalars by name.

        Without a test set there is nothing to evaluate: no row, and no scalars.
        """
        if test is None and client_test is None:
            return {}
        row: dict[str, Any] = {}
        if test is not None:
            row |= evaluate(model, state.variables, test)
        if client_test is not None:
            by_client = evaluate_each(algorithm, model, state, client_test)
            row |= {f"client_{name}": values for name, values in by_client.items()}
        found = {name: np.asarray(value) for name, value in row.items()}
        scalars = {name: float(value) for name, value in found.items() if value.ndim == 0}
        scalars |= {
            f"mean_{name}": float(np.nanmean(value)) for name, value in found.items() if value.ndim
        }
        seconds = time.perf_counter() - started
        self._evaluations.append(
            {"round": np.asarray(state.round), "seconds": np.asarray(seconds), **found}
        )
        return scalars

    def history(self) -> dict[str, np.ndarray]:
        """Arrays over the rounds, by name."""
        return _stack(self._rounds, np.concatenate)

    def evaluations(self) -> dict[str, np.ndarray]:
        """Arrays over the evaluations, by name."""
        return _stack(self._evaluations, np.stack)

    def saved(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold for a resumed run to return the whole history."""
        return {"rounds": self.history(), "evaluations": self.evaluations()}

    def resume(self, saved: dict[str, Any]) -> None:
        """Takes up what an interrupted run had written down."""
        self._rounds = [dict(saved["rounds"])] if saved["rounds"] else []
        rows = saved["evaluations"]
        count = len(next(iter(rows.values()), ()))
        self._evaluations = [
            {name: values[i] for name, values in rows.items()} for i in range(count)
        ]

    @property
    def seconds(self) -> float:
        """When the last evaluation was, in seconds since the run began."""
        return float(self._evaluations[-1]["seconds"]) if self._evaluations else 0.0

    def describe_failure(self) -> str:
        """Names the round, the client and the local step at which a number stopped being one."""
        info = self._failure or {}
        number, losses, bad_step = int(info["round"]), info["client_loss"], info["bad_step"]
        took_part = info["num_steps"] > 0
        bad = np.flatnonzero(took_part & ~np.isfinite(losses))
        if not len(bad):
            return (
                f"Round {number}: every loss was finite, but the server's update was not. The last"
                " good state is kept."
            )
        names = ", ".join(
            f"client {info['cohort'][i]} (loss {losses[i]} from local step {bad_step[i]} on)"
            for i in bad[:3]
        )
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return (
            f"Round {number}: the loss is not finite on {names}{more}. The last good state is kept;"
            " a smaller learning rate or fewer local steps may help."
        )


def _stack(rows: list[dict[str, np.ndarray]], join: Any) -> dict[str, np.ndarray]:
    if not rows:
        return {}
    return {name: join([row[name] for row in rows]) for name in rows[0]}


def in_short(history: dict[str, np.ndarray], evaluation: dict[str, float]) -> dict[str, str]:
    """What a progress bar has room for."""
    shown = {"loss": history["loss"][-1]} | {
        name.removeprefix("mean_"): value
        for name, value in evaluation.items()
        if name in ("accuracy", "mean_client_accuracy")
    }
    return {name: f"{value:.4f}" for name, value in shown.items()}
