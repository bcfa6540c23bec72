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

GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "the model and its clients": {
        "--model-size": {
            "metavar": "SIZE",
            "help": "what a client downloads in a round: 6.71Mbit, 850kB, 1.5GiB, or 209662params of"
            " 32 bits",
        },
        "--upload-size": {
            "metavar": "SIZE",
            "help": "what it uploads, if that differs (compression, SCAFFOLD)",
        },
        "--download": {"metavar": "RATE", "help": "from server to client: 20Mbit/s or 2.5MB/s"},
        "--upload": {"metavar": "RATE", "help": "from client to server: 5Mbit/s or 625kB/s"},
        "--step-seconds": {
            "metavar": "T",
            "help": "one local step (a minibatch) on a device: 0.017, in seconds, or 17ms",
        },
        "--spread": {
            "metavar": "FACTOR",
            "type": number,
            "default": 1.0,
            "help": "how devices differ: two thirds lie within this factor of the rates and the time"
            " given, so that a round waits for stragglers (1: all alike)",
        },
        "--clients": {
            "metavar": "M",
            "type": int,
            "help": "all clients, of whom a cohort is drawn in each round",
        },
        "--cohort": {
            "metavar": "N",
            "help": "clients in a round, or several sizes to choose from: 10,20,50",
        },
    },
    "the budget (one or more; the first that is used up ends the run)": {
        "--hours": {"metavar": "H", "type": number, "help": "time of the whole run"},
        "--rounds": {"metavar": "R", "type": int, "help": "rounds"},
        "--total-bytes": {
            "metavar": "SIZE",
            "help": "what all clients together send and receive: 500GB",
        },
        "--client-bytes": {
            "metavar": "SIZE",
            "help": "what each client sends and receives, in the mean: 2GB",
        },
    },
    "a run that went well": {
        "--k0": {"metavar": "K", "type": int, "help": "local steps that were found good"},
        "--eta0": {"metavar": "ETA", "type": number, "help": "the learning rate found with them"},
        "--k0-rounds": {
            "metavar": "R",
            "type": int,
            "help": "the rounds for which both were good (10000)",
        },
    },
    "the constants of the bound": {
        "--smoothness": {
            "metavar": "L",
            "type": number,
            "help": "the largest curvature of a client's loss",
        },
        "--strong-convexity": {
            "metavar": "MU",
            "type": number,
            "help": "the smallest curvature, at most L",
        },
        "--initial-loss": {
            "metavar": "F0",
            "type": number,
            "help": "loss at the start; ln(classes) for a classifier that guesses",
        },
        "--gradient-bound": {
            "metavar": "G",
            "type": number,
            "help": "the largest norm of a client's gradient (not squared)",
        },
        "--heterogeneity": {
            "metavar": "GAMMA",
            "type": number,
            "help": "F* minus the mean of the clients' own smallest losses (0)",
        },
        "--optimal-loss": {"metavar": "F", "type": number, "help": "F*, the smallest loss (0)"},
        "--noise": {
            "metavar": "V",
            "type": number,
            "help": "sum of p_c^2 sigma_c^2 over all clients, for any cohort (0)",
        },
        "--client-variance": {
            "metavar": "V",
            "type": number,
            "help": "sigma^2 of one client's minibatch gradient, of which a cohort has 1/N (0)",
        },
        "--estimate": {
            "action": "store_true",
            "help": "a demonstration: constants estimated from the digits that come with the package"
            " (half a minute)",
        },
    },
    "what is not to be chosen": {
        "--learning-rate": {"metavar": "ETA", "type": number, "help": "use this eta"},
        "--plateau-round": {
            "metavar": "R",
            "type": int,
            "help": "forecast K-step, too: K to a tenth of it after this round",
        },
        "--max-local-steps": {
            "metavar": "K",
            "type": int,
            "default": 1000,
            "help": "no K above this one (%(default)s)",
        },
    },
    "energy": {
        "--watts": {"metavar": "W", "type": number, "help": "a device's power while it computes"},
        "--joules-per-megabyte": {
            "metavar": "J",
            "type": number,
            "help": "energy of sending or receiving a megabyte",
        },
    },
    "output": {
        "--plot": {
            "metavar": "FILE",
            "type": pathlib.Path,
            "help": "also draw it: .png, .svg or .pdf (needs matplotlib)",
        },
        "--json": {"action": "store_true", "help": "print JSON instead of the table"},
    },
}
