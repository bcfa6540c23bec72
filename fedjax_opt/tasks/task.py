"""A task: data, its split among clients, a model, and how the paper that it follows trains it."""

import inspect
from typing import Any, NamedTuple

from fedjax_opt.core import Algorithm, Model
from fedjax_opt.data import ClientData
from fedjax_opt.training import Result, simulate


class Task(NamedTuple):
    """All that a run needs but the algorithm, and some algorithms with it.

    Attributes:
      name: its name.
      paper: which paper it follows.
      differs: what differs from the paper.
      data: the training data of the clients.
      test: the test set, arrays `[n, ...]`.
      model: the model.
      rounds: for how many rounds to train.
      settings: the cohort, the minibatch, and the local steps or epochs, as `fo.simulate` takes them.
      algorithms: algorithms by name with hyperparameters that suit the task: the paper's where it gives
        them, else from a search of ours.
      client_test: what each client is tested on, a `ClientData` of the same clients; None if that is
        the test set for all. With it `fedjax_opt.experiments` take user accuracy for accuracy: of each
        client's own model on its own examples, every client counting once.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.digits()
      >>> result = task.simulate("scaffold", rounds=2, progress=False)
      >>> result.evaluations["accuracy"].shape
      (1,)
    """

    name: str
    paper: str
    differs: str
    data: ClientData
    test: dict[str, Any]
    model: Model
    rounds: int
    settings: dict[str, Any]
    algorithms: dict[str, Algorithm]
    client_test: ClientData | None = None

    def simulate(self, algorithm: str | Algorithm = "fedavg", **changes: Any) -> Result:
        """Trains: `fo.simulate` with the data, the model and the settings of the task.

        Args:
          algorithm: a name of `algorithms`, or any algorithm.
          **changes: arguments of `fo.simulate`, in place of the task's or in addition.
        """
        unknown = sorted(changes.keys() - inspect.signature(simulate).parameters.keys())
        if unknown:
            raise ValueError(f"fo.simulate has no argument {unknown[0]!r}.")
        if isinstance(algorithm, str):
            if algorithm not in self.algorithms:
                names = ", ".join(sorted(self.algorithms))
                raise ValueError(f"algorithm must be one of {names}, got {algorithm!r}.")
            algorithm = self.algorithms[algorithm]
        settings = dict(self.settings)
        for names in (("local_steps", "local_epochs"), ("cohort_size", "sampler")):
            if changes.keys() & set(names):  # one of them takes the place of the other
                settings = {key: value for key, value in settings.items() if key not in names}
        if self.client_test is not None and "data" not in changes:
            settings["client_test"] = self.client_test
        arguments = {"rounds": self.rounds, "test": self.test, **settings, **changes}
        model, data = arguments.pop("model", self.model), arguments.pop("data", self.data)
        return simulate(algorithm, model, data, **arguments)
