"""A progress bar over rounds."""

from typing import Any

from tqdm.auto import tqdm

from fedjax_opt.training.extensions import Chunk, Extension, Memory, RunFacts


def round_bar(**settings: Any) -> tqdm:
    """A bar of tqdm whose rate is that of the last rounds: the first ones wait for the compiler."""
    return tqdm(unit="round", smoothing=1, miniters=1, **settings)


class Progress(Extension):
    """Shows a bar with a title in the first process, where the output is a terminal."""

    def __init__(self, title: str = "training") -> None:
        self._title = title
        self._bar: tqdm | None = None

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        """Opens the bar, or puts it back."""
        del memory
        if self._bar is None:
            disable = None if run.is_first else True  # None: where it is no terminal
            self._bar = round_bar(
                total=run.rounds, initial=run.round, desc=self._title, disable=disable
            )
        self._bar.update(run.round - self._bar.n)
        return ()

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, None]:
        """Counts the rounds, with the loss and the accuracy of the last one."""
        assert self._bar is not None
        shown = {"loss": f"{chunk.infos.loss[-1]:.4f}"}
        for name in {"accuracy", "mean_client_accuracy"} & chunk.metrics.keys():
            shown[name.removeprefix("mean_")] = f"{chunk.metrics[name]:.4f}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(chunk.last - self._bar.n)
        return memory, None

    def end(self, memory: Memory, status: str) -> None:
        """Closes the bar."""
        del memory, status
        if self._bar is not None:
            self._bar.close()
            self._bar = None
