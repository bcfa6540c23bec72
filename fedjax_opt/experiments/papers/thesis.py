"""Mills. Federated machine learning in edge computing (thesis): what scripts measure."""

from fedjax_opt.experiments.papers.entry import Entry

_CE = "Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence."
_MTFL = "Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks."

ENTRIES = (
    Entry(
        "ce-fedavg",
        _CE,
        "Tables 3.1 to 3.3 of the thesis",
        "CE-FedAvg takes fewer rounds than FedAvg with the same codec: 104.6 against 212.2 to 97% on"
        " MNIST-2NN (Table 3.2: s = 0.9, 20 clients, half of them in a round, two classes each).",
        script="benchmarks/compression/run.py",
    ),
    Entry(
        "mtfl",
        _MTFL,
        "Tables 4.2 and 4.3 of the thesis",
        "Private batch normalisation takes fewer rounds to 97% of user accuracy: 29 with private gamma"
        " and beta, 99 with none (Table 4.2: MNIST, FedAvg, 200 clients, half of them in a round).",
        script="benchmarks/personalisation/run.py",
    ),
)
