"""A compiled round over explicit minibatches: any source of data, and any oracle, can drive it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, check_algorithm
from fedjax_opt.core.aliases import Batch, Tree, Values
from fedjax_opt.core.guard import Guard, check_guard
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState, check_state
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.engine.minibatches import Feed, Feeds
from fedjax_opt.engine.round import Cohort, How, federated_round
from fedjax_opt.execution import memory, strategies
from fedjax_opt.execution.strategies import Strategy


def make_round(
    algorithm: Algorithm,
    model: Model,
    *,
    guard: Guard | None = None,
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
) -> Callable[..., tuple[FederatedState, Info]]:
    """A compiled federated round.

    The function that it returns is

        round_fn(state, cohort, batches, weights=None, num_steps=None, *,
                 mask=None, probe_batches=None, probe_mask=None) -> (state, info)

    with `S` the size of the cohort, `K` the most local steps, `B` the batch size:

      - `state`: a `FederatedState`.
      - `cohort`: int `[S]`, the ids of the clients that take part.
      - `batches`: a pytree with leading axes `[S, K, B]`.
      - `weights`: `[S]`, aggregation weights, of any scale; uniform by default.
      - `num_steps`: an int or `[S]`, how many of the K steps each client takes; all by default. In
        `[S]`, 0 is a client that never reported. It is traced: another value compiles nothing. Without
        it the round can be differentiated in reverse mode.
      - `mask`: bool `[S, K, B]`, which rows of the batches count: one at least in every step taken.
      - `probe_batches`, `probe_mask`: `[S, P, B']`, for algorithms with a probe: all of each
        client's data, in P parts; an algorithm that probes one minibatch takes the first with a row.

    It may be called inside `jit`, `vmap` and `grad`. Values are checked where they are known, which is
    everywhere but inside such a transformation. If a loss or the aggregate is not finite, the state
    comes back unchanged and `info.finite` is false. The algorithm's hyperparameters are arguments of
    the compiled program: two round functions whose algorithms differ in numbers alone share it.

    Args:
      algorithm: the algorithm.
      model: the model.
      guard: the rules by which clients are left out, a `Guard`; see `Info.faults`.
      strategy: how the client axis is executed: 'scan', 'vmap', 'chunked', 'sharded', 'auto', or a
        `Strategy`.
      diagnostics: what to measure, as for `run_rounds`, where minibatches are enough for it.

    Returns:
      The round function.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def loss(variables, batch, key):
      ...     return jnp.mean((variables.params - batch) ** 2) / 2, fo.Aux()
      >>> model = fo.Model(init=lambda key, batch: fo.Variables(jnp.zeros(())), loss=loss)
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.5))
      >>> round_fn = fo.make_round(algorithm, model)
      >>> state = fo.first_state(algorithm, jnp.zeros(()), num_clients=3)
      >>> batches = jnp.array([[[1.0]], [[3.0]]])          # two clients, one step, one example
      >>> state, info = round_fn(state, jnp.array([0, 2]), batches)
      >>> float(state.variables.params)
      1.0
    """
    check_algorithm(algorithm)
    if not isinstance(model, Model):
        raise ValueError(
            "model must be a Model, such as federation.model, got"
            f" {type(model).__name__}: a round takes its minibatches as arguments."
        )
    strategy = strategies.resolve(strategy)
    watch = watching.check(diagnostics, allowed=watching.OF_A_ROUND)
    guard = check_guard(guard)
    settled: dict[Any, Strategy] = {}

    def round_fn(
        state: FederatedState,
        cohort: Values,
        batches: Batch,
        weights: Values | None = None,
        num_steps: Values | None = None,
        *,
        mask: chex.Array | None = None,
        probe_batches: Batch | None = None,
        probe_mask: chex.Array | None = None,
    ) -> tuple[FederatedState, Info]:
        if strategy.mesh is not None and not checks.is_traced(state):
            state = strategies.place(state, strategy)  # else its return would compile once more
        ids = _check_cohort(state, cohort)
        given = _Given(batches, mask, probe_batches, probe_mask)
        given, num_steps = _check_given(algorithm, given, ids, num_steps)
        inputs = state, ids, given, _check_weights(weights, len(ids)), num_steps

        def compiled(option):
            shapes = trees.shapes_of((algorithm, model, guard, *inputs))
            return _compiled.lower(*shapes, strategy=option, watch=watch).compile()

        shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves((state.server, inputs[1:])))
        if shapes not in settled:
            check_state(algorithm, state)
            settled[shapes] = memory.fit(strategy, len(ids), compiled, inputs[1:], state)
        return _compiled(algorithm, model, guard, *inputs, strategy=settled[shapes], watch=watch)

    return round_fn


class _Given(NamedTuple):
    """The minibatches of a cohort `[S, ...]`, or of one client of it."""

    batches: Batch
    mask: chex.Array | None
    probe_batches: Batch | None
    probe_mask: chex.Array | None


@partial(jax.jit, static_argnames=("strategy", "watch"))
def _compiled(
    algorithm, model, guard, state, cohort, given, weights, num_steps, *, strategy, watch
):
    size, steps = jax.tree.leaves(given.batches)[0].shape[:2]
    static_steps = steps if num_steps is None else None
    num_steps = jnp.broadcast_to(
        jnp.asarray(steps if num_steps is None else num_steps, jnp.int32), (size,)
    )
    weights = jnp.ones(size) if weights is None else _near_one(weights)
    return federated_round(
        algorithm,
        model,
        state,
        Cohort(cohort, weights, num_steps, invited=size, asked=cohort),
        Feeds(_given_feed, (), given),
        How(strategy, static_steps, watch),
        guard,
    )


def _given_feed(shared: Tree, given: _Given) -> Feed:
    """The feed of a client whose minibatches were given."""
    del shared
    batches, mask, probe_batches, probe_mask = given

    def draw(key, step):
        del key
        return _row_of(batches, mask, step)

    def chunk(index):
        return _row_of(probe_batches, probe_mask, index)

    def extra(key):
        del key
        return chunk(0 if probe_mask is None else jnp.argmax(jnp.any(probe_mask, axis=-1)))

    parts = jax.tree.leaves(probe_batches)
    steps, rows = jax.tree.leaves(batches)[0].shape[:2]
    given_rows = steps * rows if mask is None else jnp.sum(mask, dtype=jnp.int32)
    return Feed(draw, chunk, parts[0].shape[0] if parts else 0, extra, given_rows)


def _row_of(batches, mask, index):
    """One minibatch; its rows that do not count repeat one that does."""
    batch, mask = jax.tree.map(lambda x: x[index], (batches, mask))
    if mask is None:
        return batch, mask
    rows = jnp.where(mask, jnp.arange(mask.shape[0]), jnp.argmax(mask))
    return jax.tree.map(lambda x: x[rows], batch), mask


def _check_given(
    algorithm: Algorithm, given: _Given, cohort: jax.Array, num_steps: Values | None
) -> tuple[_Given, jax.Array | None]:
    """Minibatches and numbers of steps as arrays that fit together, and leave no client empty."""
    batches, mask, probe_batches, probe_mask = given
    axes = checks.leading_axes("batches", batches, (len(cohort), None, None), "SKB")
    if 0 in axes:
        raise ValueError(
            f"batches must hold at least one step and one row, got [K={axes[1]}, B={axes[2]}]."
        )
    if num_steps is not None:
        num_steps = _check_num_steps(num_steps, *axes[:2])
    taken = None  # K of each client, where that is known
    if not checks.is_traced(cohort, mask, probe_mask, num_steps):
        taken = np.broadcast_to(axes[1] if num_steps is None else num_steps, cohort.shape)
    if mask is not None:
        mask = _check_mask("mask", mask, axes, cohort, taken)
    if algorithm.probe is not None:
        if probe_batches is None:
            raise ValueError(
                "probe_batches must be given: this algorithm asks each client for a gradient at the"
                " broadcast model before local work begins."
            )
        axes = checks.leading_axes("probe_batches", probe_batches, (len(cohort), None, None), "SPB")
        if jax.tree.structure(probe_batches) != jax.tree.structure(batches):
            raise ValueError(
                "probe_batches must have the tree structure of batches,"
                f" {jax.tree.structure(batches)}, got {jax.tree.structure(probe_batches)}."
            )
        if probe_mask is not None:
            probe_mask = _check_mask("probe_mask", probe_mask, axes, cohort, taken)
    given = _Given(batches, mask, probe_batches, probe_mask)
    return jax.tree.map(jnp.asarray, given), num_steps


def _check_mask(
    name: str,
    mask: chex.Array,
    shape: tuple[int, ...],
    cohort: jax.Array,
    taken: np.ndarray | None,
) -> jax.Array:
    """A mask that leaves every client something to learn from: zeros would count in every mean."""
    checks.one_for_each(name, mask, shape, "row of the batches")
    if taken is not None:
        filled = np.any(mask, axis=2)
        needed = np.arange(filled.shape[1]) < taken[:, None]
        if name == "probe_mask":  # in any part of the client's data
            filled, needed = filled.any(axis=1, keepdims=True), taken[:, None] > 0
        empty = np.argwhere(needed & ~filled)
        if len(empty):
            place, step = empty[0]
            raise ValueError(
                f"{name} must leave a row in every step that a client takes, got none for client"
                f" {cohort[place]} in step {step}. num_steps says how many steps each client takes, 0"
                " for one that has no data."
            )
    return jnp.asarray(mask, bool)


def _check_cohort(state: FederatedState, cohort: Values) -> jax.Array:
    """Client ids as int32 `[S]`: in the population, and no id twice where clients keep state."""
    cohort = checks.whole_array("cohort", cohort)
    if jnp.ndim(cohort) != 1 or jnp.size(cohort) == 0:
        raise ValueError(f"cohort must be a list of client ids [S], got shape {jnp.shape(cohort)}.")
    if not checks.is_traced(cohort, state.num_clients):
        population = int(state.num_clients)
        found, counts = np.unique(np.asarray(cohort), return_counts=True)
        if jax.tree.leaves(state.clients) and counts.max() > 1:
            raise ValueError(
                "cohort must not repeat a client whose state is kept, got"
                f" {found[counts > 1].tolist()} more than once: both copies would write to the same"
                " state."
            )
        if len(cohort) > population:
            raise ValueError(
                f"cohort must not be larger than the population of {population} clients, got"
                f" {len(cohort)} ids."
            )
        if found[0] < 0 or found[-1] >= population:
            raise ValueError(
                f"cohort must hold ids in [0, {population - 1}], got {found[0]} to {found[-1]}."
            )
    return jnp.asarray(cohort, jnp.int32)


def _check_weights(weights: Values, size: int) -> jax.Array | None:
    """Aggregation weights `[S]`: finite, not negative, not all zero."""
    if weights is None:
        return None
    weights = checks.as_array("weights", weights)
    checks.one_for_each("weights", weights, (size,), "client")
    if not checks.is_traced(weights):
        # Scaled here, where they may be float64: 1e-40 would be 0 in float32.
        known = np.asarray(checks.number("weights", weights, low=0.0, open_high=True), np.float64)
        if not np.any(known):
            raise ValueError(f"weights must not all be 0, got {known}.")
        weights = _near_one(known)
    return jnp.asarray(weights, jnp.result_type(float))


def _near_one(weights: Any) -> Any:
    """The weights times a power of two, by which the largest comes to lie in [1/2, 1)."""
    # Means are the same to the bit, but no sum overflows, and none is lost because it is too small.
    if isinstance(weights, np.ndarray):
        return np.ldexp(weights, -np.frexp(np.max(weights))[1])
    _, exponent = jnp.frexp(jnp.max(jax.lax.stop_gradient(weights)))
    return jnp.ldexp(jnp.asarray(weights), -exponent)


def _check_num_steps(num_steps: Values, size: int, steps: int) -> jax.Array:
    """Local steps between 1 and the K that the batches hold; in `[S]` 0 for who never reported."""
    given, num_steps = num_steps, checks.whole_array("num_steps", num_steps)
    if jnp.ndim(num_steps):
        checks.one_for_each("num_steps", num_steps, (size,), "client")
    checks.number("num_steps", given, low=0 if jnp.ndim(num_steps) else 1, high=steps)
    return jnp.minimum(jnp.asarray(num_steps, jnp.int32), steps)
