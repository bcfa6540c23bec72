"""Your loop, your data: one compiled round that you call as you like.

`make_round` gives a function of a state, a cohort and explicit minibatches. Where the minibatches come
from is your business; here it is a class made of plain NumPy. Other clients, other weights and other
numbers of local steps are other values of the same shapes, so nothing is compiled twice. The script
counts how often JAX traces the loss to show it.

Run:  python examples/your_own_loop.py
"""

import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

CLIENTS, COHORT, MOST_STEPS, BATCH, FEATURES = 100, 4, 16, 8, 5

traced = 0


def loss(variables, batch, key):
    """Least squares. Python runs it only while JAX traces it, never while the program runs."""
    global traced
    traced += 1
    del key
    losses = jnp.square(batch["x"] @ variables.params["w"] - batch["y"]) / 2
    return jnp.mean(losses), fo.Aux(losses=losses)


class Sensors:
    """A source of data that knows nothing of JAX: each client measures the same thing, differently."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.truth = self.generator.normal(size=FEATURES)
        self.offsets = 0.3 * self.generator.normal(size=(CLIENTS, FEATURES))

    def batches(self, cohort):
        """Fresh minibatches, with leading axes [cohort, steps, batch]."""
        x = self.generator.normal(size=(len(cohort), MOST_STEPS, BATCH, FEATURES))
        w = self.truth + self.offsets[cohort]
        y = np.einsum("skbf,sf->skb", x, w) + 0.1 * self.generator.normal(size=x.shape[:-1])
        return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def main():
    sensors = Sensors(seed=0)
    generator = np.random.default_rng(1)
    model = fo.Model(init=lambda key, batch: fo.Variables({"w": jnp.zeros(FEATURES)}), loss=loss)
    algorithm = fo.fedgbo(fo.optimizers.sgdm(0.05, beta=0.5))
    state = fo.first_state(algorithm, {"w": jnp.zeros(FEATURES)}, num_clients=CLIENTS)
    round_fn = fo.make_round(algorithm, model)
    # The mean of all clients' own answers minimises the sum of their expected losses.
    optimum = sensors.truth + sensors.offsets.mean(axis=0)

    print("round  clients            local steps        loss    distance  loss traced")
    for t in range(12):
        before = traced
        cohort = generator.choice(CLIENTS, size=COHORT, replace=False)
        # Fewer steps as training goes on, and never the same number for everyone.
        steps = np.maximum(MOST_STEPS // (1 + t // 4) - generator.integers(0, 4, size=COHORT), 1)
        weights = generator.uniform(0.5, 1.5, size=COHORT)
        state, info = round_fn(state, cohort, sensors.batches(cohort), weights, steps)
        distance = np.linalg.norm(np.asarray(state.variables.params["w"]) - optimum)
        shown = f"{t:5}  {cohort!s:17}  {steps!s:15}  {float(info.loss):7.3f}  {distance:10.3f}"
        print(f"{shown}  {traced - before:5} times")


if __name__ == "__main__":
    main()
