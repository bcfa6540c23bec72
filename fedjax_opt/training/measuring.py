"""What is evaluated between the chunks of a run: the test sets of the federation, and measurements."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.federation import Federation
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.evaluate import evaluate, evaluate_clients, personal_variables
from fedjax_opt.execution.strategies import Strategy, place
from fedjax_opt.training.history import Rows
from fedjax_opt.training.player import Player

# A pure function of the algorithm, the federation and a state: numbers by name, or one per client.
Measurement = Callable[[Algorithm, Federation, FederatedState], Mapping[str, jax.Array]]
Each = Callable[[FederatedState, ClientData], Mapping[str, jax.Array]]


class Evaluator:
    """Evaluates a state in all ways that a run asks for.

    Args:
      player: what plays it.
      federation: the federation.
      measurements: what the user asks for beside its test sets.

    Attributes:
      names: those of the scalars among what is evaluated; nothing is compiled to know them.
    """

    def __init__(
        self, player: Player, federation: Federation, measurements: Iterable[Measurement]
    ) -> None:
        self._algorithm, self._states = player.algorithm, player.states
        self._federation, self._own = federation, tuple(measurements)
        for measurement in self._own:
            if not callable(measurement):
                raise ValueError(
                    "measurements must hold functions of (algorithm, federation, state), got"
                    f" {measurement!r}."
                )
        self.names = self._find_names(player.start)

    @property
    def examples(self) -> tuple[chex.ArrayTree, ClientData | None]:
        """What is on the device between the chunks."""
        return self._federation.test, self._federation.client_test

    def place(self, strategy: Strategy) -> None:
        """Puts the test sets where the rounds are played."""
        test, client_test = self._federation.test, self._federation.client_test
        test, client_test = place((test, client_test), strategy)
        self._federation = changed(self._federation, test=test, client_test=client_test)

    def __call__(self, state: FederatedState) -> tuple[Rows, dict[str, float]]:
        """Arrays by name; and the numbers among them, of those with one per client `mean_<name>`."""
        parts = self._parts(state, *self.examples, self._evaluate_each)
        found = {name: np.asarray(x) for part in parts for name, x in part.items()}
        scalars = {_scalar(name, x): float(np.nanmean(x)) for name, x in found.items()}
        return found, scalars

    def _parts(
        self,
        state: FederatedState,
        test: chex.ArrayTree,
        client_test: ClientData | None,
        each: Each,
    ) -> list[Mapping[str, jax.Array]]:
        found: list[Mapping[str, jax.Array]] = []
        if test is not None:
            found.append(evaluate(self._federation.model, state.variables, test))
        if client_test is not None:
            by_client = each(state, client_test)
            found.append({f"client_{name}": values for name, values in by_client.items()})
        return found + [own(self._algorithm, self._federation, state) for own in self._own]

    def _evaluate_each(self, state: FederatedState, data: ClientData) -> Mapping[str, jax.Array]:
        model = self._federation.model
        if self._states is not None:
            return self._states.evaluate(self._algorithm, model, state, data)
        return evaluate_clients(model, personal_variables(self._algorithm, state), data)

    def _shapes_of_each(self, state: FederatedState, data: ClientData) -> Mapping[str, jax.Array]:
        """As if all clients had the global model: for shapes."""
        found = evaluate(self._federation.model, state.variables, data.examples)
        return {name: jnp.full(data.sizes.shape, x) for name, x in found.items()}

    def _find_names(self, state: FederatedState) -> tuple[str, ...]:
        test, client_test = self.examples
        parts = jax.eval_shape(
            partial(self._parts, each=self._shapes_of_each), state, test, client_test
        )
        names = ["round", "seconds", *(name for part in parts for name in part)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"measurements must return names that are not used yet, but {twice[0]!r} is."
            )
        return tuple(_scalar(name, x) for part in parts for name, x in part.items())


def _scalar(name: str, value: chex.Array) -> str:
    return f"mean_{name}" if value.ndim else name
