"""What a run is asked to do, checked, and parted into what is compiled in and what is traced."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState, check_state
from fedjax_opt.engine import batching as batches
from fedjax_opt.engine import cohorts, controller
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.engine.cohorts import Sampler
from fedjax_opt.engine.controller import Controller, Controls
from fedjax_opt.engine.guard import Guard, check_guard
from fedjax_opt.execution import strategies
from fedjax_opt.execution.strategies import Strategy

WEIGHTINGS = ("samples", "uniform")


class Fixed(NamedTuple):
    """The part of a run that is compiled in; everything else may change without recompiling."""

    model: Model
    strategy: Strategy
    batch_size: int
    batching: str
    weighting: str
    full_batches: bool
    num_chunks: int | None
    static_steps: int | None
    epochs: bool
    diagnostics: tuple[str, ...]


class Traced(NamedTuple):
    """The part of a run that is an argument of the compiled program."""

    algorithm: Any
    sampler: Sampler
    local_steps: Any
    learning_rate: Any
    validation: Any
    client_test: Any
    data: Any
    guard: Guard | None = None

    @property
    def settings(self) -> Controls:
        """What a controller may set."""
        return Controls(self.local_steps, self.learning_rate)


class Validation(NamedTuple):
    """Examples on which the global model is evaluated inside of a run, every so many rounds."""

    examples: Any
    every: Any


def prepare(
    algorithm, model, data, state, *, cohort_size, sampler, batch_size, local_steps, local_epochs,
    learning_rate, validation, validate_every, batching, weighting, strategy, diagnostics,
    client_test=None, guard=None,
) -> tuple[Traced, Fixed, FederatedState]:  # fmt: skip
    """Checks the arguments of a run, and parts what is traced from what is compiled in.

    Returns:
      Both parts, and the state with a place for what the controllers remember.
    """
    check_state(controller.first_algorithm(algorithm, learning_rate), state)
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
    full_batches, num_chunks = False, None
    if not checks.is_traced(data.sizes):
        sizes = np.asarray(data.sizes)
        _check_nobody_is_empty(sizes)
        full_batches = bool(np.all(sizes % batch_size == 0))
        num_chunks = _the_same(batches.steps_per_epoch(sizes, batch_size))
    static = isinstance(steps, int) and local_epochs is None and not sampler.falls_short
    fixed = Fixed(
        model=model,
        strategy=strategies.resolve(strategy),
        batch_size=batch_size,
        batching=batching,
        weighting=weighting,
        full_batches=full_batches,
        num_chunks=num_chunks,
        static_steps=steps if static else None,
        epochs=local_epochs is not None,
        diagnostics=_check_diagnostics(diagnostics, state),
    )
    traced = Traced(
        algorithm=controller.as_setting(algorithm),
        sampler=sampler,
        local_steps=() if static else steps,
        learning_rate=controller.check_learning_rate(algorithm, learning_rate),
        validation=_check_validation(validation, validate_every),
        client_test=_check_client_test(client_test, num_clients),
        data=data,
        guard=check_guard(guard, num_clients, sampler.size),
    )
    return traced, fixed, controller.started(traced.settings, state)


def _check_population(state, num_clients):
    if not checks.is_traced(state.num_clients) and int(state.num_clients) != num_clients:
        raise ValueError(
            f"state was made for {int(state.num_clients)} clients, but data holds {num_clients}."
        )


def _check_client_test(client_test, num_clients):
    if client_test is None:
        return None
    sizes = getattr(client_test, "sizes", None)
    if sizes is None or sizes.shape != (num_clients,):
        got = type(client_test).__name__ if sizes is None else f"{sizes.shape[0]} clients"
        raise ValueError(
            f"client_test must be a ClientData of the same {num_clients} clients, got {got}."
        )
    return client_test


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


def _check_validation(examples: Any, every: int) -> Any:
    every = checks.integer("validate_every", every, low=1)
    if examples is None:
        return ()
    (count,) = checks.leading_axes("validation", examples, (None,), "n")
    if count == 0:
        raise ValueError("validation must hold at least one example, got none.")
    return Validation(examples, jnp.asarray(every, jnp.int32))


def _check_steps(name: str, steps: Any, num_clients: int) -> Any:
    if isinstance(steps, Controller):
        return steps
    if callable(steps):
        return steps if isinstance(steps, Partial) else Partial(steps)
    if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool):
        return checks.integer(name, steps, low=1)
    steps = checks.as_array(name, steps)
    if jnp.shape(steps) not in ((), (num_clients,)):
        raise ValueError(
            f"{name} must be a whole number, one per client [{num_clients}], a function of the"
            f" round or a Controller, got shape {jnp.shape(steps)}."
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


def _the_same(values: np.ndarray) -> int | None:
    """The one value that all are, if there is one."""
    return int(values[0]) if np.all(values == values[0]) else None


def _check_diagnostics(names: Any, state: Any) -> tuple[str, ...]:
    names = watching.check(names)
    if "momentum_deviation" in names:
        watching.gradient_estimate(state.server)
    return names
