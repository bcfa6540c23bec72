"""The learning rate, tuned by gradient descent through a whole federated run.

Twenty rounds are one differentiable function of their hyperparameters, as long as the number of local
steps is a Python int. `jax.value_and_grad` gives the loss after the last round and its derivative with
respect to log(eta); a few steps of gradient descent follow it.

The problem has the usual dilemma: small steps do not arrive in twenty rounds, large ones follow the
noise of the minibatches and of the cohort.

Run:  python examples/tune_by_gradient.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

DIMENSION = 10

model, clients, _ = fo.data.quadratics(20, DIMENSION, heterogeneity=0.3, noise=1.0, num_examples=16)
quadratics = fo.Federation(
    model, clients, cohort=5, local_steps=5, batch_size=2, initial={"x": np.ones(DIMENSION)}
)


def final_loss(log_rate):
    """The loss over all data after 20 rounds, with the same cohorts and minibatches every time."""
    algorithm = fo.fedavg(fo.optimizers.sgd(jnp.exp(log_rate)))
    state = fo.init_state(algorithm, quadratics)
    run = fo.run_rounds(algorithm, quadratics, state, 20)
    return model.loss(run.state.variables, clients.examples, None)[0]


value_and_slope = jax.jit(jax.value_and_grad(final_loss))


def main():
    log_rate = jnp.log(0.003)
    print("step   learning rate   loss after 20 rounds   derivative by log(eta)")
    for step in range(10):
        loss, slope = value_and_slope(log_rate)
        print(f"{step:4}   {jnp.exp(log_rate):13.4f}   {loss:20.4f}   {slope:22.4f}")
        log_rate = log_rate - 0.5 * slope

    print("\na grid, for comparison")
    for rate in np.geomspace(0.003, 1.0, 12):
        loss, slope = value_and_slope(jnp.log(rate))
        print(f"       {rate:13.4f}   {loss:20.4f}   {slope:22.4f}")


if __name__ == "__main__":
    main()
