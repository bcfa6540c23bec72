"""A client's work of one round done again, outside of any compiled program.

All randomness follows from (seed, round, client), so the last good state is enough: `NonFiniteLossError`
holds it, and so does every checkpoint.
"""

from typing import NamedTuple

import chex
import jax
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, Scheduled
from fedjax_opt.core.federation import Federation, check_nouns
from fedjax_opt.core.state import FederatedState
from fedjax_opt.training.simulate import simulate


class Replay(NamedTuple):
    """What a client's work gave when it was done again.

    Attributes:
      round: the round.
      client: its number.
      losses: the loss of each local step `[K]`; empty if its probe went wrong.
      upload: what it would send; its report, if its probe went wrong.
      client_state: what it would keep.
    """

    round: int
    client: int
    losses: np.ndarray
    upload: chex.ArrayTree
    client_state: chex.ArrayTree


def replay(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    state: FederatedState,
    client: int | None = None,
) -> Replay:
    """Plays the next round of a state in plain Python, up to the client that is looked for.

    Nothing is compiled: a print in the model's loss shows numbers, and an error has its own line.
    `with jax.debug_nans(True):` around it raises where the first NaN arises. No guard is asked: whom it
    would leave out is who is looked for.

    Args:
      algorithm: the algorithm of the run.
      federation: what it learns on, with or without changes that should help.
      state: the state that the round begins with: `result.state` of a `NonFiniteLossError`, or a
        checkpoint's.
      client: which of the cohort; None for the first one whose work gives a number that is not finite.

    Returns:
      A `Replay`.

    Raises:
      ValueError: if there is no such client in the round.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> algorithm = fo.attacks.nan_upload(fo.fedavg(fo.optimizers.sgd(0.1)), clients=[2])
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=3, batch_size=1)
      >>> again = fo.replay(algorithm, federation, fo.init_state(algorithm, federation))
      >>> again.client, again.losses.shape
      (2, (3,))
    """
    check_nouns(algorithm, federation, "replay(algorithm, federation, state)")
    federation = federation.replace(guard=None, test=None, client_test=None)
    number, seen = int(state.round), []
    if isinstance(algorithm, Scheduled):
        make = algorithm.make
        watched = algorithm._replace(make=Partial(lambda rate: _watched(make(rate), client, seen)))
    else:
        watched = _watched(algorithm, client, seen)
    try:
        with jax.disable_jit():
            simulate(
                watched, federation, number + 1, state=state, evaluate_every=1, strategy="scan",
                progress=False, on_nonfinite="stop",
            )  # fmt: skip
    except _Found as found:
        return Replay(number, *found.args)
    there = f"round {number}, whose cohort is {sorted(seen)}"
    if client is None:
        raise ValueError(f"No client gives a number that is not finite in {there}.")
    raise ValueError(f"client must be one that takes part in {there}, got {client}.")


class _Found(Exception):
    """The work of the client that is looked for is done."""


def _watched(algorithm: Algorithm, wanted: int | None, seen: list[int]) -> Algorithm:
    """The algorithm, which writes down whose work is done, and raises `_Found` with what it gave."""
    losses: list[np.ndarray] = []

    def end(client, upload, client_state, given):
        number = int(client)
        seen.append(number)
        if number == wanted or (
            wanted is None and not trees.all_finite((given, upload, client_state))
        ):
            raise _Found(number, given, upload, client_state)

    def probe(message, client_state, data):
        report = algorithm.probe(message, client_state, data)  # type: ignore[misc]
        if not checks.is_traced(report) and not trees.all_finite(report):
            end(data.id, report, client_state, np.zeros(0))
        return report

    def step(local, objective, batch, context):
        new, evaluation = algorithm.step(local, objective, batch, context)
        if not checks.is_traced(evaluation):
            losses.append(np.asarray(evaluation.loss))
        return new, evaluation

    def finish(local, context):
        upload, client_state = algorithm.finish(local, context)
        # One that took no step did not take part.
        if losses and not checks.is_traced(upload):
            given = np.array(losses)
            losses.clear()
            end(context.id, upload, client_state, given)
        return upload, client_state

    watched = algorithm._replace(step=Partial(step), finish=Partial(finish))
    return watched if algorithm.probe is None else watched._replace(probe=Partial(probe))
