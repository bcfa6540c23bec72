"""Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.

Its alpha counts for all classes together, the tasks' for each: its 10,000 is 1,000 on CIFAR-10.
"""

from typing import Any

from benchmarks.papers.entry import Claim, Entry, Part, columns, experiment
from fedjax_opt.core import cohorts

_PAPER = (
    "Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum."
    " 2024."
)
# Table 7, the values in bold; weight decay, eta_l of most, eta_l of FedCM, rounds.
_MODELS = {"resnet20": (1e-5, 0.1, 0.1, 10_000), "lenet": (1e-3, 0.01, 0.1, 20_000)}
_RUN = {
    "seeds": (0, 1, 2, 3, 4), "cohort_size": 10, "batch_size": 64, "local_steps": 8,
    "evaluate_every": 10, "criterion": "final", "smoothing": 0.9,
}  # fmt: skip

_TABLE_8 = """
    fedavg     61.0±1.0  86.4±0.2  66.1±0.3  83.1±0.3
    fedprox    61.0±1.8  86.7±0.2  66.1±0.3  83.1±0.3
    scaffold   71.8±1.7  86.8±0.3  74.8±0.2  82.9±0.2
    feddyn     60.2±3.0  87.0±0.3  70.9±0.2  83.5±0.1
    fedavgm    66.0±2.2  87.7±0.3  67.6±0.3  83.6±0.3
    fedcm      65.2±3.2  87.1±0.3  69.0±0.3  83.4±0.3
    mimemom    69.2±3.6  88.0±0.1  80.9±0.4  83.1±0.2
    localghbm  80.6±0.3  88.8±0.1  81.1±0.3  83.7±0.1
    fedhbm     83.4±0.3  89.2±0.1  81.7±0.1  83.8±0.1"""
_COLUMNS = (("resnet20", 0.0), ("resnet20", 1000.0), ("lenet", 0.0), ("lenet", 1000.0))
_TABLE_9 = {"uniform": "fedcm 22.2±1.0\nghbm 38.5±1.0", "cyclic": "fedcm 22.5±0.8\nghbm 39.0±0.7"}
# GLDv2 with ViT-B/16 and 0.79% of the clients in a round.
_TABLE_3 = "fedavg 68.5±0.5\nscaffold 67.5±3.3\nfedavgm 70.0±0.5\nghbm 74.3±0.6\nfedhbm 73.1±0.9"

_BY_HETEROGENEITY = (
    Claim("fedhbm", "fedavg"),
    Claim("fedhbm", "fedcm"),
    Claim("fedhbm", "fedavgm"),
    Claim("ghbm", "fedcm"),
    Claim("ghbm", "fedavg"),
)
_WITH_SCAFFOLD = (*_BY_HETEROGENEITY, Claim("fedhbm", "scaffold"))
_TAUS = (1, 2, 5, 10, 20, 40)


def _members(names: tuple[str, ...], model: str) -> list[str]:
    decay, rate, cm_rate, _ = _MODELS[model]
    server = "server_learning_rate=0.1"
    known = {
        "fedavg": f"fedavg(learning_rate={rate})",
        "fedprox": f"fedprox(learning_rate={rate}, mu=0.1)",
        "scaffold": f"scaffold(learning_rate={rate})",
        "feddyn": "feddyn(learning_rate=0.01, alpha=0.001)",
        "fedavgm": f"fedavgm(learning_rate={rate}, {server}, momentum=0.9)",
        "fedcm": f"fedcm(learning_rate={cm_rate}, alpha=0.1"
        + (f", {server})" if model == "lenet" else ")"),
        "mimemom": f"mimemom(learning_rate={rate}, {server}, momentum=0.9)",
        "ghbm": f"ghbm(learning_rate={rate}, tau=10, beta=0.9)",
        "localghbm": f"localghbm(learning_rate={rate}, beta=0.9)",
        "fedhbm": f"fedhbm(learning_rate={rate}, beta=1.0)",
    }
    known |= {f"tau {t}": f"ghbm(learning_rate={rate}, tau={t}, beta=0.9)" for t in _TAUS}
    return [f"{name}: {known[name]} + weight_decay(rate={decay})" for name in names]


