"""Per-FedAvg, pFedMe and clients alone: against their oracles, in closed form, and at their limits.

Most tests play rounds of the same shapes, with unequal weights and unequal numbers of steps, so that
they share a compiled round per algorithm.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core import Objective
from tests.algorithms import helpers
from tests.oracles import personal as oracle
from tests.oracles import reference as ref

NUM_CLIENTS, STEPS, BATCH = 5, 3, 6
FORMS = ("first_order", "hessian_free", "exact")
MLP = helpers.MODELS["mlp"]
LR, ALPHA = 0.2, 0.3


def _problem(seed, model="mlp", **keywords):
    rng = np.random.default_rng(seed)
    params = helpers.random_params(rng, model)
    sizes = {"num_clients": NUM_CLIENTS, "steps": STEPS, "batch": BATCH}
    return params, helpers.random_rounds(rng, **sizes, **keywords)


def _play(algorithm, params, rounds, model=MLP, **keywords):
    return helpers.play(
        algorithm, model, params, rounds, num_clients=NUM_CLIENTS, steps=STEPS, **keywords
    )


def _client_losses(of, params, rnd, **keywords):
    """The mean loss of each client's minibatches in a round, by an oracle of one client at a time."""
    one = ({**rnd, "clients": [0], "batches": [b], "weights": None} for b in rnd["batches"])
    return [of(params, [r], ref.mlp, **keywords)[0]["loss"] for r in one]


# Per-FedAvg: oracles --------------------------------------------------------------------------

RATES = st.fixed_dictionaries({"lr": st.floats(0.05, 0.4), "alpha": st.floats(0.0, 0.5)})


@pytest.mark.slow
@pytest.mark.parametrize("hessian", FORMS)
@helpers.examples(8)
@given(seed=st.integers(0, 2**32 - 1), rates=RATES, server_lr=st.floats(0.3, 1.5))
def test_per_fedavg_is_its_oracle(hessian, seed, rates, server_lr):
    """Parameters after each round, and the loss at y on the first part."""
    params, rounds = _problem(seed)
    expected = oracle.per_fedavg(
        params, rounds, ref.mlp, **rates, hessian=hessian, server_lr=server_lr
    )
    algorithm = fo.per_fedavg(opt.sgd(rates["lr"]), rates["alpha"], hessian, server_lr)
    states, infos = _play(algorithm, params, rounds)
    for state, entry in zip(states[1:], expected, strict=True):
        helpers.assert_close(state.variables.params, entry["params"], 1e-12)
    losses = _client_losses(oracle.per_fedavg, params, rounds[0], **rates, hessian=hessian)
    np.testing.assert_allclose(infos[0].client_loss, losses, rtol=1e-11)


def test_fine_tuning_is_how_the_published_code_measures_per_fedavg():
    """The cohort's mean loss on its own data, one step of adaptation away from the global model."""
    problem, trajectory = ref.load_problem(), ref.load_trajectory("perfedavg")
    clients = list(zip(problem["X"], problem["y"], strict=True))
    test = fo.ClientData.from_list([{"x": x, "y": y} for x, y in clients])
    params, model = trajectory["init_state"]["params"], helpers.MODELS["logreg"]
    adapt = opt.sgd(trajectory["hyperparameters"]["alpha_inner_lr"])
    for t, recorded in enumerate(trajectory["rounds"]):
        rows = problem["extra_batches"][t]
        own = [{"x": x[r], "y": y[r]} for (x, y), r in zip(clients, rows, strict=True)]
        tuned = fo.metrics.fine_tuned(
            model, fo.Variables(params), fo.ClientData.from_list(own), adapt, steps=1, batch_size=4
        )
        losses = fo.evaluate_clients(model, tuned, test)["loss"][np.array(recorded["clients"])]
        theirs = recorded["mean_personal_test_loss_at_round_start"]
        assert abs(float(losses.mean()) - theirs) <= 1e-12
        params = recorded["params"]


