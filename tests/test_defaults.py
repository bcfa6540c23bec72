"""Defaults: those of the papers where they have one, the same seed everywhere."""

import inspect

import pytest

from fedjax_opt import algorithms, compression, data, metrics, optimizers, wrappers

ADAPTIVE = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
FED_OPT = {"server_learning_rate": 0.1, "eps": 1e-3, "initial_v": 1e-6}
MOMENTUM = {"beta": 0.9}
CODEC = {"sparsity": 0.9, "bits": 8}

USUAL = {("server_learning_rate", 1.0), ("seed", 0), ("min_size", 1)}
# Every other number that is a default.
NUMBERS = {
    algorithms: {
        "adabest": {"mu": 0.02, "beta": 0.8},
        "ce_fedavg": CODEC,
        "compressed_fedavg": CODEC,
        "fedacg": {"momentum": 0.85, "beta": 0.0},
        "fedadagrad": FED_OPT,
        "fedadam": FED_OPT | ADAPTIVE,
        "fedyogi": FED_OPT | ADAPTIVE,
        "fedadc": MOMENTUM,
        "fedavgm": {"momentum": 0.9},
        "fedcm": {"alpha": 0.1},
        "feddc": {"alpha": 0.1},
        "feddyn": {"alpha": 0.1},
        "fedhbm": {"beta": 1.0},
        "ghbm": MOMENTUM,
        "ghbm_server": MOMENTUM,
        "ghbm_theory": {"beta": 0.1},
        "localghbm": MOMENTUM,
        "mimemom": {"momentum": 0.9},
        "moon": {"mu": 1.0, "temperature": 0.5},
        "per_fedavg": {"difference_step": 0.01},
        "scaffold": {"option": 2},
        "scaffold_m": {"beta": 0.1},
    },
    wrappers: {"contrastive": {"temperature": 0.5}},
    optimizers: {
        "adagrad": {"eps": 1e-3, "initial_v": 1.0},
        "adam": ADAPTIVE | {"initial_v": 1.0},
        "rmsprop": {"beta": 0.9, "eps": 1e-3, "initial_v": 1.0},
        "sgdm": MOMENTUM,
        "yogi": ADAPTIVE | {"initial_v": 1.0},
    },
    compression: {
        "ce_fedavg": CODEC,
        "excluding": {"min_size": 0},
        "exponential": {"bits": 8},
        "uniform": {"bits": 8},
    },
    data: {
        "characters": {"length": 80},
        "label_shards": {"shards_per_client": 2},
        "load_digits": {"test_fraction": 0.2},
        "pachinko": {"coarse_alpha": 0.1, "fine_alpha": 10.0},
        "quadratics": {"heterogeneity": 1.0, "noise": 0.0, "num_examples": 1},
        "random_crop": {"padding": 0},
        "vocabulary": {"size": 5000},
        "with_flipped_labels": {"fraction": 0.2},
        "with_noise": {"fraction": 0.2},
    },
    metrics: {
        "fine_tuned": {"batch_size": 32},
        "last_mean": {"count": 100},
        "share_diverged": {"rise": 2.0},
        "smooth": {"decay": 0.9},
    },
}


@pytest.mark.parametrize("room", NUMBERS, ids=lambda room: room.__name__)
def test_defaults_that_are_numbers(room):
    found = {}
    for name, function in vars(room).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            for argument in inspect.signature(function).parameters.values():
                number = type(argument.default) in (int, float)
                if number and (argument.name, argument.default) not in USUAL:
                    found.setdefault(name, {})[argument.name] = argument.default
    assert found == NUMBERS[room]
