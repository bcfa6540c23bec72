"""The task, and every algorithm with the constructor that the page shows."""

import re
from typing import Any, NamedTuple

import optax

import fedjax_opt as fo
from fedjax_opt import optimizers as opt

TASK = {
    "clients": 100,
    "alpha": 0.1,
    "hidden": 32,
    "rounds": 120,
    "cohort_size": 10,
    "local_steps": 10,
    "batch_size": 8,
    "seeds": 5,
    "evaluate_every": 5,
    "last_evaluations": 5,
    "target": 0.9,
}
MODEL = fo.models.mlp([TASK["hidden"]], num_classes=10)

STEPS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SMALL = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
MEDIUM = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

COLOURS = {
    "average": "#0072B2",
    "loss": "#CC79A7",
    "server": "#E69F00",
    "optimiser": "#009E73",
    "momentum": "#D55E00",
    "drift": "#332288",
    "compression": "#56B4E9",
    "personal": "#882255",
}

# What a client uses, for algorithms that are judged by their users.
OWN = "fo.personal_variables(algorithm, state)"
ONE_STEP = "fo.metrics.fine_tuned(model, state.variables, data, opt.sgd(0.1), 1, batch_size=8)"
TEN_STEPS = "fo.metrics.fine_tuned(model, state.variables, data, opt.sgd(eta), 10, batch_size=8)"


class Entry(NamedTuple):
    """One plot.

    Attributes:
      title: the name over the plot.
      family: its colour.
      code: the constructor, with `eta` for the step that is tuned. What the page shows is what runs.
      steps: the values of eta.
      own: where users judge, each client's own model as a function of its id; None where the global
        model is judged.
    """

    title: str
    family: str
    code: str
    steps: tuple[float, ...] = STEPS
    own: str | None = None

    def make(self, eta: Any) -> fo.Algorithm:
        """The algorithm of a step size, a number or a traced value."""
        return eval(self.code, {"fo": fo, "opt": opt, "optax": optax, "eta": eta})

    def own_models(self, eta: Any, algorithm: Any, state: Any, data: Any) -> Any:
        """Each client's own model, as a function of its id."""
        names = {"eta": eta, "model": MODEL, "algorithm": algorithm, "state": state, "data": data}
        return eval(self.own or OWN, {"fo": fo, "opt": opt, **names})

    def shown(self, eta: Any) -> str:
        """The constructor with a number for eta."""
        return re.sub(r"\beta\b(?!=)", repr(float(eta)), self.code)


