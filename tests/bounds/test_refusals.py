"""What every bound refuses: numbers outside of their intervals, and what does not fit together."""

import re

import numpy as np
import pytest

from fedjax_opt import bounds
from fedjax_opt.bounds import Rounds, Seconds

LINK = bounds.Link(megabits=6.0, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.1)
FEDAVG = bounds.FedAvgConstants(2.0, 0.5, 3.0, 1.5, 4, 1.0, 0.7, 0.3)
FEDGBO = bounds.FedGBOConstants(2.0, 3.0, 1.5, 0.7, 0.4, 0.5, 1.2)
GHBM = bounds.GHBMConstants(2.0, 3.0, 20, 0.25, 0.5, 0.8, 0.5)
FEDACG = bounds.FedACGConstants(2.0, 3.0, 20.0, 5.0, 1.5, 0.4, 0.5, 4.0, 9.0, 0.1)
RATES = bounds.RateConstants(2.0, 3.0, 100.0, 5.0, 1e6, 0.1, 4.0, 0.5, 1.5, 0.5)
WINDOW = {"drifts": [1.0] * 3, "gradient_norms_squared": [1.0] * 2, "update_errors": [1.0] * 2}
ETA = {"pseudo_learning_rate": 0.1}
RUN = {"momentum": 0.6, "local_steps": 5, "rounds": 100}
SECONDS = Seconds(60.0, LINK)

