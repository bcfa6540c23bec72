"""Many rounds as one program: a pure scan that can be jitted, vmapped and differentiated."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks, controller
from fedjax_opt.core.algorithm import Algorithm, Scheduled, get_variables
from fedjax_opt.core.federation import Epochs, Federation, check_nouns
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.engine import minibatches as batches
from fedjax_opt.engine.evaluate import evaluate
from fedjax_opt.engine.guard import before_work
from fedjax_opt.engine.preparation import Prepared, prepare, refuse_stored
from fedjax_opt.engine.round import Cohort, How, federated_round, full_gradient
from fedjax_opt.execution import placement, strategies
from fedjax_opt.execution.lineup import Lineup
from fedjax_opt.execution.memory import fit
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
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    state: FederatedState,
    rounds: int,
    *,
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
) -> Run:
    """Runs federated rounds as one compiled `lax.scan`.

    It is pure: call it as it is, or inside `jit`, `vmap` (over hyperparameters, over seeds) and, for a
    fixed number of local steps, `grad`. Random numbers depend on the state's key, the round and the
    client alone, so 200 rounds are 100 rounds and then 100 more from the state returned, bit for bit.
    A round whose loss is not finite is not applied, nor is any after it: the state stays the last good
    one, and `history.finite` says when.

    Args:
      algorithm: the algorithm, or one with a `scheduled` learning rate. Its hyperparameters may be
        traced.
      federation: what it learns on; see `Federation`, of which K = 10 is compiled in and K =
        jnp.int32(10) is not. A large one is placed on the device once, with `fo.place`, and is an
        argument of a `jit` of yours rather than a constant in it.
      state: where to start; from `init_state`, or from an earlier run.
      rounds: how many rounds, a Python int.
      strategy: how the client axis is executed; see `Strategy`.
      diagnostics: what to measure of the clients' drift: any of 'client_distance',
        'client_update_norm', 'perturbation_norm' and 'momentum_deviation', and of what is sent:
        'upload_bytes'; see `Info.diagnostics`. With 'user_metrics' the model of each client of the
        cohort is evaluated on the client's own examples in `federation.client_test`: as it is received,
        and after each local step (the last of them before it is sent) if K is compiled in, else at both
        ends. In `history.diagnostics` as `user_<name>`, `[rounds, S, K + 1]` or `[rounds, S, 2]`; NaN
        for a client without examples.

    Returns:
      A `Run`: the state, and the history of the rounds. The learning rate of a `scheduled` algorithm and
      what controllers watch (`validation_<name>`) are in `history.diagnostics`.

    Example:
      The loss after 20 rounds for three learning rates at once:

      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=4, dimension=2, seed=0)
      >>> federation = fo.Federation(model, clients, cohort=4, local_steps=2, batch_size=1)
      >>> def final_loss(learning_rate):
      ...     algorithm = fo.fedavg(fo.optimizers.sgd(learning_rate))
      ...     state = fo.init_state(algorithm, federation)
      ...     return fo.run_rounds(algorithm, federation, state, 20).history.loss[-1]
      >>> jax.vmap(final_loss)(jnp.array([0.001, 0.01, 0.1])).shape
      (3,)
    """
    call = "run_rounds(algorithm, federation, state, rounds)"
    check_nouns(algorithm, federation, call)
    rounds = checks.integer("rounds", rounds, low=1)
    prepared, state = prepare(algorithm, federation, state, strategy, diagnostics, "run_rounds")
    refuse_stored("federation.clients", prepared.federation.clients, "run_rounds")
    prepared = settle_strategy(prepared, state)
    if not placement.is_simple(prepared.strategy.mesh) and not checks.is_traced(prepared, state):
        prepared, state = strategies.place((prepared, state), prepared.strategy)
    return _scan_rounds(prepared, state, rounds)


@partial(jax.jit, static_argnames="rounds")
def _scan_rounds(prepared: Prepared, state: FederatedState, rounds: int) -> Run:
    def one(state, _):
        return one_round(prepared, state)

    return Run(*jax.lax.scan(one, state, None, length=rounds))


def one_round(prepared: Prepared, state: FederatedState) -> tuple[FederatedState, Info]:
    """Draws the cohort, its minibatches and its numbers of steps, and plays the round."""
    federation, algorithm = prepared.federation, prepared.algorithm
    clients: Any = federation.clients
    sizes = jnp.asarray(clients.sizes)
    memory = state.controllers or controller.Controls()
    ids, steps, unequal = _cohort(
        prepared, state.cohort_key, state.round, memory.local_steps, sizes
    )
    learning_rate = controller.current_rate(algorithm, memory.learning_rate, state.round)
    asked, late = _asked(federation, state.cohort_key, state.round, ids, steps)
    new_state, info = federated_round(
        controller.at_rate(algorithm, learning_rate),
        federation.model,
        state,
        Cohort(
            ids=ids,
            weights=_weights(federation, sizes)[ids],
            num_steps=steps,
            invited=jnp.sum(asked >= 0, dtype=jnp.int32),
            asked=asked,
            late=late,
        ),
        _feeds(prepared, ids),
        How(
            prepared.strategy,
            prepared.static_steps,
            prepared.diagnostics,
            unequal,
            federation.weighting == "weights",
        ),
        federation.guard,
        federation.client_test,
    )
    seen = dict(info.diagnostics)
    if "momentum_deviation" in prepared.diagnostics:
        seen["momentum_deviation"] = _momentum_deviation(prepared, state, sizes)
    if isinstance(algorithm, Scheduled):
        seen["learning_rate"] = learning_rate
    if federation.validation is not None:
        seen |= _validate(prepared, new_state)
    info = info._replace(diagnostics=seen)
    controllers = controller.advance(prepared.controls, state, info)
    return new_state._replace(controllers=controllers), info


def _weights(federation, sizes):
    """The weights of all clients: n_i, say, times a power of two by which their mean is near 1; or 1.

    Where uploads are weighted by the examples that were used, this is for reports of a probe alone.
    """
    dtype = jnp.result_type(float)
    if federation.weighting == "uniform":
        return jnp.ones(sizes.shape, dtype)
    by_size = isinstance(federation.weighting, str)
    weights = jnp.asarray(sizes if by_size else federation.weighting, dtype)
    return jnp.ldexp(weights, -jnp.frexp(jnp.mean(weights))[1])


def _asked(federation, key, round_number, ids, steps):
    """Who was to take part, -1 for nobody, and who would be late; of a cohort that was drawn."""
    sampler = federation.cohort
    if not sampler.falls_short and sampler.punctual is None:
        return jnp.where(steps > 0, ids, -1), False
    ids, filled = sampler.asks(key, round_number, federation.num_clients)
    return jnp.where(filled, ids, -1), sampler.late(ids)


def _cohort(prepared, key, round_number, remembered, sizes):
    """Who takes part in a round, how many steps each takes, and whether these may differ."""
    sampler = prepared.federation.cohort
    cohort, done = sampler.draw(key, round_number, sizes.shape[0])
    present = done.astype(bool)
    cohort = jnp.where(present, cohort, 0)
    steps = _local_steps(prepared, round_number, remembered, cohort, sizes)
    unequal = sampler.falls_short or steps.ndim == 1
    # A schedule may fall to zero; a client that takes part takes a step.
    steps = jnp.broadcast_to(jnp.maximum(steps, 1), cohort.shape)
    if sampler.falls_short:
        steps = jnp.maximum(jnp.ceil(done * steps.astype(done.dtype)).astype(jnp.int32), 1)
    return cohort, jnp.where(present, steps, 0), unequal


@partial(jax.jit, static_argnames="length")
def seats(prepared: Prepared, key: jax.Array, first_round: jax.Array, length: int) -> jax.Array:
    """Who is computed in which place in each of the next rounds `[length, places]`.

    Only where local steps are not a `Controller`'s, which decides when the round begins.
    """
    federation = prepared.federation
    clients: Any = federation.clients
    sizes = jnp.asarray(clients.sizes)

    def one(round_number):
        cohort, steps, unequal = _cohort(prepared, key, round_number, (), sizes)
        if federation.guard is not None:
            asked, _ = _asked(federation, key, round_number, cohort, steps)
            steps = jnp.where(before_work(federation.guard, asked, steps) > 0, 0, steps)
        return cohort[Lineup(prepared.strategy, steps, unequal).seats]

    return jax.lax.map(one, first_round + jnp.arange(length, dtype=jnp.int32))


def _feeds(prepared, cohort):
    federation = prepared.federation
    return batches.feeds_from_data(
        federation.clients, cohort, federation.batch_size, federation.batching,
        prepared.full_batches, prepared.steps_per_epoch,
    )  # fmt: skip


def _validate(prepared, state):
    """The global model's loss and metrics on the validation examples, where it is their turn."""
    federation = prepared.federation

    def measure(variables):
        return evaluate(federation.model, variables, federation.validation)

    def skip(variables):
        shapes = jax.eval_shape(measure, variables)
        return jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)

    turns = [state.round % watcher.every == 0 for watcher in prepared.controls.watchers]
    found = jax.lax.cond(jnp.any(jnp.stack(turns)), measure, skip, state.variables)
    return {f"validation_{name}": value for name, value in found.items()}


