"""A regression with a model, a loss and a metric of one's own, compared over learning rates and seeds.

`fo.compare` plays any federation: here 40 households whose heating costs follow from two numbers, each
household with a slope of its own. Points are chosen on a fifth of each household's training examples.

Run:  python examples/compare_regressions.py
"""

import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

rng = np.random.default_rng(0)
household = np.repeat(np.arange(40), 25)
x = rng.normal(size=(1000, 2)).astype(np.float32)
slope = 2 + 0.3 * rng.normal(size=40)[household]
cost = (slope * x[:, 0] - x[:, 1] + 0.1 * rng.normal(size=1000)).astype(np.float32)
table = {"household": household, "area": x[:, 0], "warmth": x[:, 1], "cost": cost}


def loss(params, batch):
    error = batch["x"] @ params["w"] + params["b"] - batch["y"]
    return jnp.mean(error**2), fo.Aux(losses=error**2, metrics={"mae": jnp.abs(error)})


model = fo.models.from_loss({"w": jnp.zeros(2), "b": jnp.zeros(())}, loss)
heating = fo.tasks.from_files(
    table, client="household", label="cost", predicts="numbers", model=model
)
found = fo.compare(
    {
        "FedAvg": lambda rate: fo.fedavg(fo.optimizers.sgd(rate)),
        "SCAFFOLD": lambda rate: fo.scaffold(fo.optimizers.sgd(rate)),
    },
    heating,
    rounds=20,
    grid={"rate": [0.03, 0.1, 0.3], "local_epochs": [1, 2]},
    metric="mae",
    validation=0.2,
    evaluate_every=5,
    progress=False,
)
print(found.table())