def _cifar(data: str, model: str, alpha: float, names: tuple[str, ...]) -> Any:
    return experiment(
        f"{data}_dirichlet(alpha={alpha}, model={model})",
        _members(names, model),
        rounds=_MODELS[model][3],
        **_RUN,
    )


def _table_8(leaf: str) -> list[Part]:
    del leaf
    names = tuple(columns(_TABLE_8, *[""] * 4))
    names = (*names[:-2], "ghbm", *names[-2:])
    parts = []
    for place, (model, alpha) in enumerate(_COLUMNS):
        name = f"{model}-{'iid' if alpha else 'non-iid'}"
        kept = ["accuracy" if i == place else "" for i in range(4)]
        told = columns(_TABLE_8, *kept)
        claims = () if alpha else _WITH_SCAFFOLD
        made = _cifar("cifar10", model, alpha, names)
        parts.append(Part(name, name, made, f"Table 8, {name}", told, claims))
    return parts


def _figure_2(leaf: str) -> list[Part]:
    del leaf
    names = ("fedavg", "fedcm", *(f"tau {t}" for t in _TAUS), "localghbm", "fedhbm")
    claims = (Claim("tau 10", "tau 1"), Claim("tau 10", "fedavg"), Claim("fedhbm", "tau 1"))
    return [
        Part(m, m, _cifar("cifar10", m, 0.0, names), f"Figure 2, {m}", {}, claims) for m in _MODELS
    ]


def _figure_3(leaf: str) -> list[Part]:
    del leaf
    names = ("fedavg", "scaffold", "fedavgm", "fedcm", "mimemom", "ghbm", "fedhbm")
    return [
        Part(
            f"alpha-{alpha:g}",
            f"alpha-{alpha:g}",
            _cifar("cifar10", "lenet", alpha / 10, names),
            f"Figure 3, alpha = {alpha:g}",
            columns(_TABLE_8, "", "", *(("", "accuracy") if alpha else ("accuracy", "")))
            if alpha in (0, 10_000)
            else {},
            _BY_HETEROGENEITY,
        )
        for alpha in (0.0, 0.05, 0.5, 1.0, 10.0, 10_000.0)
    ]


def _table_9(leaf: str) -> list[Part]:
    del leaf
    made = _cifar("cifar100", "resnet20", 0.0, ("fedcm", "ghbm")).replace(cohort_size=None)
    return _participation("", made, 10)


def _participation(prefix: str, made: Any, cohort: int) -> list[Part]:
    samplers = {"uniform": cohorts.uniform(cohort), "cyclic": cohorts.cyclic(cohort)}
    return [
        Part(
            f"{prefix}{name}",
            f"{prefix}{name}",
            made,
            f"Table 9, {name}",
            columns(_TABLE_9[name], "accuracy"),
            (Claim("ghbm", "fedcm"),),
            sampler,
        )
        for name, sampler in samplers.items()
    ]


# On digits: eight local steps of eight examples, every algorithm at the best of a few rates.
_DIGITS: dict[str, Any] = {
    "rounds": 150, "seeds": (0, 1, 2, 3, 4), "cohort_size": 2, "batch_size": 8, "local_steps": 8,
    "evaluate_every": 5, "criterion": "final", "smoothing": 0.9,
    "grid": {"learning_rate": (0.03, 0.1, 0.3)},
}  # fmt: skip
_FEDAVGM = "fedavgm(server_learning_rate=0.1)"  # as in Table 7
_QUICK = (
    "8x8 digits on 20 clients, 2 in a round, an MLP, K = 8, 150 rounds, five seeds; every algorithm at"
    " the best of a few learning rates. The paper's numbers are of CIFAR."
)


def _digits(alpha: float, members: tuple[str, ...], **changes: Any) -> Any:
    return experiment(f"digits(num_clients=20, alpha={alpha})", members, **{**_DIGITS, **changes})


def _quick_table_8() -> list[Part]:
    members = ("fedavg", "scaffold", _FEDAVGM, "fedcm", "ghbm(tau=10)", "localghbm", "fedhbm")
    return [
        Part(
            f"digits-{name}",
            f"digits-{name}",
            _digits(alpha, members),
            f"Table 8, lenet-{name}",
            columns(_TABLE_8, "", "", *told),
            _WITH_SCAFFOLD if alpha == 0 else (),
        )
        for name, alpha, told in (
            ("non-iid", 0.0, ("accuracy", "")),
            ("iid", 1000.0, ("", "accuracy")),
        )
    ]


