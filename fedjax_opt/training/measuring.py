"""What is evaluated between the chunks of a run: the test sets of the federation, and measurements."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.federation import Federation
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.evaluate import evaluate
from fedjax_opt.execution.strategies import Strategy, place

# A pure function of the algorithm, the federation and a state: numbers by name, or one per client.
Measurement = Callable[[Algorithm, Federation, FederatedState], Mapping[str, jax.Array]]


class Evaluation(NamedTuple):
    """What was evaluated after some rounds.

    Attributes:
      found: arrays by name.
      scalars: the numbers among them by name, and of those with one per client `mean_<name>`.
    """

    found: dict[str, np.ndarray]
    scalars: dict[str, float]


class Evaluator:
    """Evaluates a state in all ways that a run asks for.

    Args:
      algorithm: the algorithm.
      federation: the federation.
      measurements: what the user asks for beside its test sets.
      evaluate_each: (algorithm, model, state, client_test) -> the metrics of each client's own model.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        measurements: Iterable[Measurement],
        evaluate_each: Callable[..., dict[str, jax.Array]],
    ) -> None:
        self._algorithm, self._federation = algorithm, federation
        self._own, self._evaluate_each = tuple(measurements), evaluate_each
        for measurement in self._own:
            if not callable(measurement):
                raise ValueError(
                    "measurements must hold functions of (algorithm, federation, state), got"
                    f" {measurement!r}."
                )

    @property
    def examples(self) -> list[Any]:
        """What is on the device between the chunks."""
        tests = self._federation.test, self._federation.client_test
        return [examples for examples in tests if examples is not None]

    def place(self, strategy: Strategy) -> None:
        """Puts the test sets where the rounds are played."""
        test, client_test = self._federation.test, self._federation.client_test
        test, client_test = place((test, client_test), strategy)
        self._federation = changed(self._federation, test=test, client_test=client_test)

    def names(self, state: FederatedState) -> tuple[str, ...]:
        """The names that `scalars` will have; nothing is compiled to know them."""
        federation, found = self._federation, []
        if federation.test is not None:
            found.append(jax.eval_shape(self._test, state, federation.test))
        if federation.client_test is not None:
            shapes = jax.eval_shape(self._test, state, federation.client_test.examples)
            each = np.shape(federation.client_test.sizes)
            found.append({f"client_{name}": jax.ShapeDtypeStruct(each, x.dtype)
                          for name, x in shapes.items()})  # fmt: skip
        found += [
            jax.eval_shape(partial(measurement, self._algorithm, federation), state)
            for measurement in self._own
        ]
        names = ["round", "seconds", *(name for values in found for name in values)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"measurements must return names that are not used yet, but {twice[0]!r} is."
            )
        return tuple(_scalar_name(name, x) for values in found for name, x in values.items())

    def __call__(self, state: FederatedState) -> Evaluation:
        """Evaluates it."""
        federation, row = self._federation, {}
        if federation.test is not None:
            row |= evaluate(federation.model, state.variables, federation.test)
        if federation.client_test is not None:
            by_client = self._evaluate_each(
                self._algorithm, federation.model, state, federation.client_test
            )
            row |= {f"client_{name}": values for name, values in by_client.items()}
        for measurement in self._own:
            row |= measurement(self._algorithm, federation, state)
        found = {name: np.asarray(value) for name, value in row.items()}
        scalars = {
            _scalar_name(name, x): float(np.nanmean(x) if x.ndim else x)
            for name, x in found.items()
        }
        return Evaluation(found, scalars)

    def _test(self, state: FederatedState, examples: Any) -> dict[str, jax.Array]:
        return evaluate(self._federation.model, state.variables, examples)


def _scalar_name(name: str, value: Any) -> str:
    return f"mean_{name}" if value.ndim else name
