"""User accuracy: how well each client is served by the model that it would use itself.

    UA = (1/N) sum_i accuracy of client i's own model on client i's own test examples

Every client counts once, whatever the number of its examples.

Reference:
  Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
  computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import Model, Variables
from fedjax_opt.engine import evaluate_clients
from fedjax_opt.metrics.fine_tuning import check_clients


class UserAccuracy(NamedTuple):
    """A metric of each client's own model on its own examples, and who is counted.

    Attributes:
      values: `[N]`; NaN for a client without test examples.
      clients: bool `[N]`, the clients that `mean`, `spread` and `worst_decile` are over.
      missing: bool `[N]`, the clients that were left out because they have no test examples.
    """

    values: np.ndarray
    clients: np.ndarray
    missing: np.ndarray

    @property
    def counted(self) -> np.ndarray:
        """The values of the clients that are counted."""
        return self.values[self.clients]

    @property
    def mean(self) -> float:
        """The mean over clients, each counting once; NaN if there are none."""
        return float(np.mean(self.counted)) if self.clients.any() else float("nan")

    @property
    def spread(self) -> float:
        """The standard deviation over clients; NaN if there are none."""
        return float(np.std(self.counted)) if self.clients.any() else float("nan")

    @property
    def worst_decile(self) -> float:
        """The mean of the lowest tenth of the clients, rounded up to at least one.

        A client whose model gives NaN is among the worst, and so the mean is NaN.
        """
        worst_first = np.argsort(np.where(np.isnan(self.counted), -np.inf, self.counted))
        lowest = self.counted[worst_first[: -(-len(self.counted) // 10)]]
        return float(np.mean(lowest)) if len(lowest) else float("nan")

    def over(self, mask: Any) -> "UserAccuracy":
        """The same over some clients only.

        Args:
          mask: bool `[N]`, such as the clients whose data is not noisy.

        Returns:
          A `UserAccuracy` over the clients that are counted here and in the mask.
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != self.clients.shape:
            raise ValueError(
                f"mask must be bool{list(self.clients.shape)}, one per client, got"
                f" {mask.dtype}{list(mask.shape)}."
            )
        return UserAccuracy(self.values, self.clients & mask, self.missing & mask)

    def __str__(self) -> str:
        text = (
            f"{self.mean:.2%} over {len(self.counted)} clients"
            f" (spread {self.spread:.2%}, worst tenth {self.worst_decile:.2%})"
        )
        missing = int(self.missing.sum())
        return f"{text}, {missing} without test examples" if missing else text


def user_accuracy(
    model: Model,
    variables: Variables | Callable[[Any], Variables],
    test_data: Any,
    name: str = "accuracy",
) -> UserAccuracy:
    """The accuracy of each client's own model on its own test examples: `UA_i`, and their mean.

    It is weighted by client, not by example: a user with few test examples counts as much as one with
    many. Clients without test examples are left out, and named in `missing`.

    Args:
      model: the model.
      variables: its variables, the same for all clients, or a function of a client's id, such as
        `personal_variables` returns.
      test_data: a `ClientData` with the same clients.
      name: which of the model's metrics, or 'loss'.

    Returns:
      A `UserAccuracy`.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> model = fo.models.classifier(
      ...     init=lambda key, batch: np.eye(2, dtype=np.float32), apply=lambda params, x: x @ params
      ... )
      >>> x = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
      >>> test = fo.ClientData.from_arrays({"x": x, "y": np.array([0, 0, 1])}, [0, 0, 1])
      >>> print(fo.metrics.user_accuracy(model, fo.Variables(np.eye(2, dtype=np.float32)), test))
      75.00% over 2 clients (spread 25.00%, worst tenth 50.00%)
    """
    check_clients(variables, "test_data", test_data)
    found = evaluate_clients(model, variables, test_data)
    if name not in found:
        raise ValueError(f"name must be one of the evaluated {sorted(found)}, got {name!r}.")
    values = np.asarray(found[name])
    present = np.asarray(test_data.sizes) > 0
    # Known by size, not by NaN: a client whose model gives NaN must not be left out of the mean.
    return UserAccuracy(values, present, ~present)