def _quick_figure_2() -> list[Part]:
    members = ("fedavg", *(f"tau {t}: ghbm(tau={t})" for t in _TAUS), "fedhbm")
    claims = (
        Claim("tau 10", "tau 1"),
        Claim("tau 10", "fedavg"),
        Claim("tau 10", "tau 2"),
        Claim("tau 10", "tau 40"),
        Claim("fedhbm", "tau 1"),
    )
    # A small tau needs a small rate.
    made = _digits(0.0, members, grid={"learning_rate": (0.01, 0.03, 0.1, 0.3)})
    return [Part("digits", "digits", made, "Figure 2", {}, claims)]


def _quick_figure_3() -> list[Part]:
    members = ("fedavg", _FEDAVGM, "fedcm", "ghbm(tau=10)", "fedhbm")
    return [
        Part(
            f"digits-alpha-{alpha:g}",
            f"digits-alpha-{alpha:g}",
            _digits(alpha / 10, members),
            f"Figure 3, alpha = {alpha:g}",
            {},
            _BY_HETEROGENEITY,
        )
        for alpha in (0.0, 1.0, 10.0)
    ]


def _quick_table_3() -> list[Part]:
    told = columns(_TABLE_3, "accuracy")
    return [
        Part(
            f"digits-{cohort}-of-20",
            f"digits-{cohort}-of-20",
            _digits(
                0.0, ("fedavg", _FEDAVGM, f"ghbm(tau={20 // cohort})", "fedhbm"),
                cohort_size=cohort, rounds=300 // cohort,
            ),
            "Table 3, GLDv2 with ViT-B/16",
            told,
            (Claim("ghbm", "fedavg"), Claim("ghbm", "fedavgm"), Claim("ghbm", "fedhbm")),
        )
        for cohort in (1, 2, 4)
    ]  # fmt: skip


def _quick_table_9() -> list[Part]:
    made = _digits(0.0, ("fedcm", "ghbm(tau=10)"), cohort_size=None)
    return _participation("digits-", made, 2)


_DIFFERS = (
    "The accuracy is a moving average over the last evaluations for the mean of the last 100 rounds."
    " GHBM's and FedHBM's rates are those that the paper's Table 7 has for FedAvg."
)

ENTRIES = (
    Entry(
        "ghbm-table8", _PAPER, "Table 8",
        "With one class per client, LocalGHBM and FedHBM are far ahead of FedAvg and of momentum that"
        " looks back one round; with the same data everywhere all are alike.",
        full=_table_8, quick=_quick_table_8, differs=_DIFFERS, quick_differs=_QUICK,
    ),
    Entry(
        "ghbm-figure2", _PAPER, "Figure 2",
        "A momentum over tau > 1 rounds is what helps; tau = 1 / C = 10 is the best, more harms little.",
        full=_figure_2, quick=_quick_figure_2, differs=_DIFFERS, quick_differs=_QUICK,
    ),
    Entry(
        "ghbm-figure3", _PAPER, "Figures 3 and 6",
        "The more clients differ, the more GHBM and FedHBM are ahead.",
        full=_figure_3, quick=_quick_figure_3,
        differs=f"{_DIFFERS} The alpha between 0 and 10,000 are ours.",
        quick_differs=f"{_QUICK} With alpha above 0 clients are of unequal sizes.",
    ),
    Entry(
        "ghbm-table3", _PAPER, "Table 3",
        "Where few clients take part in a round GHBM is the best, FedHBM is second.",
        quick=_quick_table_3,
        differs="It needs GLDv2 and iNaturalist, which there is no task for.",
        quick_differs=f"{_QUICK} 1, 2 or 4 clients in a round, 300 participations in all, tau = 1 / C.",
    ),
    Entry(
        "ghbm-table9", _PAPER, "Table 9",
        "FedCM does not do what GHBM does, even if clients take turns; GHBM does not need them to.",
        full=_table_9, quick=_quick_table_9, differs=_DIFFERS, quick_differs=_QUICK,
        baseline="fedcm",
    ),
)  # fmt: skip
