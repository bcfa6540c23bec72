"""Checkpoints of a run, by orbax: whole or not at all, verified when read, refused if they do not fit.

    20/state/                the whole state, as orbax writes it
    20/about.json            what run it is of, what else it remembers, the SHA-256 of every other file
    history/00020.npz        the rounds and evaluations since the checkpoint before; also in about.json
    went_back.json           what a run that went back to a checkpoint remembers there instead

A checkpoint is filled under a name that nobody reads, forced to the disk, sealed with about.json, and
only then renamed to the number of rounds done. Folders are deleted the other way round. A kill at any
moment leaves a checkpoint that is whole, or one that is ignored.

It is orbax's AsyncCheckpointer that writes, not the CheckpointManager around it. That one deletes old
checkpoints before the new one is sealed: with one to keep, 8 of 20 kills left none that was whole, and
here 0 of 20. Nor could one that lost its seal be told from one that had none yet.
"""

import base64
import contextlib
import functools
import hashlib
import io
import json
import math
import pathlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable
from fedjax_opt.training import fingerprint
from fedjax_opt.training.extensions import Memory

_FORMAT, _VERSION = "fedjax_opt checkpoint", 5
_ABOUT, _STATE, _HISTORY, _LOCK = "about.json", "state", "history", ".lock"
_WENT_BACK = "went_back.json"
_PARTIAL = ".partial-"  # begins the name of a folder that is being written or deleted
# What grows by rows, of which a checkpoint writes the new ones.
_GROWING = ("rounds", "evaluations")
_ARRAY = "__array__"  # marks an array in what is otherwise JSON


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
        'hyperparameters' (all numbers of the run), 'program' (what functions of the same names compute),
        'data' and 'versions'. What differs is then told in a warning, and otherwise refused. Another
        model, algorithm, population or seed is always refused.
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
        self.keep = checks.integer("keep", keep, low=1)
        if keep_every is not None:
            checks.integer("keep_every", keep_every, low=1)
        self._keep_every, self._best_metric, self._maximise = keep_every, best_metric, maximise
        self._allow = (allow,) if isinstance(allow, str) else tuple(allow)
        for name in self._allow:
            checks.choice("allow", name, fingerprint.CHANGES)
        self._orbax = _import_orbax()
        self.directory = pathlib.Path(directory).absolute()
        self._worker = ThreadPoolExecutor(1, "fedjax_opt checkpoints")
        self._asynchronous = asynchronous
        self._pending: tuple[int, Future] | None = None
        self._lock: durable.Lock | None = None
        self._written: list[dict[str, Memory]] = []  # the files of the history up to here

    @property
    def rounds(self) -> list[int]:
        """The rounds of which there are checkpoints, in order."""
        self.wait()
        return _numbers(self.directory)

    @property
    def latest_round(self) -> int | None:
        """The number of rounds done in the newest checkpoint; None if there is none."""
        return max(self.rounds, default=None)

    @property
    def best_round(self) -> int | None:
        """The round of the checkpoint that is best by `best_metric`, the earliest of equal ones."""
        self.wait()
        return self._best()

    def check_metrics(self, names: Collection[str]) -> None:
        """Refuses a `best_metric` that nobody measures; `save` does it too, when rounds were played.

        Args:
          names: of the scalars that `save` will be given.
        """
        if self._best_metric is not None and self._best_metric not in names:
            raise ValueError(
                f"best_metric must be one of the evaluated {sorted(names)}, got"
                f" {self._best_metric!r}."
            )

    def save(
        self,
        state: FederatedState,
        history: Mapping[str, Memory],
        *,
        identity: fingerprint.Texts | None = None,
        metrics: Mapping[str, float] | None = None,
        protect: Iterable[int] = (),
    ) -> None:
        """Begins to write a checkpoint for the state's round, which must be later than all others.

        The state is copied before it returns; its buffers may be given up at once. If there are several
        processes, all of them call it.

        Args:
          state: the state.
          history: what else is to be kept: mappings, lists, numbers, texts, None and arrays. The arrays
            in 'rounds' and in 'evaluations' grow: of these, only the rows since the last checkpoint are
            written.
          identity: what makes this run the one that it is, texts by path by part; `simulate` describes
            its own. A run that is resumed with another one is refused.
          metrics: the newest evaluation, scalars by name, among them the `best_metric`; None for a
            state that was not evaluated, which then is never the best.
          protect: rounds whose checkpoints stay as well when this one is written.

        Raises:
          OSError: if this checkpoint, or the one before, could not be written.
          ValueError: if there is a checkpoint of this round or of a later one.
        """
        number = int(state.round)
        if metrics is not None:
            self.check_metrics(metrics)
        newest = distributed.from_first(self.latest_round)
        if newest is not None and number <= newest:
            raise ValueError(
                f"{self.directory} holds a checkpoint of round {newest}, so one of round {number}"
                " cannot be the newest. Choose another directory, or call delete_after with the round"
                " from which the run goes on."
            )
        rows, counts = self._new_rows(history)
        about = fingerprint.circumstances() | {
            "format": _FORMAT,
            "version": _VERSION,
            "round": number,
            "leaves": _describe(state),
            "metrics": {name: float(x) for name, x in (metrics or {}).items()},
            "memory": as_text({k: {} if k in _GROWING else x for k, x in history.items()}),
            **(identity or {}),
        }
        folder = self.directory / f"{_PARTIAL}{number}"
        if distributed.is_first():
            self._hold()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        flat = {name: _copied(leaf) for name, leaf in _flat(state).items() if leaf.size}
        self._writer.save(folder / _STATE, args=self._orbax.args.StandardSave(flat))
        task = self._finish, folder, about, rows, counts, tuple(protect)
        self._pending = number, self._worker.submit(*task)
        if not self._asynchronous:
            self.wait()

    @functools.cached_property
    def _writer(self) -> Any:
        return self._orbax.AsyncCheckpointer(self._orbax.StandardCheckpointHandler())

    def _hold(self) -> None:
        """Keeps other runs out of the directory, and clears away what a kill has left in it."""
        if self._lock is None:
            self._lock = durable.Lock(self.directory / _LOCK)
            for folder in self.directory.glob(f"{_PARTIAL}*"):
                shutil.rmtree(folder, ignore_errors=True)
            self._forget_after(max(_numbers(self.directory), default=-1), {})

    def _new_rows(
        self, history: Mapping[str, Memory]
    ) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Copies of the rows that no file has yet, and their number by section."""
        rows, counts = {}, {}
        for section in _GROWING:
            old = sum(file["rows"][section] for file in self._written)
            columns = history.get(section, {})
            lengths = [len(column) for column in columns.values()]
            if lengths and (min(lengths) < old or min(lengths) < max(lengths)):
                raise ValueError(
                    f"history must hold all rows of {section!r}, as many in each column and at least"
                    f" the {old} that are saved already, got {lengths}."
                )
            counts[section] = max(lengths, default=old) - old
            rows |= {f"{section}/{name}": np.array(x[old:]) for name, x in columns.items()}
        return rows, counts

    def _finish(
        self,
        partial: pathlib.Path,
        about: dict[str, Memory],
        rows: dict[str, np.ndarray],
        counts: dict[str, int],
        protect: tuple[int, ...],
    ) -> None:
        """Seals a checkpoint when all processes have written their part of it."""
        try:
            self._writer.wait_until_finished()
            if not distributed.is_first():
                return
            written = [*self._written]
            if any(counts.values()):
                path = self._rows_file(about["round"])
                path.parent.mkdir(exist_ok=True)
                np.savez(content := io.BytesIO(), **rows)  # type: ignore[arg-type]
                durable.replace(path, content.getvalue())
                checksum = hashlib.sha256(content.getvalue()).hexdigest()
                written.append({"round": about["round"], "rows": counts, "sha256": checksum})
            about |= {_HISTORY: written, "sealed": durable.seal(partial)}
            durable.write_json(partial / _ABOUT, about)
            partial.rename(self.directory / str(about["round"]))
            durable.force_names(self.directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._written = written
        numbers = _numbers(self.directory)
        stay = {*numbers[-self.keep :], *protect, self._best()}
        every = self._keep_every
        for old in numbers:
            if old not in stay and (every is None or old % every):
                _delete(self.directory, old)

    def _best(self) -> int | None:
        if self._best_metric is None:
            return None
        sign, found = -1 if self._maximise else 1, []
        for number in _numbers(self.directory):
            with contextlib.suppress(ValueError, KeyError):  # what cannot be read is not the best
                about = durable.read_json(self.directory / str(number) / _ABOUT)
                value = sign * float(about["metrics"][self._best_metric])
                found += [] if math.isnan(value) else [(value, number)]
        return min(found, default=(0.0, None))[1]

    def wait(self) -> None:
        """Returns when nothing is being written any more; raises what went wrong with it."""
        if self._pending is None:
            return
        (number, written), self._pending = self._pending, None
        try:
            written.result()
        except BaseException as error:
            error.add_note(f"Writing the checkpoint of round {number} failed; see above.")
            raise

    def restore(
        self,
        state: FederatedState,
        *,
        identity: fingerprint.Texts | None = None,
        round: int | None = None,
    ) -> tuple[FederatedState, dict[str, Memory]]:
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
        folder = self.directory / str(number)
        where = f"The checkpoint of round {number} in {self.directory}"
        try:
            about = durable.read_json(folder / _ABOUT)
            if (about.get("format"), about.get("version")) != (_FORMAT, _VERSION):
                raise ValueError(
                    f"it is of format {about.get('format')!r}, version {about.get('version')}; this"
                    f" version of fedjax_opt reads {_FORMAT!r}, version {_VERSION}"
                )
            if about["round"] != number:
                raise ValueError(f"it was written as that of round {about['round']!r}")
            itself = hashlib.sha256((folder / _ABOUT).read_bytes()).hexdigest()
            durable.verify(folder, about["sealed"] | {_ABOUT: itself})
            history = self._read_history(about)
            here = {"leaves": _describe(state), **(identity or {})}
            fingerprint.check_same_run(about, here, self._allow, where)
            restored = self._read_state(folder, state)
        except fingerprint.OtherRun as error:
            raise ValueError(f"{where} {error}") from None
        except Exception as error:
            why, earlier = str(error).removesuffix("."), [n for n in rounds if n < number]
            way_on = "No earlier one is there: move the directory away to begin anew."
            if earlier:
                way_on = f"Move {folder} away to resume from round {earlier[-1]}."
            raise ValueError(f"{where} cannot be read: {why}. {way_on}") from error
        self._written = about[_HISTORY]
        return restored, history

    def _read_state(self, folder: pathlib.Path, like: FederatedState) -> FederatedState:
        """The state, on the devices where another one like it is."""
        flat = _flat(like)
        wanted = {name: _wanted(leaf) for name, leaf in flat.items() if leaf.size}
        # Each process reads by itself, and of a divided array what its devices need.
        alone = self._orbax.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}
        )
        handler = self._orbax.StandardCheckpointHandler(multiprocessing_options=alone)
        with self._orbax.Checkpointer(handler, multiprocessing_options=alone) as reader:
            found = reader.restore(folder / _STATE, args=self._orbax.args.StandardRestore(wanted))
        leaves = [
            jax.random.wrap_key_data(found[name], impl=jax.random.key_impl(leaf))
            if _is_key(leaf)
            else found.get(name, leaf)  # one without entries is as good as another
            for name, leaf in zip(flat, jax.tree.leaves(like), strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _read_history(self, about: Mapping[str, Memory]) -> dict[str, Memory]:
        history = from_text(about["memory"])
        history |= from_text(self._went_back().get(str(about["round"]), "{}"))
        parts: dict[str, list[np.ndarray]] = {}
        for file in about[_HISTORY]:
            path = self._rows_file(file["round"])
            with durable.named(path, "cannot be read"):
                content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != file["sha256"]:
                raise ValueError(f"{path} is damaged: its SHA-256 is not what was written")
            with np.load(io.BytesIO(content)) as found:
                for name, rows in found.items():
                    parts.setdefault(name, []).append(rows)
        for name, rows in parts.items():
            section, _, column = name.partition("/")
            history[section][column] = np.concatenate(rows)
        return history

    def _rows_file(self, number: int) -> pathlib.Path:
        return self.directory / _HISTORY / f"{number:05d}.npz"

    def delete_after(self, round_number: int, remember: Mapping[str, Memory] | None = None) -> None:
        """Deletes the checkpoints of later rounds, the newest first: the run went another way.

        Args:
          round_number: the round of the newest one that stays.
          remember: what its `history` holds from now on under these names.
        """
        later = [number for number in self.rounds if number > round_number]
        if (later or remember) and distributed.is_first():
            self._hold()
            for number in reversed(later):
                _delete(self.directory, number)
            instead = {} if remember is None else {str(round_number): as_text(remember)}
            self._forget_after(round_number, instead)
        self._written = [file for file in self._written if file["round"] <= round_number]

    def _forget_after(self, number: int, instead: dict[str, str]) -> None:
        """Removes what is there of later rounds, and writes what a run remembers that went back."""
        for path in (self.directory / _HISTORY).glob("*.npz"):
            if int(path.stem) > number:
                path.unlink()
        durable.force_names(self.directory)  # first: it may not be there when they are not gone
        before = self._went_back()
        after = {t: text for t, text in before.items() if int(t) <= number} | instead
        if after != before:
            durable.write_json(self.directory / _WENT_BACK, after)

    def _went_back(self) -> dict[str, str]:
        path = self.directory / _WENT_BACK
        return durable.read_json(path) if path.exists() else {}

    def close(self) -> None:
        """Waits for what is being written, and lets go of the directory until the next `save`."""
        try:
            self.wait()
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _import_orbax() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            "Checkpoints need orbax: pip install 'fedjax_opt[checkpoint]'."
        ) from error
    return orbax.checkpoint


def _numbers(directory: pathlib.Path) -> list[int]:
    """The rounds of the checkpoints that are there, in order."""
    names = [entry.name for entry in directory.glob("[0-9]*") if entry.name.isdecimal()]
    return sorted(int(name) for name in names if str(int(name)) == name)


def _delete(directory: pathlib.Path, number: int) -> None:
    """Removes a checkpoint: at no moment is a part of it there under its number."""
    going = directory / f"{_PARTIAL}{number}"
    shutil.rmtree(going, ignore_errors=True)
    (directory / str(number)).rename(going)
    shutil.rmtree(going, ignore_errors=True)


# What is no state, as text, and back with the same bits ------------------------------------------


def as_text(memory: Memory) -> str:
    """JSON, in which arrays are their bytes; a ValueError for what is neither."""
    return json.dumps(memory, default=_as_json)


def from_text(text: str) -> Memory:
    """What `as_text` was given; tuples have become lists."""
    return json.loads(text, object_hook=_from_json)


def _as_json(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        content = base64.b64encode(np.asarray(value).tobytes()).decode()
        return {_ARRAY: [str(value.dtype), value.shape, content]}
    raise ValueError(
        "What a run remembers must consist of mappings, lists, numbers, texts, None and arrays, got"
        f" {value!r}."
    )


def _from_json(value: dict[str, Memory]) -> Memory:
    if value.keys() != {_ARRAY}:
        return value
    dtype, shape, content = value[_ARRAY]
    return np.frombuffer(base64.b64decode(content), jnp.dtype(dtype)).reshape(shape).copy()


# A state as files can hold it -------------------------------------------------------------------


def _flat(tree: chex.ArrayTree) -> dict[str, chex.Array]:
    """Arrays by place and path; a key as the words that it holds."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        f"{i:04d}{jax.tree_util.keystr(path)}": jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, (path, leaf) in enumerate(leaves)
    }


def _describe(state: FederatedState) -> dict[str, str]:
    """The number of clients, and the dtype and shape of each array by path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}
    return {"num_clients": fingerprint.of_array(state.num_clients)} | found


def _copied(leaf: chex.Array) -> chex.Array:
    """An array that shares no memory with this one, which may be given up next."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return np.array(leaf, copy=True)
    # orbax copies to the host before it returns, but what is there already it does not copy.
    return jnp.copy(leaf) if jax.default_backend() == "cpu" else leaf


def _wanted(leaf: chex.Array) -> np.ndarray | jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.empty(leaf.shape, leaf.dtype)


def _is_key(leaf: chex.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
