"""The four tasks of the paper on decaying local steps: what a plan for one of them starts from.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
  Tables 1 and 2, Section 4.2.
"""

from typing import NamedTuple

from fedjax_opt.costs import Devices, testbeds


class PaperTask(NamedTuple):
    """A task of the paper on decaying local steps.

    Attributes:
      name: the task's name.
      model: the kind of its model.
      num_classes: the number of classes.
      model_megabits: |x|.
      num_clients: N.
      cohort_size: S.
      local_steps: K_0.
      learning_rate: eta_0.
      devices: a Raspberry Pi 3B+ with 20 Mbit/s down and 5 Mbit/s up.
    """

    name: str
    model: str
    num_classes: int
    model_megabits: float
    num_clients: int
    cohort_size: int
    local_steps: int
    learning_rate: float
    devices: Devices


def paper_tasks() -> dict[str, PaperTask]:
    """The tasks of the paper on decaying local steps, by name.

    Returns:
      A `PaperTask` for each of 'Sent140', 'FEMNIST', 'CIFAR100' and 'Shakespeare'.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.planning.paper_tasks()["FEMNIST"]
      >>> task.local_steps, task.devices.upload_mbps
      (80, 5.0)
    """

    def pi(name):
        return Devices(*testbeds.LTE, testbeds.PI_3B_PLUS[name].mean)

    tasks = (
        PaperTask("Sent140", "linear", 2, 0.32, 21876, 50, 60, 3.0, pi("Sent140")),
        PaperTask("FEMNIST", "DNN", 62, 6.71, 3000, 60, 80, 0.3, pi("FEMNIST")),
        PaperTask("CIFAR100", "CNN", 100, 40.0, 500, 25, 50, 0.01, pi("CIFAR100")),
        PaperTask("Shakespeare", "GRU", 79, 5.21, 660, 10, 80, 0.1, pi("Shakespeare")),
    )
    return {task.name: task for task in tasks}
