"""A run's losses and metrics as a CSV file that grows while it is played."""

import csv
import io
import os
import pathlib
from collections.abc import Iterable

from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable
from fedjax_opt.training.extensions import Chunk, Extension, Memory, RunFacts

_FIRST = ("round", "seconds", "train_loss")


def csv_log(path: str | os.PathLike[str]) -> Extension:
    """Writes a line after each chunk: the round, the seconds, the training loss and all metrics.

    What is later than where a run is resumed, or went back to, is cut off first: no line is there twice.

    Args:
      path: the file. A new run replaces it.

    Returns:
      An extension.

    Example:
      >>> import pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=2, batch_size=1)
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.csv"
      >>> result = fo.simulate(
      ...     fo.fedavg(fo.optimizers.sgd(0.1)), federation, 20, evaluate_every=10,
      ...     extensions=[fo.csv_log(path)], progress=False,
      ... )
      >>> [line.split(",")[0] for line in path.read_text().splitlines()]
      ['round', '10', '20']
    """
    return _Csv(pathlib.Path(path))


class _Csv(Extension):
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return f"csv_log({self.path})"

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        header = _line([*_FIRST, *run.names])
        if run.is_first:
            kept = ""
            if run.round and self.path.exists():
                lines = durable.read(self.path).decode().splitlines(keepends=True)
                if lines[:1] != [header]:
                    raise ValueError(
                        f"{self.path} must hold the columns {header.strip()} of this run, to be gone on"
                        f" with, but its first line is {''.join(lines[:1]).strip()!r}."
                    )
                whole = [line for line in lines[1:] if line.endswith("\n")]
                kept = "".join(x for x in whole if int(x.split(",")[0]) <= run.round)
            with durable.named(self.path.parent, "cannot be made"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            durable.replace(self.path, f"{header}{kept}".encode())
        return {"names": list(run.names)}

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, None]:
        if distributed.is_first() and chunk.finite:
            metrics = [float(chunk.metrics[name]) for name in memory["names"]]
            values = chunk.last, round(chunk.seconds, 3), float(chunk.infos.loss[-1]), *metrics
            with durable.named(self.path, "cannot be written"), open(self.path, "ab") as file:
                file.write(_line(values).encode())
        return memory, None


def _line(values: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
