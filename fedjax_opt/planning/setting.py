"""What a plan starts from, and what follows from it without any theory: seconds, rounds and bytes.

With N of M clients in a round, K local steps, and d and u megabits to and from each of them,

    t(K, N) = E max over the cohort of (d/D_c + K beta_c + u/U_c)
    R(K, N) = 1 / max(t/W, 1/R_max, N b/B, (N/M) b/b_max)        rounds that every budget allows

with b = (d + u)/8 megabytes in a round for each client, W seconds, R_max rounds, B bytes in total and
b_max bytes for each of the M clients; budgets that are not given do not count.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 3.2.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds import FedAvgConstants
from fedjax_opt.costs import Devices, expected_round_seconds
from fedjax_opt.planning.tuned import TunedRun

BYTES_PER_MEGABIT = 125_000


class Setting(NamedTuple):
    """A problem, its clients and what may be spent.

    Attributes:
      megabits_down: what a client downloads in a round.
      megabits_up: what it uploads.
      devices: the clients' `Devices`.
      num_clients: M, all clients; not a number if those of the cohort are all there are.
      constants: what the bound knows of the problem: its constants, a `TunedRun`, or None.
      client_variance: sigma^2 of one client's minibatch gradient; a cohort has sigma^2/N of it. 0 where
        all noise is in the constants, as the theorem has it: that of all clients, for any N.
      seconds: the run's time; infinite, as all budgets, where it is not limited.
      rounds: its rounds.
      total_bytes: what all clients together may send and receive.
      client_bytes: what each client may, in the mean over all M.
    """

    megabits_down: Any
    megabits_up: Any
    devices: Devices
    num_clients: Any = np.nan
    constants: FedAvgConstants | TunedRun | None = None
    client_variance: Any = 0.0
    seconds: Any = np.inf
    rounds: Any = np.inf
    total_bytes: Any = np.inf
    client_bytes: Any = np.inf


class Given(NamedTuple):
    """What is not to be chosen, and how far one may go; checked.

    Attributes:
      learning_rate: eta, or None to choose it.
      local_steps: K_0, or None to choose it.
      plateau_round: when K-step steps down, or None to leave it out.
      max_local_steps: no K is above it.
      tolerance: how much larger a bound may be for what is smaller or simpler.
    """

    learning_rate: float | None
    local_steps: int | None
    plateau_round: int | None
    max_local_steps: int
    tolerance: float


BUDGETS = ("seconds", "rounds", "total_bytes", "client_bytes")
# What each input is called, and the fields that it scales.
INPUTS = {
    "model size": ("megabits_down", "megabits_up"),
    "download": ("devices.download_mbps",),
    "upload": ("devices.upload_mbps",),
    "seconds per step": ("devices.seconds_per_step",),
    "smoothness": ("constants.smoothness",),
    "strong convexity": ("constants.strong_convexity",),
    "initial loss": ("constants.initial_loss",),
    "optimal loss": ("constants.optimal_loss",),
    "noise": ("constants.noise",),
    "heterogeneity": ("constants.heterogeneity",),
    "client variance": ("client_variance",),
    "gradient bound": ("constants.gradient_bound",),
    "tuned K_0": ("constants.local_steps",),
    "tuned eta_0": ("constants.learning_rate",),
    "tuned rounds": ("constants.rounds",),
    "time budget": ("seconds",),
    "round budget": ("rounds",),
    "byte budget": ("total_bytes",),
    "client byte budget": ("client_bytes",),
}


def read(setting: Setting, path: str) -> Any:
    """A field by its path; None where it, or what it is a part of, is not there."""
    return functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), setting)


def constants_of(setting: Setting, cohort_size: Any) -> FedAvgConstants:
    """The constants of a setting that has any, for a cohort."""
    known = setting.constants
    assert known is not None
    constants = known.constants if isinstance(known, TunedRun) else known
    noise = constants.noise + setting.client_variance / cohort_size
    return constants._replace(cohort_size=cohort_size, noise=noise)


def inputs_of(setting: Setting) -> dict[str, float]:
    """The inputs of a setting by name, but for what is not limited; the median over all devices."""
    values = {name: read(setting, paths[0]) for name, paths in INPUTS.items()}
    return {
        name: float(np.median(value))
        for name, value in values.items()
        if value is not None and np.all(np.isfinite(value))
    }


def scaled(setting: Setting, factors: dict[str, Any]) -> Setting:
    """The setting with some inputs multiplied."""
    for name, factor in factors.items():
        for path in INPUTS[name]:
            setting = _multiplied(setting, path.split("."), factor)
    return setting


def _multiplied(part, path, factor):
    name, *rest = path
    value = getattr(part, name)
    if rest:
        return part._replace(**{name: _multiplied(value, rest, factor)})
    return part._replace(**{name: value * factor})


def round_seconds(setting: Setting, cohort_size: Any, local_steps: Any) -> Any:
    """t(K, N), in the mean over all cohorts."""
    return expected_round_seconds(
        setting.devices, cohort_size, local_steps, setting.megabits_down, setting.megabits_up
    )


def round_bytes(setting: Setting) -> Any:
    """What one client of the cohort sends and receives in a round."""
    return (setting.megabits_down + setting.megabits_up) * BYTES_PER_MEGABIT


def shares_of_budgets(setting: Setting, cohort_size: Any, local_steps: Any) -> dict[str, Any]:
    """The share of each budget that one round takes, by the budget's field."""
    each = round_bytes(setting)
    return {
        "seconds": round_seconds(setting, cohort_size, local_steps) / setting.seconds,
        "rounds": 1 / setting.rounds,
        "total_bytes": cohort_size * each / setting.total_bytes,
        "client_bytes": participation(setting, cohort_size) * each / setting.client_bytes,
    }


def participation(setting: Setting, cohort_size: Any) -> Any:
    """N/M, the share of all rounds in which a client takes part."""
    return jnp.where(jnp.isnan(setting.num_clients), 1.0, cohort_size / setting.num_clients)


_compiled_shares = jax.jit(shares_of_budgets)


def known_shares(setting: Setting, cohort_size: float, local_steps: float) -> dict[str, float]:
    """The same as plain numbers."""
    shares = _compiled_shares(setting, float(cohort_size), float(local_steps))
    return {name: float(share) for name, share in shares.items()}


def limiting_budget(setting: Setting, cohort_size: float, local_steps: float) -> str:
    """The budget that is used up first."""
    shares = known_shares(setting, cohort_size, local_steps)
    return max(shares, key=shares.__getitem__)


def rounds_within(setting: Setting, cohort_size: Any, local_steps: Any) -> Any:
    """R(K, N), not necessarily a whole number."""
    # In shares, what is not limited is 0, where in rounds it would be infinite, and have no derivative.
    return 1 / functools.reduce(
        jnp.maximum, shares_of_budgets(setting, cohort_size, local_steps).values()
    )


def as_numbers(setting: Setting) -> Setting:
    """All leaves as NumPy's float64, and what was not given as what it stands for."""
    missing = {
        name: default
        for name, default in Setting._field_defaults.items()
        if getattr(setting, name) is None
    }
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), setting._replace(**missing))
