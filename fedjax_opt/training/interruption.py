"""SIGTERM and Ctrl-C while a run with checkpoints goes on: it ends after the chunk, which is saved."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from fedjax_opt.training.history import Result

_STDERR = 2


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGINT ended a run with checkpoints, after the last one was written.

    It is a `KeyboardInterrupt`, so that no `except Exception` takes it for a failure. The same call of
    `simulate` goes on where it was.

    Attributes:
      result: the run so far.
      exit_code: what a program that ends because of this signal returns to its caller, 128 + its number.
    """

    def __init__(self, message: str, result: Result | None, signal_number: int):
        super().__init__(message)
        self.result = result
        self.exit_code = 128 + signal_number


class Signals:
    """Takes SIGTERM and SIGINT in the main thread.

    The first one is only noted, for the run to end after the chunk that is being played. A second one
    does what it did before.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self.taken: str | None = None  # the name of the first one

    def take(self) -> None:
        """Begins to listen."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)

    def give_back(self) -> None:
        """Ends it."""
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python, and cannot be set again from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.taken is None:
            self.taken = signal.Signals(number).name
            # Not by print: the signal may have come in the middle of one.
            os.write(
                _STDERR,
                f"\nfedjax_opt: {self.taken}: the run ends when the rounds that are being played are"
                " saved. A second one ends it now.\n".encode(),
            )
        else:
            self.give_back()
            signal.raise_signal(number)
