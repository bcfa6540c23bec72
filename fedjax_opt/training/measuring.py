"""What is evaluated between the chunks of a run: the test sets of the federation, and measurements."""

from collections.abc import Callable, Mapping
from functools import partial

import chex
import jax
import numpy as np

from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.evaluate import evaluate, evaluate_clients, personal_variables
from fedjax_opt.training.player import Player

Each = Callable[[Player, FederatedState, ClientData], Mapping[str, chex.Array]]


def measured(player: Player) -> tuple[str, ...]:
    """The names of the scalars that `measure` returns; nothing is compiled to know them."""
    for measurement in player.measurements:
        if not callable(measurement):
            raise ValueError(
                "measurements must hold functions of (algorithm, federation, state), got"
                f" {measurement!r}."
            )
    tests = player.federation.test, player.federation.client_test
    found = jax.eval_shape(partial(_all, player, _as_if_each), player.start, *tests)
    return tuple(_scalar(name, x) for name, x in found.items())


def measure(player: Player) -> dict[str, float]:
    """Writes down what is found; the numbers in it, of those with one per client `mean_<name>`."""
    tests = player.federation.test, player.federation.client_test
    found = _all(player, _each, player.state, *tests)
    row = {"round": np.int32(player.round), "seconds": np.float64(player.seconds), **found}
    rows = {name: np.asarray(x)[None] for name, x in row.items()}
    player.evaluations.append(rows)
    return {_scalar(name, x): float(np.nanmean(rows[name])) for name, x in found.items()}


def _all(player: Player, each: Each, state, test, client_test) -> dict[str, chex.Array]:
    parts: list[Mapping[str, chex.Array]] = []
    if test is not None:
        parts.append(evaluate(player.federation.model, state.variables, test))
    if client_test is not None:
        by_client = each(player, state, client_test)
        parts.append({f"client_{name}": x for name, x in by_client.items()})
    parts += [own(player.algorithm, player.federation, state) for own in player.measurements]
    found: dict[str, chex.Array] = {}
    for part in parts:
        if used := sorted(part.keys() & (found.keys() | {"round", "seconds"})):
            raise ValueError(
                f"measurements must return names that are not used yet, but {used[0]!r} is."
            )
        found |= part
    return found


def _each(player: Player, state: FederatedState, data: ClientData) -> Mapping[str, chex.Array]:
    """Of each client's own model."""
    algorithm, model = player.algorithm, player.federation.model
    if player.states is not None:
        return player.states.evaluate(algorithm, model, state, data)
    return evaluate_clients(model, personal_variables(algorithm, state), data)


def _as_if_each(player: Player, state: FederatedState, data: ClientData) -> Mapping[str, jax.Array]:
    """As if one client had the global model and all examples: for names."""
    found = evaluate(player.federation.model, state.variables, data.examples)
    return {name: x[None] for name, x in found.items()}


def _scalar(name: str, value: chex.Array) -> str:
    return f"mean_{name}" if value.ndim else name
