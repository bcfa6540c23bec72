"""Private leaves: a federation of one, what stays at home, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

LR, STEPS = 0.3, 3
WHERE = "params/{w2,b1}"
ALGORITHMS = {
    "fedavg": fo.fedavg(opt.adam(LR), 0.7),
    "fedprox": fo.fedprox(opt.sgd(LR), 0.5),
    "fedgbo-adam": fo.fedgbo(opt.adam(LR), 0.7),
    "fedgbo-averaging": fo.fedgbo(opt.from_optax(opt.sgdm(LR, 0.5))),
    "fedgbo-chain": fo.fedgbo(helpers.with_decay(opt.sgdm(LR, 0.5))),
    "fedgbo-schedule": fo.fedgbo(opt.adam(optax.exponential_decay(LR, 1, 0.5))),
    "mfl": fo.mfl(opt.adam(LR), 0.7),
    "mfl-schedule": fo.mfl(opt.sgdm(optax.exponential_decay(LR, 1, 0.5))),
    "dsgd": fo.dsgd(opt.adam(LR)),
    "fedadam": fo.fedadam(opt.sgd(LR), eps=0.1),
    "fedadam-schedule": fo.fedadam(opt.sgd(LR), optax.exponential_decay(LR, 1, 0.5), eps=0.1),
    "scaffold-1": fo.scaffold(opt.sgd(LR), 1),
    "scaffold-2": fo.scaffold(opt.sgd(LR), 2, 0.7),
    "mimelite": fo.mimelite(opt.sgdm(LR, 0.5)),
    "mimexlite": fo.mimexlite(opt.adam(LR)),
}
NAMES = pytest.mark.parametrize("name", ALGORITHMS)


def _problem(num_clients, size, rounds=3, seed=0):
    rng = np.random.default_rng(seed)
    rounds = helpers.random_rounds(
        rng, num_clients=num_clients, size=size, steps=STEPS, rounds=rounds
    )
    return helpers.random_params(rng, "mlp"), rounds


def _play(algorithm, params, rounds, num_clients, model=helpers.MODELS["mlp"]):
    states, _ = helpers.play(algorithm, model, params, rounds, num_clients=num_clients, steps=STEPS)
    return states


def _model(server):
    """The model inside a server state or a patch, with its holes."""
    return server.variables if hasattr(server, "variables") else _model(server.inner)


def _is_hole(node):
    return node is None


@pytest.mark.slow
@NAMES
def test_federation_of_one_is_the_algorithm_itself(name):
    """With one client, what is private and what is shared move alike, with all their statistics."""
    params, rounds = _problem(num_clients=1, size=1)
    expected = _play(ALGORITHMS[name], params, rounds, 1)[-1]
    algorithm = fo.private(ALGORITHMS[name], WHERE)
    state = _play(algorithm, params, rounds, 1)[-1]
    own = fo.personal_variables(algorithm, state)(0)
    helpers.assert_close(own, expected.variables, 1e-12)
    # The server's statistics, holes filled from the patch, and the client's own state.
    server = jax.tree.map(
        lambda shared, own: own[0] if shared is None else shared,
        state.server.inner,
        state.clients.patch,
        is_leaf=_is_hole,
    )
    helpers.assert_close(server, expected.server, 1e-12)
    helpers.assert_close(state.clients.inner, expected.clients, 1e-12)


@pytest.mark.parametrize(
    "name", ["fedavg", "fedadam", "fedgbo-adam", "mfl", "scaffold-1", "scaffold-2", "mimelite"]
)
def test_nothing_private_reaches_the_server_or_another_client(name):
    """The server has holes there; another client's data do not change a patch in its first round."""
    params, rounds = _problem(num_clients=3, size=2, rounds=1)
    algorithm = fo.private(ALGORITHMS[name], WHERE)
    state = _play(algorithm, params, rounds, 3)[-1]
    (rnd,) = rounds
    other, one = rnd["clients"]
    changed = {**rnd, "batches": [[(3 * x, y) for x, y in rnd["batches"][0]], rnd["batches"][1]]}
    changed["full"] = [
        tuple(3 * a for a in rnd["full"][0][:1]) + rnd["full"][0][1:],
        rnd["full"][1],
    ]
    again = _play(algorithm, params, [changed], 3)[-1]
    own = [jax.tree.map(lambda x: x[one], s.clients.patch) for s in (state, again)]
    # Scalars of the patch, such as counts, may be averages; the leaves of the model are its own.
    models = [_model(tree).params for tree in own]
    helpers.assert_same_bits(*models)
    theirs = [jax.tree.map(lambda x: x[other], s.clients.patch) for s in (state, again)]
    assert helpers.distance(*theirs) > 1e-6
    shared = _model(state.server.inner).params
    assert shared["w2"] is None and shared["b1"] is None
    sizes = {leaf.shape for leaf in jax.tree.leaves(state.server.inner)}
    assert not sizes & {params["w2"].shape, params["b1"].shape}


