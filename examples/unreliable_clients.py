"""Who takes part, and what it does to training: seven ways to draw a cohort.

Forty clients live in two time zones. Those of the first hold the digits 0 to 4, those of the second
5 to 9, and a device can be reached mostly at night, when it is charging. A round is an hour.

    uniform        every set of clients is equally likely
    weighted       clients with more examples are drawn more often
    cyclic         one after the other, in a fixed order
    dynamic pool   out of a pool of 12 that is drawn anew every 12 rounds
    available      only clients that can be reached in this hour; empty slots stay empty
    dropout        uniform, but half of the clients never report
    stragglers     uniform, but half of the clients finish only some of their local steps

Run:  python examples/unreliable_clients.py
"""

import numpy as np

import fedjax_opt as fo

CLIENTS, COHORT, ROUNDS, DAY = 40, 8, 240, 24


def two_time_zones(labels, seed=0):
    """Digits 0 to 4 go to clients 0 to 19, digits 5 to 9 to clients 20 to 39."""
    half = CLIENTS // 2
    first = labels < 5
    owners = np.empty(len(labels), np.int32)
    owners[first] = fo.data.dirichlet(labels[first], half, alpha=1.0, seed=seed)
    owners[~first] = half + fo.data.dirichlet(labels[~first], half, alpha=1.0, seed=seed)
    return owners


def availability():
    """The probability that a client can be reached, [hour of the day, client]."""
    hour = np.arange(DAY)
    asleep = np.where((hour < 8)[:, None], 0.9, 0.05)
    return np.repeat(np.hstack([asleep, np.roll(asleep, DAY // 2, axis=0)]), CLIENTS // 2, axis=1)


def main():
    train, test = fo.data.load_digits()
    clients = fo.ClientData.from_arrays(train, two_time_zones(train["y"]), CLIENTS)
    model = fo.models.mlp([32], num_classes=10)
    # Each client counts alike: by samples, 'weighted' would count large clients twice.
    base = fo.Federation(
        model, clients, local_steps=10, batch_size=8, weighting="uniform", test=test
    )
    cohorts = {
        "uniform": fo.cohorts.uniform(COHORT),
        "weighted": fo.cohorts.weighted(COHORT, clients.sizes),
        "cyclic": fo.cohorts.cyclic(COHORT),
        "dynamic pool": fo.cohorts.dynamic_pool(COHORT, pool_size=12, every=12),
        "available": fo.cohorts.available(COHORT, availability()),
        "dropout": fo.cohorts.unreliable(fo.cohorts.uniform(COHORT), dropout=0.5),
        "stragglers": fo.cohorts.unreliable(fo.cohorts.uniform(COHORT), stragglers=0.5),
    }
    print(f"{clients.summary()}")
    print(f"FedAvg, {ROUNDS} rounds; accuracy on the test set of all digits\n")
    print("               last day's accuracy      slots   times that a client took part")
    print("cohort           worst   mean    best   filled   least   median    most")
    fedavg = fo.fedavg(fo.optimizers.sgd(0.1))
    for name, cohort in cohorts.items():
        result = fo.simulate(fedavg, base.replace(cohort=cohort), ROUNDS, evaluate_every=2)
        accuracy = result.evaluations["accuracy"][-DAY // 2 :]
        took_part = result.history["num_steps"] > 0
        times = np.bincount(result.history["cohort"][took_part], minlength=CLIENTS)
        print(
            f"{name:13}  {accuracy.min():7.1%} {accuracy.mean():6.1%} {accuracy.max():7.1%}"
            f"  {took_part.mean():7.0%}  {times.min():6}  {np.median(times):7g}  {times.max():6}"
        )


if __name__ == "__main__":
    main()
