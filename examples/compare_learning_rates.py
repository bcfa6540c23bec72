"""A grid of learning rates and seeds as one compiled program.

`run_rounds` is a pure function and a learning rate is a value like any other, so two `vmap`s turn one
training run into a whole grid: all its runs are trained side by side, by one program. A second grid of
the same shape reuses that program.

Run:  python examples/compare_learning_rates.py
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

LEARNING_RATES = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
SEEDS = [0, 1, 2, 3, 4]

train, test = fo.data.load_digits()
clients = fo.ClientData.from_arrays(train, fo.data.dirichlet(train["y"], 30, alpha=0.3))
model = fo.models.mlp([], num_classes=10)
digits = fo.Federation(model, clients, cohort=5, local_steps=10, batch_size=8)


def test_accuracy(learning_rate, seed):
    """The test accuracy of one run; whatever is random in it follows from the seed."""
    algorithm = fo.fedavg(fo.optimizers.sgd(learning_rate))
    state = fo.init_state(algorithm, digits, seed)
    run = fo.run_rounds(algorithm, digits, state, 40)
    return fo.evaluate(model, run.state.variables, test)["accuracy"]


over_seeds = jax.vmap(test_accuracy, in_axes=(None, 0))
grid = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))


def timed(learning_rates, seeds):
    """The grid's accuracies [learning rates, seeds], and the seconds they took."""
    began = time.perf_counter()
    accuracies = np.asarray(grid(jnp.asarray(learning_rates), jnp.asarray(seeds)))
    return accuracies, time.perf_counter() - began


def main():
    accuracies, seconds = timed(LEARNING_RATES, SEEDS)
    print(f"FedAvg, test accuracy after 40 rounds, over {len(SEEDS)} seeds\n")
    print("learning rate    mean   standard deviation   worst    best")
    for rate, row in zip(LEARNING_RATES, accuracies, strict=True):
        spread = row.std(ddof=1)
        print(f"{rate:13g}  {row.mean():6.1%}  {spread:19.1%}  {row.min():6.1%}  {row.max():6.1%}")
    print(f"\n{accuracies.size} runs in {seconds:.1f} s, compilation included.")
    _, seconds = timed([rate / 2 for rate in LEARNING_RATES], [seed + 5 for seed in SEEDS])
    print(f"{accuracies.size} more, of other learning rates and seeds, in {seconds:.1f} s.")


if __name__ == "__main__":
    main()