def _momentum_deviation(prepared, state, sizes):
    everyone = jnp.arange(sizes.shape[0], dtype=jnp.int32)
    gradient = full_gradient(
        prepared.federation.model,
        prepared.strategy,
        get_variables(state.server),
        _feeds(prepared, everyone),
        _weights(prepared.federation, sizes),
        jax.random.fold_in(state.key, state.round),
    )
    return watching.momentum_deviation(state.server, gradient)


def _local_steps(prepared, round_number, remembered, cohort, sizes):
    """K, one number where all clients take as many steps, else one for each of the cohort."""
    if prepared.static_steps is not None:
        return jnp.asarray(prepared.static_steps, jnp.int32)
    setting = prepared.controls.local_steps
    value = jnp.asarray(controller.current(setting, remembered, round_number))
    if value.shape not in ((), sizes.shape) or not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"local_steps must be a whole number or one per client, {list(sizes.shape)}, in every"
            f" round, got {value.dtype}{list(value.shape)}. A schedule of fractions has to say how it"
            " rounds: lambda t: jnp.ceil(schedule(t)).astype(int)."
        )
    value = value.astype(jnp.int32)
    value = value if value.ndim == 0 else value[cohort]
    if isinstance(prepared.federation.local_steps, Epochs):
        each = prepared.steps_per_epoch
        each = each or batches.steps_per_epoch(
            sizes[cohort], prepared.federation.batch_size, prepared.full_batches
        )
        value = value * jnp.asarray(each, jnp.int32)
    return value


def settle_strategy(prepared: Prepared, state: FederatedState) -> Prepared:
    """Settles 'auto', and keeps a limit of memory, by what one compiled round needs."""
    strategy = prepared.strategy
    if strategy.name != "auto" and strategy.memory_limit is None:
        return prepared

    def compiled(option: Strategy) -> jax.stages.Compiled:
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
            (prepared.replace(strategy=option), state),
        )
        return _scan_rounds.lower(*abstract, 1).compile()

    size = prepared.federation.cohort.size
    return prepared.replace(strategy=fit(strategy, size, compiled, prepared, state))
