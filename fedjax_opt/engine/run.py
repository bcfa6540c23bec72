"""Many rounds as one program: a pure scan that can be jitted, vmapped and differentiated."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, get_variables
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine import batching as batches
from fedjax_opt.engine import controller
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.engine.cohorts import Sampler
from fedjax_opt.engine.evaluate import evaluate
from fedjax_opt.engine.guard import Guard, before_work
from fedjax_opt.engine.preparation import Fixed, Traced, prepare
from fedjax_opt.engine.round import federated_round, full_gradient
from fedjax_opt.execution import balance, meshes, strategies
from fedjax_opt.execution.strategies import Strategy


class Run(NamedTuple):
    """What many rounds gave.

    Attributes:
      state: the state after the last round; pass it on to continue, bit for bit.
      history: an `Info` whose arrays have the rounds on their leading axis.
    """

    state: FederatedState
    history: Info


def run_rounds(
    algorithm: Algorithm | Callable[[Any], Algorithm],
    model: Model,
    data: Any,
    state: FederatedState,
    rounds: int,
    *,
    cohort_size: int | None = None,
    sampler: Sampler | None = None,
    batch_size: int = 32,
    local_steps: Any = None,
    local_epochs: Any = None,
    learning_rate: Any = None,
    validation: Any = None,
    validate_every: int = 1,
    batching: str = "shuffled",
    weighting: str = "samples",
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
    client_test: Any = None,
    guard: Guard | None = None,
) -> Run:
    """Runs federated rounds as one compiled `lax.scan`.

    It is pure: call it as it is, or inside `jit`, `vmap` (over hyperparameters, over seeds) and, for a
    fixed number of local steps, `grad`. Random numbers depend on the state's key, the round and the
    client alone, so 200 rounds are 100 rounds and then 100 more from the state returned, bit for bit.
    A round whose loss is not finite is not applied, nor is any after it: the state stays the last good
    one, and `history.finite` says when.

    Args:
      algorithm: the algorithm. Its hyperparameters may be traced. With a `learning_rate`, a function
        of it that returns the algorithm.
      model: the model.
      data: a `ClientData`.
      state: where to start; from `init_state`, or from an earlier run.
      rounds: how many rounds, a Python int.
      cohort_size: S clients in every round, drawn uniformly; or give a `sampler`.
      sampler: how the cohort is drawn; see `fedjax_opt.cohorts`.
      batch_size: B.
      local_steps: K. A Python int is compiled in, and can be differentiated through; an array, one
        value `[N]` per client, a function of the round or a `Controller` is traced, and may change
        without recompiling.
      local_epochs: E instead of K: each client takes `E ceil(n_i / B)` steps.
      learning_rate: eta, for an algorithm that is given as a function of it: a number, a function of
        the round or a `Controller`; in `history.diagnostics` by name.
      validation: examples, a pytree of arrays `[n, ...]`, on which the global model is evaluated inside
        of the run, for controllers that watch it; in `history.diagnostics` as `validation_<name>`.
      validate_every: the rounds between such evaluations; NaN in the history of the others.
      batching: 'shuffled' epochs that honour each client's size, or with 'replacement'.
      weighting: aggregate by 'samples' (n_i) or 'uniform'.
      strategy: how the client axis is executed; see `Strategy`.
      diagnostics: what to measure of the clients' drift: any of 'client_distance',
        'client_update_norm', 'perturbation_norm' and 'momentum_deviation', and of what is sent:
        'upload_bytes'; see `Info.diagnostics`.
      client_test: a `ClientData` of the same clients. The model of each client of the cohort is
        evaluated on the client's own examples there: as it is received, and after each local step (the
        last of them before it is sent) if K is compiled in, else at both ends. In
        `history.diagnostics` as `user_<name>`, `[rounds, S, K + 1]` or `[rounds, S, 2]`; NaN for a
        client without examples.
      guard: the rules by which clients are left out, a `Guard`; see `Info.faults`.

    Returns:
      A `Run`: the state, and the history of the rounds.

    Example:
      The loss after 20 rounds for three learning rates at once:

      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2, seed=0)
      >>> def final_loss(learning_rate):
      ...     algorithm = fo.fedavg(fo.optimizers.sgd(learning_rate))
      ...     state = fo.init_state(algorithm, {"x": jnp.zeros(2)}, num_clients=4)
      ...     run = fo.run_rounds(
      ...         algorithm, model, data, state, 20, cohort_size=4, batch_size=1, local_steps=2
      ...     )
      ...     return run.history.loss[-1]
      >>> jax.vmap(final_loss)(jnp.array([0.001, 0.01, 0.1])).shape
      (3,)
    """
    rounds = checks.integer("rounds", rounds, low=1)
    traced, fixed, state = prepare(
        algorithm, model, data, state, cohort_size=cohort_size, sampler=sampler,
        batch_size=batch_size, local_steps=local_steps, local_epochs=local_epochs,
        learning_rate=learning_rate, validation=validation, validate_every=validate_every,
        batching=batching, weighting=weighting, strategy=strategy, diagnostics=diagnostics,
        client_test=client_test, guard=guard,
    )  # fmt: skip
    fixed = settle_strategy(traced, fixed, state)
    if not meshes.is_simple(fixed.strategy.mesh) and not checks.is_traced(traced, state):
        traced, state = strategies.place((traced, state), fixed.strategy)
    return _scan_rounds(traced, state, fixed, rounds)


@partial(jax.jit, static_argnames=("fixed", "rounds"))
def _scan_rounds(traced: Traced, state: FederatedState, fixed: Fixed, rounds: int) -> Run:
    def one(state, _):
        return one_round(traced, fixed, state)

    return Run(*jax.lax.scan(one, state, None, length=rounds))


def one_round(traced: Traced, fixed: Fixed, state: FederatedState) -> tuple[FederatedState, Info]:
    """Draws the cohort, its minibatches and its numbers of steps, and plays the round."""
    data, sizes = traced.data, jnp.asarray(traced.data.sizes)
    remembered = state.controllers.local_steps if state.controllers else ()
    cohort, steps, unequal = _cohort(
        traced, fixed, state.cohort_key, state.round, remembered, sizes
    )
    weights = sizes[cohort] if fixed.weighting == "samples" else jnp.ones(cohort.shape)
    feeding = _feeding(fixed, data, cohort)
    remembered = state.controllers.learning_rate if state.controllers else ()
    learning_rate = controller.current_rate(traced.learning_rate, remembered, state.round)
    asked, late = _asked(traced, state.cohort_key, state.round, sizes.shape[0])
    new_state, info = federated_round(
        controller.build(traced.algorithm, learning_rate),
        fixed.model,
        fixed.strategy,
        state,
        cohort,
        feeding,
        weights.astype(jnp.result_type(float)),
        steps,
        fixed.static_steps,
        fixed.diagnostics,
        traced.client_test,
        guard=traced.guard,
        asked=asked,
        late=late,
        unequal=unequal,
    )
    seen = dict(info.diagnostics)
    if "momentum_deviation" in fixed.diagnostics:
        seen["momentum_deviation"] = _momentum_deviation(traced, fixed, state, sizes)
    if not isinstance(traced.algorithm, Algorithm):
        seen["learning_rate"] = learning_rate
    if traced.validation:
        seen |= _validate(traced, fixed, new_state)
    info = info._replace(diagnostics=seen)
    controllers = controller.advance(traced.settings, state, info)
    return new_state._replace(controllers=controllers), info


def _asked(traced, key, round_number, num_clients):
    """Who was to take part, -1 for nobody, and who would be late; where a guard wants to know."""
    if traced.guard is None:
        return None, False
    ids, filled = traced.sampler.asks(key, round_number, num_clients)
    return jnp.where(filled, ids, -1), traced.sampler.late(ids)


def _cohort(traced, fixed, key, round_number, remembered, sizes):
    """Who takes part in a round, how many steps each takes, and whether these may differ."""
    cohort, done = traced.sampler.draw(key, round_number, sizes.shape[0])
    present = done.astype(bool)
    cohort = jnp.where(present, cohort, 0)
    steps = _local_steps(traced, fixed, round_number, remembered, cohort, sizes)
    unequal = traced.sampler.falls_short or steps.ndim == 1
    # A schedule may fall to zero; a client that takes part takes a step.
    steps = jnp.broadcast_to(jnp.maximum(steps, 1), cohort.shape)
    if traced.sampler.falls_short:
        steps = jnp.maximum(jnp.ceil(done * steps.astype(done.dtype)).astype(jnp.int32), 1)
    return cohort, jnp.where(present, steps, 0), unequal


@partial(jax.jit, static_argnames=("fixed", "length"))
def seats(
    traced: Traced, key: jax.Array, first_round: jax.Array, fixed: Fixed, length: int
) -> jax.Array:
    """Who is computed in which place in each of the next rounds `[length, places]`.

    Only where local steps are not a `Controller`'s, which decides when the round begins.
    """
    sizes = jnp.asarray(traced.data.sizes)

    def one(round_number):
        cohort, steps, unequal = _cohort(traced, fixed, key, round_number, (), sizes)
        if traced.guard is not None:
            asked, _ = _asked(traced, key, round_number, sizes.shape[0])
            assert asked is not None  # there is a guard
            steps = jnp.where(before_work(traced.guard, asked, steps) > 0, 0, steps)
        return cohort[balance.seats(fixed.strategy, steps, unequal)]

    return jax.lax.map(one, first_round + jnp.arange(length, dtype=jnp.int32))


def _feeding(fixed, data, cohort):
    return batches.feeding_from_data(
        data, cohort, fixed.batch_size, fixed.batching, fixed.full_batches, fixed.num_chunks
    )


def _validate(traced, fixed, state):
    """The global model's loss and metrics on the validation examples, where it is their turn."""
    examples, every = traced.validation

    def measure(variables):
        return evaluate(fixed.model, variables, examples)

    def skip(variables):
        shapes = jax.eval_shape(measure, variables)
        return jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)

    found = jax.lax.cond(state.round % every == 0, measure, skip, state.variables)
    return {f"validation_{name}": value for name, value in found.items()}


