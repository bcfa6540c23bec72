"""How algorithms, triples, codecs and states are shown."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import compression as c
from fedjax_opt import optimizers as o
from tests.core import problems

# What a value is made by, written as it is shown.
SHOWN = [
    "o.sgd(learning_rate=0.1)",
    "o.adam(learning_rate=0.1, b1=0.8)",
    "o.chain(o.yogi(learning_rate=0.5, initial_v=0.0))",
    "o.from_optax(o.rmsprop(learning_rate=0.1))",
    "fo.fedgbo(o.adam(learning_rate=0.1, b1=0.8))",
    "fo.fedprox(o.sgdm(learning_rate=0.1), mu=0.25, server_learning_rate=0.5)",
    "fo.private(fo.scaffold(o.sgd(learning_rate=0.1), option=1), where='params/**')",
    "fo.ghbm(o.sgd(learning_rate=0.1), tau=3, nesterov=True)",
    "fo.adaptive_fedopt(o.sgd(learning_rate=0.1), server=o.adagrad(learning_rate=1.0))",
    "fo.aggregated(fo.dsgd(o.sgd(learning_rate=0.1)), aggregator=fo.aggregators.trimmed_mean(0.25))",
    "fo.attacks.sign_flip(fo.dsgd(o.sgd(learning_rate=0.1)), clients=[0, 7])",
    "fo.compressed(fo.fedavg(o.sgd(learning_rate=0.1)), upload=c.random_k(sparsity=0.5, rescale=True))",
    "c.chain(c.top_k(sparsity=0.9, scope='global'), c.uniform(bits=4), companions=c.sign())",
    "c.excluding(c.exponential(bits=8, stochastic=True), min_size=3)",
    "c.ternary(stochastic=False)",
    "c.exponential(bits=4, from_one=True)",
]
ALGORITHM = fo.aggregated(
    fo.clipped(fo.fedgbo(o.adam(0.5, b1=0.75)), 2), fo.aggregators.trimmed_mean(0.25)
)
TEXT = (
    "aggregated(clipped(fedgbo(adam(learning_rate=0.5, b1=0.75)), max_norm=2.0),"
    " aggregator=trimmed_mean(0.25))"
)


@pytest.mark.parametrize("written", SHOWN)
def test_a_value_is_shown_as_the_call_that_made_it(written):
    plain = written
    for module in ("fo.aggregators.", "fo.attacks.", "fo.", "o.", "c."):
        plain = plain.replace(module, "")
    assert repr(eval(written)) == plain


@pytest.mark.parametrize(
    "changed",
    [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a)), jax.jit(lambda a: a)],
    ids=["copy", "deepcopy", "pickle", "jit"],
)
def test_copies_are_shown_alike(changed):
    assert repr(changed(ALGORITHM)) == TEXT


def test_the_numbers_shown_are_those_that_the_leaves_now_have():
    halved = jax.tree.map(lambda x: x / 2, ALGORITHM)
    assert repr(halved) == (
        "aggregated(clipped(fedgbo(adam(learning_rate=0.25, b1=0.375, b2=0.495, eps=0.0005,"
        " initial_v=0.5), server_learning_rate=0.5), max_norm=1.0), aggregator=trimmed_mean(0.125))"
    )
    two = jax.tree.map(lambda *x: jnp.float32(x), fo.dsgd(o.sgd(0.1)), fo.dsgd(o.sgd(0.2)))
    assert repr(two) == "dsgd(sgd(learning_rate=[0.1, 0.2]))"
    many = jax.tree.map(lambda x: np.full(9, x), fo.dsgd(o.sgd(0.1)))
    assert repr(many) == "dsgd(sgd(learning_rate=float64[9]))"


def test_traced_numbers_are_shown_as_shapes():
    seen = []
    jax.vmap(lambda rate: seen.append(repr(fo.fedavg(o.sgd(rate)))))(jnp.float32([0.1, 0.2]))
    assert seen == ["fedavg(sgd(learning_rate=float32[]))"]


def test_functions_that_were_replaced_are_named():
    def other(*arguments):
        raise AssertionError

    once = fo.fedavg(o.sgd(0.1))._replace(step=other)
    assert repr(once) == "fedavg(sgd(learning_rate=0.1))._replace(step=...)"
    assert repr(once._replace(finish=other)).endswith("._replace(step=..., finish=...)")
    assert repr(o.sgd(0.1)._replace(track=other)) == "sgd(learning_rate=0.1)._replace(track=...)"
    bare = repr(fo.Algorithm(*[other] * 7))
    assert bare.startswith("Algorithm(init=other, init_client=other, ") and "0x" not in bare


def test_what_optax_and_the_user_made_is_named():
    clip, decay = optax.clip(1.0), optax.exponential_decay(0.1, 10, 0.5)
    assert (
        repr(o.chain(clip, o.sgd(decay)))
        == "chain(optax.clip(...), sgd(optax.exponential_decay(...)))"
    )
    assert repr(fo.fedavg(optax.lion(0.1))) == "fedavg(optax.chain(...))"
    shown = repr(fo.scheduled(lambda rate: fo.fedavg(o.sgd(rate)), decay))
    kind = jnp.result_type(float)
    assert shown == f"scheduled(fedavg(sgd(learning_rate={kind}[])), optax.exponential_decay(...))"

    def wrong(rate):
        raise RuntimeError

    assert repr(fo.scheduled(wrong, 0.1)) == "scheduled(wrong, 0.1)"


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda x: fo.fedgbo(o.adam(x, b1=x, eps=x)), (0.1, 0.2)),
        (lambda x: fo.fedprox(o.sgd(0.1), x), (1, 0.5)),
        (lambda x: fo.compressed(fo.fedavg(o.sgd(0.1)), upload=c.top_k(sparsity=x)), (0.1, 0.2)),
        (lambda x: fo.attacks.sign_flip(fo.fedavg(o.sgd(0.1)), [x]), (1, 2)),
    ],
)
def test_algorithms_that_differ_in_numbers_have_one_structure(make, values):
    one, other = map(make, values)
    assert repr(one) != repr(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_a_run_is_compiled_once_for_algorithms_that_were_made_in_other_ways():
    model, traces = problems.counted()
    clients = problems.ragged([4, 4])
    federation = fo.Federation(model, clients, cohort=2, local_steps=1, batch_size=2)
    counts = []
    sgd = o.sgd(0.1)
    for algorithm in (fo.fedprox(sgd, 0.5), fo.proximal(fo.fedavg(o.sgd(0.2)), 0.25)):
        fo.run_rounds(algorithm, federation, problems.start(algorithm, 2), 1)
        counts.append(len(traces))
    assert counts[0] == counts[1] > 0


def test_a_state_is_shown_by_its_round_and_its_shapes():
    state = fo.first_state(fo.scaffold(o.sgd(0.1)), {"w": jnp.ones((3, 2), jnp.float32)}, 5)
    assert repr(state._replace(round=jnp.int32(4))) == (
        "FederatedState(round=4, num_clients=5, server=Server(variables=Variables(params="
        "{'w': float32[3, 2]}, state=()), control={'w': float32[3, 2]}),"
        " clients=Client(control={'w': float32[5, 3, 2]}))"
    )
    assert "round=int32[]" in repr(jax.eval_shape(lambda: state))


@pytest.mark.parametrize("room", [fo.algorithms, fo.wrappers, fo.attacks, fo.optimizers])
def test_every_constructor_leaves_its_call(room):
    made = [
        function
        for name, function in vars(room).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and function.__annotations__.get("return") in (fo.Algorithm, o.Triple)
    ]
    assert made and all(hasattr(function, "__wrapped__") for function in made)
