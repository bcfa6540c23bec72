"""Checkpoints of a run, by orbax: written whole or not at all, and refused if they do not fit."""

import json
import pathlib
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.state import FederatedState

_FORMAT = 1


class Checkpoints:
    """A directory of checkpoints of one run.

    Args:
      directory: where they are kept; made if missing.
      keep: how many of the newest stay.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> state = fo.init_state(algorithm, {"w": jnp.ones(3)}, num_clients=5)
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     checkpoints = fo.Checkpoints(directory)
      ...     checkpoints.save(state, history={})
      ...     restored, history = checkpoints.restore(state)
      >>> int(restored.round)
      0
    """

    def __init__(self, directory: str | pathlib.Path, keep: int = 3):
        checks.integer("keep", keep, low=1)
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError(
                "Checkpoints need orbax: pip install 'fedjax_opt[checkpoint]'."
            ) from error
        self._ocp = ocp
        self.directory = pathlib.Path(directory).absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, enable_async_checkpointing=False
            ),
        )

    @property
    def latest_round(self) -> int | None:
        """The number of rounds done in the newest checkpoint; None if there is none."""
        return self._manager.latest_step()

    def save(self, state: FederatedState, history: dict[str, Any]) -> None:
        """Writes a checkpoint for the state's round, unless it is there already."""
        if self.latest_round == int(state.round):
            return
        plain = _plain(state)
        self._manager.save(
            int(state.round),
            args=self._ocp.args.Composite(
                state=self._ocp.args.StandardSave(plain),
                history=self._ocp.args.StandardSave({"format": np.array(_FORMAT), **history}),
                about=self._ocp.args.JsonSave(
                    {"format": _FORMAT, "leaves": _describe(plain, state)}
                ),
            ),
        )

    def restore(self, state: FederatedState) -> tuple[FederatedState, dict[str, Any]]:
        """The newest checkpoint's state and history.

        Args:
          state: a state of the run that is to be continued; it says what must be in the checkpoint.

        Raises:
          ValueError: if there is no checkpoint, if it is damaged, or if it is of another run; the
            message says what differs.
        """
        step = self.latest_round
        if step is None:
            raise ValueError(f"{self.directory} holds no checkpoint to restore.")
        plain = _plain(state)
        args = self._ocp.args
        try:
            found = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))
            self._check(found["about"], _describe(plain, state), step)
            abstract = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), plain
            )
            found = self._manager.restore(
                step,
                args=args.Composite(
                    state=args.StandardRestore(abstract), history=args.StandardRestore()
                ),
            )
        except _Mismatch as error:
            raise ValueError(str(error)) from None
        except (ValueError, KeyError, OSError, json.JSONDecodeError, RuntimeError) as error:
            raise ValueError(
                f"The checkpoint of round {step} in {self.directory} cannot be read: {error}. Delete"
                f" the folder {step} there to resume from the one before."
            ) from error
        restored = found["state"]
        key = jax.random.wrap_key_data(restored["key"], impl=jax.random.key_impl(state.key))
        structure = jax.tree.structure(state._replace(key=()))
        rest = jax.tree.unflatten(structure, jax.tree.leaves(restored["rest"]))
        history = {name: value for name, value in found["history"].items() if name != "format"}
        return rest._replace(key=key), history

    def _check(self, about: dict[str, Any], expected: dict[str, str], step: int) -> None:
        where = f"The checkpoint of round {step} in {self.directory}"
        if about.get("format") != _FORMAT:
            raise _Mismatch(
                f"{where} has format {about.get('format')!r}; this version reads {_FORMAT}."
            )
        found = about["leaves"]
        differences = [
            f"{path or 'it'} is {found.get(path, 'missing')} there and"
            f" {expected.get(path, 'missing')} here"
            for path in sorted(found.keys() | expected.keys())
            if found.get(path) != expected.get(path)
        ]
        if differences:
            shown = "; ".join(differences[:5]) + ("; ..." if len(differences) > 5 else "")
            raise _Mismatch(f"{where} is of another model, algorithm or population: {shown}.")

    def close(self) -> None:
        """Waits for writes that are under way, and lets go of the directory."""
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Mismatch(Exception):
    """A checkpoint that was read well, and is not of this run."""


def _plain(state: FederatedState) -> dict[str, Any]:
    """The state as dicts of arrays, which is what a file can hold; its key as the key's data."""
    leaves = jax.tree_util.tree_leaves_with_path(state._replace(key=()))
    rest = {f"{i:04d}{jax.tree_util.keystr(path)}": leaf for i, (path, leaf) in enumerate(leaves)}
    return {"key": jax.random.key_data(state.key), "rest": rest}


def _describe(plain: dict[str, Any], state: FederatedState) -> dict[str, str]:
    return {"num_clients": str(int(state.num_clients))} | {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(plain)
    }
