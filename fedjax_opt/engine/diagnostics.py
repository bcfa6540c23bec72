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
the last nothing that a codec does not do anyway. Momentum has a unit of its own in every algorithm (a
gradient, a sum of them, a displacement), so its direction is compared: 0 is the gradient's, sqrt(2) is
at a right angle to it, 2 is the opposite. It is NaN while there is no momentum yet.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Figure 1 and
  equation 2.
  Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum. 2024.
  Figure 1.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import messages, trees
from fedjax_opt.core.algorithm import Uniform, get_variables
from fedjax_opt.core.aliases import Params, ServerState, Tree
from fedjax_opt.core.model import Variables
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
    """What one client's work adds to the diagnostics: what is averaged, and what is kept of each."""

    averaged: dict[str, Tree]
    kept: dict[str, Tree]


def observers(names: tuple[str, ...], reference: Params) -> tuple[Observer, ...]:
    """Who looks on at a client's work for these diagnostics."""

    def nothing(local):
        del local
        return ()

    def unchanged(noted, *step):
        del step
        return noted

    def distance(noted, local, upload, context):
        # Differences of unit vectors to a common one: close models lose no digits.
        away = trees.subtract(_unit(get_variables(local).params), _unit(reference))
        return Observed({"away": Uniform((away, trees.squared_norm(away)))}, {})

    def start_params(local):
        return get_variables(local).params

    def update_norm(start, local, upload, context):
        moved = trees.subtract(get_variables(local).params, start)
        return Observed({}, {"client_update_norm": trees.norm(moved)})

    def no_perturbation(local):
        start = get_variables(local)
        return start, trees.zeros_like(start.params)

    def perturbed(noted, before, after, objective, batch, context):
        start, total = noted
        here, there = (objective.gradient(v, batch)[0] for v in (get_variables(before), start))
        share = trees.reciprocal(context.num_steps)
        return start, trees.add_scaled(total, share, trees.subtract(here, there))

    def perturbation(noted, local, upload, context):
        return Observed({"perturbation": noted[1]}, {})

    def upload_bytes(noted, local, upload, context):
        size = messages.num_bytes(upload) + messages.num_bytes(context.report)
        return Observed({"upload_bytes": Uniform(jnp.asarray(size, jnp.result_type(float)))}, {})

    by_name = {
        "client_distance": Observer(nothing, unchanged, distance),
        "client_update_norm": Observer(start_params, unchanged, update_norm),
        "perturbation_norm": Observer(no_perturbation, perturbed, perturbation),
        "upload_bytes": Observer(nothing, unchanged, upload_bytes),
    }
    return tuple(observer for name, observer in by_name.items() if name in names)


def own_test(
    measure: Callable[[Variables], dict[str, jax.Array]], num_steps: jax.Array | int
) -> Observer:
    """Notes what a function says of a client's model: at its start and after each step."""
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
        return written(noted, after, context.step + 1) if every else noted

    def end(noted, local, upload, context):
        return Observed({}, noted if every else written(noted, local, 1))

    return Observer(begin, step, end)


def joined(observed: Sequence[Observed]) -> Observed:
    """What several observers have noted of one client."""
    averaged, kept = {}, {}
    for one in observed:
        averaged |= one.averaged
        kept |= one.kept
    return Observed(averaged, kept)


def of_round(
    averaged: dict[str, Tree], kept: dict[str, jax.Array], present: jax.Array
) -> dict[str, jax.Array]:
    """The diagnostics of a round, by name."""
    found = {}
    for name, values in kept.items():  # of each client a number, 0 for who was absent; or a curve
        here, absent = (present, 0) if values.ndim == 1 else (present[:, None], jnp.nan)
        found[name] = jnp.where(here, values, absent)
    if "away" in averaged:
        mean, mean_square = averaged["away"]
        # The mean over pairs of ||u_i - u_j||^2 / 2, which is 1 - cos, from two sums over clients.
        count = jnp.sum(present, dtype=mean_square.dtype)
        spread = jnp.maximum(mean_square - trees.squared_norm(mean), 0)
        found["client_distance"] = spread * count / jnp.maximum(count - 1, 1)
    if "perturbation" in averaged:
        found["perturbation_norm"] = trees.norm(averaged["perturbation"])
    if "upload_bytes" in averaged:
        found["upload_bytes"] = averaged["upload_bytes"]
    return found


def momentum_deviation(server: ServerState, gradient: Params) -> jax.Array:
    """The distance of the directions of the server's momentum and of the full gradient."""
    momentum = gradient_estimate(server)
    # Leaves that are private are holes in the server's state.
    gradient = jax.tree.map(
        lambda m, g: None if m is None else g, momentum, gradient, is_leaf=lambda m: m is None
    )
    apart = trees.norm(trees.subtract(_unit(momentum), _unit(gradient)))
    return jnp.where(trees.squared_norm(momentum) == 0, jnp.nan, apart)


def gradient_estimate(server: ServerState) -> Params:
    """What a server state believes the gradient to be, up to a positive factor."""
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


def _unit(tree: Tree) -> Tree:
    norm = trees.norm(tree)
    return trees.scale(1 / jnp.where(norm > 0, norm, 1), tree)
