"""Checkpoints of a run, by orbax: whole or not at all, verified when read, refused if they do not fit.

A checkpoint is a folder named by the number of rounds done:

    state/, history/   arrays, as orbax writes them
    about.json         what run it is of, its hyperparameters and metrics, versions, machine
    manifest.json      the size and the SHA-256 of every other file; written last

Everything that a run needs to go on is there: the server, the clients, what controllers remember, the
key and the round. The position in the data follows from the last two, as cohorts and minibatches do.
"""

import json
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from fedjax_opt.core import checkpoint_files as files
from fedjax_opt.core import checkpoint_trees as trees
from fedjax_opt.core import checks, provenance
from fedjax_opt.core.retention import Retention
from fedjax_opt.core.state import FederatedState

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
      >>> state = fo.init_state(algorithm, {"w": jnp.ones(3)}, num_clients=5)
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
        round_number = int(state.round)
        if round_number in self.rounds or jax.process_index() != 0:
            return
        self._lock = self._lock or files.Lock(self.directory)
        plain = trees.copied(trees.plain(state))
        about = provenance.circumstances() | {
            "round": round_number,
            "versions": provenance.versions(),
            "leaves": trees.describe(state),
            "metrics": metrics or {},
            **(identity or {}),
        }
        task = (round_number, plain, trees.copied(dict(history)), about, tuple(protect))
        if self._writer is None:
            self._write(*task)
        else:
            self._pending = round_number, self._writer.submit(self._write, *task)

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
            self._check(about, state, identity, where)
            return self._arrays.read(folder, state)
        except _OtherRun as error:
            raise ValueError(f"{where} {error}") from None
        except Exception as error:
            raise ValueError(f"{where} cannot be read: {error}. {self._way_on(number)}") from error

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

    def _check(
        self, about: dict[str, Any], state: FederatedState, identity: Any, where: str
    ) -> None:
        here = {"leaves": trees.describe(state), "versions": provenance.versions()}
        never, changed = provenance.differences(about, here | dict(identity or {}))
        if never:
            raise _OtherRun(f"{never}.")
        refused = {part: found for part, found in changed.items() if part not in self._allow}
        if refused:
            told = ". ".join(
                f"Other {part}: {provenance.listed(found)}" for part, found in refused.items()
            )
            raise _OtherRun(
                f"is of a run that differs from this one. {told}. To resume with these changes, use"
                f" Checkpoints(..., allow={tuple(sorted({*self._allow, *refused}))!r})."
            )
        for part, found in changed.items():
            warnings.warn(
                f"{where} is resumed with other {part}: {provenance.listed(found)}.", stacklevel=2
            )

    def _way_on(self, number: int) -> str:
        """How to resume in spite of a damaged checkpoint."""
        for earlier in reversed([n for n in files.numbers(self.directory) if n < number]):
            try:
                files.verify(self.directory, earlier)
            except files.Damaged:
                continue
            between = [n for n in files.numbers(self.directory) if earlier < n <= number]
            folders = " and ".join(str(self.directory / str(n)) for n in between)
            return f"Move {folders} away to resume from round {earlier}, which is whole."
        return "No earlier one is whole: move the directory away to begin anew."

    def _metrics(self) -> dict[int, dict[str, Any]]:
        found = {}
        for number in files.numbers(self.directory):
            try:
                found[number] = files.read_json(self.directory / str(number), _ABOUT)["metrics"]
            except (files.Damaged, KeyError):
                found[number] = {}
        return found

    def _write(
        self, number: int, plain: Any, history: Any, about: dict[str, Any], protected: Any
    ) -> None:
        def fill(folder: pathlib.Path) -> None:
            self._arrays.write(folder, plain, history)
            (folder / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")

        files.write(self.directory, number, fill)
        for old in self._retention.superfluous(self._metrics(), protected):
            files.delete(self.directory, old)

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


class _OtherRun(Exception):
    """A checkpoint that was read well, and is not of this run."""