@NAMES
def test_costs_leave_private_leaves_out(name):
    """Both ways: what travels is what travels for a model that has only the shared leaves."""
    params, _ = _problem(num_clients=1, size=1)
    private = {"w2", "b1"}
    shared = {key: value for key, value in params.items() if key not in private}
    algorithm = ALGORITHMS[name]
    ours = fo.costs.of(fo.private(algorithm, WHERE), fo.Variables(params))
    small = fo.costs.of(algorithm, fo.Variables(shared))
    assert (ours.bytes_down, ours.bytes_up) == (small.bytes_down, small.bytes_up)
    whole = fo.costs.of(algorithm, fo.Variables(params))
    assert ours.bytes_up < whole.bytes_up
    kept = sum(params[key].nbytes for key in private)
    assert ours.client_state >= whole.client_state + kept


def test_personal_variables_are_the_shared_model_with_the_own_parts_in_place():
    """For each id, also a traced one; the global model has the initial values there.

    So has a client that never took part.
    """
    params, rounds = _problem(num_clients=3, size=2)
    late = fo.private(ALGORITHMS["fedavg"], WHERE)
    for state in _play(late, params, rounds, 3)[:2]:
        for client in set(range(3)) - set(rounds[0]["clients"]):
            own = _model(helpers.entry(state.clients.patch, client)).params
            np.testing.assert_array_equal(own["w2"], params["w2"])
    algorithm = fo.private(ALGORITHMS["fedavg"], WHERE)
    state = _play(algorithm, params, rounds, 3)[-1]
    personal = fo.personal_variables(algorithm, state)
    patches, shared = _model(state.clients.patch).params, _model(state.server.inner).params
    for client in range(3):
        expected = {
            key: patches[key][client] if shared[key] is None else shared[key] for key in params
        }
        helpers.assert_same_bits(personal(client), fo.Variables(expected))
    helpers.assert_same_bits(jax.jit(personal)(jnp.int32(1)), personal(1))
    assert helpers.distance(personal(0).params["w2"], personal(1).params["w2"]) > 1e-3
    np.testing.assert_array_equal(state.variables.params["w2"], params["w2"])


SHARED = {
    "scaffold-2": ALGORITHMS["scaffold-2"],
    "moon": fo.moon(opt.sgd(LR)),
    "compressed": fo.compressed(
        ALGORITHMS["fedavg"], fo.compression.top_k(sparsity=0.5), fo.compression.uniform(8), True
    ),
    "server optimiser": fo.server_optimizer(ALGORITHMS["fedavg"], opt.sgd(LR)),
}


@pytest.mark.parametrize("algorithm", SHARED.values(), ids=list(SHARED))
def test_personal_variables_of_any_other_algorithm_are_the_global_model(algorithm):
    """Also of one whose clients keep state, and of a wrapper around one without."""
    state = fo.first_state(algorithm, {"w": jnp.arange(2.0)}, 3)
    helpers.assert_same_bits(fo.personal_variables(algorithm, state)(2), state.variables)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("params/**/scale", r"where matches no leaf .* params/dense/w, state/mean"),
        ("**", "where matches every leaf"),
        (["params/**", "state/**"], "where matches every leaf"),
    ],
)
def test_a_pattern_that_matches_nothing_or_everything_is_refused(where, message):
    """With the leaves that exist, so that the right one can be read off."""
    variables = fo.Variables({"dense": {"w": jnp.ones(2)}}, {"mean": jnp.ones(1)})
    with pytest.raises(ValueError, match=message):
        fo.first_state(fo.private(ALGORITHMS["fedavg"], where), variables, 2)


