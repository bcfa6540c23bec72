"""What each attack does to a run, and what a guard and a robust rule make of it.

Six of thirty clients attack, in one way at a time. All of them are asked in every round; the server

    attacked     averages what comes
    defended     leaves out what is not finite or longer than any honest upload (a guard), and takes the
                 median of each coordinate of the rest

A run that ends because a NaN reached the model has the accuracy of the last good state.

Run:  python examples/attacks_and_defences.py
"""

import logging

import numpy as np

import fedjax_opt as fo

CLIENTS, ATTACKERS, ROUNDS = 30, 6, 40


def main():
    # Whoever is left out has a line in the log; here a table is enough.
    logging.getLogger("fedjax_opt").setLevel(logging.ERROR)
    train, test = fo.data.load_digits()
    data = fo.ClientData.from_arrays(train, fo.data.dirichlet(train["y"], CLIENTS, alpha=10.0))
    poisoned, liars = fo.data.with_flipped_labels(
        data, num_classes=10, fraction=ATTACKERS / CLIENTS, seed=0
    )
    who = np.flatnonzero(liars)
    model = fo.models.mlp([32], num_classes=10)
    base = fo.Federation(
        model, data, cohort=CLIENTS, local_steps=5, batch_size=16, weighting="uniform"
    )
    mislabelled = base.replace(clients=poisoned)
    fedavg = fo.fedavg(fo.optimizers.sgd(0.1))
    scenarios = {
        "nobody attacks": (fedavg, base),
        "labels are flipped": (fedavg, mislabelled),
        "signs are flipped": (fo.attacks.sign_flip(fedavg, who, scale=4.0), base),
        "uploads are scaled": (fo.attacks.scaling(fedavg, who, factor=-100.0), base),
        "uploads are NaN": (fo.attacks.nan_upload(fedavg, who), base),
    }
    guard, median = fo.Guard(max_norm=3.0, min_clients=10), fo.aggregators.coordinate_median()

    def accuracy(algorithm, federation):
        result = fo.simulate(
            algorithm, federation, ROUNDS, on_nonfinite="stop", evaluate_every=ROUNDS
        )
        return float(fo.evaluate(model, result.variables, test)["accuracy"])

    print(f"{data.summary()}; {ATTACKERS} attack; accuracy after {ROUNDS} rounds\n")
    print("                     attacked  defended")
    for name, (algorithm, federation) in scenarios.items():
        attacked = accuracy(algorithm, federation)
        defended = accuracy(fo.aggregated(algorithm, median), federation.replace(guard=guard))
        print(f"{name:20} {attacked:8.1%}  {defended:8.1%}")


if __name__ == "__main__":
    main()
