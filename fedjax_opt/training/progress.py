"""A progress bar over rounds whose estimate knows of compilation.

The first rounds of a program come with its compilation, which can take longer than hundreds of rounds. A
rate that counts it promises hours for a run of seconds. JAX says how long it compiles, so that the rate
can be that of the rounds alone.
"""

import functools
import time
from typing import Any

import jax
from tqdm.auto import tqdm

_COMPILING = "/jax/core/compile/"
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{left}, {rate_fmt}{postfix}]"
_MEMORY = 0.8  # what remains of the weight of an update at the next: rounds may grow longer
# When JAX has compiled so far: spans of time, one after the other.
_spans: list[tuple[float, float]] = []


class RoundBar(tqdm):
    """A progress bar over rounds; used as tqdm's.

    Args:
      programs: how many programs `begin_program` will be told of; 0 if that is never called.
      **settings: tqdm's own.

    Example:
      >>> from fedjax_opt.training.progress import RoundBar
      >>> with RoundBar(total=30, disable=True) as bar:
      ...     bar.update(10)
    """

    def __init__(self, *, programs: int = 0, **settings: Any) -> None:
        _listen()
        self._ahead, self._begun = programs, 0
        self._seconds = self._rounds = self._left_out = 0.0
        self._last = time.perf_counter(), compiling_seconds()
        super().__init__(unit="round", bar_format=_FORMAT, miniters=1, **settings)

    def begin_program(self) -> None:
        """Notes that one of the programs comes next."""
        self._ahead, self._begun = max(self._ahead - 1, 0), self._begun + 1

    def update(self, n: float | None = 1) -> bool | None:
        """Counts rounds that were just done.

        Args:
          n: how many.
        """
        now = time.perf_counter(), compiling_seconds()
        compiled = now[1] - self._last[1]
        self._left_out += compiled
        self._seconds = _MEMORY * self._seconds + max(now[0] - self._last[0] - compiled, 0.0)
        self._rounds = _MEMORY * self._rounds + (n or 0)
        self._last = now
        return super().update(n)

    @property
    def rate(self) -> float:
        """Rounds per second, without compilation; 0 where it is not known yet."""
        return self._rounds / self._seconds if self._seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until all rounds are done, with the compilation that is still to come; None if not known."""
        if not self.rate or self.total is None:
            return None
        each = self._left_out / max(self._begun, 1)
        return max(self.total - self.n, 0) / self.rate + self._ahead * each

    @property
    def format_dict(self) -> dict[str, Any]:
        """What is shown."""
        left = self.seconds_left
        shown = "?" if left is None else self.format_interval(left)
        return {**super().format_dict, "rate": self.rate, "left": shown}


def compiling_seconds() -> float:
    """How long JAX has traced and compiled since the first bar."""
    return sum(end - start for start, end in _spans)


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, duration_secs: float, **_: Any) -> None:
    if not event.startswith(_COMPILING):
        return
    end = time.perf_counter()
    # What is traced may hold what was traced on the way: no second counts twice.
    while _spans and _spans[-1][0] >= end - duration_secs:
        _spans.pop()
    _spans.append((end - duration_secs, end))