# function: good arguments
GOOD = {
    bounds.fedavg: {"constants": FEDAVG, "learning_rate": 0.1, "local_steps": 4, "budget": SECONDS},
    bounds.optimal_local_steps: {"constants": FEDAVG, "learning_rate": 0.1, "budget": Rounds(60)},
    bounds.best_local_steps: {"constants": FEDAVG, "learning_rate": 0.1, "budget": SECONDS},
    bounds.optimal_learning_rate: {"constants": FEDAVG, "local_steps": 4, "budget": SECONDS},
    bounds.best_plan: {"constants": FEDAVG, "budget": SECONDS},
    bounds.fedgbo: {"constants": FEDGBO, **ETA, **RUN},
    bounds.fedgbo_corollary: {"constants": FEDGBO, "scale": 0.1, **RUN},
    bounds.fedgbo_optimal_learning_rate: {"constants": FEDGBO, **RUN},
    bounds.fedgbo_momentum: {"constants": FEDGBO, **ETA, "momentum": 0.6, "local_steps": 5},
    bounds.fedgbo_perturbation: {
        "constants": FEDGBO, **ETA, "local_steps": 5, "gradient_norm_squared": 1.0,
        "momentum_norm_squared": 1.0,
    },
    bounds.fedgbo_pseudo_learning_rate: {"learning_rate": 0.1, "momentum": 0.6, "local_steps": 5},
    bounds.ghbm_momentum_deviation: {
        "constants": GHBM, "tau": 2, "gradient_norm_squared": 1.0, "unseen_share_squared": 0.5,
    },
    bounds.ghbm_cyclic_deviation: {"constants": GHBM, "tau": 2, "gradient_norm_squared": 1.0},
    bounds.ghbm_momentum_error: {
        "constants": GHBM, "local_steps": 5, "server_learning_rate": 0.1, **WINDOW,
    },
    bounds.ghbm_rate: {"constants": GHBM, "local_steps": 5, "rounds": 100},
    bounds.ghbm_step_sizes: {
        "constants": GHBM, "local_steps": 5, "rounds": 100, "first_gradients_squared": 1.0,
    },
    bounds.fedacg_nonconvex: {"constants": FEDACG, "scale": 0.1, **RUN},
    bounds.fedacg_learning_rate: {"constants": FEDACG, "scale": 0.1, **RUN},
    bounds.fedacg_convex: {
        "constants": FEDACG, "proximal_weight": 5.0, "momentum": 0.6, "rounds": 100,
    },
    bounds.fedacg_convex_main_text: {"constants": FEDACG, "momentum": 0.6, "rounds": 100},
    bounds.rates: {"constants": RATES},
    bounds.fedavg_distance: {
        "constants": FEDAVG, "learning_rate": 0.1, "local_steps": 5, "distance_squared": 1.0,
        "num_clients": 9,
    },
    bounds.fedavg_gradients: {"constants": FEDAVG, "learning_rate": 0.1, "local_steps": [5.0, 4.0]},
    bounds.fedgbo_alignment: {
        "constants": FEDGBO, **ETA, "momentum": 0.6, "local_steps": 5,
        "gradient_norms_squared": [1.0, 2.0],
    },
    bounds.fedgbo_descent: {
        "constants": FEDGBO, **ETA, "momentum": 0.6, "local_steps": 5,
        "gradient_norms_squared": [1.0, 2.0],
    },
    bounds.fedgbo_step: {
        "constants": FEDGBO, **ETA, "alignment": -1.0, "momentum_norm_squared": 2.0,
    },
    bounds.ghbm_heavy_ball: {
        "models": [1.0, 2.0], "pseudo_gradient": 1.0, "learning_rate": 0.1, "momentum": 0.6,
    },
    bounds.ghbm_update_errors: {
        "constants": GHBM, "gradient_weight": 0.5, "server_learning_rate": 0.1, "first_error": 1.0,
        "gradient_norms_squared": [1.0], "deviations": [1.0],
    },
    bounds.ghbm_drift: {
        "constants": GHBM, "local_steps": 5, "local_learning_rate": 0.1, "gradient_weight": 0.5,
        "first_steps_squared": 1.0,
    },
    bounds.ghbm_first_steps: {
        "constants": GHBM, "tau": 4, "server_learning_rate": 0.1, "local_learning_rate": 0.1,
        "gradient_weight": 0.5, "first_gradients_squared": 1.0, "gradient_norms_squared": [1.0],
        "update_errors": [1.0],
    },
    bounds.ghbm_descent: {
        "constants": GHBM, "server_learning_rate": 0.1, "gradient_norm_squared": 1.0,
        "update_error": 1.0,
    },
    bounds.fedacg_descent: {
        "constants": FEDACG, "learning_rate": 0.1, "momentum": 0.6, "local_steps": 5,
        "gradient_norm_squared": 1.0,
    },
    bounds.fedacg_drift: {"constants": FEDACG, "learning_rate": 0.1, "local_steps": 5},
    bounds.fedacg_lookahead: {
        "constants": FEDACG, "learning_rate": 0.1, "momentum": 0.6, "local_steps": 5,
    },
    bounds.fedacg_sampling: {"constants": FEDACG, "learning_rate": 0.1, "local_steps": 5},
    bounds.fedacg_convex_drift: {
        "constants": FEDACG, "proximal_weight": 5.0, "momentum": 0.6, "last_drift": 1.0,
        "loss_gap": 1.0,
    },
    bounds.fedacg_convex_descent: {
        "constants": FEDACG, "proximal_weight": 5.0, "momentum": 0.6, "distance_squared": 1.0,
        "last_drift": 1.0, "loss_gap": 1.0,
    },
    bounds.expected_unseen_share_squared: {"num_clients": 9, "cohort_size": 1, "rounds": 3},
}  # fmt: skip
# The interval of each number, and where it is another.
INTERVALS = {
    "smoothness": "(0, inf)", "strong_convexity": "(-inf, inf)", "initial_loss": "(-inf, inf)",
    "optimal_loss": "(-inf, inf)", "gradient_bound": "[0, inf)", "dissimilarity": "[0, inf)",
    "noise": "[0, inf)", "noise_variance": "[0, inf)", "heterogeneity": "[0, inf)",
    "update_bound": "[0, inf)", "cohort_size": "[1, inf)", "num_clients": "[1, inf)",
    "participation": "(0, 1]", "distance_squared": "[0, inf)", "gradients_squared": "[0, inf)",
    "optimal_gradients_squared": "[0, inf)", "megabits": "(0, inf)", "download_mbps": "(0, inf]",
    "upload_mbps": "(0, inf]", "seconds_per_step": "[0, inf)", "seconds": "(0, inf]",
    "learning_rate": "(0, inf]", "pseudo_learning_rate": "(0, inf]", "scale": "(0, inf]",
    "server_learning_rate": "(0, inf]", "proximal_weight": "(0, inf]", "tau": "(0, inf]",
    "momentum": "[0, 1)", "local_steps": "[1, inf)", "rounds": "(0, inf]",
    "gradient_norm_squared": "[0, inf]", "momentum_norm_squared": "[0, inf]",
    "unseen_share_squared": "[0, 1]", "first_gradients_squared": "[0, inf]",
    "alignment": "(-inf, inf)", "models": "(-inf, inf)", "pseudo_gradient": "(-inf, inf)",
    "gradient_weight": "(0, 1]", "local_learning_rate": "(0, inf]", "first_error": "[0, inf]",
    "deviations": "[0, inf]", "first_steps_squared": "[0, inf]", "update_error": "[0, inf]",
    "last_drift": "[0, inf]", "loss_gap": "[0, inf]",
    "drifts": "[0, inf]", "gradient_norms_squared": "[0, inf]", "update_errors": "[0, inf]",
}  # fmt: skip
OTHERS = {
    ("fedavg", "local_steps"): "(0, inf]",
    ("optimal_learning_rate", "local_steps"): "(0, inf]",
    ("ghbm_momentum_error", "local_steps"): "(0, inf]",
    ("ghbm_first_steps", "tau"): "[1, inf)",
    ("ghbm_heavy_ball", "momentum"): "[0, inf]",
    ("fedavg_distance", "distance_squared"): "[0, inf]",
    ("fedacg_convex_descent", "distance_squared"): "[0, inf]",
    ("rates", "rounds"): "(0, inf)",
    ("rates", "dissimilarity"): "[0, inf]",
    ("rates", "gradient_bound"): "[0, inf]",
    ("fedacg_convex_main_text", "momentum"): "(0, 1)",
    ("fedgbo_optimal_learning_rate", "gradient_bound"): "(0, inf)",
    ("expected_unseen_share_squared", "cohort_size"): "(0, inf]",
}