@pytest.mark.slow
def test_the_hessian_free_form_is_off_by_the_square_of_its_step():
    """Half the step, a quarter of the distance to the exact form; first order is farther away."""
    params, rounds = _problem(3, rounds=1)

    def model(hessian, step=1e-2):
        algorithm = fo.per_fedavg(opt.sgd(LR), ALPHA, hessian, difference_step=step)
        return _play(algorithm, params, rounds)[0][-1].variables

    exact = model("exact")
    far, near = (helpers.distance(model("hessian_free", h), exact) for h in (2e-2, 1e-2))
    assert near == pytest.approx(far / 4, rel=0.02)
    assert 0 < near < helpers.distance(model("first_order"), exact) / 10


@pytest.mark.slow
def test_a_gradient_of_zero_has_no_direction():
    """The Hessian-free form divides by the norm of one."""
    params, rounds = _problem(4, model="linear", rounds=1)
    still = [
        {**r, "batches": [[(x, x @ params["w"]) for x, _ in own] for own in r["batches"]]}
        for r in rounds
    ]
    algorithm = fo.per_fedavg(opt.sgd(LR), ALPHA, "hessian_free")
    states, (info,) = _play(algorithm, params, still, helpers.LINEAR)
    assert bool(info.finite)
    helpers.assert_close(states[-1].variables.params, params, 1e-12)


QUADRATICS, DATA, _ = fo.data.quadratics(num_clients=4, dimension=3, seed=1)


EVERYONE = fo.Federation(
    QUADRATICS, DATA, cohort=4, local_steps=1, batching="replacement", initial={"x": jnp.zeros(3)}
)


def _limit(algorithm, rounds, **changes):
    """The state after many rounds of one local step of all clients on their quadratics."""
    federation = EVERYONE.replace(**changes)
    state = fo.init_state(algorithm, federation)
    run = fo.run_rounds(algorithm, federation, state, rounds, strategy="vmap")
    assert bool(jnp.all(run.history.finite))
    return run.state


def _minimum(curvature_of):
    """Where sum_i M(A_i) (x - b_i) is zero."""
    clients = [(c["A"][0], c["b"][0]) for c in (DATA[i] for i in range(4))]
    total = sum(curvature_of(a) for a, _ in clients)
    return np.linalg.solve(total, sum(curvature_of(a) @ b for a, b in clients))


@pytest.mark.slow
def test_per_fedavg_reaches_the_minimum_of_its_objective():
    """That of the mean of f_i(x - alpha f_i'(x)), a quadratic like f_i."""

    def curvature(a):
        shrunk = np.eye(3) - ALPHA * a
        return shrunk @ a @ shrunk

    algorithm = fo.per_fedavg(opt.sgd(0.5), ALPHA, "exact")
    found = _limit(algorithm, 400, batch_size=6).variables.params["x"]
    helpers.assert_close(found, _minimum(curvature), 1e-10)


# Per-FedAvg: minibatches, terms and state -----------------------------------------------------

MASKS = st.lists(st.booleans(), min_size=BATCH, max_size=BATCH).filter(any)