@pytest.mark.parametrize("where", [(), []])
def test_with_nothing_private_it_is_the_algorithm_itself(where):
    """MTFL's limit; an empty pattern is still a pattern, and a wrong one."""
    for algorithm in ALGORITHMS.values():
        assert fo.private(algorithm, where) is algorithm
    with pytest.raises(ValueError, match="where must be a pattern"):
        fo.private(ALGORITHMS["fedavg"], "")


@pytest.mark.parametrize("yes", [1, "yes", np.bool_(True), 0.5])
def test_a_function_may_say_yes_in_other_words(yes):
    """As Python takes them, and no is whatever Python takes for no."""
    variables = fo.Variables({"w1": jnp.ones(2), "w2": jnp.ones(3), "b1": jnp.ones(1)})
    algorithm = fo.private(ALGORITHMS["mfl"], lambda path, leaf: path == "params/w1" and yes)
    server = fo.first_state(algorithm, variables, 2).server
    expected = fo.first_state(fo.private(ALGORITHMS["mfl"], "params/w1"), variables, 2).server
    helpers.assert_same_bits(server, expected)


@pytest.mark.parametrize("second", ["params/b1", "params/w2", "params/{w2,b1}"])
@pytest.mark.parametrize("between", [lambda a: a, lambda a: fo.server_optimizer(a, opt.sgd(1.0))])
def test_private_inside_of_private_is_refused(second, between):
    """Whatever the two name: one `where` names it all."""
    params, _ = _problem(num_clients=1, size=1)
    inside = between(fo.private(ALGORITHMS["fedavg"], WHERE))
    with pytest.raises(
        ValueError, match=r"private goes around an algorithm once: .*\[one, another"
    ):
        fo.first_state(fo.private(inside, second), params, 2)


# Non-trainable state, and other wrappers ------------------------------------------------------


def _running_mean_loss(variables, batch, key):
    """Softmax regression with a running mean under the names of its parameters."""
    loss, aux = helpers.MODELS["logreg"].loss(variables, batch, key)
    state = variables.state
    mean = jnp.mean(batch["x"], axis=0)
    new = {"w": 0.5 * state["w"] + 0.5 * mean, "b": state["b"] + 1}
    return loss, aux._replace(state=new)


SAME_NAMES = fo.Model(None, _running_mean_loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedgbo-adam", "mfl", "scaffold-2", "mimelite"])
@pytest.mark.parametrize("where", ["params/w", "state/w"])
def test_params_and_state_of_the_same_names_are_told_apart(name, where):
    """The statistics' leaf `w` is private exactly if the pattern says `state`."""
    rng = np.random.default_rng(3)
    rounds = helpers.random_rounds(rng, num_clients=3, size=2, steps=STEPS)
    params = helpers.random_params(rng, "logreg")
    variables = fo.Variables(params, {"w": np.zeros(3), "b": np.int32(0)})
    states = _play(fo.private(ALGORITHMS[name], where), variables, rounds, 3, SAME_NAMES)
    shared = _model(states[-1].server.inner)
    holes = {"params": shared.params["w"] is None, "state": shared.state["w"] is None}
    assert holes == {"params": where == "params/w", "state": where == "state/w"}
    assert shared.params["b"] is not None and shared.state["b"] is not None


@pytest.mark.parametrize("outer", ["proximal", "server_optimizer"])
def test_other_wrappers_may_stand_outside(outer):
    """Around `private` or inside of it, a wrapper does the same to the shared leaves."""
    params, rounds = _problem(num_clients=1, size=1)
    wrap = {
        "proximal": lambda a: fo.proximal(a, 0.5),
        "server_optimizer": lambda a: fo.server_optimizer(a, opt.sgd(1.0)),
    }[outer]
    fedavg = fo.fedavg(opt.sgd(LR))
    inside = _play(fo.private(wrap(fedavg), WHERE), params, rounds, 1)[-1]
    outside = _play(wrap(fo.private(fedavg, WHERE)), params, rounds, 1)[-1]
    for key in ("w1", "b2"):
        helpers.assert_close(inside.variables.params[key], outside.variables.params[key], 1e-12)
