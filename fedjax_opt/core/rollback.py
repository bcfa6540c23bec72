"""When a run diverges: back to the last good state, and on with a smaller step.

    diverged    the mean loss of a chunk of rounds is not finite, or above `factor` times the lowest
                so far; or a guard skipped every round of it for what clients sent
    go back     the state before that chunk, the rounds of the chunk forgotten
    step        eta shrink^n after n such returns, for an algorithm that is a function of eta;
                else the change of the global parameters in each round, times shrink^n

The scale is an argument of the compiled program: going back compiles nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, get_variables, set_variables
from fedjax_opt.core.controller import Controller
from fedjax_opt.core.fault_log import LOGGER
from fedjax_opt.core.guard import Fault
from fedjax_opt.core.log import Log
from fedjax_opt.core.preparation import Traced
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.strategies import Strategy, place

# Codes below it say that a client did not answer, which a smaller step does not change.
_SENT_SOMETHING = Fault.LOSS_NOT_FINITE


class Rollback(NamedTuple):
    """What counts as divergence in a simulated run, and what is done about it.

    The run keeps a second copy of its state. It is checked after each chunk of `evaluate_every` rounds.

    Attributes:
      factor: a chunk's mean loss above so many times the lowest so far is divergence, more than 1.
      shrink: what the step is multiplied by each time, in (0, 1).
      limit: how often, at most; then the run stops with the last good state.

    Example:
      A learning rate that is far too large, and is halved until it is not:

      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
      >>> result = fo.simulate(
      ...     lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), model, data, rounds=40, cohort_size=4,
      ...     batch_size=1, local_steps=2, learning_rate=50.0, evaluate_every=5,
      ...     rollback=fo.Rollback(limit=10), progress=False,
      ... )
      >>> len(result.history["loss"]), bool(result.history["step_scale"][-1] < 1)
      (40, True)
    """

    factor: float = 10.0
    shrink: float = 0.5
    limit: int = 5


class Fallback:
    """The last good state of a run, the lowest loss so far, and the scale of the step.

    Args:
      rollback: the rules.
      traced: the run, with the step as it was asked for.
      strategy: where its arrays go.
    """

    def __init__(self, rollback: Rollback, traced: Traced, strategy: Strategy) -> None:
        _check(rollback)
        self._rules, self._traced, self._strategy = rollback, traced, strategy
        self._kept: Any = None
        self._lowest = np.inf
        self._returns = 0
        self.scale = 1.0

    def resume(self, history: dict[str, np.ndarray], chunk: int) -> None:
        """Takes up the scale and the loss of an interrupted run."""
        if "step_scale" in history and len(history["step_scale"]):
            self.scale = float(history["step_scale"][-1])
            self._lowest = float(np.mean(history["loss"][-chunk:]))

    def traced(self) -> Traced:
        """The run with the step as it is now."""
        scale = place(jnp.asarray(self.scale, jnp.result_type(float)), self._strategy)
        return _with_scale(self._traced, scale)

    def keep(self, state: FederatedState) -> None:
        """Copies a state that is good, before its buffers are given up."""
        self._kept = jax.tree.map(jnp.copy, state)

    def judge(self, log: Log) -> str | None:
        """Why the newest chunk is divergence; None if it is not, and then it is remembered as good."""
        rows = log.newest()
        if not log.finite:
            return log.describe_failure()
        counted = ~rows["skipped"] if "skipped" in rows else np.ones(len(rows["round"]), bool)
        if not counted.any():
            sent = np.any(rows["fault"] >= _SENT_SOMETHING, axis=1)
            return "Every round was skipped for what clients sent." if sent.all() else None
        if not np.isfinite(self._lowest):  # the first chunk is measured by the initial model
            self._lowest = float(rows["first_loss"][counted][0])
        loss = float(np.mean(rows["loss"][counted]))
        if loss > self._rules.factor * self._lowest:
            return (
                f"Rounds {rows['round'][0]} to {rows['round'][-1]}: the mean loss {loss:.4g} is more"
                f" than {self._rules.factor:g} times the lowest so far, {self._lowest:.4g}."
            )
        self._lowest = min(self._lowest, loss)
        log.note("step_scale", self.scale)
        return None

    def go_back(self, log: Log, why: str) -> tuple[FederatedState, str | None]:
        """The last good state, and a reason to stop if this was tried often enough."""
        log.forget_newest()
        if self._returns == self._rules.limit:
            return (
                self._kept,
                f"{why} Gone back {self._returns} times; the last good state is kept.",
            )
        self._returns += 1
        self.scale *= self._rules.shrink
        LOGGER.warning(
            "%s Back to round %d, with the step times %g.", why, int(self._kept.round), self.scale
        )
        return self._kept, None


def _check(rollback: Any) -> None:
    if not isinstance(rollback, Rollback):
        raise ValueError(f"rollback must be a Rollback or None, got {rollback!r}.")
    checks.number("rollback.factor", rollback.factor, low=1.0, open_low=True)
    checks.number(
        "rollback.shrink", rollback.shrink, low=0.0, high=1.0, open_low=True, open_high=True
    )
    checks.integer("rollback.limit", rollback.limit, low=1)


def _with_scale(traced: Traced, scale: jax.Array) -> Traced:
    if isinstance(traced.algorithm, Algorithm):
        step = Partial(_damped, traced.algorithm.server_step, scale)
        return traced._replace(algorithm=traced.algorithm._replace(server_step=step))
    rate = traced.learning_rate
    if isinstance(rate, Controller):
        rate = Controller(rate.init, rate.update, Partial(_scaled_value, rate.value, scale))
    elif callable(rate):
        rate = Partial(_scaled_schedule, rate, scale)
    else:
        rate = scale * jnp.asarray(rate, scale.dtype)
    return traced._replace(learning_rate=rate)


def _damped(server_step, scale, server, mean, facts):
    new = server_step(server, mean, facts)
    old, moved = get_variables(server), get_variables(new)
    part = trees.add_scaled(old.params, scale, trees.subtract(moved.params, old.params))
    # A step that is not scaled stays the same to the last bit.
    params = trees.select(scale < 1, part, moved.params)
    return set_variables(new, moved._replace(params=params))


def _scaled_value(value, scale, memory, round_number):
    return scale * jnp.asarray(value(memory, round_number), scale.dtype)


def _scaled_schedule(schedule, scale, round_number):
    return scale * jnp.asarray(schedule(round_number), scale.dtype)
