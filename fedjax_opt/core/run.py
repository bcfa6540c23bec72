"""Many rounds as one program: a pure scan that can be jitted, vmapped and differentiated."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import batching as batches
from fedjax_opt.core import checks, cohorts, strategies
from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.cohorts import Sampler
from fedjax_opt.core.model import Model
from fedjax_opt.core.round import Info, federated_round
from fedjax_opt.core.state import FederatedState, check_state
from fedjax_opt.core.strategies import Strategy

WEIGHTINGS = ("samples", "uniform")

# Rounds are below 2^31 - 1, so this one never names a round's stream of random numbers.
_COHORTS = 2**31 - 1


class Run(NamedTuple):
    """What many rounds gave.

    Attributes:
      state: the state after the last round; pass it on to continue, bit for bit.
      history: an `Info` whose arrays have the rounds on their leading axis.
    """

    state: FederatedState
    history: Info


class Fixed(NamedTuple):
    """The part of a run that is compiled in; everything else may change without recompiling."""

    model: Model
    strategy: Strategy
    batch_size: int
    batching: str
    weighting: str
    full_batches: bool
    static_steps: int | None
    epochs: bool


class Traced(NamedTuple):
    """The part of a run that is an argument of the compiled program."""

    algorithm: Algorithm
    sampler: Sampler
    local_steps: Any
    data: Any


def run_rounds(
    algorithm: Algorithm,
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
    batching: str = "shuffled",
    weighting: str = "samples",
    strategy: str | Strategy = "auto",
) -> Run:
    """Runs federated rounds as one compiled `lax.scan`.

    It is pure: call it as it is, or inside `jit`, `vmap` (over hyperparameters, over seeds) and, for a
    fixed number of local steps, `grad`. Random numbers depend on the state's key, the round and the
    client alone, so 200 rounds are 100 rounds and then 100 more from the state returned, bit for bit.
    A round whose loss is not finite is not applied, nor is any after it: the state stays the last good
    one, and `history.finite` says when.

    Args:
      algorithm: the algorithm. Its hyperparameters may be traced.
      model: the model.
      data: a `ClientData`.
      state: where to start; from `init_state`, or from an earlier run.
      rounds: how many rounds, a Python int.
      cohort_size: S clients in every round, drawn uniformly; or give a `sampler`.
      sampler: how the cohort is drawn; see `fedjax_opt.cohorts`.
      batch_size: B.
      local_steps: K. A Python int is compiled in, and can be differentiated through; an array, one
        value `[N]` per client, or a function of the round is traced, and may change without
        recompiling.
      local_epochs: E instead of K: each client takes `E ceil(n_i / B)` steps.
      batching: 'shuffled' epochs that honour each client's size, or with 'replacement'.
      weighting: aggregate by 'samples' (n_i) or 'uniform'.
      strategy: how the client axis is executed; see `Strategy`.

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
    traced, fixed = prepare(
        algorithm, model, data, state, cohort_size=cohort_size, sampler=sampler,
        batch_size=batch_size, local_steps=local_steps, local_epochs=local_epochs,
        batching=batching, weighting=weighting, strategy=strategy,
    )  # fmt: skip
    fixed = settle_strategy(traced, fixed, state)
    return _scan_rounds(traced, state, fixed, rounds)


@partial(jax.jit, static_argnames=("fixed", "rounds"))
def _scan_rounds(traced: Traced, state: FederatedState, fixed: Fixed, rounds: int) -> Run:
    def one(state, _):
        return one_round(traced, fixed, state)

    return Run(*jax.lax.scan(one, state, None, length=rounds))


def one_round(traced: Traced, fixed: Fixed, state: FederatedState) -> tuple[FederatedState, Info]:
    """Draws the cohort, its minibatches and its numbers of steps, and plays the round."""
    data, sizes = traced.data, jnp.asarray(traced.data.sizes)
    cohort_key = jax.random.fold_in(state.key, _COHORTS)
    cohort, present = traced.sampler.draw(cohort_key, state.round, sizes.shape[0])
    cohort = jnp.where(present, cohort, 0)
    steps = _local_steps(traced, fixed, state.round, cohort, sizes)
    weights = sizes[cohort] if fixed.weighting == "samples" else jnp.ones(cohort.shape)
    feeding = batches.feeding_from_data(
        data, cohort, fixed.batch_size, fixed.batching, fixed.full_batches
    )
    return federated_round(
        traced.algorithm,
        fixed.model,
        fixed.strategy,
        state,
        cohort,
        feeding,
        weights.astype(jnp.result_type(float)),
        jnp.where(present, steps, 0),
        fixed.static_steps,
    )


