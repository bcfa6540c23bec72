"""The debug mode of a simulated run: no compilation, one client at a time, the first failure saved."""

import pathlib
import traceback
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import controller
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine import minibatches as batches
from fedjax_opt.engine.client import probe_key
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.engine.run import one_round
from fedjax_opt.execution import client_rows
from fedjax_opt.execution.one_by_one import ClientFailure
from fedjax_opt.execution.strategies import Strategy
from fedjax_opt.training import replaying


class DebugError(RuntimeError):
    """A client failed in a run with `debug`; `path` is the file that `replay` reads.

    Attributes:
      path: where the client's inputs are.
    """

    def __init__(self, message: str, path: pathlib.Path):
        super().__init__(message)
        self.path = path


class Debugger:
    """Plays rounds as `simulate` does, in plain Python, and saves the inputs of a client that fails.

    A guard is not asked: whom it would leave out is who is looked for.

    Args:
      folder: where the file goes; made if missing.
    """

    def __init__(self, folder: str | pathlib.Path) -> None:
        self._folder = pathlib.Path(folder)

    def __call__(
        self, prepared: Prepared, state: FederatedState, count: Any, length: int
    ) -> tuple[FederatedState, Any, int]:
        """Some rounds: the state, their infos stacked, and how many they are."""
        del length
        unguarded = changed(prepared.federation, guard=None)
        prepared = prepared.replace(federation=unguarded, strategy=Strategy("one_by_one"))
        infos: list[Any] = []
        for _ in range(int(count)):
            try:
                with jax.disable_jit():
                    state, info = one_round(prepared, state)
            except ClientFailure as failure:
                raise self._saved(failure, prepared, state) from failure
            infos.append(info)
            if not bool(info.finite):
                break
        return state, jax.tree.map(lambda *rows: jnp.stack(rows), *infos), len(infos)

    def _saved(self, failure: ClientFailure, prepared: Prepared, state: Any) -> DebugError:
        number, client = int(state.round), int(failure.client.id)
        inputs, about = _inputs(failure, prepared, state)
        why = failure.cause or failure
        about |= {
            "round": number,
            "client": client,
            "failed": str(failure),
            "traceback": "".join(traceback.format_exception(why)),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"round_{number}_client_{client}.npz"
        replaying.save(path, inputs, about)
        return DebugError(
            f"Round {number}, client {client}: {failure}. Its inputs are in {path}; run them again with"
            f" fo.replay({str(path)!r}, algorithm, model).",
            path,
        )


def _inputs(failure: ClientFailure, prepared: Prepared, state: FederatedState) -> Any:
    """All that the client's work depends on, as arrays by name; and what else is to be known."""
    client, shared = failure.client, failure.shared
    training = shared.algorithm.probe is None or client.own_report != ()
    key = jax.random.fold_in(shared.key, client.id)
    federation = prepared.federation
    feeds = batches.feeds_from_data(
        federation.clients, client.id[None], federation.batch_size, federation.batching,
        prepared.full_batches, prepared.steps_per_epoch,
    )  # fmt: skip
    feed = feeds.of(shared.examples, client.feed)
    steps = int(client.num_steps)
    drawn = [feed.draw(key, jnp.int32(k)) for k in range(steps)]
    inputs = {
        "message": shared.message,
        "client_state": client_rows.read(state.clients, client.id),
        "report": shared.report,
        "own_report": client.own_report if training else (),
        "batches": _stacked([batch for batch, _ in drawn]),
        "mask": _stacked([mask for _, mask in drawn]),
        "key": jax.random.key_data(key),
        "num_steps": client.num_steps,
        "invited": shared.invited,
        "num_clients": shared.num_clients,
    }
    if not training:
        chunks = [feed.chunk(jnp.int32(i)) for i in range(int(feed.num_chunks))]
        inputs["probe_batches"] = _stacked([batch for batch, _ in chunks])
        inputs["probe_mask"] = _stacked([mask for _, mask in chunks])
        extra = feed.extra(probe_key(key))
        inputs["extra_batch"], inputs["extra_mask"] = extra
    remembered = state.controllers.learning_rate if state.controllers else ()
    rate = controller.current_rate(prepared.algorithm, remembered, state.round)
    about = {
        "stage": "local work" if training else "probe",
        "learning_rate": float(rate) if jax.tree.leaves(rate) else None,
        "key_impl": str(jax.random.key_impl(key)),
        "batches": replaying.skeleton(inputs["batches"]),
    }
    return inputs, about


def _stacked(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
