"""Human activity, by user."""

import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation
from fedjax_opt.tasks.parts import Directory, by_client, without_clients


def activity(directory: Directory = None) -> Federation:
    """Six activities from 2.56 seconds of a smartphone's accelerometer and gyroscope, by user.

    The data and its clients are those of the reference; the rest is ours.

    Args:
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation` of 30 clients, a fifth of them in each round. The inputs `[128, 6]` are standardised
      with the training set's mean and deviation of each channel.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.activity()  # doctest: +SKIP

    Reference:
      Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using
      smartphones. Neurocomputing 171, 2016.
    """
    train, test, names = fed.load("activity", directory)
    mean, std = (moment(train["x"], axis=(0, 1), dtype=np.float64) for moment in (np.mean, np.std))
    steps = fed.normalise(mean.tolist(), std.tolist()), fed.flatten()
    return Federation(
        models.preprocessed(models.mlp([128], num_classes=6), *steps),
        by_client(train, len(names)),
        cohort=6,
        local_steps=10,
        batch_size=32,
        test=without_clients(test),
    )