ENTRIES = {
    "fedavg": Entry("FedAvg", "average", "fo.fedavg(opt.sgd(eta))"),
    "dsgd": Entry("Distributed SGD", "average", "fo.dsgd(opt.sgd(eta))"),
    "fednova": Entry("FedNova", "average", "fo.fednova(opt.sgdm(eta, beta=0.9))"),
    "fedprox": Entry("FedProx", "loss", "fo.fedprox(opt.sgd(eta), mu=0.1)"),
    "fedmax": Entry("FedMAX", "loss", "fo.fedmax(opt.sgd(eta), beta=1.0)"),
    "moon": Entry("MOON", "loss", "fo.moon(opt.sgd(eta), mu=1.0, temperature=0.5)"),
    "adaptive_fedopt": Entry(
        "AdaptiveFedOpt, RMSProp",
        "server",
        "fo.adaptive_fedopt(opt.sgd(0.1), server=opt.rmsprop(eta, initial_v=1e-6))",
        SMALL,
    ),
    "fedavgm": Entry(
        "FedAvgM", "server", "fo.fedavgm(opt.sgd(eta), server_learning_rate=1.0, momentum=0.9)"
    ),
    "fedadam": Entry(
        "FedAdam", "server", "fo.fedadam(opt.sgd(0.1), server_learning_rate=eta)", SMALL
    ),
    "fedyogi": Entry(
        "FedYogi", "server", "fo.fedyogi(opt.sgd(0.1), server_learning_rate=eta)", SMALL
    ),
    "fedadagrad": Entry(
        "FedAdagrad", "server", "fo.fedadagrad(opt.sgd(0.1), server_learning_rate=eta)", MEDIUM
    ),
    "mfl-sgdm": Entry("MFL, SGDm", "optimiser", "fo.mfl(opt.sgdm(eta, beta=0.9))"),
    "mfl-adam": Entry("FedAvg-Adam", "optimiser", "fo.mfl(opt.adam(eta))", SMALL),
    "fedgbo-sgdm": Entry("FedGBO, SGDm", "optimiser", "fo.fedgbo(opt.sgdm(eta, beta=0.9))"),
    "fedgbo-rmsprop": Entry(
        "FedGBO, RMSProp", "optimiser", "fo.fedgbo(opt.rmsprop(eta, beta=0.9))", SMALL
    ),
    "fedgbo-adam": Entry("FedGBO, Adam", "optimiser", "fo.fedgbo(opt.adam(eta))", MEDIUM),
    "mime": Entry("Mime, Adam", "optimiser", "fo.mime(opt.adam(eta))", MEDIUM),
    "mimemom": Entry("MimeMom", "optimiser", "fo.mimemom(opt.sgd(eta), momentum=0.9)", SMALL),
    "mimelite": Entry("MimeLite, SGDm", "optimiser", "fo.mimelite(opt.sgdm(eta, beta=0.9))"),
    "mimexlite": Entry("MimeXlite, SGDm", "optimiser", "fo.mimexlite(opt.sgdm(eta, beta=0.9))"),
    "fedacg": Entry("FedACG", "momentum", "fo.fedacg(opt.sgd(eta), momentum=0.85, beta=0.01)"),
    "fedcm": Entry("FedCM", "momentum", "fo.fedcm(opt.sgd(eta), alpha=0.1)"),
    "fedadc": Entry("FedADC", "momentum", "fo.fedadc(opt.sgd(eta), beta=0.9)"),
    "ghbm": Entry("GHBM", "momentum", "fo.ghbm(opt.sgd(eta), tau=10, beta=0.9)"),
    "ghbm_theory": Entry(
        "GHBM, theory", "momentum", "fo.ghbm_theory(opt.sgd(eta), tau=10, beta=0.1)", SMALL
    ),
    "ghbm_server": Entry(
        "GHBM on the server", "momentum", "fo.ghbm_server(opt.sgd(eta), tau=10, beta=0.9)"
    ),
    "localghbm": Entry("LocalGHBM", "momentum", "fo.localghbm(opt.sgd(eta), beta=0.9)"),
    "fedhbm": Entry("FedHBM", "momentum", "fo.fedhbm(opt.sgd(eta), beta=1.0)"),
    "scaffold-1": Entry("SCAFFOLD, option I", "drift", "fo.scaffold(opt.sgd(eta), option=1)"),
    "scaffold-2": Entry("SCAFFOLD, option II", "drift", "fo.scaffold(opt.sgd(eta), option=2)"),
    "scaffold_m": Entry("SCAFFOLD-M", "drift", "fo.scaffold_m(opt.sgd(eta), beta=0.1)"),
    "feddyn": Entry("FedDyn", "drift", "fo.feddyn(opt.sgd(eta), alpha=0.1)"),
    "adabest": Entry("AdaBest", "drift", "fo.adabest(opt.sgd(eta), mu=0.02, beta=0.8)"),
    "feddc": Entry("FedDC", "drift", "fo.feddc(opt.sgd(eta), alpha=0.01)"),
    "ce_fedavg": Entry(
        "CE-FedAvg", "compression", "fo.ce_fedavg(optax.adam(eta), sparsity=0.9)", SMALL
    ),
    "compressed_fedavg": Entry(
        "Compressed FedAvg", "compression", "fo.compressed_fedavg(opt.sgd(eta), sparsity=0.9)"
    ),
    "per_fedavg": Entry(
        "Per-FedAvg",
        "personal",
        "fo.per_fedavg(opt.sgd(eta), adaptation_rate=0.1)",
        own=ONE_STEP,
    ),
    "pfedme": Entry(
        "pFedMe",
        "personal",
        "fo.pfedme(opt.sgd(0.05), regularisation=15.0, learning_rate=eta, inner_steps=5)",
        MEDIUM,
        own=OWN,
    ),
    "independent": Entry(
        "Independent clients", "personal", "fo.independent(opt.sgd(eta))", own=OWN
    ),
}

# FedAvg as its users judge it, for the plots and the table of personal models. Not plotted by itself.
REFERENCES = {
    "fedavg-users": Entry("FedAvg", "average", "fo.fedavg(opt.sgd(eta))", own=OWN),
    "fedavg-one": Entry(
        "FedAvg and 1 own step", "average", "fo.fedavg(opt.sgd(eta))", own=ONE_STEP
    ),
    "fedavg-ten": Entry(
        "FedAvg and 10 own steps", "average", "fo.fedavg(opt.sgd(eta))", own=TEN_STEPS
    ),
}

# Around FedAvg, so that the table says what a wrapper adds. They are not trained.
WRAPPERS = {
    "proximal": "fo.proximal(fo.fedavg(opt.sgd(0.1)), mu=0.1)",
    "max_entropy": "fo.max_entropy(fo.fedavg(opt.sgd(0.1)), beta=1.0)",
    "contrastive": "fo.contrastive(fo.fedavg(opt.sgd(0.1)), mu=1.0)",
    "weight_decay": "fo.weight_decay(fo.fedavg(opt.sgd(0.1)), rate=1e-3)",
    "clipped": "fo.clipped(fo.fedavg(opt.sgd(0.1)), max_norm=10.0)",
    "compressed": (
        "fo.compressed(\n    fo.fedavg(opt.sgd(0.1)),"
        " upload=fo.compression.ce_fedavg(0.9), error_feedback=True\n)"
    ),
    "private": 'fo.private(fo.fedavg(opt.sgd(0.1)), where="params/layer_1/**")',
    "server_optimizer": "fo.server_optimizer(fo.fedavg(opt.sgd(0.1)), opt.adam(0.01))",
    "aggregated": "fo.aggregated(fo.fedavg(opt.sgd(0.1)), fo.aggregators.trimmed_mean(0.1))",
}
