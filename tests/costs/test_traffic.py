"""Bytes, counted by hand: the derivation from an algorithm's functions must agree."""

import jax
import jax.numpy as jnp
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt

# float32 parameters and batch statistics, in bytes: x = 4 (6 + 2) = 32 and s = 4 * 5 = 20.
VARIABLES = fo.Variables(
    {"w": jnp.zeros((2, 3), jnp.float32), "b": jnp.zeros(2, jnp.float32)},
    {"mean": jnp.zeros(5, jnp.float32)},
)
X, S = 32, 20
V = X + S  # The model: both.
COUNT = 4  # An int32.
SGD, SGDM, ADAM, RMSPROP = opt.sgd(0.1), opt.sgdm(0.1, 0.9), opt.adam(0.1), opt.rmsprop(0.1)
AVERAGING = opt.from_optax(SGDM)

# By algorithm: bytes down and up, memory and state of a client, and what the server keeps and adds to
# that while it aggregates, one sum of contributions.
BY_HAND = {
    # The model down, its change up; the server keeps the model.
    "fedavg": (fo.fedavg(SGD), V, V, V, 0, V, V),
    # A local optimiser's statistics start afresh in every round and never travel.
    "fedavg-adam": (fo.fedavg(ADAM), V, V, V + 2 * X, 0, V, V),
    # Gradients are summed at the model that was sent.
    "dsgd": (fo.dsgd(SGD), V, V, V + X, 0, V, V),
    "dsgd-adam": (fo.dsgd(ADAM), V, V, V + X, 0, V + 2 * X, V),
    # A proximal term remembers the parameters at which the client started.
    "fedprox": (fo.fedprox(SGD, 0.1), V, V, V + X, 0, V, V),
    "fedmax": (fo.fedmax(SGD, 0.1), V, V, V, 0, V, V),
    # Both the model received and the client's own last one are evaluated; of the latter what the
    # features depend on.
    "moon": (fo.moon(SGD), V, V, V + V + X, V, V, V),
    # The optimiser's statistics stay on the server.
    "fedavgm": (fo.fedavgm(SGD), V, V, V, 0, V + X, V),
    "fedadam": (fo.fedadam(SGD), V, V, V, 0, V + 2 * X, V),
    "fedyogi": (fo.fedyogi(SGD), V, V, V, 0, V + 2 * X, V),
    "fedadagrad": (fo.fedadagrad(SGD), V, V, V, 0, V + X, V),
    # Momentum travels with the model, both ways.
    "mfl": (fo.mfl(SGDM), V + X, V + X, V + X, 0, V + X, V + X),
    # Statistics go down, frozen; the server recovers their change from y - x alone, which it also
    # divides by each client's K.
    "fedgbo-sgdm": (fo.fedgbo(SGDM), V + X, V, V + X, 0, V + X, V + X),
    "fedgbo-adam": (fo.fedgbo(ADAM), V + 2 * X, V, V + 2 * X, 0, V + 2 * X, V + X),
    # What cannot be inverted sends its mean gradient; the sum and its count are a part of the
    # statistics.
    "fedgbo-averaging": (
        fo.fedgbo(AVERAGING), V + 2 * X + COUNT, V + X, V + 2 * X + COUNT, 0, V + 2 * X + COUNT, V + X
    ),
    # Momentum goes down, the gradient at x comes up beside y - x; the mean of the gradients is read
    # by the server alone.
    "mimelite": (fo.mimelite(SGDM), V + X, V + X, V + X + X, 0, V + X, V),
    "mimexlite": (fo.mimexlite(SGDM), V + X, V + X, V + X + X, 0, V + X, V),
    # The mean gradient comes back down, and gradients are also taken at the x received.
    "mime": (fo.mime(SGDM), V + X + X, V + X, V + X + 3 * X, 0, V + X, V),
    "mimemom": (fo.mimemom(SGD), V + X + X, V + X, V + X + 3 * X, 0, V + X, V),
    # Model and control variate both ways; a client keeps its own variate. A step reads both. For SGD
    # the displacement says what the mean gradient was; with momentum it is summed up, beside m.
    "scaffold-sgdm": (fo.scaffold(SGDM), V + X, V + X, V + 4 * X, X, V + X, V + X),
    "scaffold-2": (fo.scaffold(SGD), V + X, V + X, V + 2 * X, X, V + X, V + X),
    # In option I c_i is the client's own report, which stays at home: its change goes up once.
    "scaffold-1": (fo.scaffold(SGD, 1), V + X, V + X, V + 3 * X, X, V + X, V + X),
    # As option II, with a direction that goes down and comes out of the displacements.
    "scaffold-m": (fo.scaffold_m(SGD), V + 2 * X, V + X, V + 3 * X, X, V + 2 * X, V + 2 * X),
    "fedcm": (fo.fedcm(SGD), V + X, V, V + X, 0, V + X, V + X),
    # A step reads x and c of what was sent, alpha h_i - c_i of its own. The server keeps c and h, and
    # sums y - x twice, the second time uniformly.
    "feddc": (fo.feddc(SGD), V + X, V + X, V + 3 * X, X, V + 2 * X, V + 2 * X),
    # A step reads x and h_i; y - x is summed twice.
    "feddyn": (fo.feddyn(SGD), V, V, V + 2 * X, X, V + X, V + X),
    # The round in which a client last took part is read when it finishes.
    "adabest": (fo.adabest(SGD), V, V, V + X, X + COUNT, V + X, V),
    # One model, ahead of the server's; its pull is a proximal term.
    "fedacg": (fo.fedacg(SGD, beta=0.1), V, V, V + X, 0, V + X, V),
    # The momentum beside the model; tau models and their count stay on the server.
    "ghbm": (fo.ghbm(SGD, 3), V + X, V, V + X, 0, V + 3 * X + COUNT, V),
    "fedadc": (fo.fedadc(SGD), V + X, V, V + X, 0, V + X + COUNT, V),
    "ghbm-server": (fo.ghbm_server(SGD, 3), V, V, V, 0, V + 3 * X + COUNT, V),
    # The server keeps m as well, and divides by each client's K.
    "ghbm-theory": (fo.ghbm_theory(SGD, 3), V + X, V, V + X, 0, V + X + 3 * X + COUNT, V + X),
    # A step reads x and a_i, and whether there is an a_i.
    "localghbm": (fo.localghbm(SGD), V, V, V + 2 * X + COUNT, X + COUNT, V, V),
    # For x it has y.
    "fedhbm": (fo.fedhbm(SGD), V, V, V + X + COUNT, X + COUNT, V, V),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_costs_by_hand(name):
    algorithm, down, up, memory, client, server, contribution = BY_HAND[name]
    expected = fo.costs.Cost(
        bytes_down=down,
        bytes_up=up,
        client_memory=memory,
        client_state=client,
        server_memory=server + contribution,
        server_state=server,
    )
    assert fo.costs.of(algorithm, VARIABLES) == expected


ADDED = {
    # A stronger pull, a decay and a norm need nothing that is not there.
    "weight_decay": (lambda a: fo.weight_decay(a, 0.1), 0, 0, 0, 0, 0),
    "clipped": (lambda a: fo.clipped(a, 1.0), 0, 0, 0, 0, 0),
    "max_entropy": (lambda a: fo.max_entropy(a, 1.0), 0, 0, 0, 0, 0),
    "proximal": (lambda a: fo.proximal(a, 0.1), 0, 0, X, 0, 0),
    # The model at which the client starts; what a step reads of its last one, which it keeps whole.
    "contrastive": (lambda a: fo.contrastive(a, 1.0), 0, 0, V + X, V, 0),
    "server_optimizer": (lambda a: fo.server_optimizer(a, ADAM), 0, 0, 0, 0, 2 * X),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("inner", ["fedavg", "scaffold-2", "mime"])
def test_what_a_wrapper_adds(name, inner):
    wrap, down, up, memory, client, server = ADDED[name]
    plain = fo.costs.of(BY_HAND[inner][0], VARIABLES)
    wrapped = fo.costs.of(wrap(BY_HAND[inner][0]), VARIABLES)
    assert wrapped == fo.costs.Cost(
        plain.bytes_down + down,
        plain.bytes_up + up,
        plain.client_memory + memory,
        plain.client_state + client,
        plain.server_memory + server,
        plain.server_state + server,
    )


# Tables of the papers, for parameters alone ---------------------------------------------------

PARAMS = fo.Variables(VARIABLES.params)


def _table(algorithm):
    """Down, up and the memory of a client, in models."""
    cost = fo.costs.of(algorithm, PARAMS)
    return cost.bytes_down / X, cost.bytes_up / X, cost.client_memory / X


@pytest.mark.parametrize(
    ("algorithm", "row"),
    [
        (fo.fedavg(SGD), (1, 1, 1)),
        (fo.fedprox(SGD, 0.1), (1, 1, 2)),
        (fo.fedmax(SGD, 0.1), (1, 1, 1)),
        (fo.adaptive_fedopt(SGD, SGDM), (1, 1, 1)),
        (fo.adaptive_fedopt(SGD, RMSPROP), (1, 1, 1)),
        (fo.adaptive_fedopt(SGD, ADAM), (1, 1, 1)),
        (fo.adaptive_fedopt(SGD, optax.adam(0.1)), (1, 1, 1)),
    ],
    ids=["fedavg", "fedprox", "fedmax", "fedavgm", "fedrmsprop", "fedadam", "optax"],
)
def test_table_1_of_the_fedgbo_paper_without_statistics(algorithm, row):
    assert _table(algorithm) == row


@pytest.mark.parametrize(
    ("optimizer", "s"), [(SGDM, 1), (RMSPROP, 1), (ADAM, 2)], ids=["sgdm", "rmsprop", "adam"]
)
def test_table_1_of_the_fedgbo_paper_with_statistics(optimizer, s):
    """FedGBO has MFL's memory and FedAvg's upload."""
    assert _table(fo.mfl(optimizer)) == (1 + s, 1 + s, 1 + s)
    assert _table(fo.mimelite(optimizer)) == (1 + s, 1 + 1, 2 + s)
    assert _table(fo.fedgbo(optimizer)) == (1 + s, 1, 1 + s)


@pytest.mark.parametrize(
    ("overhead", "names"),
    [
        (
            1.0,
            ["fedacg", "localghbm", "fedhbm", "feddyn", "adabest", "moon", "fedprox", "fedadam",
             "ghbm-server"],
        ),
        (1.5, ["ghbm", "fedadc", "fedcm", "ghbm-theory", "fedgbo-sgdm"]),
        (2.0, ["scaffold-1", "scaffold-2", "feddc", "mfl", "mimelite", "fedgbo-adam"]),
        (2.5, ["scaffold-m", "mime", "mimemom"]),
    ],
)  # fmt: skip
def test_communication_relative_to_fedavg(overhead, names):
    """As the GHBM paper has it, both ways together; a client's small counters stay at home."""
    for name in names:
        cost = fo.costs.of(BY_HAND[name][0], PARAMS)
        assert (cost.bytes_down + cost.bytes_up) / (2 * X) == overhead, name


# Aggregators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        fo.aggregators.coordinate_median(),
        fo.aggregators.trimmed_mean(0.1),
        fo.aggregators.geometric_median(),
        lambda values, weights: values,
    ],
    ids=["median", "trimmed", "geometric", "own"],
)
@pytest.mark.parametrize("size", [1, 10])
def test_a_rule_that_sees_all_uploads_holds_all_of_them(rule, size):
    """Beside the server's state; everything else is as it was."""
    for name in ("fedavg", "scaffold-2", "fedgbo-sgdm"):
        algorithm, *_, server, contribution = BY_HAND[name]
        plain = fo.costs.of(algorithm, VARIABLES, size)
        robust = fo.costs.of(fo.aggregated(algorithm, rule), VARIABLES, size)
        assert robust.server_memory == server + size * contribution
        assert robust._replace(server_memory=0) == plain._replace(server_memory=0)
        assert plain.server_memory == server + contribution


@pytest.mark.parametrize("rule", [fo.aggregators.weighted_mean(), fo.aggregators.uniform_mean()])
@pytest.mark.parametrize("name", ["fedavg", "scaffold-2", "feddyn", "mime"])
def test_a_mean_is_summed_and_never_stacked(rule, name):
    algorithm = BY_HAND[name][0]
    ten = fo.costs.of(fo.aggregated(algorithm, rule), VARIABLES, 10)
    assert ten == fo.costs.of(algorithm, VARIABLES)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_cohort_is_a_whole_number_of_clients(size):
    with pytest.raises(ValueError, match=rf"cohort_size must be .*at least 1, got {size}"):
        fo.costs.of(fo.fedavg(SGD), VARIABLES, size)


# Shapes ---------------------------------------------------------------------------------------


def test_shapes_are_enough():
    shapes = jax.eval_shape(lambda: VARIABLES)
    algorithm = fo.scaffold(SGD)
    assert fo.costs.of(algorithm, shapes) == fo.costs.of(algorithm, VARIABLES)


def test_dtypes_count():
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), VARIABLES)
    assert fo.costs.of(fo.fedavg(SGD), half)[:3] == (V // 2, V // 2, V // 2)