def _by_rank(batch, count):
    """Rows p n / P up to (p + 1) n / P of n rows, rounded down; all of them where that is none."""
    x, y = batch
    edges = [p * len(y) // count for p in range(count + 1)]
    cuts = [slice(a, b) if b > a else slice(None) for a, b in itertools.pairwise(edges)]
    return [(x[cut], y[cut]) for cut in cuts]


@pytest.mark.slow
@helpers.examples(15)
@given(masks=st.lists(MASKS, min_size=STEPS, max_size=STEPS), seed=st.integers(0, 99))
def test_rows_that_count_are_parted_by_their_rank(masks, seed):
    """However many there are; what stands in other rows does not matter."""
    params, rounds = _problem(seed, model="logreg", cohorts=[[3]])
    batches = helpers.equal_steps(rounds, STEPS)[0]["batches"][0]
    kept = [(x[m], y[m]) for (x, y), m in zip(batches, np.array(masks), strict=True)]
    rnd = {"clients": [3], "batches": [kept], "weights": None}
    (expected,) = oracle.per_fedavg(
        params, [rnd], ref.logreg, alpha=ALPHA, lr=LR, hessian="exact", parts=_by_rank
    )
    algorithm = fo.per_fedavg(opt.sgd(LR), ALPHA, "exact")
    mask = np.array(masks)[None]
    x = np.stack([x for x, _ in batches])[None]
    state, info = fo.make_round(algorithm, helpers.MODELS["logreg"], strategy="scan")(
        fo.first_state(algorithm, params, NUM_CLIENTS),
        np.array([3]),
        {"x": np.where(mask[..., None], x, np.nan), "y": np.stack([y for _, y in batches])[None]},
        mask=mask,
    )
    helpers.assert_close(state.variables.params, expected["params"], 1e-12)
    np.testing.assert_allclose(info.loss, expected["loss"], rtol=1e-12)


DECAY = 0.3


def _decayed(p, x, y):
    loss, g = helpers.linear(p, x, y)
    return loss, ref._add_scaled(g, DECAY, p)


@pytest.mark.slow
def test_terms_of_wrappers_are_in_every_gradient():
    """Decay bends the Hessian too; clipping acts on each of the gradients."""
    params, rounds = _problem(5, model="linear")
    rates = {"lr": LR, "alpha": ALPHA}

    def clipped(p, x, y):
        loss, g = helpers.linear(p, x, y)
        return loss, {"w": g["w"] * min(1.0, 0.4 / oracle._norm(g))}

    for algorithm, gradient, hessian in (
        (fo.weight_decay(fo.per_fedavg(opt.sgd(LR), ALPHA, "exact"), DECAY), _decayed, "exact"),
        (fo.clipped(fo.per_fedavg(opt.sgd(LR), ALPHA), 0.4), clipped, "first_order"),
    ):
        states, _ = _play(algorithm, params, rounds, helpers.LINEAR)
        entries = oracle.per_fedavg(params, rounds, gradient, **rates, hessian=hessian)
        helpers.assert_close(states[-1].variables.params, entries[-1]["params"], 1e-12)


def _stateful_loss(variables, batch, key):
    """LINEAR whose state is its last mean prediction, and the number of rows that it has seen."""
    loss, aux = helpers.LINEAR.loss(variables, batch, key)
    predictions = batch["x"] @ variables.params["w"]
    rows = variables.state["rows"] + jnp.asarray(len(predictions), jnp.int32)
    return loss, aux._replace(state={"mean": jnp.mean(predictions), "rows": rows})


STATEFUL = fo.Model(None, _stateful_loss)


def _one_stateful_step(algorithm):
    """The state after one step of client 2 alone, its minibatch, and the initial parameters."""
    params, rounds = _problem(6, model="linear", cohorts=[[2]])
    (rnd,) = helpers.equal_steps(rounds, 1)
    start = fo.Variables(params, {"mean": np.zeros(()), "rows": np.int32(5)})
    states, _ = _play(algorithm, start, [rnd], STATEFUL)
    return states[-1], rnd["batches"][0][0], params


def test_batch_statistics_of_per_fedavg_are_those_at_the_adapted_model():
    state, batch, params = _one_stateful_step(fo.per_fedavg(opt.sgd(LR), ALPHA))
    b1, (x2, _) = oracle._parts(batch, 2)
    adapted = params["w"] - ALPHA * helpers.linear(params, *b1)[1]["w"]
    np.testing.assert_allclose(state.variables.state["mean"], (x2 @ adapted).mean(), rtol=1e-12)
    assert int(state.variables.state["rows"]) == 5 + BATCH // 2


VALID = {
    fo.per_fedavg: {"optimizer": opt.sgd(LR), "adaptation_rate": ALPHA},
    fo.pfedme: {
        "optimizer": opt.sgd(LR), "regularisation": 1.0, "learning_rate": 0.1, "inner_steps": 2
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (fo.per_fedavg, {"adaptation_rate": -0.1}, r"adaptation_rate must lie in \[0\.0, inf\]"),
        (
            fo.per_fedavg,
            {"hessian": "none"},
            r"hessian must be one of 'first_order', .* got 'none'",
        ),
        (fo.per_fedavg, {"difference_step": 0.0}, r"difference_step must lie in \(0\.0, inf\]"),
        (fo.per_fedavg, {"server_learning_rate": -1.0}, r"server_learning_rate must lie in .* -1"),
        (fo.per_fedavg, {"optimizer": 0.1}, r"optimizer must be an optax.GradientTransformation"),
        (fo.pfedme, {"regularisation": -1.0}, r"regularisation must lie in \[0\.0, inf\], got -1"),
        (fo.pfedme, {"learning_rate": -1.0}, r"learning_rate must lie in \[0\.0, inf\], got -1"),
        (fo.pfedme, {"inner_steps": 0}, "inner_steps must be a whole number of at least 1, got 0"),
        (fo.pfedme, {"inner_steps": 2.0}, r"inner_steps must be a whole number .* got 2\.0"),
        (fo.pfedme, {"server_learning_rate": -1.0}, r"server_learning_rate must lie in .* -1"),
    ],
)
def test_wrong_arguments_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**{**VALID[make], **arguments})


