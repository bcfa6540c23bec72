"""Curves for tests of the report."""

import numpy as np

from fedjax_opt.experiments.report import About, Curves, per_round

ROUNDS = np.arange(10, 101, 10)
NASTY = '<script>document.body.dataset.hacked = 1</script> & "it\'s" </style></svg>'


def rising(best, rate=0.05, seeds=3, spread=0.02):
    """Accuracies [seeds, E] that rise to about `best`."""
    curve = best * (1 - np.exp(-rate * ROUNDS))
    return np.stack([curve + spread * (i - (seeds - 1) / 2) for i in range(seeds)])


def curves(label="FedAvg", best=0.6, rate=0.05, price=1.0, **others):
    """An algorithm whose curves rise."""
    accuracy = others.pop("accuracy", rising(best, rate))
    seeds = others.pop("seeds", tuple(range(len(accuracy))))
    costs = per_round(
        ROUNDS, bytes_up=2e6 * price, bytes_down=2e6, flops=3e9 * price, seconds=40.0 * price
    )
    others = {"hyperparameters": {"learning_rate": 0.1}, "costs": costs} | others
    return Curves(label, seeds=seeds, round=ROUNDS, accuracy=accuracy, **others)


def comparison():
    """A comparison with one of everything: drift, a diverged seed, an unfinished one, nasty texts."""
    loss = 2.0 - rising(0.6)
    broken = loss.copy()
    broken[2, 6:] = np.nan
    drift = {"client_distance": 0.1 + 0.1 * rising(0.6)}
    unfinished = [row[: 10 - 3 * i] for i, row in enumerate(rising(0.55))]
    return [
        curves(loss=loss, extra=drift),
        curves("FedACG", 0.7, 0.08, loss=loss - 0.1, extra=drift),
        curves("SCAFFOLD", 0.65, 0.04, price=2.0, loss=broken),
        curves(
            NASTY, 0.5, accuracy=unfinished, hyperparameters={"learning_rate": 1.0, "a<b": "<i>"}
        ),
    ]


ABOUT = About(
    f"Title {NASTY}",
    task=f"First paragraph {NASTY}.\n\nSecond paragraph.",
    facts={f"clients {NASTY}": NASTY},
    commands=("fedjax-opt compare --out 'runs/<x>'", f"echo {NASTY}"),
    versions={"jax": "0.7.2", NASTY: NASTY},
    notes=(f"A note {NASTY}.",),
    metric=f"accuracy {NASTY}",
    beside=(("algorithm", f"paper {NASTY}", "here"), (NASTY, NASTY, "")),
)
