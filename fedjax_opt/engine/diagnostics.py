"""How far clients drift apart: measured inside the round, for those who ask.

    client_distance     mean over pairs of clients of 1 - cos(y_i, y_j), with y_i the final local models
    client_update_norm  ||y_i - y_i0|| of each client `[S]`, y_i0 where it started
    perturbation_norm   ||e||,  e = sum_i w_i (1 / K_i) sum_k (g_i(y_ik) - g_i(y_i0)), both gradients on
                        the same minibatch: what local steps change in the mean gradient
    momentum_deviation  ||m / ||m|| - f' / ||f'|| ||, with m what the server believes the gradient to be
                        and f' the gradient of all clients on all of their data, at the global model
    user_metrics        each client's model on the client's own examples, by local step
    upload_bytes        what a client of the cohort sends on average, report included: what a codec makes
                        of it, or the arrays themselves

The first two cost a pass over the model per client, the third one or two gradients per local step, the
fourth a pass over all data per round, the fifth a pass over the client's test examples per local step,
the last nothing that a codec does not do anyway. Momentum has a
unit of its own in every algorithm (a gradient, a sum of them, a displacement), so its direction is
compared: 0 is the gradient's, sqrt(2) is at a right angle to it, 2 is the opposite. It is NaN while
there is no momentum yet.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Figure 1 and
  equation 2.
  Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum. 2024.
  Figure 1.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import messages, trees
from fedjax_opt.core.algorithm import Uniform, get_variables
from fedjax_opt.engine.client import Observer

NAMES = (
    "client_distance",
    "client_update_norm",
    "perturbation_norm",
    "momentum_deviation",
    "upload_bytes",
    "user_metrics",
)
# Those that need no more than the round's own minibatches.
OF_A_ROUND = tuple(name for name in NAMES if name not in ("momentum_deviation", "user_metrics"))


def check(names: Sequence[str], allowed: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """Names of diagnostics, each once and in one order: they are compiled in."""
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, (tuple, list, set, frozenset)):
        raise ValueError(f"diagnostics must be a list of names, got {names!r}.")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"diagnostics must be among {', '.join(NAMES)}; got {name!r}.")
        if name not in allowed:
            raise ValueError(
                f"diagnostics={name!r} needs data of the clients, which a round over explicit"
                " minibatches does not have: use run_rounds or simulate."
            )
    return tuple(name for name in NAMES if name in names)


class Observed(NamedTuple):
    """What one client's work adds to the diagnostics of a round.

    Attributes:
      averaged: what is averaged over clients.
      kept: what is kept of each client.
    """

    averaged: dict[str, Any]
    kept: dict[str, Any]


def observers(names: tuple[str, ...], reference: Any) -> tuple[Observer, ...]:
    """Who looks on at a client's work for these diagnostics.

    Args:
      names: checked names.
      reference: the server's parameters. `client_distance` compares directions by their difference to
        that of these, which must be the same for all clients, whatever message each has started from.
    """
    found = []
    if "client_distance" in names:
        found.append(_distance(reference))
    if "client_update_norm" in names:
        found.append(Observer(_start_params, _unchanged, _update_norm))
    if "perturbation_norm" in names:
        found.append(Observer(_no_perturbation, _perturbed, _perturbation))
    if "upload_bytes" in names:
        found.append(Observer(_nothing, _unchanged, _upload_bytes))
    return tuple(found)


def own_test(measure: Callable[[Any], dict[str, Any]], num_steps: Any) -> Observer:
    """Notes what a function says of a client's model: at its start and after each step.

    Where the number of steps is not known beforehand, at its start and at its end.
    """
    every = isinstance(num_steps, int)
    length = num_steps + 1 if every else 2

    def begin(local):
        return {
            name: jnp.full(length, jnp.nan, value.dtype).at[0].set(value)
            for name, value in measure(get_variables(local)).items()
        }

    def written(noted, local, place):
        found = measure(get_variables(local))
        return {name: values.at[place].set(found[name]) for name, values in noted.items()}

    def step(noted, before, after, objective, batch, context):
        del before, objective, batch
        return written(noted, after, context.step + 1) if every else noted

    def end(noted, local, upload, context):
        del upload, context
        return Observed({}, noted if every else written(noted, local, 1))

    return Observer(begin, step, end)


def joined(observed: Sequence[Observed]) -> Observed:
    """What several observers have noted of one client."""
    averaged, kept = {}, {}
    for one in observed:
        averaged |= one.averaged
        kept |= one.kept
    return Observed(averaged, kept)


def _distance(reference):
    def end(noted, local, upload, context):
        del noted, upload, context
        # Differences of unit vectors to a common one: close models lose no digits.
        away = trees.subtract(_unit(get_variables(local).params), _unit(reference))
        return Observed({"away": Uniform((away, trees.squared_norm(away)))}, {})

    return Observer(_nothing, _unchanged, end)


def _nothing(local):
    del local
    return ()


def _start_params(local):
    return get_variables(local).params


def _unchanged(noted, before, after, objective, batch, context):
    del before, after, objective, batch, context
    return noted


def _update_norm(start, local, upload, context):
    del upload, context
    moved = trees.subtract(get_variables(local).params, start)
    return Observed({}, {"client_update_norm": jnp.sqrt(trees.squared_norm(moved))})


def _no_perturbation(local):
    start = get_variables(local)
    return start, trees.zeros_like(start.params)


def _perturbed(noted, before, after, objective, batch, context):
    del after
    start, total = noted
    here, there = (objective.gradient(v, batch)[0] for v in (get_variables(before), start))
    share = trees.reciprocal(context.num_steps)
    return start, trees.add_scaled(total, share, trees.subtract(here, there))


def _perturbation(noted, local, upload, context):
    del local, upload, context
    return Observed({"perturbation": noted[1]}, {})


def _upload_bytes(noted, local, upload, context):
    del noted, local
    size = messages.num_bytes(upload) + messages.num_bytes(context.report)
    return Observed({"upload_bytes": Uniform(jnp.asarray(size, jnp.result_type(float)))}, {})


def of_round(averaged: Any, kept: Any, present: jax.Array) -> dict[str, jax.Array]:
    """The diagnostics of a round, by name."""
    found = {name: _where(present, value) for name, value in kept.items()}
    if "away" in averaged:
        mean, mean_square = averaged["away"]
        # The mean over pairs of ||u_i - u_j||^2 / 2, which is 1 - cos, from two sums over clients.
        count = jnp.sum(present, dtype=mean_square.dtype)
        spread = jnp.maximum(mean_square - trees.squared_norm(mean), 0)
        found["client_distance"] = spread * count / jnp.maximum(count - 1, 1)
    if "perturbation" in averaged:
        found["perturbation_norm"] = jnp.sqrt(trees.squared_norm(averaged["perturbation"]))
    if "upload_bytes" in averaged:
        found["upload_bytes"] = averaged["upload_bytes"]
    return found


def _where(present: jax.Array, values: jax.Array) -> jax.Array:
    """What clients noted: a number, 0 for whoever was absent; or a curve, then NaN."""
    if values.ndim == 1:
        return jnp.where(present, values, 0)
    return jnp.where(present[:, None], values, jnp.nan)


def momentum_deviation(server: Any, gradient: Any) -> jax.Array:
    """The distance of the directions of the server's momentum and of the full gradient."""
    momentum = gradient_estimate(server)
    # Leaves that are private are holes in the server's state.
    gradient = jax.tree.map(
        lambda m, g: None if m is None else g, momentum, gradient, is_leaf=lambda m: m is None
    )
    nothing = trees.squared_norm(momentum) == 0
    apart = jnp.sqrt(trees.squared_norm(trees.subtract(_unit(momentum), _unit(gradient))))
    return jnp.where(nothing, jnp.nan, apart)


def gradient_estimate(server: Any) -> Any:
    """What a server state believes the gradient to be, up to a positive factor.

    It is the property `gradient_estimate` of the state, of its optimiser's statistics, or of what it
    wraps.
    """
    waiting = [server]
    while waiting:
        state = waiting.pop(0)
        found = getattr(state, "gradient_estimate", None)
        if jax.tree.leaves(found):
            return found
        inside = (getattr(state, name, None) for name in ("optimizer", "triple", "inner"))
        waiting += [part for part in inside if part is not None]
    raise ValueError(
        "diagnostics='momentum_deviation' needs an algorithm whose server keeps a momentum (or another"
        " estimate of the gradient, such as SCAFFOLD's c); this one keeps none."
    )


def _unit(tree: Any) -> Any:
    norm = jnp.sqrt(trees.squared_norm(tree))
    return trees.scale(1 / jnp.where(norm > 0, norm, 1), tree)
