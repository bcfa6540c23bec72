"""What is evaluated between the chunks of a run: the test sets of the federation, and measurements."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import chex
import jax
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.federation import Federation
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.evaluate import evaluate, evaluate_clients, personal_variables
from fedjax_opt.execution.strategies import place
from fedjax_opt.training.history import Rows
from fedjax_opt.training.player import Player

# A pure function of the algorithm, the federation and a state: numbers by name, or one per client.
Measurement = Callable[[Algorithm, Federation, FederatedState], Mapping[str, jax.Array]]


class Evaluator:
    """Evaluates a run in all ways that it is asked to.

    Args:
      player: what plays it.
      federation: the federation.
      measurements: what the user asks for beside its test sets.

    Attributes:
      tests: what is on the device between the chunks.
      names: those of the scalars among what is evaluated; nothing is compiled to know them.
    """

    def __init__(
        self, player: Player, federation: Federation, measurements: Sequence[Measurement]
    ) -> None:
        self._player, self._federation, self._own = player, federation, measurements
        for measurement in measurements:
            if not callable(measurement):
                raise ValueError(
                    "measurements must hold functions of (algorithm, federation, state), got"
                    f" {measurement!r}."
                )
        self.tests = federation.test, federation.client_test
        one = partial(self._all, each=self._as_if_each)
        shapes = jax.eval_shape(one, player.start, *self.tests)
        self.names = tuple(_scalar(name, x) for name, x in shapes.items())

    def place(self) -> None:
        """Puts the test sets where the rounds are played."""
        self.tests = test, client_test = place(self.tests, self._player.prepared.strategy)
        self._federation = changed(self._federation, test=test, client_test=client_test)

    def __call__(self) -> dict[str, float]:
        """Writes down what is found; the numbers in it, of those with one per client `mean_<name>`."""
        player = self._player
        found: Rows = jax.tree.map(np.asarray, self._all(player.state, *self.tests, self._each))
        row = {"round": np.int32(player.round), "seconds": np.float64(player.seconds), **found}
        player.evaluations.append({name: np.asarray(x)[None] for name, x in row.items()})
        return {_scalar(name, x): float(np.nanmean(x)) for name, x in found.items()}

    def _all(
        self,
        state: FederatedState,
        test: chex.ArrayTree,
        client_test: ClientData | None,
        each: Callable[[FederatedState, ClientData], Mapping[str, chex.Array]],
    ) -> dict[str, chex.Array]:
        parts: list[Mapping[str, chex.Array]] = []
        if test is not None:
            parts.append(evaluate(self._federation.model, state.variables, test))
        if client_test is not None:
            parts.append({f"client_{name}": x for name, x in each(state, client_test).items()})
        parts += [own(self._player.algorithm, self._federation, state) for own in self._own]
        found: dict[str, chex.Array] = {}
        for part in parts:
            if used := sorted(part.keys() & (found.keys() | {"round", "seconds"})):
                raise ValueError(
                    f"measurements must return names that are not used yet, but {used[0]!r} is."
                )
            found |= part
        return found

    def _each(self, state: FederatedState, data: ClientData) -> Mapping[str, chex.Array]:
        algorithm, model = self._player.algorithm, self._federation.model
        if self._player.states is not None:
            return self._player.states.evaluate(algorithm, model, state, data)
        return evaluate_clients(model, personal_variables(algorithm, state), data)

    def _as_if_each(self, state: FederatedState, data: ClientData) -> Mapping[str, jax.Array]:
        """As if one client had the global model and all examples: for names."""
        found = evaluate(self._federation.model, state.variables, data.examples)
        return {name: x[None] for name, x in found.items()}


def _scalar(name: str, value: chex.Array) -> str:
    return f"mean_{name}" if value.ndim else name
