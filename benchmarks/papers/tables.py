"""Tables that the papers print, from what the library computes."""

import fedjax_opt as fo

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