@pytest.mark.parametrize(("hessian", "count"), [("first_order", 2), ("exact", 3)])
def test_a_batch_that_cannot_be_parted_is_refused(hessian, count):
    with pytest.raises(ValueError, match=rf"batch_size must be a multiple of {count} .* got 5"):
        _limit(fo.per_fedavg(opt.sgd(LR), ALPHA, hessian), 1, batch_size=5)


@pytest.mark.parametrize("hessian", ["hessian_free", "exact"])
def test_a_step_in_float32(hessian):
    """It stays float32 with x64 on, and is the float64 one up to its precision."""
    params, (rnd,) = _problem(7, model="linear", cohorts=[[0]])
    x, y = rnd["batches"][0][0]
    rnd = {**rnd, "batches": [[(x, y)]]}
    rates = {"alpha": ALPHA, "lr": LR, "hessian": hessian}
    (expected,) = oracle.per_fedavg(params, [rnd], helpers.linear, **rates)
    algorithm = fo.per_fedavg(opt.sgd(LR), ALPHA, hessian)
    server = algorithm.init(fo.Variables({"w": jnp.asarray(params["w"], jnp.float32)}))

    @jax.jit
    def step(algorithm, batch):
        local = algorithm.start(algorithm.broadcast(server), ())
        return algorithm.step(local, Objective(helpers.LINEAR), batch, None)[0]

    found = step(algorithm, {"x": x.astype(np.float32), "y": y}).variables.params["w"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected["params"]["w"], rtol=1e-5)


# pFedMe ---------------------------------------------------------------------------------------

LAMBDA = 2.0


@pytest.mark.slow
@helpers.examples(8)
@given(
    seed=st.integers(0, 2**32 - 1),
    hyper=st.fixed_dictionaries(
        {
            "lam": st.floats(0.0, 3.0),
            "lr": st.floats(0.0, 0.5),
            "inner_lr": st.floats(0.05, 0.3),
            "server_lr": st.floats(0.3, 1.5),
        }
    ),
)
def test_pfedme_is_its_oracle(seed, hyper):
    """Global and personal models after each round; who never took part has the global one."""
    params, rounds = _problem(seed)
    expected = oracle.pfedme(params, rounds, ref.mlp, **hyper, inner_steps=3)
    algorithm = fo.pfedme(
        opt.sgd(hyper["inner_lr"]), hyper["lam"], hyper["lr"], 3, hyper["server_lr"]
    )
    states, infos = _play(algorithm, params, rounds)
    for state, entry in zip(states[1:], expected, strict=True):
        helpers.assert_close(state.variables.params, entry["params"], 1e-12)
        own = fo.personal_variables(algorithm, state)
        for client in range(NUM_CLIENTS):
            model = entry["personal"].get(client, entry["params"])
            helpers.assert_close(own(client).params, model, 1e-12)
    losses = _client_losses(oracle.pfedme, params, rounds[0], **hyper, inner_steps=3)
    np.testing.assert_allclose(infos[0].client_loss, losses, rtol=1e-11)


