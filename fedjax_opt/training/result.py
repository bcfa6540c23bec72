"""What a simulated run gives back, and the error of one whose loss is no number any more."""

from typing import NamedTuple

import numpy as np

from fedjax_opt.core.model import Variables
from fedjax_opt.core.state import FederatedState


class Result(NamedTuple):
    """What a simulated run gave.

    Attributes:
      state: the final state; pass it to another run to go on.
      history: arrays with one row per round: `round`, `loss`, `first_loss`, `update_norm`, `cohort`,
        `client_loss`, `num_steps`, the model's metrics as `train_<name>`, diagnostics by name, and
        with a guard `fault` and `asked` `[rounds, S]`, `excluded` and `skipped`.
      evaluations: arrays with one row per evaluation: `round`, `seconds`, and the test set's metrics
        by name; with a `client_test`, also `client_<name>` `[evaluations, N]`.
      seconds: wall-clock seconds, compilation included.
      stopped: why the run ended.
    """

    state: FederatedState
    history: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    seconds: float
    stopped: str

    @property
    def variables(self) -> Variables:
        """The final global model."""
        return self.state.variables


class NonFiniteLossError(FloatingPointError):
    """A loss or an update became NaN or infinite. `result` holds the run up to the last good round."""

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result
