"""The options of `fedjax-opt plan`, with their units."""

import argparse
import math
import pathlib
from typing import Any


def number(text: str) -> float:
    """A finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text}")
    return value


number.__name__ = "number"  # what argparse calls a value that is none

_DEFAULTS = {"spread": 1.0, "max-local-steps": 1000}
# Group -> option, what its value is called (nothing of a flag), its type, what it means.
_GROUPS: dict[str, tuple[tuple[str, str, Any, str], ...]] = {
    "the model and its clients": (
        ("model-size", "SIZE", str,
         "what a client downloads in a round: 6.71Mbit, 850kB, 1.5GiB, or 209662params of 32"
         " bits"),
        ("upload-size", "SIZE", str, "what it uploads, if that differs (compression, SCAFFOLD)"),
        ("download", "RATE", str, "from server to client: 20Mbit/s or 2.5MB/s"),
        ("upload", "RATE", str, "from client to server: 5Mbit/s or 625kB/s"),
        ("step-seconds", "T", str,
         "one local step (a minibatch) on a device: 0.017, in seconds, or 17ms"),
        ("spread", "FACTOR", number,
         "how devices differ: two thirds lie within this factor of the rates and the time given,"
         " so that a round waits for stragglers (1: all alike)"),
        ("clients", "M", int, "all clients, of whom a cohort is drawn in each round"),
        ("cohort", "N", str, "clients in a round, or several sizes to choose from: 10,20,50"),
    ),
    "the budget (one or more; the first that is used up ends the run)": (
        ("hours", "H", number, "time of the whole run"),
        ("rounds", "R", int, "rounds"),
        ("total-bytes", "SIZE", str, "what all clients together send and receive: 500GB"),
        ("client-bytes", "SIZE", str, "what each client sends and receives, in the mean: 2GB"),
    ),
    "a run that went well": (
        ("k0", "K", int, "local steps that were found good"),
        ("eta0", "ETA", number, "the learning rate found with them"),
        ("k0-rounds", "R", int, "the rounds for which both were good (10000)"),
    ),
    "the constants of the bound": (
        ("smoothness", "L", number, "the largest curvature of a client's loss"),
        ("strong-convexity", "MU", number, "the smallest curvature, at most L"),
        ("initial-loss", "F0", number,
         "loss at the start; ln(classes) for a classifier that guesses"),
        ("gradient-bound", "G", number, "the largest norm of a client's gradient (not squared)"),
        ("heterogeneity", "GAMMA", number,
         "F* minus the mean of the clients' own smallest losses (0)"),
        ("optimal-loss", "F", number, "F*, the smallest loss (0)"),
        ("noise", "V", number, "sum of p_c^2 sigma_c^2 over all clients, for any cohort (0)"),
        ("client-variance", "V", number,
         "sigma^2 of one client's minibatch gradient, of which a cohort has 1/N (0)"),
        ("estimate", "", bool,
         "a demonstration: constants estimated from the digits that come with the package (half"
         " a minute)"),
    ),
    "what is not to be chosen": (
        ("learning-rate", "ETA", number, "use this eta"),
        ("plateau-round", "R", int, "forecast K-step, too: K to a tenth of it after this round"),
        ("max-local-steps", "K", int, "no K above this one (%(default)s)"),
    ),
    "energy": (
        ("watts", "W", number, "a device's power while it computes"),
        ("joules-per-megabyte", "J", number, "energy of sending or receiving a megabyte"),
    ),
    "output": (
        ("plot", "FILE", pathlib.Path, "also draw it: .png, .svg or .pdf (needs matplotlib)"),
        ("json", "", bool, "print JSON instead of the table"),
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to the command, in their groups."""
    for title, options in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name, called, kind, meaning in options:
            value: dict[str, Any] = {"action": "store_true"}
            if kind is not bool:
                value = {"metavar": called, "type": kind, "default": _DEFAULTS.get(name)}
            group.add_argument(f"--{name}", help=meaning, **value)