def _momentum_deviation(traced, fixed, state, sizes):
    everyone = jnp.arange(sizes.shape[0], dtype=jnp.int32)
    feeding = _feeding(fixed, traced.data, everyone)
    weights = sizes if fixed.weighting == "samples" else jnp.ones(sizes.shape)
    gradient = full_gradient(
        fixed.model,
        fixed.strategy,
        get_variables(state.server),
        feeding,
        weights.astype(jnp.result_type(float)),
        jax.random.fold_in(state.key, state.round),
    )
    return watching.momentum_deviation(state.server, gradient)


def _local_steps(traced, fixed, round_number, remembered, cohort, sizes):
    """K, one number where all clients take as many steps, else one for each of the cohort."""
    if fixed.static_steps is not None:
        return jnp.asarray(fixed.static_steps, jnp.int32)
    value = controller.current(traced.local_steps, remembered, round_number)
    value = jnp.asarray(value, jnp.int32)
    if value.shape not in ((), sizes.shape):
        raise ValueError(
            f"local_steps must be one number or one per client, {list(sizes.shape)}, in every round,"
            f" got shape {value.shape}."
        )
    value = value if value.ndim == 0 else value[cohort]
    if fixed.epochs:
        each = fixed.num_chunks or batches.steps_per_epoch(sizes[cohort], fixed.batch_size)
        value = value * jnp.asarray(each, jnp.int32)
    return value


def settle_strategy(traced: Traced, fixed: Fixed, state: FederatedState) -> Fixed:
    """Settles 'auto' on an accelerator by what one compiled round needs."""

    def lower(option: Strategy) -> Any:
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), (traced, state)
        )
        return _scan_rounds.lower(*abstract, fixed._replace(strategy=option), 1)

    return fixed._replace(strategy=strategies.settle(fixed.strategy, traced.sampler.size, lower))