def _local_steps(traced, fixed, round_number, cohort, sizes):
    if fixed.static_steps is not None:
        return jnp.full(cohort.shape, fixed.static_steps, jnp.int32)
    value = traced.local_steps
    value = value(round_number) if callable(value) else value
    value = jnp.asarray(value, jnp.int32)
    if value.shape not in ((), sizes.shape):
        raise ValueError(
            f"local_steps must be one number or one per client, {list(sizes.shape)}, in every round,"
            f" got shape {value.shape}."
        )
    value = value if value.ndim == 0 else value[cohort]
    if fixed.epochs:
        value = value * batches.steps_per_epoch(sizes[cohort], fixed.batch_size)
    # A schedule may fall to zero; a client that takes part takes a step.
    return jnp.broadcast_to(jnp.maximum(value, 1), cohort.shape)


def prepare(
    algorithm, model, data, state, *, cohort_size, sampler, batch_size, local_steps, local_epochs,
    batching, weighting, strategy,
) -> tuple[Traced, Fixed]:  # fmt: skip
    """Checks the arguments of a run, and parts what is traced from what is compiled in."""
    check_state(algorithm, state)
    num_clients = data.sizes.shape[0]
    _check_population(state, num_clients)
    sampler = _check_sampler(cohort_size, sampler, num_clients)
    if (local_steps is None) == (local_epochs is None):
        raise ValueError(
            "Give either local_steps or local_epochs, got"
            f" local_steps={local_steps!r} and local_epochs={local_epochs!r}."
        )
    name = "local_steps" if local_epochs is None else "local_epochs"
    steps = _check_steps(name, local_steps if local_epochs is None else local_epochs, num_clients)
    batch_size = checks.integer("batch_size", batch_size, low=1)
    checks.choice("batching", batching, batches.BATCHINGS)
    checks.choice("weighting", weighting, WEIGHTINGS)
    full_batches = False
    if not checks.is_traced(data.sizes):
        sizes = np.asarray(data.sizes)
        _check_nobody_is_empty(sizes)
        full_batches = bool(np.all(sizes % batch_size == 0))
    static = isinstance(steps, int) and local_epochs is None
    fixed = Fixed(
        model=model,
        strategy=strategies.resolve(strategy),
        batch_size=batch_size,
        batching=batching,
        weighting=weighting,
        full_batches=full_batches,
        static_steps=steps if static else None,
        epochs=local_epochs is not None,
    )
    return Traced(algorithm, sampler, () if static else steps, data), fixed


def settle_strategy(traced: Traced, fixed: Fixed, state: FederatedState) -> Fixed:
    """Settles 'auto' on an accelerator by what one compiled round needs."""

    def lower(option: Strategy) -> Any:
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), (traced, state)
        )
        return _scan_rounds.lower(*abstract, fixed._replace(strategy=option), 1)

    return fixed._replace(strategy=strategies.settle(fixed.strategy, traced.sampler.size, lower))


def _check_population(state, num_clients):
    if not checks.is_traced(state.num_clients) and int(state.num_clients) != num_clients:
        raise ValueError(
            f"state was made for {int(state.num_clients)} clients, but data holds {num_clients}."
        )


def _check_sampler(cohort_size, sampler, num_clients) -> Sampler:
    if (cohort_size is None) == (sampler is None):
        raise ValueError(
            f"Give either cohort_size or sampler, got cohort_size={cohort_size!r} and"
            f" sampler={sampler!r}."
        )
    if sampler is None:
        sampler = cohorts.uniform(checks.integer("cohort_size", cohort_size, low=1))
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a Sampler of fedjax_opt.cohorts, got {sampler!r}.")
    for name, needed in (
        ("cohort_size", sampler.size),
        ("sampler's pool_size", sampler.least_population or 0),
    ):
        if needed > num_clients:
            raise ValueError(
                f"{name} must not be larger than the population of {num_clients} clients, got"
                f" {needed}."
            )
    if sampler.population not in (None, num_clients):
        raise ValueError(
            f"sampler was made for {sampler.population} clients, but data holds {num_clients}."
        )
    return sampler


def _check_steps(name: str, steps: Any, num_clients: int) -> Any:
    if callable(steps):
        return steps if isinstance(steps, Partial) else Partial(steps)
    if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool):
        return checks.integer(name, steps, low=1)
    steps = checks.as_array(name, steps)
    if jnp.shape(steps) not in ((), (num_clients,)):
        raise ValueError(
            f"{name} must be a whole number, one per client [{num_clients}] or a function of the"
            f" round, got shape {jnp.shape(steps)}."
        )
    if not jnp.issubdtype(jnp.result_type(steps), jnp.integer):
        raise ValueError(f"{name} must be whole, got {jnp.result_type(steps)}.")
    checks.number(name, steps, low=1)
    return jnp.asarray(steps, jnp.int32)


def _check_nobody_is_empty(sizes: np.ndarray) -> None:
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise ValueError(
            f"data must have no empty client to train on, but {len(empty)} hold no example, client"
            f" {empty[0]} among them. Select the others: data[data.sizes > 0]."
        )
