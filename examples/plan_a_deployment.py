"""Planning a deployment: what the bound says, what one short search says, and what then happens.

Twenty phones train a model of 6.71 Mbit over 4G for an hour; a local step takes 0.1 s. How many local
steps, and which learning rate? The problem is one whose optimum is known (quadratics, a different one on
each phone), so that the plans can be tried and the gradient at the end measured.

    bound   the constants L, mu, G, Gamma are estimated from the data, and the bound is minimised.
            It holds for the worst problem with these constants, and so it is careful.
    tuned   a search over K and eta in runs of 40 rounds; `TunedRun` carries its best over to an hour.
    pilot   the same K and eta as in the search, unchanged: what one does without a plan.

Time is that of the runtime model: each plan gets as many rounds as it fits into the hour.

Run:  python examples/plan_a_deployment.py          (the plot needs matplotlib)
"""

import argparse
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

CLIENTS, DIMENSION, BATCH, SEEDS = 20, 10, 4, 4
MEGABITS, PHONES = 6.71, fo.costs.devices(download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.1)
BUDGET, PILOT_ROUNDS = 3600.0, 40
START = fo.Variables({"x": jnp.full(DIMENSION, 2.0)})


def final_gradients(phones):
    """A compiled function of K, eta and rounds: ||grad F||^2 at the end, the mean over seeds."""

    def one_run(local_steps, eta, rounds, seed):
        algorithm = fo.fedavg(fo.optimizers.sgd(eta))
        federation = phones.replace(local_steps=local_steps)

        def one_round(_, state):
            return fo.run_rounds(algorithm, federation, state, 1).state

        state = fo.first_state(algorithm, START, CLIENTS, seed)
        x = jax.lax.fori_loop(0, rounds, one_round, state).variables.params["x"]
        curvatures, centres = phones.clients.examples["A"], phones.clients.examples["b"]
        return jnp.sum(jnp.einsum("nij,nj->ni", curvatures, x - centres).mean(axis=0) ** 2)

    over_seeds = jax.vmap(one_run, (None, None, None, 0))
    return jax.jit(lambda *values: jnp.mean(over_seeds(*values, jnp.arange(SEEDS))))


def search(measure):
    """The best K and eta of a grid, in short runs."""
    grid = itertools.product([1, 2, 4, 8, 16], np.geomspace(0.01, 0.3, 7).tolist())
    measured = {(K, eta): float(measure(K, eta, PILOT_ROUNDS)) for K, eta in grid}
    return min(measured, key=measured.__getitem__)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("plan.svg"))
    output = parser.parse_args().output

    model, data, _ = fo.data.quadratics(CLIENTS, DIMENSION, noise=1.0, num_examples=32)
    estimated = fo.bounds.estimate_constants(
        model, data, START, batch_size=BATCH, cohort_size=CLIENTS
    )
    print(f"{estimated.describe()}\n")
    phones = fo.Federation(model, data, cohort=CLIENTS, batch_size=BATCH)
    measure = final_gradients(phones)  # compiled once, for all that follows
    K, eta = search(measure)
    print(f"The best of a search over runs of {PILOT_ROUNDS} rounds: K = {K}, eta = {eta:.3g}\n")

    tuned = fo.planning.TunedRun(K, eta, PILOT_ROUNDS, CLIENTS)
    plans = {
        "bound": fo.plan(MEGABITS, PHONES, constants=estimated.constants, seconds=BUDGET),
        "tuned": fo.plan(MEGABITS, PHONES, constants=tuned, seconds=BUDGET),
        "pilot": fo.plan(
            MEGABITS, PHONES, cohort_size=CLIENTS, local_steps=K, learning_rate=eta, seconds=BUDGET
        ),
    }
    print(f"{fo.planning.table(plans['tuned'], 'The plan from the search')}\n")

    print("plan      K      eta  rounds   hours  ||grad F||^2 at the end")
    for name, plan in plans.items():
        row = next(row for row in plan.forecasts if row.name == "fixed")
        end = measure(plan.local_steps, row.learning_rate, row.rounds)
        print(
            f"{name:6}  {plan.local_steps:3}  {row.learning_rate:7.3g}  {row.rounds:6}"
            f"  {row.seconds / 3600:6.2f}  {float(end):.2e}"
        )
    print(f"The bound promised {plans['bound'].bound.value:.3g} for the best step of its run.")
    try:
        fo.planning.save_plot(plans["tuned"], output, "An hour on twenty phones")
        print(f"\nPlot: {output}")
    except ImportError:
        print("\nNo plot: matplotlib is missing. Install it by pip install 'fedjax_opt[bench]'.")


if __name__ == "__main__":
    main()
