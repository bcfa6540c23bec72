"""Batch normalisation in a federation: what should leave the client?

Each client's images have a brightness and a contrast of their own. A Flax model with a `BatchNorm` layer
is trained in four ways, which differ in what `fo.private` keeps at home:

    nothing             everything is averaged, batch statistics too
    statistics          the running mean and variance stay (`state/**`)
    scale and bias      the trained parameters of the layer stay (MTFL's patches)
    both                the whole layer stays

With something private there are as many models as clients: `personal_variables` is a function of the
client that returns its own, and `evaluate_clients` takes each to its client's own test set.

Run:  python examples/batch_norm_at_home.py          (needs flax)
"""

import flax.linen as nn
import numpy as np

import fedjax_opt as fo

NUM_CLIENTS, ROUNDS = 20, 60


class Network(nn.Module):
    """One hidden layer with batch normalisation."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(32)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(10)(nn.relu(x))


def clients_with_own_cameras(seed=0):
    """Digits dealt out evenly, then seen through each client's own camera."""
    digits, _ = fo.data.load_digits(test_fraction=0.01)
    owners = fo.data.iid(digits["y"], NUM_CLIENTS, seed)
    generator = np.random.default_rng(seed)
    contrast = generator.uniform(0.2, 2.0, size=NUM_CLIENTS).astype(np.float32)
    brightness = generator.uniform(-2.0, 2.0, size=NUM_CLIENTS).astype(np.float32)
    digits["x"] = contrast[owners, None] * digits["x"] + brightness[owners, None]
    return fo.ClientData.from_arrays(digits, owners).split(test_fraction=0.3, seed=seed)


def main():
    train, test = clients_with_own_cameras()
    model = fo.models.from_linen(Network(), train_argument="train")
    users = fo.Federation(model, train, cohort=10, local_steps=5, batch_size=16)
    fedavg = fo.fedavg(fo.optimizers.sgd(0.1))
    scale_and_bias = "params/BatchNorm_*/{scale,bias}"
    algorithms = {
        "nothing": fedavg,
        "statistics": fo.private(fedavg, where="state/**"),
        "scale and bias": fo.private(fedavg, where=scale_and_bias),
        "both": fo.private(fedavg, where=["state/**", scale_and_bias]),
    }
    print(f"{train.summary()} to train on; {test.num_examples} to test on")
    print(f"accuracy of each client on its own test set, after {ROUNDS} rounds of 10 clients\n")
    print("stays at home    mean   worst client   best client   bytes up")
    for name, algorithm in algorithms.items():
        result = fo.simulate(algorithm, users, ROUNDS)
        own_models = fo.personal_variables(algorithm, result.state)
        accuracy = np.asarray(fo.evaluate_clients(model, own_models, test)["accuracy"])
        sent = fo.costs.of(algorithm, result.variables).bytes_up
        print(
            f"{name:14}  {accuracy.mean():6.1%}  {accuracy.min():13.1%}  {accuracy.max():12.1%}"
            f"  {sent:9}"
        )


if __name__ == "__main__":
    main()
