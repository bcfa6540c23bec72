"""When a run diverges: back to the last good state, and on with a smaller step.

    diverged    the mean loss of a chunk of rounds is not finite, or above `factor` times the lowest
                so far; or a guard skipped every round of it for what clients sent
    good        a state that a chunk led to whose mean loss was at most sqrt(factor) times the lowest,
                and from which the next chunk did not begin with a loss above `factor` times the lowest
    go back     to the newest good state: a checkpoint, or a copy; what came after it is forgotten
    step        eta shrink^n after n such returns, for an algorithm that is a function of eta;
                else the change of the global parameters in each round, times shrink^n

The scale is an argument of the compiled program: going back compiles nothing.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Scheduled, get_variables, set_variables
from fedjax_opt.core.controller import Controller
from fedjax_opt.core.guard import Fault
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.execution.strategies import place
from fedjax_opt.training.fault_log import LOGGER
from fedjax_opt.training.good_states import Copies, Record, losses
from fedjax_opt.training.keeping import OnDisk
from fedjax_opt.training.log import Log

# Codes below it say that a client did not answer, which a smaller step does not change.
_SENT_SOMETHING = Fault.LOSS_NOT_FINITE


class Rollback(NamedTuple):
    """What counts as divergence in a simulated run, and what is done about it.

    It is checked after each chunk of `evaluate_every` rounds. The last good state is a checkpoint where
    the run has `checkpoints`, else a copy: one of the newest state, and one of the good state before it.

    Attributes:
      factor: a chunk's mean loss above so many times the lowest so far is divergence, more than 1.
      shrink: what the step is multiplied by each time, in (0, 1).
      limit: how often, at most; then the run stops with the last good state.

    Example:
      A learning rate that is far too large, and is halved until it is not:

      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=2, batch_size=1)
      >>> result = fo.simulate(
      ...     fo.scheduled(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 50.0), federation, 40,
      ...     evaluate_every=5, rollback=fo.Rollback(limit=10), progress=False,
      ... )
      >>> len(result.history["loss"]), bool(result.history["step_scale"][-1] < 1)
      (40, True)
    """

    factor: float = 10.0
    shrink: float = 0.5
    limit: int = 5


class Fallback:
    """What a run that may go back does after each chunk of rounds.

    Args:
      rollback: the rules.
      prepared: the run, with the step as it was asked for.
      states: what keeps the good states.
      reach: how many chunks of rounds the clients' states can be taken back.
    """

    def __init__(
        self,
        rollback: Rollback,
        prepared: Prepared,
        states: Copies | OnDisk,
        reach: float,
    ) -> None:
        self._rules, self._prepared = rollback, prepared
        self._states, self._reach = states, reach
        self.record = Record(good=(0,))

    def begin(self, state: FederatedState, saved: Mapping[str, Any]) -> None:
        """Takes up what an interrupted run remembered; a new one may go back to where it begins."""
        self.record = Record.restored(saved) if saved else Record(good=(int(state.round),))
        self._states.keep(state, self.record.good)

    def prepared(self) -> Prepared:
        """The run with the step as it is now."""
        scale = jnp.asarray(self.record.scale, jnp.result_type(float))
        return _with_scale(self._prepared, place(scale, self._prepared.strategy))

    def judge(self, log: Log, state: FederatedState, done: int) -> str | None:
        """Why the newest chunk is divergence; None if it is not, and then it may be kept as good.

        Args:
          log: what the run wrote down.
          state: the state after the chunk.
          done: the rounds done before it.
        """
        found, factor = losses(log), self._rules.factor
        record = self.record.begun(found).tried(done, found, factor)
        self.record = record
        if not log.finite:
            return log.describe_failure()
        rows = log.newest()
        if np.isnan(found.mean) and np.any(rows["fault"] >= _SENT_SOMETHING, axis=1).all():
            return "Every round was skipped for what clients sent."
        if found.mean > factor * record.lowest:
            return (
                f"Rounds {rows['round'][0]} to {rows['round'][-1]}: the mean loss {found.mean:.4g}"
                f" is more than {factor:g} times the lowest so far, {record.lowest:.4g}."
            )
        self.record = record.advanced(int(state.round), found, factor**0.5, self._reach)
        self._states.keep(state, self.record.good)
        log.note("step_scale", record.scale)
        return None

    def go_back(self, log: Log, why: str) -> tuple[FederatedState, str | None]:
        """The last good state, and a reason to stop if this was tried often enough."""
        back = self.record.good[-1]
        log.go_back(back)
        state = self._states.take(back)
        if self.record.returns == self._rules.limit:
            count = self.record.returns
            return state, f"{why} Gone back {count} times; the last good state is kept."
        self.record = self.record.returned(self._rules.shrink)
        LOGGER.warning("%s Back to round %d, with the step times %g.", why, back, self.record.scale)
        return state, None


def check_rollback(rollback: Any) -> None:
    """Refuses rules that make no sense."""
    if rollback is None:
        return
    if not isinstance(rollback, Rollback):
        raise ValueError(f"rollback must be a Rollback or None, got {rollback!r}.")
    checks.number("rollback.factor", rollback.factor, low=1.0, open_low=True)
    checks.number(
        "rollback.shrink", rollback.shrink, low=0.0, high=1.0, open_low=True, open_high=True
    )
    checks.integer("rollback.limit", rollback.limit, low=1)


def _with_scale(prepared: Prepared, scale: jax.Array) -> Prepared:
    algorithm = prepared.algorithm
    if not isinstance(algorithm, Scheduled):
        step = Partial(_damped, algorithm.server_step, scale)
        return prepared.replace(algorithm=algorithm._replace(server_step=step))
    rate = algorithm.setting
    if isinstance(rate, Controller):
        rate = rate._replace(value=Partial(_scaled_value, rate.value, scale))
    elif callable(rate):
        rate = Partial(_scaled_schedule, rate, scale)
    else:
        rate = scale * jnp.asarray(rate, scale.dtype)
    return prepared.replace(algorithm=algorithm._replace(setting=rate))


def _damped(server_step, scale, server, mean, situation):
    new = server_step(server, mean, situation)
    old, moved = get_variables(server), get_variables(new)
    part = trees.add_scaled(old.params, scale, trees.subtract(moved.params, old.params))
    # A step that is not scaled stays the same to the last bit.
    params = trees.select(scale < 1, part, moved.params)
    return set_variables(new, moved._replace(params=params))


def _scaled_value(value, scale, memory, round_number):
    return scale * jnp.asarray(value(memory, round_number), scale.dtype)


def _scaled_schedule(schedule, scale, round_number):
    return scale * jnp.asarray(schedule(round_number), scale.dtype)
