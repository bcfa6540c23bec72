"""Checkpoints of a run, by orbax: whole or not at all, verified when read, refused if they do not fit.

A checkpoint is a folder named by the number of rounds done:

    state/, history/   arrays, as orbax writes them
    pieces-00001/ ...  of arrays that are divided over processes, what process 1 has of them
    about.json         what run it is of, its hyperparameters and metrics, versions, machine
    manifest.json      the size and the SHA-256 of every other file; written last

Everything that a run needs to go on is there: the server, the clients, what controllers remember, the
key and the round. The position in the data follows from the last two, as cohorts and minibatches do.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from fedjax_opt.core import checks
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.training import checkpoint_files as files
from fedjax_opt.training import checkpoint_pieces as pieces
from fedjax_opt.training import checkpoint_trees as trees
from fedjax_opt.training import provenance
from fedjax_opt.training.retention import Retention

_ABOUT = "about.json"


class Checkpoints:
    """A directory of checkpoints of one run.

    They are written in the background, from a copy of the state: a run is held up only while the state
    is copied to the host, or if the last checkpoint is still being written when the next one is due.

    Args:
      directory: where they are kept; made if missing.
      keep: how many of the newest stay.
      keep_every: those whose round is a multiple of it stay as well, however old; None for none.
      best_metric: the name of an evaluated metric: the checkpoint that is best by it stays as well.
      maximise: whether larger is better in that metric.
      allow: what a run may differ in from the checkpoint that it resumes from: any of
        'hyperparameters' (all numbers of the run), 'code' (what functions of the same names do), 'data'
        and 'versions'. What differs is then told in a warning, and otherwise refused. Another model,
        algorithm, population or seed is always refused.
      asynchronous: whether to write in the background.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> state = fo.first_state(algorithm, {"w": jnp.ones(3)}, num_clients=5)
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     with fo.Checkpoints(directory, keep=2, keep_every=100) as checkpoints:
      ...         checkpoints.save(state, history={})
      ...         restored, history = checkpoints.restore(state)
      >>> int(restored.round)
      0
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        keep: int = 3,
        *,
        keep_every: int | None = None,
        best_metric: str | None = None,
        maximise: bool = False,
        allow: Sequence[str] = (),
        asynchronous: bool = True,
    ):
        self.keep = keep
        self._retention = Retention(keep, keep_every, best_metric, maximise)
        for name in (allow,) if isinstance(allow, str) else allow:
            checks.choice("allow", name, provenance.CHANGES)
        self._allow = (allow,) if isinstance(allow, str) else tuple(allow)
        self._arrays = trees.Arrays()
        self.directory = pathlib.Path(directory).absolute()
        self._lock: files.Lock | None = None
        self._writer = ThreadPoolExecutor(1, "fedjax_opt checkpoints") if asynchronous else None
        self._pending: tuple[int, Future] | None = None

    @property
    def rounds(self) -> list[int]:
        """The rounds of which there are checkpoints, in order."""
        self.wait()
        return files.numbers(self.directory)

    @property
    def latest_round(self) -> int | None:
        """The number of rounds done in the newest checkpoint; None if there is none."""
        return max(self.rounds, default=None)

    @property
    def best_round(self) -> int | None:
        """The round of the checkpoint that is best by `best_metric`; None if there is none."""
        return self._retention.best(self._metrics())

    def save(
        self,
        state: FederatedState,
        history: Mapping[str, Any],
        *,
        identity: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        protect: Iterable[int] = (),
    ) -> None:
        """Writes a checkpoint for the state's round, unless it is there already.

        The state is copied before it returns; its buffers may be given up at once.

        Args:
          state: the state.
          history: what else is to be kept, a mapping of names to arrays or further mappings.
          identity: what makes this run the one that it is, texts by path by part; `simulate` describes
            its own. A run that is resumed with another one is refused.
          metrics: the newest evaluation, scalars by name, among them the `best_metric`; None for a
            state that was not evaluated, which then is never the best.
          protect: rounds whose checkpoints stay as well when this one is written.

        Raises:
          OSError: if this checkpoint, or the one before, could not be written.
        """
        if metrics is not None:
            metrics = {name: float(x) for name, x in metrics.items()}
            self._retention.check(metrics)
        round_number, flat = int(state.round), trees.plain(state)
        divided = any(map(pieces.is_divided, flat.values()))
        first = jax.process_index() == 0
        due = first and self._begin(round_number, divided)
        if divided:  # each process writes its own pieces, once there is a place for them
            self.wait()
            due = distributed.from_first(due)
        if not due:
            return
        whole, own = pieces.parted(flat)
        if not first:
            self._start(round_number, self._contribute, round_number, own)
            return
        about = provenance.circumstances() | {
            "round": round_number,
            "versions": provenance.versions(),
            "leaves": trees.describe(state),
            "metrics": metrics or {},
            **(identity or {}),
        }
        arrays = trees.copied(whole), own, trees.copied(dict(history))
        task = (round_number, arrays, about, divided, tuple(protect))
        self._start(round_number, self._write, *task)

    def _begin(self, number: int, divided: bool) -> bool:
        """Whether the first process is to write a checkpoint; it then has the directory for itself."""
        if number in self.rounds:
            return False
        self._lock = self._lock or files.Lock(self.directory)
        if divided:
            files.begin(self.directory, number)
        return True

    def _start(self, number: int, write: Callable[..., None], *arguments: Any) -> None:
        """Writes now, or in the background."""
        if self._writer is None:
            write(*arguments)
        else:
            self._pending = number, self._writer.submit(write, *arguments)

    def wait(self) -> None:
        """Returns when nothing is being written any more; raises what went wrong with it."""
        if self._pending is None:
            return
        (round_number, written), self._pending = self._pending, None
        try:
            written.result()
        except BaseException as error:
            error.add_note(f"Writing the checkpoint of round {round_number} failed; see above.")
            raise

    def restore(
        self,
        state: FederatedState,
        *,
        identity: Mapping[str, Any] | None = None,
        round: int | None = None,
    ) -> tuple[FederatedState, dict[str, Any]]:
        """A checkpoint's state and history, after all of its checksums have been verified.

        Args:
          state: a state of the run that is to be continued; it says what must be in the checkpoint, and
            on which devices the restored state is put.
          identity: what makes this run the one that it is, as for `save`; None is not compared.
          round: which checkpoint; the newest by default.

        Returns:
          The state and the history.

        Raises:
          ValueError: if there is no checkpoint, if it is damaged, or if it is of another run; the
            message says what differs.
        """
        rounds = self.rounds
        number = max(rounds, default=None) if round is None else round
        if number is None or number not in rounds:
            which = "no checkpoint" if round is None else f"no checkpoint of round {round}"
            raise ValueError(f"{self.directory} holds {which} to restore; it has {rounds}.")
        where = f"The checkpoint of round {number} in {self.directory}"
        try:
            folder = files.verify(self.directory, number)
            about = files.read_json(folder, _ABOUT)
            if about.get("round") != number:
                raise files.Damaged(f"it was written as that of round {about.get('round')!r}")
            here = {"leaves": trees.describe(state), "versions": provenance.versions()}
            provenance.check_same_run(about, here | dict(identity or {}), self._allow, where)
            return self._arrays.read(folder, state)
        except provenance.OtherRun as error:
            raise ValueError(f"{where} {error}") from None
        except Exception as error:
            raise ValueError(
                f"{where} cannot be read: {error}. {files.way_on(self.directory, number)}"
            ) from error

    def delete_after(self, round_number: int) -> None:
        """Deletes the checkpoints of later rounds, the newest first: the run went another way.

        Args:
          round_number: the round of the newest one that stays.
        """
        later = [number for number in self.rounds if number > round_number]
        if later and jax.process_index() == 0:
            self._lock = self._lock or files.Lock(self.directory)
            for number in reversed(later):
                files.delete(self.directory, number)
            files.sync_folder(self.directory)

    def _metrics(self) -> dict[int, dict[str, Any]]:
        found = {}
        for number in files.numbers(self.directory):
            try:
                found[number] = files.read_json(self.directory / str(number), _ABOUT)["metrics"]
            except (files.Damaged, KeyError):
                found[number] = {}
        return found

    def _write(
        self,
        number: int,
        arrays: tuple[Any, Any, Any],
        about: dict[str, Any],
        divided: bool,
        protected: tuple[int, ...],
    ) -> None:
        whole, own, history = arrays

        def fill(folder: pathlib.Path) -> None:
            self._arrays.write(folder, whole, history)
            if own:
                pieces.write(folder, own)
            (folder / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")

        others = tuple(range(1, jax.process_count())) if divided else ()
        files.write(self.directory, number, fill, others)
        for old in self._retention.superfluous(self._metrics(), protected):
            files.delete(self.directory, old)

    def _contribute(self, number: int, own: list[dict[str, Any]]) -> None:
        def fill(folder: pathlib.Path) -> str:
            return pieces.write(folder, own)

        files.contribute(self.directory, number, jax.process_index(), fill)

    def close(self) -> None:
        """Waits for writes that are under way, and lets go of the directory."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
