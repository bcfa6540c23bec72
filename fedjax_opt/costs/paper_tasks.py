"""The four tasks of the paper on decaying local steps, and the times that its tables imply.

Tables 1 and 2 of the paper give each model's size |x|, K_0 and the time beta of a minibatch on a
Raspberry Pi 3B+; the text gives D = 20 and U = 5 Mbit/s. For equal clients a round takes
c + beta K_0 seconds with c = |x|/D + |x|/U.

Table 4 is said to compare the steps of schedules over 10,000 rounds. For K_r = ceil(K_0 r^(-1/3)) that
gives 0.078, 0.076, 0.079 and 0.076, and not the printed 0.21, 0.11, 0.090 and 0.74. Three of the four
follow if each schedule runs for the time that 10,000 rounds with K_0 take: 0.21, 0.11 and 0.74;
CIFAR100's comes to 0.14. See `relative_steps`.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
  Tables 1, 2 and 4, Section 4.2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.costs.fleet import Devices
from fedjax_opt.costs.runtime import client_seconds


class PaperTask(NamedTuple):
    """A task of the paper on decaying local steps.

    Attributes:
      name: the task's name.
      model: the kind of its model.
      num_classes: the number of classes.
      model_megabits: |x|.
      num_clients: N.
      cohort_size: S.
      samples_per_client: the mean number of training samples.
      batch_size: B.
      local_steps: K_0.
      learning_rate: eta_0.
      seconds_per_step: beta, the mean of 100 minibatches on a Raspberry Pi 3B+.
      seconds_per_step_std: their standard deviation.
      download_mbps: D.
      upload_mbps: U.
    """

    name: str
    model: str
    num_classes: int
    model_megabits: float
    num_clients: int
    cohort_size: int
    samples_per_client: int
    batch_size: int
    local_steps: int
    learning_rate: float
    seconds_per_step: float
    seconds_per_step_std: float
    download_mbps: float = 20.0
    upload_mbps: float = 5.0

    @property
    def devices(self) -> Devices:
        """The devices of its clients, which are all alike."""
        return Devices(self.download_mbps, self.upload_mbps, self.seconds_per_step)


_TASKS = {
    task.name: task
    for task in (
        PaperTask("Sent140", "linear", 2, 0.32, 21876, 50, 15, 8, 60, 3.0, 5.2e-3, 2.1e-4),
        PaperTask("FEMNIST", "DNN", 62, 6.71, 3000, 60, 170, 32, 80, 0.3, 0.017, 5.1e-4),
        PaperTask("CIFAR100", "CNN", 100, 40.0, 500, 25, 100, 32, 50, 0.01, 0.31, 1.7e-2),
        PaperTask("Shakespeare", "GRU", 79, 5.21, 660, 10, 5573, 32, 80, 0.1, 1.5, 8.5e-2),
    )
}


class RoundParts(NamedTuple):
    """What a round of a task takes, and a run of many.

    Attributes:
      communication_seconds: c = |x|/D + |x|/U.
      compute_seconds: beta K_0.
      round_seconds: their sum.
      run_hours: all rounds of the run.
    """

    communication_seconds: float
    compute_seconds: float
    round_seconds: float
    run_hours: float


def paper_task(name: str) -> PaperTask:
    """One task of the paper on decaying local steps: sizes, speeds and tuned values of its tables.

    Args:
      name: 'Sent140', 'FEMNIST', 'CIFAR100' or 'Shakespeare'.

    Returns:
      A `PaperTask`.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.costs.paper_task("FEMNIST")
      >>> task.local_steps, task.devices.upload_mbps
      (80, 5.0)

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
      Tables 1 and 2.
    """
    return _TASKS[checks.choice("name", name, tuple(_TASKS))]


def paper_tasks() -> dict[str, PaperTask]:
    """All four tasks of the paper on decaying local steps, by name.

    Example:
      >>> import fedjax_opt as fo
      >>> list(fo.costs.paper_tasks())
      ['Sent140', 'FEMNIST', 'CIFAR100', 'Shakespeare']
    """
    return dict(_TASKS)


def paper_round_times(rounds: int = 10_000) -> dict[str, RoundParts]:
    """The times that Tables 1 and 2 imply for FedAvg with K_0 local steps, by task.

    Args:
      rounds: R, the rounds of a run; 10,000 in the paper.

    Returns:
      `RoundParts` by task.

    Example:
      A third of a second against two minutes; an hour against a fortnight:

      >>> import fedjax_opt as fo
      >>> for name, parts in fo.costs.paper_round_times().items():
      ...     print(f"{name:11} {parts.round_seconds:5.1f} s {parts.run_hours:5.1f} h")
      Sent140       0.4 s   1.1 h
      FEMNIST       3.0 s   8.4 h
      CIFAR100     25.5 s  70.8 h
      Shakespeare 121.3 s 337.0 h

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
      Equation (5), Tables 1 and 2.
    """
    rounds = checks.integer("rounds", rounds, low=1)
    return {name: _parts(task, rounds) for name, task in _TASKS.items()}


def relative_steps(
    task: PaperTask, num_steps: Any, rounds: int = 10_000, within: str = "time"
) -> float:
    """The local steps that a schedule takes, relative to a run with K_0 in every round.

    Args:
      task: whose K_0, model and devices.
      num_steps: the schedule, K_r for r = 1, 2, ...; long enough to fill the rounds, or the time.
      rounds: the rounds of the run with K_0.
      within: 'rounds' for as many rounds; 'time' for as much time, so that a schedule whose rounds are
        shorter plays more of them.

    Returns:
      sum K_r / (K_0 rounds).

    Example:
      One step a round, for ever: within the time of 10,000 rounds with K_0 = 50 there are more rounds.

      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> task, once = fo.costs.paper_task("CIFAR100"), np.ones(30_000)
      >>> fo.costs.relative_steps(task, once, within="rounds")
      0.02
      >>> round(fo.costs.relative_steps(task, once, within="time"), 4)
      0.0495

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Table 4.
    """
    rounds = checks.integer("rounds", rounds, low=1)
    checks.choice("within", within, ("rounds", "time"))
    steps = np.asarray(checks.as_array("num_steps", num_steps), np.float64)
    if steps.ndim != 1:
        raise ValueError(f"num_steps must be one per round [R], got shape {list(steps.shape)}.")
    checks.number("num_steps", steps, low=0.0)
    played = rounds
    if within == "time":
        # Equation (5) in float64, whatever JAX computes in: a schedule may have a million rounds.
        sent = task.model_megabits / task.download_mbps + task.model_megabits / task.upload_mbps
        passed = np.cumsum(sent + task.seconds_per_step * steps)
        budget = rounds * (sent + task.seconds_per_step * task.local_steps)
        played = int(np.searchsorted(passed, budget * (1 + 1e-12), side="right"))
        played = len(steps) + 1 if played == len(steps) else played
    if played > len(steps):
        raise ValueError(
            f"num_steps must be long enough to fill the {within} of {rounds} rounds with K_0, got"
            f" {len(steps)} rounds."
        )
    return float(np.sum(steps[:played]) / (task.local_steps * rounds))


def _parts(task: PaperTask, rounds: int) -> RoundParts:
    without, with_steps = (
        float(client_seconds(task.devices, steps, task.model_megabits, task.model_megabits))
        for steps in (jnp.zeros(()), task.local_steps)
    )
    return RoundParts(without, with_steps - without, with_steps, rounds * with_steps / 3600)
