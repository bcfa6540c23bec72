"""A skeleton to copy: a complete algorithm, its NumPy oracle, and the check that they agree.

The algorithm is FedAvg with Nesterov's momentum on the server:

    local    y <- y - eta g
    upload   y - x
    server   d  = sum_i w_i (y_i - x)
             m+ = beta m + d
             x+ = x + eta_s (beta m+ + d)

With beta = 0 it is FedAvg. docs/new_algorithm.md explains it line by line.

Run:  python examples/your_own_algorithm.py
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_opt as fo
from fedjax_opt.core import Algorithm, Variables, checks, move, trees

# The algorithm --------------------------------------------------------------------------------


class Server(NamedTuple):
    """The model and the momentum of its displacements."""

    variables: Variables
    momentum: chex.ArrayTree


def fedavg_nesterov(
    learning_rate: chex.Numeric,
    server_learning_rate: chex.Numeric = 1.0,
    momentum: chex.Numeric = 0.9,
) -> Algorithm:
    """FedAvg with Nesterov's momentum on the server.

    Args:
      learning_rate: eta, positive.
      server_learning_rate: eta_s, not negative.
      momentum: beta, in [0, 1).

    Returns:
      An `Algorithm` without client state.
    """
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    beta = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    return fo.local_training(
        fo.optimizers.sgd(learning_rate),
        init=_init,
        server_step=Partial(_server_step, eta, beta),
    )


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def _server_step(eta, beta, server, mean, situation):
    m = trees.each(lambda m, d, b: b * m + d, server.momentum, mean.params, b=beta)
    ahead = trees.each(lambda d, m, b: b * m + d, mean.params, m, b=beta)
    return Server(move(server.variables, mean._replace(params=ahead), eta), m)


# The oracle: plain loops in NumPy, from the equations above, with nothing of the library ------


def oracle(w, rounds, learning_rate, server_learning_rate, momentum):
    """The model after each round, for least squares."""
    m, history = np.zeros_like(w), []
    for clients, weights in rounds:
        d = np.zeros_like(w)
        for batches, weight in zip(clients, weights, strict=True):
            y = w.copy()
            for x, target in batches:
                gradient = x.T @ (x @ y - target) / len(target)
                y = y - learning_rate * gradient
            d += weight / sum(weights) * (y - w)
        m = momentum * m + d
        w = w + server_learning_rate * (momentum * m + d)
        history.append(w)
    return history


# The check ------------------------------------------------------------------------------------


def _loss(variables, batch, key):
    del key
    losses = jnp.square(batch["x"] @ variables.params - batch["y"]) / 2
    return jnp.mean(losses), fo.Aux(losses=losses)


MODEL = fo.Model(init=lambda key, batch: fo.Variables(jnp.zeros(batch["x"].shape[-1])), loss=_loss)


def largest_difference(rounds=5, num_clients=6, cohort=3, most_steps=4, batch=5, features=3):
    """Plays random rounds with unequal steps and weights in both; how far the models are apart."""
    generator = np.random.default_rng(0)
    hyper = {"learning_rate": 0.1, "server_learning_rate": 0.7, "momentum": 0.8}
    algorithm = fedavg_nesterov(**hyper)
    round_fn = fo.make_round(algorithm, MODEL)
    start = generator.normal(size=features)
    state = fo.first_state(algorithm, jnp.asarray(start), num_clients)
    played, ours = [], []
    for _ in range(rounds):
        ids = generator.permutation(num_clients)[:cohort]
        steps = generator.integers(1, most_steps + 1, size=cohort)
        weights = generator.uniform(0.5, 2.0, size=cohort)
        x = generator.normal(size=(cohort, most_steps, batch, features))
        y = generator.normal(size=(cohort, most_steps, batch))
        dtype = state.variables.params.dtype
        batches = {"x": x.astype(dtype), "y": y.astype(dtype)}
        state, _ = round_fn(state, ids, batches, weights, steps)
        ours.append(np.asarray(state.variables.params))
        clients = [list(zip(x[i], y[i], strict=True))[:k] for i, k in enumerate(steps)]
        played.append((clients, weights))
    theirs = oracle(start, played, **hyper)
    return max(float(np.max(np.abs(a - b))) for a, b in zip(ours, theirs, strict=True))


def main():
    # In float64 the two differ by rounding alone; an error in the algorithm cannot hide.
    jax.config.update("jax_enable_x64", True)
    apart = largest_difference()
    print(f"library against oracle, five rounds: largest difference {apart:.1e}")
    if not apart < 1e-6:
        raise SystemExit("The algorithm and its oracle disagree.")

    model, data, optimum = fo.data.quadratics(num_clients=20, dimension=5)
    quadratics = fo.Federation(model, data, cohort=20, local_steps=1, batch_size=1)
    print("\ndistance from the optimum of 20 quadratics, all clients in every round, K = 1")
    print("momentum   after 10 rounds   after 40 rounds")
    for momentum in (0.0, 0.5, 0.9):
        algorithm = fedavg_nesterov(0.02, momentum=momentum)
        state = fo.init_state(algorithm, quadratics)
        distances = []
        for rounds in (10, 30):
            state, _ = fo.run_rounds(algorithm, quadratics, state, rounds)
            distances.append(np.linalg.norm(state.variables.params["x"] - optimum))
        print(f"{momentum:8g}   {distances[0]:15.4f}   {distances[1]:15.4f}")


if __name__ == "__main__":
    main()
