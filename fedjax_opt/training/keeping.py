"""What a simulated run does about its checkpoints: it resumes, saves, and saves before it must end."""

import signal
import threading
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.execution import distributed
from fedjax_opt.execution.strategies import Strategy, place
from fedjax_opt.training import fingerprint
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.good_states import Record
from fedjax_opt.training.log import Log

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGINT ended a run with checkpoints, after the last one was written.

    It is a `KeyboardInterrupt`, so that no `except Exception` takes it for a failure. The same call of
    `simulate` goes on where it was.

    Attributes:
      result: the run so far.
      exit_code: what a program that ends because of this signal returns to its caller, 128 + its number.

    Example:
      >>> import fedjax_opt as fo
      >>> error = fo.Interrupted("SIGTERM after round 10", result=None, signal_number=15)
      >>> error.exit_code
      143
    """

    def __init__(self, message: str, result: Any, signal_number: int):
        super().__init__(message)
        self.result = result
        self.exit_code = 128 + signal_number


class Keeper:
    """The checkpoints of one run, if it has any, while the run goes on.

    In the main thread it takes SIGTERM and SIGINT: the first one asks the run to stop after the chunk
    that is being played, a second one does what it did before.

    Args:
      checkpoints: where to save; None for nowhere.
      prepared: what its program is called with.
      state: what it starts from.
      algorithm: the algorithm of its first round.
      rollback: the rules by which it may go back, if any.
      recorded: what else decides which columns its history has.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        prepared: Prepared,
        state: FederatedState,
        algorithm: Any,
        rollback: Any = None,
        **recorded: bool,
    ) -> None:
        self._checkpoints = checkpoints
        self._identity: dict[str, Any] = {}
        self.remembered: dict[str, Any] = {}  # by a run that may go back, in its checkpoint
        if checkpoints is not None:
            self._identity = fingerprint.of_run(prepared, state, algorithm, rollback, **recorded)
        self._previous: dict[int, Any] = {}
        self.signal: signal.Signals | None = None
        self._ended_by: str | None = None

    def resume(self, state: FederatedState, log: Log) -> FederatedState:
        """The newest checkpoint's state, its history put into the log; or the state as it is."""
        if self._checkpoints is None:
            return state
        # The first process writes them, and is the one to know which are whole by now.
        newest = distributed.from_first(self._checkpoints.latest_round)
        if newest is None:
            return state
        state, history = self._checkpoints.restore(state, identity=self._identity, round=newest)
        log.resume(history)
        self.remembered = history.get("rollback", {})
        return state

    def save(
        self, state: FederatedState, log: Log, evaluation: Any, record: Record | None = None
    ) -> None:
        """Begins to write a checkpoint; the state may be given up when it returns.

        Args:
          state: the state.
          log: what the run wrote down.
          evaluation: its newest evaluation; None for a state that was not evaluated.
          record: what a run that may go back remembers; the checkpoints that it may need stay.
        """
        if self._checkpoints is None:
            return
        history, protect = log.saved(), ()
        if record is not None:
            history, protect = history | {"rollback": record.saved()}, record.good
        self._checkpoints.save(
            state, history, identity=self._identity, metrics=evaluation, protect=protect
        )

    def go_back(self, like: FederatedState, number: int) -> FederatedState:
        """The state of an earlier checkpoint, after which there are no others any more."""
        assert self._checkpoints is not None
        self._checkpoints.wait()
        number = distributed.from_first(number)  # which is when the first process has written it
        state, _ = self._checkpoints.restore(like, identity=self._identity, round=number)
        self._checkpoints.delete_after(number)
        return state

    def ending(self) -> str | None:
        """The name of the signal that ends the run, if any; of many processes the first decides."""
        if self._checkpoints is not None:
            own = None if self.signal is None else self.signal.name
            self._ended_by = distributed.from_first(own)
        return self._ended_by

    def interrupt(self, result: Any) -> None:
        """Raises `Interrupted` if a signal ended the run."""
        if self._ended_by is not None and self._checkpoints is not None:
            raise Interrupted(
                f"{result.stopped}. The checkpoint is in {self._checkpoints.directory}; the same call"
                " goes on from there.",
                result,
                signal.Signals[self._ended_by],
            )

    def __enter__(self) -> "Keeper":
        if self._checkpoints is not None and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._take)
        return self

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is None:
            self.signal = signal.Signals(number)
            return
        self._give_back()
        signal.raise_signal(number)

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python, and cannot be set again from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._checkpoints is not None:
                self._checkpoints.close()  # another run of this process may want the directory
        except Exception as error:
            if kind is None:
                raise
            warnings.warn(f"The last checkpoint was not written: {error}", stacklevel=2)
        finally:
            self._give_back()


class OnDisk:
    """The good states of a run that may go back, in the checkpoints that it writes anyway.

    Args:
      keeper: the run's checkpoints.
      like: a state of the run.
      strategy: where its arrays go.
    """

    def __init__(self, keeper: Keeper, like: FederatedState, strategy: Strategy) -> None:
        self._keeper, self._like, self._strategy = keeper, like, strategy

    def keep(self, state: FederatedState, rounds: Iterable[int]) -> None:
        """They are protected when the next checkpoint is written."""

    def take(self, number: int) -> FederatedState:
        """The state of a round, to be given up to the program; later checkpoints are deleted."""
        state = self._keeper.go_back(self._like, number)
        return place(jax.tree.map(jnp.copy, state), self._strategy)
