"""A progress bar over rounds."""

import time
from typing import Any

from tqdm.auto import tqdm

from fedjax_opt.training.extensions import Chunk, Extension, Memory, RunFacts

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class RoundBar(tqdm):
    """A bar of tqdm whose rate leaves the first update out: that one waited for the compiler.

    Args:
      seconds: how long the rounds have taken that were done before.
      **settings: tqdm's own.

    Example:
      >>> from fedjax_opt.training.progress import RoundBar
      >>> with RoundBar(total=30, disable=True) as bar:
      ...     bar.update(10)
    """

    def __init__(self, *, seconds: float = 0.0, **settings: Any) -> None:
        self._began = time.perf_counter() - seconds
        self._from: tuple[float, float] | None = (
            None  # the clock and the rounds at the first update
        )
        super().__init__(unit="round", bar_format=_FORMAT, miniters=1, **settings)

    def update(self, n: float | None = 1) -> bool | None:
        """Counts rounds that were just done.

        Args:
          n: how many.
        """
        if self._from is None:
            self._from = time.perf_counter(), self.n + (n or 0)
        return super().update(n)

    @property
    def format_dict(self) -> dict[str, Any]:
        """What is shown."""
        now, (clock, rounds) = time.perf_counter(), self._from or (0.0, self.n)
        rate = (self.n - rounds) / (now - clock) if self.n > rounds else None
        # tqdm would take a rate over all of the time for one that it is not given.
        return {
            **super().format_dict,
            "elapsed": now - self._began,
            "rate": rate,
            "initial": self.n,
        }


class Progress(Extension):
    """Shows a bar in the first process, where the output is a terminal.

    Args:
      title: what stands before it.
    """

    def __init__(self, title: str = "training") -> None:
        self._title = title
        self._bar: RoundBar | None = None

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        """Opens the bar, or puts it back."""
        del memory
        if self._bar is None:
            self._bar = RoundBar(
                total=run.rounds, initial=run.round, seconds=run.seconds, desc=self._title,
                disable=None if run.is_first else True,
            )  # fmt: skip
        else:
            self._bar.update(run.round - self._bar.n)
        return ()

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, None]:
        """Counts the rounds, with the loss and the accuracy of the last one."""
        assert self._bar is not None
        shown = {"loss": chunk.infos.loss[-1]} | {
            name.removeprefix("mean_"): value
            for name, value in chunk.metrics.items()
            if name in ("accuracy", "mean_client_accuracy")
        }
        self._bar.set_postfix(
            {name: f"{value:.4f}" for name, value in shown.items()}, refresh=False
        )
        self._bar.update(chunk.last - self._bar.n)
        return memory, None

    def end(self, memory: Memory, status: str) -> None:
        """Closes the bar."""
        del memory, status
        if self._bar is not None:
            self._bar.close()
            self._bar = None
