"""Curves for tests of the report."""

import numpy as np

from fedjax_opt.experiments import About, Curves

ROUNDS = np.arange(10, 101, 10)
NASTY = '<script>document.body.dataset.hacked = 1</script> & "it\'s" </style></svg>'


def rising(best, rate=0.05, seeds=3, spread=0.02):
    """Accuracies [seeds, E] that rise to about `best`."""
    curve = best * (1 - np.exp(-rate * ROUNDS))
    return np.stack([curve + spread * (i - (seeds - 1) / 2) for i in range(seeds)])


def curves(label="FedAvg", best=0.6, rate=0.05, price=1.0, **others):
    """An algorithm whose curves rise."""
    accuracy = np.asarray(others.pop("accuracy", rising(best, rate)), float)
    diverged = others.pop("diverged", {})
    hyperparameters = others.pop("hyperparameters", {"learning_rate": 0.1})
    prices = {"bytes_up": 2e6 * price, "bytes_down": 2e6, "flops": 3e9 * price}
    prices |= {"simulated_seconds": 40.0 * price}
    every = np.broadcast_to(ROUNDS, accuracy.shape)
    columns = {"accuracy": accuracy, **{name: every * each for name, each in prices.items()}}
    seeds = tuple(range(len(accuracy)))
    return Curves(label, hyperparameters, seeds, ROUNDS, columns | others, diverged)


def comparison():
    """A comparison with one of everything: drift, a diverged seed, an unfinished one, nasty texts."""
    loss, drift = 2.0 - rising(0.6), 0.1 + 0.1 * rising(0.6)
    broken, own = loss.copy(), rising(0.65, 0.04)
    broken[2, 6:] = own[2, 6:] = np.nan
    unfinished = rising(0.55)
    for i in (1, 2):
        unfinished[i, 10 - 3 * i :] = np.nan
    return [
        curves(loss=loss, client_distance=drift),
        curves("FedACG", 0.7, 0.08, loss=loss - 0.1, client_distance=drift),
        curves("SCAFFOLD", accuracy=own, price=2.0, loss=broken, diverged={2: 65}),
        curves(NASTY, accuracy=unfinished, hyperparameters={"learning_rate": 1.0, "a<b": "<i>"}),
    ]


ABOUT = About(
    f"Title {NASTY}",
    task=f"First paragraph {NASTY}.\n\nSecond paragraph.",
    facts={f"clients {NASTY}": NASTY},
    commands=("fedjax-opt compare --out 'runs/<x>'", f"echo {NASTY}"),
    versions={"jax": "0.7.2", NASTY: NASTY},
    notes=(f"A note {NASTY}.",),
    beside=(("algorithm", f"paper {NASTY}", "here"), (NASTY, NASTY, "")),
)
