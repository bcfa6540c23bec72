"""Human activity, by user."""

import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.tasks.parts import Directory, by_client, three, without_clients
from fedjax_opt.tasks.task import Task


def activity(directory: Directory = None) -> Task:
    """Six activities from 2.56 seconds of a smartphone's accelerometer and gyroscope, by user.

    Args:
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Task` of 30 clients, a fifth of them in each round. The inputs `[128, 6]` are standardised
      with the training set's mean and deviation of each channel.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.activity()  # doctest: +SKIP

    Reference:
      Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using
      smartphones. Neurocomputing 171, 2016.
    """
    train, test, names = fed.load("activity", directory)
    mean, std = (moment(train["x"], axis=(0, 1), dtype=np.float64) for moment in (np.mean, np.std))
    steps = fed.normalise(mean.tolist(), std.tolist()), fed.flatten()
    return Task(
        name="activity",
        paper="none",
        differs="The data of Reyes-Ortiz et al. (2016) with its natural clients; the rest is ours.",
        data=by_client(train, len(names)),
        test=without_clients(test),
        model=models.preprocessed(models.mlp([128], num_classes=6), *steps),
        rounds=150,
        settings={"cohort_size": 6, "batch_size": 32, "local_steps": 10},
        algorithms=three(0.1, 0.3, 0.1),
    )