def numbers(value, path=()):
    """The paths of all numbers in arguments."""
    parts = value if isinstance(value, dict) else getattr(value, "_asdict", dict)()
    if not parts:
        yield path
    for name, part in parts.items():
        yield from numbers(part, (*path, name))


def with_number(value, path, number):
    if not path:
        return number
    if isinstance(value, dict):
        return value | {path[0]: with_number(value[path[0]], path[1:], number)}
    inner = with_number(getattr(value, path[0]), path[1:], number)
    return value._replace(**{path[0]: inner})


def ends(interval):
    """What lies just outside of an interval, and its ends that are finite and inside."""
    low, high = map(float, interval[1:-1].split(", "))
    outside, inside = [np.nan], []
    for end, closed, beyond in ((low, interval[0] == "[", -1), (high, interval[-1] == "]", 1)):
        if not closed:
            outside.append(end)
        elif np.isfinite(end):
            inside.append(end)
            outside.append(end + beyond * 1e-9)
    return outside, inside


@pytest.mark.parametrize("function", GOOD, ids=lambda function: function.__name__)
def test_numbers_outside_of_their_intervals_are_refused(function):
    good = GOOD[function]
    function(**good)
    for path in numbers(good):
        interval = OTHERS.get((function.__name__, path[-1]), INTERVALS[path[-1]])
        outside, inside = ends(interval)
        rows = isinstance(good.get(path[0]), list)  # where lists are asked for, one entry is enough
        for value in outside:
            wrong = [value, *good[path[0]][1:]] if rows else value
            with pytest.raises(ValueError, match=re.escape(f"{'.'.join(path)} must lie in")):
                function(**with_number(good, path, wrong))
        for value in inside:
            allowed = [value, *good[path[0]][1:]] if rows else value
            function(**with_number(good, path, allowed))


ONE_PER_ROUND = {"constants": FEDAVG, "learning_rate": 0.1}
CONVEX = {"constants": FEDACG._replace(gradients_squared=None), "proximal_weight": 5.0}


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (bounds.fedavg, ONE_PER_ROUND | {"local_steps": 5}, "local_steps must be a schedule"),
        (bounds.fedavg, ONE_PER_ROUND | {"local_steps": []}, "local_steps must be a schedule"),
        (bounds.fedavg, ONE_PER_ROUND | {"local_steps": np.zeros((3, 0))}, "must be a schedule"),
        (bounds.fedavg, ONE_PER_ROUND | {"local_steps": [3, 0]}, "local_steps must lie in"),
        (
            bounds.best_plan,
            {"constants": FEDAVG._replace(gradient_bound=None), "budget": SECONDS},
            r"constants\.gradient_bound must be a number, got None",
        ),
        (
            bounds.best_plan,
            {"constants": FEDAVG._replace(noise="2"), "budget": SECONDS},
            r"constants\.noise must be a number, got '2'",
        ),
        (
            bounds.best_plan,
            {"constants": FEDAVG._replace(heterogeneity=[0.1, -0.1]), "budget": SECONDS},
            r"constants\.heterogeneity must lie in",
        ),
        (
            bounds.fedgbo_optimal_learning_rate,
            {"constants": FEDGBO._replace(initial_loss=0.5), **RUN},
            r"constants\.initial_loss - constants\.optimal_loss must lie in",
        ),
        (
            bounds.fedacg_nonconvex,
            {"constants": FEDACG._replace(initial_loss=None), "scale": 0.1, **RUN},
            r"constants\.initial_loss must be given for this bound, got None",
        ),
        (
            bounds.fedacg_convex,
            CONVEX | {"momentum": 0.6, "rounds": 100},
            r"constants\.gradients_squared must be given for this bound, got None",
        ),
        (
            bounds.ghbm_momentum_error,
            GOOD[bounds.ghbm_momentum_error] | {"update_errors": [1.0]},
            r"drifts must have the shape \[tau\], .* got \[3\], \[2\] and \[1\]",
        ),
        (
            bounds.ghbm_momentum_error,
            GOOD[bounds.ghbm_momentum_error] | {"drifts": 1.0},
            r"drifts must have the shape \[tau\]",
        ),
        (
            bounds.ghbm_first_steps,
            GOOD[bounds.ghbm_first_steps] | {"update_errors": [1.0, 1.0]},
            r"must have one shape \[T\], got \[1\] and \[2\]",
        ),
        (
            bounds.ghbm_heavy_ball,
            GOOD[bounds.ghbm_heavy_ball] | {"models": [1.0]},
            r"models must have the shape \[tau \+ 1, ...\], got \[1\]",
        ),
        (
            bounds.fedgbo_descent,
            GOOD[bounds.fedgbo_descent] | {"gradient_norms_squared": 1.0},
            r"gradient_norms_squared must be one per round \[t\]",
        ),
        (
            bounds.expected_unseen_share_squared,
            {"num_clients": 5, "cohort_size": 6, "rounds": 1},
            "cohort_size must be at most num_clients=5, got 6",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(**arguments)
