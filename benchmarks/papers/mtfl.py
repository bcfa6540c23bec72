"""Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks. 2022."""

from typing import Any

from benchmarks.papers.entry import Claim, Entry, Part, experiment

_PAPER = (
    "Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge"
    " computing. 2022."
)
_TRAINED, _STATISTICS = "'params/BatchNorm_0/{scale,bias}'", "'state/**'"
# What stays with each client: of batch normalisation its trained gamma and beta, its mu and sigma.
_PRIVATE = {
    "nothing private": "",
    "all private": f" + private(where=[{_TRAINED}, {_STATISTICS}])",
    "mu sigma private": f" + private(where={_STATISTICS})",
    "gamma beta private": f" + private(where={_TRAINED})",
}
# Rounds to 97% of user accuracy on MNIST with W = 200 and C = 0.5, in that order.
_TABLE_4_2 = {
    "fedavg": ("99", "85", "X", "29"),
    "fedadam": ("85", "56", "109", "31"),
    "fedavg-adam": ("44", "17", "131", "9"),
}
_CLAIMS = (
    Claim("gamma beta private", "nothing private", "rounds"),
    Claim("gamma beta private", "all private", "rounds"),
    Claim("all private", "nothing private", "rounds"),
    Claim("nothing private", "mu sigma private", "rounds"),
)

# A private part does not go through the server's Adam, so `private` stands inside of it.
_ADAM = "adam(learning_rate=0.01, b1=0.9, b2=0.999, eps=0.0001, initial_v=0.0)"
_SERVER = f" + server_optimizer(optimizer={_ADAM})"
_STRATEGIES: dict[str, tuple[str, str, dict[str, tuple[float, ...]]]] = {
    "fedavg": ("fedavg(learning_rate=0.3)", "", {"learning_rate": (0.1, 0.3, 0.5)}),
    "fedadam": (
        "fedavg(learning_rate=0.3)",
        _SERVER,
        {
            "learning_rate": (0.1, 0.3),
            "server_optimizer.optimizer.learning_rate": (0.003, 0.01, 0.03),
        },
    ),
    "fedavg-adam": (
        "mfl-adam(learning_rate=0.003, b1=0.9, b2=0.999, eps=1e-07, initial_v=0.0)",
        "",
        {"learning_rate": (0.001, 0.003, 0.01)},
    ),
}


def _part(strategy: str, prefix: str, task: str, target: float, **rest: Any) -> Part:
    algorithm, around, grid = _STRATEGIES[strategy]
    pairs = zip(_PRIVATE, _TABLE_4_2[strategy], strict=True)
    return Part(
        f"{prefix}{strategy}",
        f"{prefix}{strategy}",
        experiment(
            task,
            [f"{label}: {algorithm}{private}{around}" for label, private in _PRIVATE.items()],
            **{
                "seeds": (0, 1, 2, 3, 4), "evaluate_every": 1, "criterion": "rounds_to_target",
                "target": target, "grid": grid, **rest,
            },
        ),
        f"Table 4.2 of the thesis, MNIST, {strategy}",
        {label: {"rounds": rounds} for label, rounds in pairs},
        _CLAIMS,
    )  # fmt: skip


def _full(leaf: str) -> list[Part]:
    del leaf
    return [_part(strategy, "", "mnist_users", 0.97, rounds=500) for strategy in _STRATEGIES]


def _quick() -> list[Part]:
    return [_part("fedavg", "digits-", "digits_users", 0.9, rounds=100)]


ENTRIES = (
    Entry(
        "mtfl",
        _PAPER,
        "Table 4.2 of the thesis",
        "With batch normalisation that stays at home, or better its gamma and beta alone, the clients'"
        " own models are sooner at a user accuracy; with private statistics alone they are later.",
        ("rounds", "accuracy"),
        _full,
        _quick,
        "W = 200 and C = 0.5 alone. All clients are tested after a round, not those that are in it; Adam"
        " has no bias correction, and rates are the best of three.",
        "8x8 digits on 20 clients of two shards, 10 in a round, 64-64-10 with one batch normalisation,"
        " one local epoch of minibatches of 8, 100 rounds, five seeds, the best of three learning rates;"
        " the accuracy is that of the users, and the target 90%. The paper's numbers are of MNIST.",
        baseline="nothing private",
    ),
)
