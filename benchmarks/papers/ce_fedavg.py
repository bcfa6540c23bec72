"""Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT."""

from benchmarks.papers.entry import Claim, Entry, Part, experiment
from fedjax_opt.experiments.experiment import Experiment

_PAPER = (
    "Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT."
    " 2020."
)
# Rounds to 97% on MNIST-2NN with two classes per client: of FedAvg, then of CE-FedAvg.
_TABLES = {
    0.6: (
        "Table 3.1 of the thesis",
        (134.8, 118.0, 143.8, 117.2, 171.6, 152.4),
        (79.4, 56.2, 77.6, 60.8, 81.6, 60.8),
    ),
    0.9: (
        "Table 3.2 of the thesis",
        (210.2, 192.0, 212.2, 185.6, 271.8, 258.4),
        (114.8, 86.4, 104.6, 86.4, 138.4, 96.8),
    ),
    0.95: (
        "Table 3.3 of the thesis",
        (397.0, 290.4, 338.0, 293.2, 308.8, 362.8),
        (173.8, 130.6, 156.0, 139.2, 211.4, 169.2),
    ),
}
# Its columns: W clients, of which C are in a round.
_COLUMNS = tuple((clients, share) for clients in (10, 20, 40) for share in (0.5, 1.0))
_ADAM = "learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-08, initial_v=0.0"
_CLAIMS = (Claim("ce-fedavg", "fedavg", "rounds"),)


def _compared(
    task: str, sparsity: float, rates: dict[str, tuple[float, ...]], **rest
) -> Experiment:
    return experiment(
        task,
        [
            f"fedavg: compressed_fedavg(learning_rate=0.1, sparsity={sparsity})",
            f"ce-fedavg: ce_fedavg({_ADAM}, sparsity={sparsity})",
        ],
        seeds=(0, 1, 2, 3, 4),
        local_epochs=1,
        evaluate_every=1,
        criterion="rounds_to_target",
        grid={f"{label}:learning_rate": values for label, values in rates.items()},
        **rest,
    )


def _reported(sparsity: float, column: tuple[int, float]) -> dict[str, dict[str, str]]:
    _, *rows = _TABLES[sparsity]
    place = _COLUMNS.index(column)
    pairs = zip(("fedavg", "ce-fedavg"), rows, strict=True)
    return {label: {"rounds": f"{row[place]}"} for label, row in pairs}


def _full(leaf: str) -> list[Part]:
    del leaf
    return [
        Part(
            name,
            name,
            _compared(
                f"mnist_shards(num_clients={clients})", sparsity,
                {"fedavg": (0.05, 0.1, 0.2, 0.4)},
                rounds=1000, cohort_size=round(share * clients), batch_size=50, target=0.97,
            ),
            f"{table[0]}, MNIST-2NN, W = {clients}, C = {share}",
            _reported(sparsity, (clients, share)),
            _CLAIMS,
        )
        for sparsity, table in _TABLES.items()
        for clients, share in _COLUMNS
        for name in [f"s-{sparsity}-W-{clients}-C-{share}"]
    ]  # fmt: skip


def _quick() -> list[Part]:
    return [
        Part(
            f"digits-s-{sparsity}",
            f"digits-s-{sparsity}",
            _compared(
                "digits(num_clients=20, alpha=0.1)", sparsity,
                {"fedavg": (0.1, 0.2, 0.4, 0.8), "ce-fedavg": (0.001, 0.003, 0.01, 0.03)},
                rounds=80, cohort_size=10, batch_size=8, target=0.95,
            ),
            f"{_TABLES[sparsity][0]}, MNIST-2NN, W = 20, C = 0.5",
            _reported(sparsity, (20, 0.5)),
            _CLAIMS,
        )
        for sparsity in (0.6, 0.9)
    ]  # fmt: skip


ENTRIES = (
    Entry(
        "ce-fedavg",
        _PAPER,
        "Tables 3.1 to 3.3 of the thesis",
        "On clients of two classes CE-FedAvg takes about half of the rounds that FedAvg takes with the"
        " same codec; an upload is 2.3 times as large.",
        ("rounds", "upload"),
        _full,
        _quick,
        "One local epoch and a minibatch of 50: the thesis shows the best of several numbers of epochs,"
        " and names no minibatch. Adam has no bias correction, and FedAvg's rate is the best of four.",
        "8x8 digits on 20 clients (Dirichlet 0.1), 10 in a round, an MLP, one local epoch of minibatches"
        " of 8, 80 rounds, five seeds; the target is 95%. Both are at the best of four learning rates:"
        " Adam's usual 0.001 is too small for so few steps. The paper's numbers are of MNIST.",
    ),
)