@pytest.mark.slow
def test_theta_is_the_prox_point_and_the_model_minimises_the_envelopes():
    """theta = (A + lambda)^-1 (A b + lambda y); the mean envelope has its minimum in closed form."""
    algorithm = fo.pfedme(opt.sgd(0.2), LAMBDA, 0.4, inner_steps=100)
    state = _limit(algorithm, 150, batch_size=1)
    x = _minimum(lambda a: LAMBDA * a @ np.linalg.inv(a + LAMBDA * np.eye(3)))
    helpers.assert_close(state.variables.params["x"], x, 1e-10)
    own = fo.personal_variables(algorithm, state)
    for client in range(4):
        a, b = DATA[client]["A"][0], DATA[client]["b"][0]
        prox = np.linalg.solve(a + LAMBDA * np.eye(3), a @ b + LAMBDA * x)
        helpers.assert_close(own(client).params["x"], prox, 1e-10)


def test_batch_statistics_of_pfedme_follow_theta_and_are_uploaded():
    algorithm = fo.pfedme(opt.sgd(LR), LAMBDA, 0.1, 2)
    state, batch, params = _one_stateful_step(algorithm)
    (entry,) = oracle.pfedme(
        params, [{"clients": [2], "batches": [[batch]]}], helpers.linear,
        lam=LAMBDA, lr=0.1, inner_lr=LR, inner_steps=1,
    )  # fmt: skip
    # The last statistics are theta's when its last inner step began, after one.
    mean = (batch[0] @ entry["personal"][2]["w"]).mean()
    found = state.variables.state
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    assert int(found["rows"]) == 5 + 2 * BATCH
    helpers.assert_same_bits(fo.personal_variables(algorithm, state)(2).state, found)


# Clients alone --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["scan", "vmap", "sharded"])
def test_independent_clients_are_their_oracle(strategy):
    """Models and momentum go on from round to round; the server's model never changes."""
    params, rounds = _problem(10, model="linear", rounds=4)
    algorithm = fo.independent(opt.sgdm(LR, 0.6))
    states, infos = _play(algorithm, params, rounds, helpers.LINEAR, strategy=strategy)
    expected = oracle.independent(params, rounds, helpers.linear, lr=LR, beta=0.6)
    for state, info, entry in zip(states[1:], infos, expected, strict=True):
        helpers.assert_same_bits(state.variables, states[0].variables)
        assert float(info.update_norm) == 0.0
        own = fo.personal_variables(algorithm, state)
        for client in range(NUM_CLIENTS):
            model = entry["personal"].get(client, params)
            helpers.assert_close(own(client).params, model, 1e-12)
        for client, m in entry["m"].items():
            helpers.assert_close(helpers.entry(state.clients.optimizer.m, client), m, 1e-12)
    counts = [sum(i in rnd["clients"] for rnd in rounds) for i in range(NUM_CLIENTS)]
    assert min(counts) < max(counts)


def test_independent_clients_send_and_receive_nothing():
    variables = fo.Variables({"w": jnp.zeros(100)}, {"count": jnp.zeros((), jnp.int32)})
    cost = fo.costs.of(fo.independent(opt.adam(LR)), variables)
    assert (cost.bytes_down, cost.bytes_up) == (0, 0)
    assert cost.client_state == 3 * 800 + 4
    assert cost.server_memory == cost.server_state == 804


def test_rules_and_terms_around_independent_clients():
    """Whatever a server would make of uploads, there are none; what a wrapper adds is at the client."""
    params, (rnd,) = _problem(11, model="linear", rounds=1)
    algorithm = fo.weight_decay(fo.independent(opt.sgd(LR)), DECAY)
    algorithm = fo.aggregated(algorithm, fo.aggregators.coordinate_median())
    states, _ = _play(algorithm, params, [rnd], helpers.LINEAR)
    (entry,) = oracle.independent(params, [rnd], _decayed, lr=LR)
    own = fo.personal_variables(algorithm, states[-1])
    for client, model in entry["personal"].items():
        helpers.assert_close(own(client).params, model, 1e-12)
