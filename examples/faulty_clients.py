"""Clients that drop out, send NaN, turn their update around or lie about labels; and what helps.

Of forty clients, 30% of those who are asked never report, four upload NaN, four upload the opposite of
what they found, and four have labels that are turned around. The server

    aggregates     by the mean, which any one client can move anywhere, or by a trimmed mean
    guards         nothing, or leaves out whatever is not finite or too large

A run without a guard ends at the first round in which a NaN reaches the model; its accuracy is that of
the last good state.

Run:  python examples/faulty_clients.py
"""

import logging

import numpy as np

import fedjax_opt as fo

CLIENTS, COHORT, ROUNDS = 40, 20, 60


def main():
    # Whoever is left out has a line in the log; here a table is enough.
    logging.getLogger("fedjax_opt").setLevel(logging.ERROR)
    train, test = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], CLIENTS, alpha=10.0, seed=0)
    clean = fo.ClientData.from_arrays(train, owners)
    poisoned, liars = fo.data.with_flipped_labels(clean, num_classes=10, fraction=0.1, seed=1)
    others = np.random.default_rng(0).permutation(np.flatnonzero(~liars))
    broken, traitors = others[:4], others[4:8]
    model = fo.models.mlp([32], num_classes=10)
    base = fo.Federation(
        model, clean, cohort=COHORT, local_steps=8, batch_size=8, weighting="uniform"
    )
    lossy = fo.cohorts.unreliable(fo.cohorts.uniform(COHORT), dropout=0.3)
    faulty = base.replace(clients=poisoned, cohort=lossy)
    guarded = faulty.replace(guard=fo.Guard(max_norm=10.0, min_clients=5))

    def show(name, algorithm, federation):
        result = fo.simulate(algorithm, federation, ROUNDS, on_nonfinite="stop")
        accuracy = float(fo.evaluate(model, result.variables, test)["accuracy"])
        faults = result.history.get("fault", np.zeros((0, 0), np.int32))
        counts = [np.sum(faults == code) for code in (1, 4, 5)]
        cells = "".join(f"{c:10}" for c in counts) if faults.size else "         -" * 3
        print(f"{name:26} {accuracy:8.1%} {len(result.history['loss']):7} {cells}")

    print(f"{clean.summary()}; {ROUNDS} rounds of {COHORT} clients\n")
    print("                                          left out of rounds, by reason")
    print("server                     accuracy  rounds   dropped       NaN     large")
    fedavg = fo.fedavg(fo.optimizers.sgd(0.2))
    show("nobody at fault", fedavg, base)
    attacked = fo.attacks.nan_upload(fo.attacks.sign_flip(fedavg, traitors, scale=4.0), broken)
    rules = {"mean": fo.aggregators.weighted_mean(), "trimmed": fo.aggregators.trimmed_mean(0.25)}
    for name, rule in rules.items():
        algorithm = fo.aggregated(attacked, rule)
        show(name, algorithm, faulty)
        show(f"{name}, guarded", algorithm, guarded)


if __name__ == "__main__":
    main()
