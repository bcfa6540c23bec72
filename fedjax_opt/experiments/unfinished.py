"""Trials that are being played, on the disk: an interrupted sweep goes on with them where it was.

A wave of trials (see `waves`) is one folder, named by the chunks of rounds done, of the kind that
checkpoints are: whole or not at all, with checksums. It holds the states, and what the program has told
in every chunk; what is noted of the trials follows from that.
"""

import json
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.experiments import files
from fedjax_opt.training import checkpoint_files, checkpoint_pieces, checkpoint_trees, provenance

_ABOUT = "about.json"
_SECONDS = 60.0
# A wave is played for so many times as long as it takes to be written.
_WORTH_WRITING = 20.0


class Unfinished:
    """What an earlier sweep has finished, and how far it had come with the others.

    Args:
      folder: where the wave that is being played is kept; None to keep none.
      finished: the identities of trials that are not to be played again; see `finished`. They keep
        their places in the waves, so that the others are computed as they would have been.
      every: the least seconds between two writes. An interrupted sweep writes at once.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt.experiments.unfinished import Unfinished
      >>> folder = pathlib.Path(tempfile.mkdtemp()) / "unfinished"
      >>> unfinished = Unfinished(folder, every=30.0)
      >>> unfinished.save()  # nothing is being played
      >>> folder.exists()
      False
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        finished: Collection[str] = frozenset(),
        every: float = _SECONDS,
    ) -> None:
        self.finished = frozenset(finished)
        self._folder = folder
        self._every = every
        self._forget()

    def _forget(self) -> None:
        self._states: Any = None
        self._told: list[Any] = []
        self._describe: Callable[[Any], dict[str, Any]] = lambda states: {}
        self._written: int | None = None  # the number of this wave's folder
        self._due = time.monotonic() + self._every

    def begin(
        self,
        trials: Sequence[str],
        states: Any,
        describe: Callable[[Any], dict[str, Any]],
        shapes: Callable[[Any], Any],
    ) -> tuple[Any, list[Any]]:
        """The states of a wave, and what it has told so far: as they were kept, or as it begins.

        Args:
          trials: the identities of its trials.
          states: the states that it begins with.
          describe: states -> what makes the wave the one that it is, as `provenance.of_run` has it.
          shapes: states -> the shapes of what a chunk tells.
        """
        self._forget()
        if self._folder is None:
            return states, []
        own = {"trials": list(trials)}
        self._describe = lambda states: own | describe(states)
        for number in reversed(checkpoint_files.numbers(self._folder)):
            try:
                found = self._read(self._folder, number, states, shapes)
            except Exception as error:
                warnings.warn(
                    f"{self._folder / str(number)} is not used, and its runs begin anew:"
                    f" {str(error).removesuffix('.')}.",
                    stacklevel=2,
                )
                continue
            if found is not None:
                self._written = number
                states, self._told = found
                break
        return states, list(self._told)

    def _read(
        self, folder: pathlib.Path, number: int, states: Any, shapes: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]] | None:
        """A wave that was kept; None for one that was finished before it could be deleted."""
        whole = checkpoint_files.verify(folder, number)
        about = checkpoint_files.read_json(whole, _ABOUT)
        if set(about["trials"]) <= self.finished:
            return None
        told = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((number, *x.shape), x.dtype), shapes(states)
        )
        like = {"states": states, "told": told}
        _check_same(about, self._describe(states) | {"leaves": _leaves(like)})
        flat = checkpoint_trees.plain(like)
        found = checkpoint_pieces.read(whole, flat)
        arrays = [
            _as_before(found[name] if plain.size else np.zeros(plain.shape, plain.dtype), leaf)
            for (name, plain), leaf in zip(flat.items(), jax.tree.leaves(like), strict=True)
        ]
        tree = jax.tree.unflatten(jax.tree.structure(like), arrays)
        told = [jax.tree.map(lambda x, i=i: x[i], tree["told"]) for i in range(number)]
        return tree["states"], told

    def keep(self, states: Any, told: Any) -> None:
        """Takes note of a chunk that is done, and writes it down if that is due.

        Args:
          states: the states after it.
          told: what the program told of it.
        """
        if self._folder is not None:
            self._states = states
            self._told.append(told)
            if time.monotonic() >= self._due:
                self.save()

    def let_go(self) -> None:
        """To be called before the states' buffers are given up to the program."""
        self._states = None

    def save(self) -> None:
        """Writes the newest chunk down, unless it is, or another one is being played."""
        number = len(self._told)
        if self._folder is None or self._states is None or number == self._written:
            return
        began = time.monotonic()
        tree = {
            "states": self._states,
            "told": jax.tree.map(lambda *chunks: np.stack(chunks), *self._told),
        }
        about = provenance.circumstances() | self._describe(self._states)
        about |= {"versions": provenance.versions(), "leaves": _leaves(tree)}

        def fill(folder: pathlib.Path) -> None:
            checkpoint_pieces.write(folder, _pieces(tree))
            (folder / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")

        with files.explained(self._folder):
            for other in checkpoint_files.numbers(self._folder):
                if other != self._written:  # it could not be used
                    checkpoint_files.delete(self._folder, other)
            checkpoint_files.write(self._folder, number, fill)
            if self._written is not None:
                checkpoint_files.delete(self._folder, self._written)
        self._written = number
        now = time.monotonic()
        self._due = now + max(self._every, _WORTH_WRITING * (now - began))

    def end(self) -> None:
        """Deletes what was kept: the wave is finished."""
        if self._folder is not None:
            clear(self._folder)
        self._forget()


def clear(folder: pathlib.Path) -> None:
    """Deletes all that is kept in a folder, and the folder; at no moment is a part of a wave there."""
    for number in checkpoint_files.numbers(folder):
        checkpoint_files.delete(folder, number)
    shutil.rmtree(folder, ignore_errors=True)


def _check_same(there: dict[str, Any], here: dict[str, Any]) -> None:
    if there["trials"] != here["trials"]:
        raise ValueError(
            f"it is of a wave of other runs: {_short(there['trials'])} there, and"
            f" {_short(here['trials'])} here"
        )
    now = here | {"versions": provenance.versions()}
    never, changed = provenance.differences(there, now)
    if never:
        raise ValueError(f"it {never}")
    for part, found in changed.items():
        raise ValueError(f"it is of other {part}: {provenance.listed(found)}")


def _short(trials: Sequence[str]) -> str:
    return trials[0] if len(trials) == 1 else f"{len(trials)} from {trials[0]} on"


def _leaves(tree: Any) -> dict[str, str]:
    """The dtype and shape of each array by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def _pieces(tree: Any) -> list[dict[str, Any]]:
    """Every array as one piece; an empty one needs none."""
    flat = checkpoint_trees.plain(tree).items()
    return [checkpoint_pieces.copied(name, x, [0] * x.ndim) for name, x in flat if x.size]


def _as_before(array: Any, leaf: Any) -> Any:
    """An array with the type of a leaf."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    return array
