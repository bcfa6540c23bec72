"""How far clients drift apart, and how well momentum knows where to go: two figures, measured.

Left, after Figure 1 of the FedGBO paper: the mean cosine distance between the models that clients
upload, for FedGBO with SGDm. With beta = 0 it is FedAvg. A larger beta gives the same direction to all
clients, and keeps them together.

Right, after Figure 1 of the GHBM paper: how far the momentum is from the gradient of all clients, as a
distance of unit vectors (0 is the same direction, sqrt(2) a right angle), for GHBM with a tenth of the
clients in each round. A momentum that looks back over more rounds has heard more clients. One that has
heard only the last cohort mostly points away from the gradient here.

Run:  python examples/client_drift.py --output client_drift.png      (needs the extra 'bench')
"""

import argparse

import jax
import matplotlib
import numpy as np

import fedjax_opt as fo

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROUNDS, SEEDS, SKIP = 50, 2, 12


def measured(make, values, name, digits):
    """The diagnostic of every round, its mean over seeds: one curve for each value."""

    def one_run(value, seed):
        algorithm = make(value)
        state = fo.init_state(algorithm, digits, seed)
        run = fo.run_rounds(algorithm, digits, state, ROUNDS, strategy="vmap", diagnostics=[name])
        return run.history.diagnostics[name]

    over_seeds = jax.vmap(one_run, (None, 0))
    return {value: np.mean(over_seeds(value, np.arange(SEEDS)), axis=0) for value in values}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="client_drift.png", help="where the plot goes")
    output = parser.parse_args().output
    train, _ = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], num_clients=100, alpha=0.1)
    data = fo.ClientData.from_arrays(train, owners)
    model = fo.models.mlp([32], num_classes=10)
    digits = fo.Federation(model, data, cohort=10, local_steps=10, batch_size=8)
    drift = measured(
        lambda beta: fo.fedgbo(fo.optimizers.sgdm(0.1, beta)),
        (0.0, 0.6, 0.9), "client_distance", digits,
    )  # fmt: skip
    deviation = measured(
        lambda tau: fo.ghbm(fo.optimizers.sgd(0.02), tau, beta=0.5),
        (1, 3, 10), "momentum_deviation", digits,
    )  # fmt: skip
    print("mean over the last half of the rounds")
    for beta, curve in drift.items():
        print(
            f"  FedGBO, beta = {beta}: cosine distance between clients {curve[ROUNDS // 2 :].mean():.4f}"
        )
    for tau, curve in deviation.items():
        print(
            f"  GHBM, tau = {tau}: distance of momentum to gradient {curve[ROUNDS // 2 :].mean():.3f}"
        )

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    styles = zip(("#0072b2", "#e69f00", "#d55e00"), ("-", "--", ":"), strict=True)
    for (colour, line), (beta, a), (tau, b) in zip(
        styles, drift.items(), deviation.items(), strict=True
    ):
        left.plot(a, line, color=colour, label=f"β = {beta}" + (" (FedAvg)" if beta == 0 else ""))
        # The first rounds have no momentum, and with tau = 10 not for ten of them.
        right.plot(np.arange(SKIP, ROUNDS), b[SKIP:], line, color=colour, label=f"τ = {tau}")
    left.set(title="FedGBO: distance between clients", ylabel="mean cosine distance", yscale="log")
    right.set(title="GHBM: momentum and full gradient", ylabel="distance of directions")
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)
    left.legend()
    right.margins(y=0.2)
    right.legend(ncol=3, loc="upper center")
    figure.savefig(output, dpi=150)
    print(f"plot saved as {output}")


if __name__ == "__main__":
    main()
