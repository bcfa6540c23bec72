"""Many rounds as one program: a pure scan that can be jitted, vmapped and differentiated."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import checks, controller, trees
from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt
from fedjax_opt.core.aliases import Memory
from fedjax_opt.core.calls import without_call
from fedjax_opt.core.client_data import ClientData, check_in_memory
from fedjax_opt.core.cohorts import Sampler
from fedjax_opt.core.controller import Controller
from fedjax_opt.core.federation import (
    Epochs,
    Federation,
    check_nouns,
    controls_of,
    with_controllers,
)
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState, check_state
from fedjax_opt.core.struct import changed, struct
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.engine.evaluate import evaluate
from fedjax_opt.engine.minibatches import feeds_from_data, steps_per_epoch
from fedjax_opt.engine.round import Cohort, How, federated_round, momentum_deviation
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


@struct("strategy", "diagnostics", "full_batches", "steps_per_epoch")
class Prepared:
    """An argument of the program of some rounds: what is static in it is compiled in."""

    algorithm: Algorithm | Scheduled
    # Without what the rounds do not read. Its clients' sizes are not known: another split of as many
    # examples is the same program, unless one of the last two facts differs.
    federation: Federation
    strategy: Strategy
    diagnostics: tuple[str, ...]
    full_batches: bool
    steps_per_epoch: int | None

    @property
    def controls(self) -> controller.Controls:
        """What a controller may set."""
        return controls_of(self.algorithm, self.federation)

    def with_clients(self, clients: ClientData | int) -> "Prepared":
        """The same with other examples of the same clients."""
        return changed(self, federation=changed(self.federation, clients=clients))


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
    check_nouns(algorithm, federation, "run_rounds(algorithm, federation, state, rounds)")
    rounds = checks.integer("rounds", rounds, low=1)
    prepared, state = prepare(algorithm, federation, state, strategy, diagnostics, "run_rounds")
    check_in_memory("federation.clients", federation.clients, "for run_rounds")

    def compiled(option: Strategy) -> jax.stages.Compiled:
        shapes = trees.shapes_of((changed(prepared, strategy=option), state))
        return _scan_rounds.lower(*shapes, 1).compile()

    size = prepared.federation.cohort.size
    strategy = fit(prepared.strategy, size, compiled, prepared, state)
    prepared = changed(prepared, strategy=strategy)
    if not placement.is_simple(strategy.mesh) and not checks.is_traced(prepared, state):
        prepared, state = strategies.place((prepared, state), strategy)
    return _scan_rounds(prepared, state, rounds)


def prepare(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    state: FederatedState,
    strategy: str | Strategy,
    diagnostics: Sequence[str],
    verb: str,
) -> tuple[Prepared, FederatedState]:
    """Checks what a verb that plays rounds was given."""
    if isinstance(federation.clients, int):
        raise ValueError(
            f"federation.clients must be a ClientData for {verb}, which trains on their examples, got"
            f" the number {federation.clients}."
        )
    for name in ("cohort", "local_steps"):
        if getattr(federation, name) is None:
            raise ValueError(
                f"federation.{name} must be given for {verb}: federation.replace({name}=10)."
            )
    first = algorithm if isinstance(algorithm, Algorithm) else controller.first_algorithm(algorithm)
    check_state(first, state)
    count = federation.num_clients
    if not checks.is_traced(state.num_clients) and int(state.num_clients) != count:
        raise ValueError(
            f"state was made for {int(state.num_clients)} clients, but the federation has {count}."
        )
    names = () if diagnostics == () else watching.check(diagnostics)
    if "momentum_deviation" in names:
        watching.gradient_estimate(state.server)
    if "user_metrics" in names and federation.client_test is None:
        raise ValueError(
            "diagnostics: 'user_metrics' needs examples of the clients' own:"
            " federation.replace(client_test=...)."
        )
    validation = federation.validation
    if validation is not None and not controls_of(algorithm, federation).watchers:
        validation = None
    steps = federation.local_steps
    if isinstance(steps, StaticInt) and federation.cohort.falls_short:
        steps = jnp.asarray(int(steps), jnp.int32)  # clients take different numbers of steps anyway
    read = changed(
        federation,
        clients=changed(federation.clients, known=None),
        local_steps=steps,
        initial=None,
        test=None,
        client_test=federation.client_test if "user_metrics" in names else None,
        validation=validation,
    )
    prepared = Prepared(
        algorithm=without_call(algorithm),
        federation=read,
        strategy=strategies.resolve(strategy),
        diagnostics=names,
        full_batches=federation.full_batches,
        steps_per_epoch=federation.steps_per_epoch,
    )
    return prepared, with_controllers(algorithm, federation, state)


@partial(jax.jit, static_argnames="rounds")
def _scan_rounds(prepared: Prepared, state: FederatedState, rounds: int) -> Run:
    def one(state, _):
        return one_round(prepared, state)

    return Run(*jax.lax.scan(one, state, None, length=rounds))


def one_round(prepared: Prepared, state: FederatedState) -> tuple[FederatedState, Info]:
    """Draws the cohort, its minibatches and its numbers of steps, and plays the round."""
    federation, algorithm = prepared.federation, prepared.algorithm
    memory, seen = state.controllers or controller.Controls(), {}
    if isinstance(algorithm, Scheduled):
        algorithm, seen["learning_rate"] = controller.at_round(
            algorithm, memory.learning_rate, state.round
        )
    cohort = _cohort(prepared, state.cohort_key, state.round, memory.local_steps)
    steps = federation.local_steps
    static_steps = int(steps) if isinstance(steps, StaticInt) else None
    new_state, info = federated_round(
        algorithm,
        federation.model,
        state,
        cohort,
        _feeds(prepared, cohort.ids),
        How(
            strategy=prepared.strategy,
            static_steps=static_steps,
            diagnostics=prepared.diagnostics,
            by_examples=federation.weighting == "weights",
        ),
        federation.guard,
        federation.client_test,
    )
    if "momentum_deviation" in prepared.diagnostics:
        sizes = jnp.asarray(federation.clients.sizes)
        feeds = _feeds(prepared, jnp.arange(sizes.shape[0], dtype=jnp.int32))
        seen["momentum_deviation"] = momentum_deviation(
            federation.model, prepared.strategy, state, feeds, _weights(federation, sizes)
        )
    if federation.validation is not None:
        seen |= _validate(prepared, new_state)
    info = info._replace(diagnostics=info.diagnostics | seen)
    if state.controllers:
        memory = controller.advance(prepared.controls, state.controllers, info)
        new_state = new_state._replace(controllers=memory)
    return new_state, info


def _cohort(
    prepared: Prepared, key: chex.PRNGKey, round_number: jax.Array, memory: Memory
) -> Cohort:
    """Who takes part in a round, and how many steps each takes."""
    federation = prepared.federation
    sampler: Sampler = federation.cohort
    sizes = jnp.asarray(federation.clients.sizes)
    drawn = sampler.outcome(key, round_number, sizes.shape[0])
    present = drawn.done.astype(bool)
    ids = jnp.where(present, drawn.ids, 0)
    steps = _local_steps(prepared, round_number, memory, ids, sizes)
    unequal = sampler.falls_short or steps.ndim == 1
    # A schedule may fall to zero; a client that takes part takes a step.
    steps = jnp.broadcast_to(jnp.maximum(steps, 1), ids.shape)
    if sampler.falls_short:
        done = drawn.done * steps.astype(drawn.done.dtype)
        steps = jnp.maximum(jnp.ceil(done).astype(jnp.int32), 1)
    return Cohort(
        ids=ids,
        weights=_weights(federation, sizes)[ids],
        num_steps=jnp.where(present, steps, 0),
        invited=jnp.sum(drawn.asked >= 0, dtype=jnp.int32),
        asked=drawn.asked,
        late=drawn.late,
        unequal=unequal,
    )


def _weights(federation: Federation, sizes: jax.Array) -> jax.Array:
    """The weights of all clients: n_i, say, times a power of two by which their mean is near 1; or 1."""
    dtype = jnp.result_type(float)
    if federation.weighting == "uniform":
        return jnp.ones(sizes.shape, dtype)
    by_size = isinstance(federation.weighting, str)
    weights = jnp.asarray(sizes if by_size else federation.weighting, dtype)
    return jnp.ldexp(weights, -jnp.frexp(jnp.mean(weights))[1])


def _local_steps(prepared, round_number, memory, cohort, sizes) -> jax.Array:
    """K, one number where all clients take as many steps, else one for each of the cohort."""
    given = prepared.federation.local_steps
    if isinstance(given, StaticInt):
        return jnp.asarray(int(given), jnp.int32)
    value = given.count if isinstance(given, Epochs) else given
    if isinstance(value, Controller) or callable(value):
        value = controller.current(value, memory, round_number)
    value = jnp.asarray(value)
    if value.shape not in ((), sizes.shape) or not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"local_steps must be a whole number or one per client, {list(sizes.shape)}, in every"
            f" round, got {value.dtype}{list(value.shape)}. A schedule of fractions has to say how it"
            " rounds: lambda t: jnp.ceil(schedule(t)).astype(int)."
        )
    value = value.astype(jnp.int32)
    value = value if value.ndim == 0 else value[cohort]
    if isinstance(given, Epochs):
        each = prepared.steps_per_epoch
        each = each or steps_per_epoch(
            sizes[cohort], prepared.federation.batch_size, prepared.full_batches
        )
        value = value * jnp.asarray(each, jnp.int32)
    return value


@partial(jax.jit, static_argnames="length")
def seats(prepared: Prepared, key: chex.PRNGKey, first_round: jax.Array, length: int) -> jax.Array:
    """Who is computed in which place in each of the next rounds `[length, places]`."""

    def one(round_number):
        cohort = _cohort(prepared, key, round_number, ())
        return cohort.ids[Lineup(prepared.strategy, cohort.num_steps, cohort.unequal).seats]

    return jax.lax.map(one, first_round + jnp.arange(length, dtype=jnp.int32))


def _feeds(prepared, cohort):
    federation = prepared.federation
    return feeds_from_data(
        federation.clients, cohort, federation.batch_size, federation.batching,
        prepared.full_batches, prepared.steps_per_epoch,
    )  # fmt: skip


def _validate(prepared: Prepared, state: FederatedState) -> dict[str, jax.Array]:
    """The global model's loss and metrics on the validation examples, where it is their turn."""
    federation = prepared.federation

    def measure(variables):
        return evaluate(federation.model, variables, federation.validation)

    def skip(variables):
        shapes = jax.eval_shape(measure, variables)
        return jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)

    turns = [
        state.round % jnp.asarray(watcher.every) == 0 for watcher in prepared.controls.watchers
    ]
    found = jax.lax.cond(jnp.any(jnp.stack(turns)), measure, skip, state.variables)
    return {f"validation_{name}": value for name, value in found.items()}
