"""What a simulated run does about its checkpoints: it resumes, saves, and saves before it must end."""

import signal
import threading
import warnings
from types import FrameType
from typing import Any

from fedjax_opt.core import distributed, provenance
from fedjax_opt.core.checkpoint import Checkpoints
from fedjax_opt.core.log import Log
from fedjax_opt.core.preparation import Fixed, Traced
from fedjax_opt.core.state import FederatedState

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
      traced: the run's traced part.
      fixed: its compiled part.
      state: what it starts from.
      algorithm: the algorithm of its first round.
      recorded: what else decides which columns its history has.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        traced: Traced,
        fixed: Fixed,
        state: FederatedState,
        algorithm: Any,
        **recorded: bool,
    ) -> None:
        self._checkpoints = checkpoints
        self._identity: dict[str, Any] = {}
        if checkpoints is not None:
            self._identity = provenance.of_run(traced, fixed, state, algorithm, **recorded)
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
        return state

    def save(self, state: FederatedState, log: Log, evaluation: dict[str, float]) -> None:
        """Begins to write a checkpoint; the state may be given up when it returns."""
        if self._checkpoints is not None:
            self._checkpoints.save(state, log.saved(), identity=self._identity, metrics=evaluation)

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
                self._checkpoints.wait()
        except Exception as error:
            if kind is None:
                raise
            warnings.warn(f"The last checkpoint was not written: {error}", stacklevel=2)
        finally:
            self._give_back()
