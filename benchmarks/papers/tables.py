"""Tables that the papers print, from what the library computes."""

import math

import jax
import numpy as np

import fedjax_opt as fo
from fedjax_opt.compression import golomb

# Table 1 of Zaccone et al. (2024): what each rate assumes beside smoothness and bounded noise, and a
# client's bytes in a round in units of FedAvg's, counted from the algorithms.
GHBM_TABLE_1 = {
    "FedAvg, all clients": ("bounded dissimilarity", 1.0),
    "FedAvg": ("bounded dissimilarity", 1.0),
    "FedCM": ("bounded gradients, bounded dissimilarity", 1.5),
    "FedCM, all clients": ("nothing more", 1.5),
    "SCAFFOLD-M": ("nothing more; clients keep state", 2.5),
    "GHBM": ("clients take turns", 1.5),
}


def rate_table(constants: fo.bounds.RateConstants) -> list[str]:
    """Its lines, the smallest rate first, those whose assumptions fail last."""
    found = fo.bounds.rates(constants)
    names = sorted(found, key=lambda n: (bool(found[n].violated()), float(found[n].value)))
    return [
        f"{name:20}{float(found[name].value):10.6f}  {GHBM_TABLE_1[name][1]} x  {GHBM_TABLE_1[name][0]}"
        for name in names
    ]


def upload_bits(variables: fo.Variables, sparsity: float, moments: bool = False) -> float:
    """What a client uploads in a round, by (3.1) of the thesis; with Adam's moments by (3.2).

        FedAvg      160 |W| + (1 - s) ( 8 + g_s) sum |w|
        CE-FedAvg   224 |W| + (1 - s) (24 + g_s) sum |w|

    with |W| tensors of sum |w| entries, and g_s the bits of a Golomb-coded position.

    Mills. Federated machine learning in edge computing. PhD thesis, University of Exeter, chapter 3.
    """
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(variables.params)]
    a_tensor, an_entry = (224, 24) if moments else (160, 8)
    sent = (1 - sparsity) * (an_entry + golomb.expected_bits(sparsity))
    return a_tensor * len(sizes) + sent * sum(sizes)


def upload_ratio(sparsity: float, moments: bool = False) -> float:
    """How many times smaller that is, without the terms of the tensors' headers."""
    plain, coded = (96, 24) if moments else (32, 8)
    return plain / ((1 - sparsity) * (coded + golomb.expected_bits(sparsity)))


def relative_steps(
    task: fo.planning.PaperTask, schedule: np.ndarray, rounds: int = 10_000, within: str = "time"
) -> float:
    """Table 4 of Mills et al. (2023): the steps of a schedule, relative to K_0 in each of the rounds.

    Within 'time', a schedule whose rounds are shorter plays more of them. Table 4 is said to compare
    the steps over 10,000 rounds. For K_r = ceil(K_0 r^(-1/3)) that gives 0.078, 0.076, 0.079 and
    0.076, and not the printed 0.21, 0.11, 0.090 and 0.74. Three of the four follow in as much time:
    0.21, 0.11 and 0.74; CIFAR100's comes to 0.14.
    """
    played = rounds
    if within == "time":
        link = task.model_megabits / task.devices.download_mbps
        link += task.model_megabits / task.devices.upload_mbps
        passed = np.cumsum(link + task.devices.seconds_per_step * schedule)
        budget = rounds * (link + task.devices.seconds_per_step * task.local_steps)
        played = int(np.searchsorted(passed, budget * (1 + 1e-12), side="right"))
    return float(np.sum(schedule[:played]) / (task.local_steps * rounds))
