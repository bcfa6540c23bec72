"""What differs between the trials of a program, as arrays, and what does not."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Federation, checks, epochs
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.trials import Trial

# Hyperparameters of the run itself, which `build` does not see.
OF_THE_RUN = ("local_steps", "local_epochs")


def point(trial: Trial) -> dict[str, Any]:
    """The hyperparameters that `build` sees."""
    return {k: v for k, v in trial.hyperparameters.items() if k not in OF_THE_RUN}


def federation_of(trial: Trial, federation: Federation) -> Federation:
    """The federation with the local work that is among a trial's hyperparameters."""
    own = {k: v for k, v in trial.hyperparameters.items() if k in OF_THE_RUN}
    if len(own) == 2:
        raise ValueError("Give either local_steps or local_epochs, got both.")
    for name, value in own.items():
        steps = epochs(value) if name == "local_epochs" else value
        federation = federation.replace(local_steps=steps)
    return federation


def axis_of(trials: Sequence[Trial]) -> tuple[waves.Axis, tuple[tuple[str, Any], ...]]:
    """What differs between trials as arrays, and the hyperparameters that do not differ."""
    varying, constants, steps = {}, [], ()
    for name, first in trials[0].hyperparameters.items():
        values = [trial.hyperparameters[name] for trial in trials]
        if name in OF_THE_RUN:
            steps = np.array([checks.integer(name, value, low=1) for value in values], np.int32)
        elif all(value == first for value in values):
            constants.append((name, tuple(first) if isinstance(first, list) else first))
        else:
            for value in values:
                if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                    raise ValueError(
                        f"hyperparameter {name!r} differs between trials and so must be a number, got"
                        f" {value!r}. Call run_trials for each of its values."
                    )
            varying[name] = np.array(values, jnp.result_type(float))
    # Made here, not in the program, where a large seed would be another one.
    keys = [np.asarray(jax.random.key_data(jax.random.key(trial.seed))) for trial in trials]
    return waves.Axis(np.stack(keys), varying, steps), tuple(constants)


def check_values(trials: Sequence[Trial], axis: waves.Axis) -> None:
    """Builds each algorithm once from plain numbers, which it can check, and then from traced ones."""
    for trial in trials:
        trial.build(point(trial))
    for name in axis.varying:

        def probe(value, name=name):
            trials[0].build(point(trials[0]) | {name: value})

        try:
            jax.eval_shape(probe, jnp.ones(()))
        except Exception as error:  # its kind depends on what an algorithm does with a number
            raise ValueError(
                f"hyperparameter {name!r} differs between trials, but decides the structure of the"
                " program, so its values cannot share one. Call run_trials for each of them."
            ) from error


def rows_of(axis: waves.Axis, rows: range) -> waves.Axis:
    """Some of the trials; past the end, the last one again."""
    places = np.minimum(rows, len(axis.key) - 1)
    return jax.tree.map(lambda x: x[places], axis)
