"""What a run is asked to do, checked, and without what its program does not read."""

from typing import Any

import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt
from fedjax_opt.core.client_data import in_memory
from fedjax_opt.core.controller import Controls, first_algorithm, started
from fedjax_opt.core.federation import Federation, controls_of
from fedjax_opt.core.state import FederatedState, check_state
from fedjax_opt.core.struct import changed, struct
from fedjax_opt.engine import diagnostics as watching
from fedjax_opt.execution import strategies
from fedjax_opt.execution.strategies import Strategy


@struct("strategy", "diagnostics", "full_batches", "steps_per_epoch")
class Prepared:
    """An argument of the program of some rounds: what is static in it is compiled in.

    Attributes:
      algorithm: the algorithm.
      federation: the federation without what the rounds do not read. Its clients' sizes are not known:
        another split of as many examples is the same program, unless one of the last two facts differs.
      strategy: how the client axis is executed.
      diagnostics: what is measured inside of the rounds.
      full_batches: as in `Federation`.
      steps_per_epoch: as in `Federation`.
    """

    algorithm: Algorithm | Scheduled
    federation: Federation
    strategy: Strategy
    diagnostics: tuple[str, ...]
    full_batches: bool
    steps_per_epoch: int | None

    @property
    def controls(self) -> Controls:
        """What a controller may set."""
        return controls_of(self.algorithm, self.federation)

    @property
    def static_steps(self) -> int | None:
        """K where it is compiled in."""
        steps = self.federation.local_steps
        return int(steps) if isinstance(steps, StaticInt) else None

    def replace(self, **changes: Any) -> "Prepared":
        """The same with other fields."""
        return changed(self, **changes)

    def with_clients(self, clients: Any) -> "Prepared":
        """The same with other examples of the same clients."""
        return changed(self, federation=changed(self.federation, clients=clients))


def prepare(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    state: FederatedState,
    strategy: str | Strategy,
    diagnostics: Any,
    verb: str,
) -> tuple[Prepared, FederatedState]:
    """Checks what a verb that plays rounds was given.

    Returns:
      What its program is to be called with, and the state with a place for what controllers remember.
    """
    _check_complete(federation, verb)
    check_state(first_algorithm(algorithm), state)
    count = federation.num_clients
    if not checks.is_traced(state.num_clients) and int(state.num_clients) != count:
        raise ValueError(
            f"state was made for {int(state.num_clients)} clients, but the federation has {count}."
        )
    names = watching.check(diagnostics)
    if "momentum_deviation" in names:
        watching.gradient_estimate(state.server)
    if "user_metrics" in names and federation.client_test is None:
        raise ValueError(
            "diagnostics: 'user_metrics' needs examples of the clients' own:"
            " federation.replace(client_test=...)."
        )
    steps, controls = federation.local_steps, controls_of(algorithm, federation)
    if isinstance(steps, StaticInt) and federation.cohort.falls_short:
        steps = jnp.asarray(int(steps), jnp.int32)  # clients take different numbers of steps anyway
    read = changed(
        federation,
        clients=federation.clients.without_known_sizes(),  # type: ignore[union-attr]
        local_steps=steps,
        initial=None,
        test=None,
        client_test=federation.client_test if "user_metrics" in names else None,
        validation=federation.validation if controls.watchers else None,
    )
    prepared = Prepared(
        algorithm=algorithm,
        federation=read,
        strategy=strategies.resolve(strategy),
        diagnostics=names,
        full_batches=federation.full_batches,
        steps_per_epoch=federation.steps_per_epoch,
    )
    return prepared, started(controls, state)


def refuse_stored(name: str, clients: Any, verb: str) -> None:
    """Refuses examples in files, all of which would be read onto the device."""
    if not in_memory(clients):
        raise ValueError(
            f"{name} must be in memory for {verb}, but these examples are in files: simulate reads"
            " those of each chunk's cohorts. To have all of them in memory, select all clients:"
            " clients[:]."
        )


def _check_complete(federation: Federation, verb: str) -> None:
    if isinstance(federation.clients, int):
        raise ValueError(
            f"federation.clients must be a ClientData for {verb}, which trains on their examples, got"
            f" the number {federation.clients}."
        )
    for name, example in (("cohort", "10"), ("local_steps", "10")):
        if getattr(federation, name) is None:
            raise ValueError(
                f"federation.{name} must be given for {verb}: federation.replace({name}={example})."
            )
