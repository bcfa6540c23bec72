"""What is evaluated between the chunks of a run: the test sets of the federation, and measurements."""

from collections.abc import Callable, Iterable, Mapping

import chex
import jax
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.federation import Federation
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.evaluate import evaluate, evaluate_clients, personal_variables
from fedjax_opt.execution.strategies import Strategy, place
from fedjax_opt.training.player import Player

# A pure function of the algorithm, the federation and a state: numbers by name, or one per client.
Measurement = Callable[[Algorithm, Federation, FederatedState], Mapping[str, jax.Array]]


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

    def __call__(self, state: FederatedState) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Arrays by name; and the numbers among them, of those with one per client `mean_<name>`."""
        federation, row = self._federation, {}
        if federation.test is not None:
            row |= evaluate(federation.model, state.variables, federation.test)
        if (data := federation.client_test) is not None:
            if self._states is None:
                own = personal_variables(self._algorithm, state)
                each = evaluate_clients(federation.model, own, data)
            else:
                each = self._states.evaluate(self._algorithm, federation.model, state, data)
            row |= {f"client_{name}": values for name, values in each.items()}
        for measurement in self._own:
            row |= measurement(self._algorithm, federation, state)
        found = {name: np.asarray(value) for name, value in row.items()}
        return found, {
            _scalar_name(name, x): float(np.nanmean(x) if x.ndim else x)
            for name, x in found.items()
        }

    def _find_names(self, state: FederatedState) -> tuple[str, ...]:
        federation, found = self._federation, {}
        names = ["round", "seconds"]

        def test(state, examples):
            return evaluate(federation.model, state.variables, examples)

        def add(shapes):
            names.extend(shapes)
            found.update({_scalar_name(name, x): None for name, x in shapes.items()})

        if federation.test is not None:
            add(jax.eval_shape(test, state, federation.test))
        if federation.client_test is not None:
            shapes = jax.eval_shape(test, state, federation.client_test.examples)
            names += [f"client_{name}" for name in shapes]
            found |= {f"mean_client_{name}": None for name in shapes}
        for measurement in self._own:
            add(
                jax.eval_shape(
                    lambda state, of=measurement: of(self._algorithm, federation, state), state
                )
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"measurements must return names that are not used yet, but {twice[0]!r} is."
            )
        return tuple(found)


def _scalar_name(name: str, value: chex.Array) -> str:
    return f"mean_{name}" if value.ndim else name
