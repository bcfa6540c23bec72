"""One small network written in four ways, each trained on handwritten digits.

    plain functions   init and apply                       fo.models.classifier
    Flax Linen        a linen.Module                       fo.models.from_linen
    Flax NNX          an nnx.Module                        fo.models.from_nnx
    a pytree          a module that is its own parameters  fo.models.from_pytree (Equinox's are such)

Whatever it is made from, a model is two functions, and every algorithm takes it.

Run:  python examples/model_adapters.py          (needs flax)
"""

import dataclasses
import functools
import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import fedjax_opt as fo

HIDDEN, CLASSES, PIXELS = 32, 10, 64


# Plain functions ------------------------------------------------------------------------------


def init(key, batch):
    first, second = jax.random.split(key)
    return {
        "w": jax.random.uniform(first, (PIXELS, HIDDEN), minval=-0.2, maxval=0.2),
        "v": jax.random.uniform(second, (HIDDEN, CLASSES), minval=-0.2, maxval=0.2),
    }


def apply(params, x):
    return jax.nn.relu(x @ params["w"]) @ params["v"]


# Flax -----------------------------------------------------------------------------------------


class LinenNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(HIDDEN)(x)))


class NNXNetwork(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(PIXELS, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


# A pytree -------------------------------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w", "v", "activation"], meta_fields=[]
)
@dataclasses.dataclass
class TreeNetwork:
    """Called with one example. Its arrays are trained, and the activation is not."""

    w: jax.Array
    v: jax.Array
    activation: Callable

    def __call__(self, x):
        return self.activation(x @ self.w) @ self.v


def create_tree(key):
    return TreeNetwork(**init(key, None), activation=jax.nn.relu)


MODELS = {
    "plain functions": fo.models.classifier(init, apply),
    "Flax Linen": fo.models.from_linen(LinenNetwork()),
    "Flax NNX": fo.models.from_nnx(NNXNetwork),
    "a pytree": fo.models.from_pytree(create_tree),
}


def main():
    train, test = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], num_clients=50, alpha=0.3)
    clients = fo.ClientData.from_arrays(train, owners)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.5))
    print(f"{clients.summary()}; {len(test['y'])} test examples\n")
    print("model             parameters   accuracy after 10 rounds   after 40   seconds")
    for name, model in MODELS.items():
        digits = fo.Federation(model, clients, cohort=10, local_steps=5, batch_size=16, test=test)
        start = time.perf_counter()
        result = fo.simulate(algorithm, digits, 40, evaluate_every=10, progress=False)
        seconds = time.perf_counter() - start
        size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(result.variables.params))
        accuracy = dict(
            zip(result.evaluations["round"], result.evaluations["accuracy"], strict=True)
        )
        print(f"{name:16} {size:11,} {accuracy[10]:26.1%} {accuracy[40]:10.1%} {seconds:9.1f}")


if __name__ == "__main__":
    main()
