"""A task: data, its split among clients, a model, and how the paper that it follows trains it."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_opt.core import Algorithm, ClientData, Federation, Model, StoredClients, epochs
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
      settings: the cohort, the minibatch, and the local steps or epochs: fields of a `Federation`,
        of which `cohort_size` stands for `cohort` and `local_epochs` for `local_steps`.
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
    data: ClientData | StoredClients
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
        fields = {field.name for field in dataclasses.fields(Federation)}
        of_settings = fields | set(_LOCAL_WORK) | set(_COHORT)
        of_verb = inspect.signature(simulate).parameters.keys()
        unknown = sorted(changes.keys() - of_settings - of_verb - {"data"})
        if unknown:
            raise ValueError(f"fo.simulate has no argument {unknown[0]!r}.")
        if isinstance(algorithm, str):
            if algorithm not in self.algorithms:
                names = ", ".join(sorted(self.algorithms))
                raise ValueError(f"algorithm must be one of {names}, got {algorithm!r}.")
            algorithm = self.algorithms[algorithm]
        settings = dict(self.settings)
        for names in (_LOCAL_WORK, _COHORT):
            if changes.keys() & set(names):  # one of them takes the place of the other
                settings = {key: value for key, value in settings.items() if key not in names}
        if self.client_test is not None and "data" not in changes:
            settings["client_test"] = self.client_test
        settings = {"test": self.test, **settings, **changes}
        model, data = settings.pop("model", self.model), settings.pop("data", self.data)
        of_run = {key: settings.pop(key) for key in list(settings) if key in of_verb}
        rounds = of_run.pop("rounds", self.rounds)
        return simulate(algorithm, federation_of(model, data, settings), rounds, **of_run)


_COHORT = ("cohort_size", "sampler")
_LOCAL_WORK = ("local_steps", "local_epochs")


def federation_of(
    model: Model, data: ClientData | StoredClients, settings: Mapping[str, Any]
) -> Federation:
    """The federation that settings of a task describe.

    Args:
      model: the model.
      data: the clients' data.
      settings: fields of a `Federation`; `cohort_size` or `sampler` stands for its `cohort`, and
        `local_epochs` for `local_steps` in epochs.
    """
    fields = {
        name: value for name, value in settings.items() if name not in (*_COHORT, *_LOCAL_WORK)
    }
    for name, pair in (("cohort", _COHORT), ("local_steps", _LOCAL_WORK)):
        given = [key for key in pair if settings.get(key) is not None]
        if len(given) == 2:
            raise ValueError(f"Give either {pair[0]} or {pair[1]}, got both.")
        for key in given:
            value = settings[key]
            fields[name] = epochs(value) if key == "local_epochs" else value
    return Federation(model, data, **fields)
