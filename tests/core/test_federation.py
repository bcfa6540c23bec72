"""Federation: a value that can be changed, traced, stacked and refused."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core.compatibility import scan_sizes
from tests.core import problems

SGD = fo.optimizers.sgd(0.1)
FEDAVG = fo.fedavg(SGD)
SIZES = (8, 16, 24)
DATA = problems.ragged(SIZES)
BASE = fo.Federation(problems.MODEL, DATA, cohort=2, local_steps=3, batch_size=8)
BY_NUMBER = fo.Federation(problems.MODEL, 3, cohort=2, local_steps=3, initial=problems.start_at())


def play(federation, rate=0.1, key=0, rounds=3, **options):
    algorithm = fo.fedavg(fo.optimizers.sgd(rate))
    state = fo.init_state(algorithm, federation, key)
    return fo.run_rounds(algorithm, federation, state, rounds, strategy="scan", **options)


def final(rate, federation):
    return play(federation, rate).history.loss[-1]


def test_facts_follow_the_batch_size():
    assert (BASE.full_batches, BASE.steps_per_epoch) == (True, None)
    other = BASE.replace(batch_size=16)
    assert (other.full_batches, other.steps_per_epoch) == (False, None)
    assert BASE.replace(batch_size=24).steps_per_epoch == 1


@pytest.mark.parametrize("batch_size", [3, 16, 24])
def test_another_batch_size_is_a_fresh_federation(batch_size):
    fresh = fo.Federation(problems.MODEL, DATA, cohort=2, local_steps=3, batch_size=batch_size)
    problems.assert_identical(play(BASE.replace(batch_size=batch_size)), play(fresh))


@pytest.mark.parametrize("sizes", [(8, 16, 24), (5, 3, 7), (4, 4), (7, 5)])
def test_facts_are_those_of_all_sizes(sizes):
    for batch_size in (1, 2, 4, 8):
        found = BASE.replace(clients=problems.ragged(sizes), batch_size=batch_size)
        steps = {-(-size // batch_size) for size in sizes}
        assert found.full_batches == all(size % batch_size == 0 for size in sizes)
        assert found.steps_per_epoch == (steps.pop() if len(steps) == 1 else None)


def test_what_selects_or_changes_sizes_changes_the_facts():
    assert DATA[[0, 2]].known == (8, 8, 24)
    train, test = problems.ragged((4, 6)).split(0.25)
    assert (train.known, test.known) == ((1, 3, 4), (1, 1, 2))
    moved = dataclasses.replace(DATA, sizes=np.array([7, 16, 24], np.int32))
    assert moved.known == (1, 7, 24)
    assert DATA.without_known_sizes().known is None


def test_an_argument_of_jit_is_a_constant():
    closed = jax.jit(lambda rate: play(BASE, rate))(0.1)
    problems.assert_identical(jax.jit(lambda rate, f: play(f, rate))(0.1, BASE), closed)
    problems.assert_close(closed, play(BASE))


def test_grad_through_a_closed_and_a_passed_federation():
    closed = jax.grad(lambda rate: final(rate, BASE))(0.1)
    passed = jax.jit(jax.grad(final))(0.1, BASE)
    np.testing.assert_allclose(passed, closed, rtol=1e-10)
    step = 1e-5
    slope = (final(0.1 + step, BASE) - final(0.1 - step, BASE)) / (2 * step)
    np.testing.assert_allclose(closed, slope, rtol=1e-6)


def test_local_steps_as_an_axis():
    found = jax.vmap(lambda k: final(0.1, BASE.replace(local_steps=k)))(jnp.array([1, 4]))
    expected = [final(0.1, BASE.replace(local_steps=k)) for k in (1, 4)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_another_array_of_local_steps_traces_nothing():
    traces = itertools.count()

    @jax.jit
    def traced(federation):
        next(traces)
        return final(0.1, federation)

    for k in (2, 3, 4):
        traced(BASE.replace(local_steps=jnp.int32(k)))
    assert next(traces) == 1


def test_splits_are_one_program_of_simulate():
    model, traces = problems.counted()
    rows, after_each = problems.ragged((40,)).examples, []
    for seed in range(10):
        owners = np.random.default_rng(seed).permutation(np.arange(40) % 4)
        owners[: seed + 1] = 0  # so that sizes differ
        owners[-4:] = np.arange(4)
        clients = fo.ClientData.from_arrays(rows, owners)
        federation = fo.Federation(model, clients, cohort=2, local_steps=2, batch_size=3)
        fo.simulate(FEDAVG, federation, 2, strategy="scan", progress=False)
        after_each.append(len(traces))
    assert len(set(after_each)) == 1


def test_splits_without_known_sizes_share_a_trace_and_stack():
    splits = [problems.ragged(sizes).without_known_sizes() for sizes in ((5, 7, 9), (9, 7, 5))]
    federations = [BASE.replace(clients=split) for split in splits]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *federations)
    found = jax.vmap(lambda f: final(0.1, f))(stacked)
    expected = [final(0.1, federation) for federation in federations]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def frozen_model():
    base = jnp.eye(3) * 2 + jnp.arange(21.0).reshape(7, 3)[:3] / 100
    base = jnp.concatenate([base, jnp.zeros((4, 3))])  # [7, 3], a shape of nothing else

    def loss(variables, batch, key, base):
        seen = {**batch, "x": batch["x"] @ base[:3, :3]}
        return problems.MODEL.loss(variables, seen, key)

    return fo.Model(problems.MODEL.init, loss, base)


def shapes_of(jaxpr, found):
    """The shapes of what every loop carries, found anywhere in a program."""
    for equation in jaxpr.eqns:
        parameters = equation.params
        if equation.primitive.name == "scan":
            first, number = scan_sizes(parameters)
            carried = equation.invars[first : first + number]
            found |= {variable.aval.shape for variable in carried}
        if equation.primitive.name == "while":
            first = parameters["cond_nconsts"] + parameters["body_nconsts"]
            found |= {variable.aval.shape for variable in equation.invars[first:]}
        for value in jax.tree.leaves(
            list(parameters.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                shapes_of(inner, found)
    return found


@pytest.mark.parametrize("make", [fo.fedavg, fo.scaffold, fo.mimelite], ids=lambda m: m.__name__)
def test_what_is_frozen_is_carried_by_no_loop_and_sent_by_nobody(make):
    model = frozen_model()
    federation = BASE.replace(model=model, local_steps=jnp.int32(3))
    algorithm = make(fo.optimizers.sgd(0.1))
    shape = model.frozen.shape
    state = fo.init_state(algorithm, federation)

    def rounds(federation, state):
        return fo.run_rounds(algorithm, federation, state, 2, strategy="scan")

    program = jax.make_jaxpr(rounds)(federation, state)
    carried = shapes_of(program.jaxpr, set())
    assert len(carried) > 3
    assert shape not in carried
    assert shape not in {x.shape for x in jax.tree.leaves(rounds(federation, state))}


def test_what_is_frozen_is_read():
    model = frozen_model()
    plain = fo.Model(
        problems.MODEL.init,
        lambda variables, batch, key: model.loss(variables, batch, key, model.frozen),
    )
    ours, theirs = BASE.replace(model=model), BASE.replace(model=plain)
    problems.assert_close(play(ours), play(theirs))
    variables = play(ours).state.variables
    problems.assert_close(fo.evaluate(model, variables, DATA), fo.evaluate(plain, variables, DATA))
    other = BASE.replace(model=fo.Model(model.init, model.loss, 2 * model.frozen))
    assert play(other).history.loss[-1] != play(ours).history.loss[-1]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_first_state_is_that_of_simulate(seed):
    watched = BASE.replace(local_steps=fo.controllers.steps_by_error(5, window=4))
    first = fo.init_state(FEDAVG, watched, seed)
    assert first.controllers.local_steps.losses.shape == (4,)
    ours = fo.run_rounds(FEDAVG, watched, first, 3, strategy="scan").state
    theirs = fo.simulate(FEDAVG, watched, 3, seed=seed, strategy="scan", progress=False).state
    problems.assert_close(ours, theirs)
    problems.assert_identical(jax.jit(lambda s: fo.init_state(FEDAVG, watched, s))(seed), first)


def test_a_first_model_of_ones_own():
    variables = fo.init_state(FEDAVG, BY_NUMBER).variables
    problems.assert_identical(variables, BY_NUMBER.initial)
    bare = BASE.replace(initial=BY_NUMBER.initial.params)
    problems.assert_identical(fo.init_state(FEDAVG, bare).variables, variables)


def test_replacing_is_idempotent_and_leaves_the_rest():
    again = BASE.replace()
    assert jax.tree.structure(again) == jax.tree.structure(BASE)
    assert again.replace(test=DATA.examples).clients is DATA
    assert BASE.replace(local_steps=fo.epochs(2)).replace().local_steps.count == 2


def test_a_federation_in_one_line():
    text = repr(BASE.replace(test=DATA.examples))
    assert "3 clients, 48 examples, cohort 2, 3 steps of 8, test 48" in text
    assert "\n" not in text
    assert "? steps" in str(jax.eval_shape(lambda f: f, BASE.replace(local_steps=jnp.int32(2))))
    assert repr(jax.tree.map(lambda x: None, BASE)).startswith("Federation(")
    assert repr(jax.tree.map(lambda x: None, BASE.clients)).startswith("ClientData(")


ERRORS = {
    "a cohort above N": (lambda: BASE.replace(cohort=4), "population of 3 clients, got 4"),
    "no cohort": (lambda: BASE.replace(cohort=0), "cohort must be a whole number"),
    "an empty client": (
        lambda: BASE.replace(
            clients=fo.ClientData.from_sizes(DATA.examples, [24, 0, 24], allow_empty=True)
        ),
        "no empty client to train on: 1 hold no example, client 1",
    ),
    "a list for clients": (lambda: BASE.replace(clients=[1, 2]), "clients must be a ClientData"),
    "an algorithm for the model": (lambda: BASE.replace(model=FEDAVG), "model must be a Model"),
    "local steps of a fraction": (lambda: BASE.replace(local_steps=1.5), "must be whole"),
    "no local steps": (lambda: BASE.replace(local_steps=0), "local_steps must be a whole number"),
    "local steps of others": (
        lambda: BASE.replace(local_steps=np.array([1, 2])), r"one per client \[3\]"
    ),
    "a batching": (lambda: BASE.replace(batching="sorted"), "batching must be one of"),
    "a test set of others": (
        lambda: BASE.replace(client_test=DATA[:2]), "the same 3 clients, got 2 clients"
    ),
    "the old simulate": (
        lambda: fo.simulate(FEDAVG, problems.MODEL, DATA), r"fo\.Federation\(model, clients, cohort"
    ),
    "the old run_rounds": (
        lambda: fo.run_rounds(FEDAVG, problems.MODEL, DATA, None), r"fo\.Federation\(model, clients"
    ),
    "nouns in the wrong order": (
        lambda: fo.simulate(BASE, FEDAVG, 3), "The algorithm comes first: fo.simulate"
    ),
    "no federation": (
        lambda: fo.init_state(FEDAVG, {"w": jnp.ones(3)}), "must be a Federation.*got dict"
    ),
    "a number where examples are needed": (lambda: play(BY_NUMBER), "got the number 3"),
    "a number without a first model": (
        lambda: fo.init_state(FEDAVG, BY_NUMBER.replace(initial=None)), "initial must be given"
    ),
    "no cohort where one is drawn": (
        lambda: play(BASE.replace(cohort=None)), r"federation.cohort must be given for run_rounds"
    ),
    "no local steps where they are taken": (
        lambda: play(BASE.replace(local_steps=None)), "federation.local_steps must be given"
    ),
    "a schedule of fractions": (
        lambda: play(BASE.replace(local_steps=lambda t: 100 * 0.29)), "must be a whole number.*jnp.ceil"
    ),
    "a number that is no key": (lambda: fo.init_state(FEDAVG, BASE, jnp.float32(3.0)), "must be a key"),
    "two numbers that are no key": (
        lambda: fo.init_state(FEDAVG, BASE, jnp.array([1, 2])), "must be a key"
    ),
    "user metrics of nobody": (
        lambda: play(BASE, diagnostics=["user_metrics"]), "needs examples of the clients' own"
    ),
    "a scheduled algorithm in a wrapper": (
        lambda: fo.proximal(fo.scheduled(lambda eta: FEDAVG, 0.1), 0.1), "inside of the function"
    ),
    "a function of the rate alone": (
        lambda: fo.init_state(lambda eta: FEDAVG, BASE), "must be an Algorithm"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, sentence = ERRORS[name]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_empty_clients_are_refused_inside_of_jit():
    empty = fo.ClientData.from_sizes(DATA.examples, [24, 0, 24], allow_empty=True)
    with pytest.raises(ValueError, match="no empty client"):
        jax.jit(lambda clients: final(0.1, BASE.replace(clients=clients)))(empty)


def test_examples_in_files_are_read_by_simulate_alone(tmp_path):
    stored = fo.data.store(DATA, tmp_path / "people")
    assert stored.known == DATA.known
    assert {leaf.shape for leaf in jax.tree.leaves(stored)} == {(3,)}
    again = fo.data.open_stored(tmp_path / "people")
    assert jax.tree.structure(stored) == jax.tree.structure(again)
    federation = BASE.replace(clients=stored)
    for call in (
        lambda: play(federation),
        lambda: jax.jit(lambda f: final(0.1, f))(federation),
        lambda: fo.evaluate(problems.MODEL, problems.start_at(), stored),
        lambda: fo.evaluate_clients(problems.MODEL, problems.start_at(), stored),
    ):
        with pytest.raises(ValueError, match=r"in files.*(simulate|memory)"):
            call()
    ours, theirs = (
        fo.simulate(FEDAVG, f, 4, strategy="scan", evaluate_every=2, progress=False).state
        for f in (federation, BASE)
    )
    problems.assert_identical(ours, theirs)
    problems.assert_identical(play(BASE.replace(clients=stored[:])), play(BASE))


def test_the_learning_rate_of_a_scheduled_algorithm():
    rates = jnp.array([0.3, 0.2, 0.1])
    make = lambda eta: fo.fedavg(fo.optimizers.sgd(eta))  # noqa: E731
    algorithm = fo.scheduled(make, lambda t: rates[t])
    state = fo.init_state(algorithm, BASE)
    run = fo.run_rounds(algorithm, BASE, state, 3, strategy="scan")
    np.testing.assert_array_equal(run.history.diagnostics["learning_rate"], rates)
    for rate in rates:
        state = fo.run_rounds(make(rate), BASE, state, 1, strategy="scan").state
    problems.assert_close(run.state, state)


def test_validation_is_evaluated_where_a_controller_watches():
    controller = fo.controllers.steps_on_plateau(4, patience=1, every=2)
    watched = BASE.replace(local_steps=controller, validation=DATA.examples)
    seen = play(watched, rounds=5).history.diagnostics["validation_loss"]
    np.testing.assert_array_equal(np.isnan(seen), [True, False, True, False, True])
    unwatched = BASE.replace(validation=DATA.examples)
    assert "validation_loss" not in play(unwatched).history.diagnostics
