"""Table 4.4 and Figure 3.4 of the thesis by the runtime model, beside what was measured.

    python -m benchmarks.papers.testbed

The link and the server's time are fitted to one row, FedAvg with MNIST-2NN, and the time of a local
epoch is that of independent learning. The rest is predicted: other traffic, other model. Figure 3.4 is
a drawing; its text says that CE-FedAvg was 1.2 to 1.7 times faster than compressed FedAvg.
"""

import jax
import jax.numpy as jnp

import fedjax_opt as fo
from benchmarks.papers.tables import upload_bits
from fedjax_opt.costs import testbeds

# Of each model: seconds of a round, then percent of it down, client, up, server.
MEASURED = {
    ("MNIST-2NN", "FL(FedAvg)"): (30, 5, 88, 6, 1),
    ("MNIST-2NN", "MTFL(FedAvg-Adam)"): (38, 11, 76, 12, 1),
    ("MNIST-2NN", "Independent"): (29, 0, 100, 0, 0),
    ("CIFAR10-CNN", "FL(FedAvg)"): (108, 5, 86, 5, 4),
    ("CIFAR10-CNN", "MTFL(FedAvg-Adam)"): (136, 11, 74, 12, 3),
    ("CIFAR10-CNN", "Independent"): (100, 0, 100, 0, 0),
}
# Table 3.1, MNIST-2NN of two classes per client with W = 10: rounds of FedAvg and CE-FedAvg, by C.
ROUNDS = {0.5: (134.8, 79.4), 1.0: (118.0, 56.2)}
# How many models a scheme sends: FedAvg-Adam both of Adam's moments, too.
MODELS = {"FL(FedAvg)": 1, "MTFL(FedAvg-Adam)": 3, "Independent": 0}
_SERVER_PER_MEGABIT = 0.01 * 30 / 6.37


def variables(model: fo.Model, shape: tuple[int, ...]) -> fo.Variables:
    """The shapes of a model's parameters."""
    batch = {"x": jnp.zeros((1, *shape), jnp.float32), "y": jnp.zeros(1, jnp.int32)}
    return jax.eval_shape(model.init, jax.random.key(0), batch)


def _megabits(of: fo.Variables) -> float:
    return sum(leaf.size for leaf in jax.tree.leaves(of.params)) * 32 / 1e6


def sizes() -> dict[str, float]:
    """Megabits of the two models."""
    two_layers = variables(fo.models.dnn(10), (28, 28, 1))
    cnn = variables(fo.models.cnn(10, batch_norm=True), (32, 32, 3))
    return {"MNIST-2NN": _megabits(two_layers), "CIFAR10-CNN": _megabits(cnn)}


def table_4_4() -> dict[tuple[str, str], fo.costs.RoundParts]:
    """The parts of a round, as the runtime model has them."""
    megabits, found = sizes(), {}
    for model, scheme in MEASURED:
        devices = fo.costs.devices(*testbeds.WIFI, testbeds.PI_2B_AND_3B[model])
        sent = MODELS[scheme] * megabits[model]
        server = _SERVER_PER_MEGABIT * sent
        found[model, scheme] = fo.costs.round_parts(devices, 1, sent, sent, server)
    return found


def figure_3_4(epoch: float = testbeds.PI_2B_AND_3B["MNIST-2NN"]) -> dict[float, float]:
    """C -> by how much CE-FedAvg is faster, for 10 workers, MNIST-2NN, two classes, s = 0.6."""
    model = variables(fo.models.dnn(10), (28, 28, 1))
    size, found = _megabits(model), {}
    devices = fo.costs.devices(*testbeds.WIFI, epoch)
    for share, counts in ROUNDS.items():
        taken = []
        for rounds, models, moments in zip(counts, (1, 3), (False, True), strict=True):
            up = upload_bits(model, 0.6, moments) / 1e6
            parts = fo.costs.round_parts(devices, 1, models * size, up)
            taken.append(rounds * float(parts.seconds))
        found[share] = taken[0] / taken[1]
    return found


def lines() -> list[str]:
    """Both as text."""
    head = f"{'model':13}{'scheme':20}{'measured: s, % down client up server':>40}{'here':>32}"
    rows = [head]
    for key, parts in table_4_4().items():
        seconds, *shares = MEASURED[key]
        here = [f"{100 * float(share):.0f}" for share in parts.shares]
        rows.append(
            f"{key[0]:13}{key[1]:20}{seconds:>20} s {' '.join(f'{s:>3}' for s in shares):>17}"
            f"{float(parts.seconds):>14.0f} s {' '.join(f'{s:>3}' for s in here):>16}"
        )
    rows += [
        "",
        "CE-FedAvg over compressed FedAvg, MNIST-2NN, W = 10, s = 0.6 (measured: 1.2 to 1.7)",
    ]
    return rows + [
        f"C = {share}: {times:.2f} times faster" for share, times in figure_3_4().items()
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
