"""Names: every public constructor has one, with its own defaults, and its numbers can be traced."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import algorithms, compression, controllers, optimizers, tasks, wrappers
from fedjax_opt import experiments as ex
from fedjax_opt.core import Variables
from fedjax_opt.experiments.names import (
    KINDS,
    NUMBER,
    WORD,
    Hyperparameter,
    build,
    build_controller,
    controls_rate,
    describe,
    hyperparameters,
    load_task,
    make,
    replaced,
    suggested_for,
)
from fedjax_opt.experiments.playing import set_up
from fedjax_opt.experiments.specs import Spec, parse, parse_sum
from fedjax_opt.wrappers import aggregators

# A number that every constructor takes where it has no default, and structure with which it works.
A_NUMBER = 0.3
STRUCTURE = {
    "hessian": "hessian_free",
    "tau": 2,
    "inner_steps": 3,
    "where": "**/b",
    "upload": Spec("top_k", {"sparsity": 0.5}),
    "aggregator": "coordinate_median",
    "optimizer": Spec("adam", {"learning_rate": 0.1}),
    "codec": "sign",
}
VARIABLES = Variables({"a": jnp.ones(3), "b": jnp.zeros(2)})
PARAMETERS = [
    pytest.param(kind, name, id=f"{kind}-{name}")
    for kind in KINDS
    if kind != "task"
    for name in KINDS[kind]
]


def functions(module):
    """The public functions of a room, or those that a module defines, by name."""
    room = hasattr(module, "__path__")
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and (room or value.__module__ == module.__name__)
    }


def given(kind, name):
    """What the names of a kind are applied to."""
    if kind == "wrapper":
        return (fo.fedavg(optimizers.sgd(0.1)),)
    return (0.5 if name.startswith("eta-") else 20,) if kind == "controller" else ()


def structural(named):
    """The arguments that cannot be traced."""
    return [key for key, parameter in named.parameters.items() if parameter.kind != NUMBER]


def structure(kind, name):
    """The structure that a name needs, and the numbers that it takes."""
    named = KINDS[kind][name]
    fixed = {key: STRUCTURE[key] for key in structural(named) if key in STRUCTURE}
    numbers = {
        key: A_NUMBER if parameter.default is None else float(parameter.default)
        for key, parameter in named.parameters.items()
        if parameter.kind == NUMBER
    }
    return fixed, numbers


# --- there is one for everything ----------------------------------------------------------------------


def test_every_algorithm_has_a_name():
    public = {name for name, value in functions(fo).items() if "algorithms" in value.__module__}
    assert public == {*functions(algorithms), "local_training"}
    assert {name.split("-")[0] for name in KINDS["algorithm"]} == set(functions(algorithms))


def test_every_wrapper_part_and_task_has_a_name():
    assert set(KINDS["wrapper"]) == set(functions(wrappers))
    assert set(KINDS["task"]) == {*tasks.NAMES, "from_files"}
    assert set(KINDS["aggregator"]) == set(functions(aggregators)) - {"aggregated"}
    made = {n: inspect.signature(f).return_annotation for n, f in functions(compression).items()}
    assert set(KINDS["codec"]) == {n for n, kind in made.items() if kind is compression.Codec} - {
        "chain"
    }
    rated = {
        n
        for n, f in functions(optimizers).items()
        if "learning_rate" in inspect.signature(f).parameters
    }
    assert set(KINDS["optimizer"]) == rated


def test_every_controller_has_a_name():
    # `build` is bound to the constructor that it calls.
    called = {named.build.args[0] for named in KINDS["controller"].values()}
    assert called >= set(functions(controllers).values()) - {controllers.paper_schedules}


def test_what_tasks_suggest_is_known_by_the_same_names():
    for task in tasks.NAMES:
        assert set(tasks.suggested(task).algorithms) <= set(KINDS["algorithm"])


@pytest.mark.parametrize("kind, name", PARAMETERS)
def test_a_name_says_what_it_is(kind, name):
    named = KINDS[kind][name]
    assert named.help.endswith(".")
    assert named.paper or kind not in ("algorithm", "wrapper", "controller")
    assert all(parameter.help for parameter in named.parameters.values())


# --- defaults and numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS["algorithm"])
def test_defaults_are_those_of_the_constructors(name):
    stem, _, optimizer = name.partition("-")
    named = KINDS["algorithm"][name]
    for function in (getattr(algorithms, stem), getattr(optimizers, optimizer or "sgd")):
        for key, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not parameter.empty:
                assert named.parameters[key].default == parameter.default
    assert named.parameters["learning_rate"].default is None


@pytest.mark.parametrize("kind, name", PARAMETERS)
def test_numbers_are_traced(kind, name):
    """A name is built inside of a program, and every number that goes in is used."""
    fixed, numbers = structure(kind, name)

    def program(traced):
        made = make(kind, Spec(name, fixed | traced), *given(kind, name))
        started = made.init(VARIABLES) if kind in ("algorithm", "wrapper") else ()
        return jax.tree.leaves((made, started))

    jaxpr = jax.make_jaxpr(program)(numbers).jaxpr
    read = [v for equation in jaxpr.eqns for v in equation.invars] + list(jaxpr.outvars)
    used = set(map(id, read))
    unused = [
        key for key, v in zip(sorted(numbers), jaxpr.invars, strict=True) if id(v) not in used
    ]
    assert unused == []


@pytest.mark.parametrize("name", KINDS["algorithm"])
def test_other_numbers_are_the_same_program(name):
    fixed, numbers = structure("algorithm", name)
    one = build(Spec(name, fixed | numbers))
    other = build(Spec(name, fixed | {key: 0.9 * value for key, value in numbers.items()}))
    assert jax.tree.structure(one) == jax.tree.structure(other)


@pytest.mark.parametrize(
    "name", [name for name in KINDS["algorithm"] if structural(KINDS["algorithm"][name])]
)
def test_structure_is_not_traced(name):
    fixed, numbers = structure("algorithm", name)
    for key in structural(KINDS["algorithm"][name]):
        with pytest.raises(ValueError, match=f"{key} must be"):
            jax.eval_shape(
                lambda value, key=key: build(Spec(name, fixed | numbers | {key: value})), 2.0
            )


SAME = {
    "fedavg(learning_rate=0.1)": lambda: fo.fedavg(optimizers.sgd(0.1)),
    "fedprox(learning_rate=0.1, mu=1)": lambda: fo.fedprox(optimizers.sgd(0.1), 1.0),
    "fedadam(learning_rate=0.1, b2=0.9)": lambda: fo.fedadam(optimizers.sgd(0.1), b2=0.9),
    "fedgbo-adam(learning_rate=0.1, eps=0.5)": lambda: fo.fedgbo(optimizers.adam(0.1, eps=0.5)),
    "adaptive_fedopt-rmsprop(learning_rate=0.1, server_learning_rate=0.2, beta=0.3)": lambda: (
        fo.adaptive_fedopt(optimizers.sgd(0.1), optimizers.rmsprop(0.2, 0.3))
    ),
    "scaffold(learning_rate=0.1, option=1)": lambda: fo.scaffold(optimizers.sgd(0.1), 1),
    "ghbm(learning_rate=0.1, tau=4, nesterov=true)": lambda: fo.ghbm(
        optimizers.sgd(0.1), 4, nesterov=True
    ),
    "pfedme(inner_learning_rate=0.1, learning_rate=0.2, regularisation=15, inner_steps=5)": lambda: (
        fo.pfedme(optimizers.sgd(0.1), 15.0, 0.2, 5)
    ),
    "ce_fedavg(learning_rate=0.1, sparsity=0.5)": lambda: fo.ce_fedavg(
        optimizers.adam(0.1, b2=0.999, eps=1e-8, initial_v=0.0), 0.5
    ),
    "fedavg(learning_rate=0.1) + weight_decay(rate=0.01) + clipped(max_norm=10)": lambda: (
        fo.clipped(fo.weight_decay(fo.fedavg(optimizers.sgd(0.1)), 0.01), 10.0)
    ),
    "fedavg(learning_rate=0.1) + server_optimizer(optimizer=yogi(learning_rate=1))": lambda: (
        fo.server_optimizer(fo.fedavg(optimizers.sgd(0.1)), optimizers.yogi(1.0))
    ),
    "fedavg(learning_rate=0.1) + aggregated(aggregator=trimmed_mean)": lambda: fo.aggregated(
        fo.fedavg(optimizers.sgd(0.1)), aggregators.trimmed_mean()
    ),
    "fedavg(learning_rate=0.1)"
    " + compressed(upload=[top_k(sparsity=0.9), uniform(bits=4)], download=uniform)": lambda: (
        fo.compressed(
            fo.fedavg(optimizers.sgd(0.1)),
            compression.chain(compression.top_k(sparsity=0.9), compression.uniform(4)),
            compression.uniform(),
        )
    ),
    "fedavg(learning_rate=0.1) + compressed(upload=excluding(codec=sign, min_size=9))": lambda: (
        fo.compressed(
            fo.fedavg(optimizers.sgd(0.1)), compression.excluding(compression.sign(), min_size=9)
        )
    ),
}


@pytest.mark.parametrize("text", SAME)
def test_a_spec_is_what_it_says(text):
    algorithm, *around = parse_sum(text)
    built, by_hand = build(algorithm, around), SAME[text]()
    assert jax.tree.structure(built) == jax.tree.structure(by_hand)
    assert jax.tree.leaves(built) == jax.tree.leaves(by_hand)


def test_wrappers_keep_the_order_of_the_text():
    text = "fedavg(learning_rate=0.1) + private(where=[state/**, '**/b']) + compressed(upload=sign)"
    algorithm, *around = parse_sum(text)
    state = fo.first_state(build(algorithm, around), {"a": jnp.ones(3), "b": jnp.ones(2)}, 4)
    assert jax.tree.leaves(state.clients.patch)[0].shape == (4, 2)


def test_a_sweep_is_one_program():
    """Numbers of the algorithm, of a wrapper and of a wrapper's part, as axes of one vmap."""
    member = parse_sum("fedavg + proximal(mu=0) + compressed(upload=top_k(sparsity=0))")
    model, clients, _ = fo.data.quadratics(num_clients=2, dimension=2)
    federation = fo.Federation(model, clients, cohort=2, local_steps=1, batch_size=1)
    names = ("learning_rate", "proximal.mu", "compressed.upload.sparsity")

    def shapes(values):
        algorithm = build(*replaced(member[0], member[1:], dict(zip(names, values, strict=True))))
        state = fo.init_state(algorithm, federation)
        return fo.run_rounds(algorithm, federation, state, 1).history.loss

    assert jax.eval_shape(jax.vmap(shapes), jnp.full((5, 3), 0.1)).shape == (5, 1)


# --- suggestions, controllers, tasks ------------------------------------------------------------------


def test_what_a_task_suggests_takes_the_place_of_a_bare_name():
    """Before anything else looks at it: a grid then varies what really runs."""
    made = ex.from_options(
        {
            "task": ["cifar10_dirichlet"],
            "algorithms": [
                "fedavg", "own: scaffold + clipped(max_norm=5)", "fedacg(beta=0.1, learning_rate=1)",
            ],
            "grid": ["weight_decay.rate=0.01,0.1", "server_learning_rate=0.5,1"],
        }
    )  # fmt: skip
    assert list(map(str, made.algorithms)) == [
        "fedavg: fedavg(learning_rate=0.1) + weight_decay(rate=0.001) + clipped(max_norm=10.0)",
        "own: scaffold(learning_rate=0.1) + weight_decay(rate=0.001) + clipped(max_norm=5)",
        "fedacg(beta=0.1, learning_rate=1)",
    ]
    assert ex.from_toml(ex.to_toml(made)) == made
    digits = fo.tasks.digits(num_clients=6)
    trials = set_up(made.replace(task=parse("digits(num_clients=6)")), digits).trials
    built = {(t.label, *t.point.values()): t.algorithm for t in trials}
    leaves = set(jax.tree.leaves(built["fedavg", 0.01, 0.5]))
    assert {0.1, 0.01, 0.5, 10.0} <= leaves


@pytest.mark.parametrize("name", controllers.paper_schedules(20, 0.5))
def test_controllers_are_the_papers(name):
    schedule = controllers.paper_schedules(20, 0.5, window=100, patience=10)[name]
    of_rate = controls_rate(Spec(name))
    controller = build_controller(Spec(name), 0.5 if of_rate else 20)
    expected = schedule.learning_rate if of_rate else schedule.local_steps
    assert jax.tree.structure(controller) == jax.tree.structure(expected)
    assert jax.tree.leaves(controller) == jax.tree.leaves(expected)


def test_controllers_take_what_they_start_from():
    found = build_controller(parse("K-step(patience=3, metric=accuracy)"), 20, evaluate_every=7)
    expected = controllers.steps_on_plateau(20, patience=3, metric="accuracy", every=7)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.leaves(found) == jax.tree.leaves(expected)
    with pytest.raises(ValueError, match=r"'k-round' is not known\. Did you mean 'K-rounds'"):
        build_controller(Spec("k-round"), 20)


def test_tasks():
    assert load_task(parse("digits(num_clients=20, alpha=1)")).federation.num_clients == 20
    with pytest.raises(ValueError, match=r"task 'digit' is not known\. Did you mean 'digits'"):
        load_task(Spec("digit"))
    with pytest.raises(ValueError, match=r"'clients' is not known\. Did you mean 'num_clients'"):
        load_task(parse("digits(clients=20)"))
    with pytest.raises(ValueError, match="shakespeare needs folder"):
        load_task(Spec("shakespeare"))


def test_what_is_suggested_for_a_task_follows_its_arguments():
    assert suggested_for(parse("digits(num_clients=20)")).rounds == 300
    for steps in (10, 50):
        found = suggested_for(Spec("cifar100_pam", {"local_steps": steps})).algorithms
        expected = tasks.suggested("cifar100_pam", steps).algorithms
        assert list(map(str, jax.tree.leaves(found))) == list(map(str, jax.tree.leaves(expected)))


# --- what is wrong is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ("fedavgg(learning_rate=1)", "algorithm 'fedavgg' is not known. Did you mean 'fedavg'?"),
        ("fedgbo(learning_rate=1)", "Did you mean 'fedgbo-sgdm'?"),
        ("qqq", "`fedjax-opt list algorithms` shows all"),
        ("fedavg(lr=1)", "It takes learning_rate, server_learning_rate."),
        ("fedavg(learning_rat=1)", "fedavg's argument 'learning_rat' is not known. Did you mean"),
        ("fedavg(learning_rate=fast)", "fedavg's learning_rate must be a number, got 'fast'"),
        ("fedavg(learning_rate=true)", "fedavg's learning_rate must be a number, got True"),
        ("fedavg(learning_rate=[0.1, 0.2])", "Values to try go into the grid"),
        ("fedavg(learning_rate=-1)", "learning_rate must lie in"),
        ("ghbm(learning_rate=1)", "ghbm needs tau: write ghbm(tau=...)"),
        ("ghbm(learning_rate=1, tau=2.5)", "ghbm's tau must be a whole number, got 2.5"),
        ("ghbm(learning_rate=1, tau=2, nesterov=no)", "nesterov must be true or false, got 'no'"),
        ("per_fedavg(learning_rate=1, adaptation_rate=1, hessian=3)", "hessian must be a word, got 3"),
        ("fedavg(learning_rate=1) + clip(max_norm=1)", "'clip' is not known. Did you mean 'clipped'?"),
        ("fedavg(learning_rate=1) + clipped", "clipped needs max_norm"),
        ("fedavg(learning_rate=1) + clipped(max_norm=1) + clipped(max_norm=2)", "is given 2 times"),
        ("fedavg(learning_rate=1) + private(where=[1])", "must be a word or a list of words, got (1,)"),
        ("fedavg(learning_rate=1) + compressed(upload=topk)", "Did you mean 'top_k'?"),
        ("fedavg(learning_rate=1) + compressed(upload=top_k)", "top_k needs sparsity"),
        ("fedavg(learning_rate=1) + compressed(upload=3)", "must be one of the codecs ce_fedavg,"),
        ("fedavg(learning_rate=1) + compressed(upload=[])", "compressed's upload must be one of"),
        ("fedavg(learning_rate=1) + compressed(upload=[sign, [sign]])", "must be one of the codecs"),
        ("fedavg(learning_rate=1) + aggregated(aggregator=[uniform_mean])", "one of the aggregators"),
        ("fedavg(learning_rate=1) + compressed", "Give upload or download"),
    ],
)  # fmt: skip
def test_errors(text, message):
    algorithm, *around = parse_sum(text)
    with pytest.raises(ValueError) as caught:
        build(algorithm, around)
    assert message in str(caught.value)


def test_numbers_of_numpy_and_jax_are_numbers():
    for number in (np.float32(0.5), np.array(0.5), jnp.asarray(0.5), 0.5):
        built = build(Spec("fedavg", {"learning_rate": number}))
        assert repr(built) == "fedavg(sgd(learning_rate=0.5))"
    built = build(Spec("ghbm", {"learning_rate": 1, "tau": np.int64(3)}))
    assert "tau=3" in repr(built) and "learning_rate=1.0" in repr(built)


# --- hyperparameters by one name ----------------------------------------------------------------------


def test_hyperparameters():
    algorithm, *around = parse_sum(
        "ghbm(tau=3, beta=0.5) + clipped(max_norm=2) + compressed(upload=random_k(sparsity=0.5))"
    )
    found = hyperparameters(algorithm, around)
    assert found == {
        "learning_rate": Hyperparameter(None, False),
        "tau": Hyperparameter(3, True),
        "beta": Hyperparameter(0.5, False),
        "server_learning_rate": Hyperparameter(1.0, False),
        "nesterov": Hyperparameter(False, True),
        "momentum_in_step": Hyperparameter(False, True),
        "clipped.max_norm": Hyperparameter(2, False),
        "compressed.upload": Hyperparameter(around[1].arguments["upload"], True),
        "compressed.upload.sparsity": Hyperparameter(0.5, False),
        "compressed.upload.rescale": Hyperparameter(False, True),
        "compressed.download": Hyperparameter(None, True),
        "compressed.error_feedback": Hyperparameter(False, True),
    }
    changed = replaced(
        algorithm, around, {"tau": 4, "clipped.max_norm": 1.5, "compressed.upload.sparsity": 0.25}
    )
    assert " + ".join(map(str, (changed[0], *changed[1]))) == (
        "ghbm(tau=4, beta=0.5) + clipped(max_norm=1.5) + compressed(upload=random_k(sparsity=0.25))"
    )
    assert algorithm.arguments["tau"] == 3


def test_a_part_may_be_exchanged():
    algorithm, *around = parse_sum("fedavg(learning_rate=1) + compressed(upload=uniform)")
    _, (wrapper,) = replaced(algorithm, around, {"compressed.upload.bits": 4})
    assert str(wrapper) == "compressed(upload=uniform(bits=4))"
    _, (wrapper,) = replaced(algorithm, around, {"compressed.upload": Spec("sign")})
    assert str(wrapper) == "compressed(upload=sign())"


def test_unknown_hyperparameters():
    specs = Spec("fedavg"), [parse("clipped(max_norm=1)")]
    with pytest.raises(
        ValueError, match=r"'max_norm' is not known. Did you mean 'clipped.max_norm'"
    ):
        replaced(*specs, {"max_norm": 1})
    with pytest.raises(ValueError, match="algorithm 'fedav' is not known"):
        hyperparameters(Spec("fedav"))


# --- how a function is read --------------------------------------------------------------------------


def example(how: str, rate: float | None = None, count: int = 3, part: bytes = b""):
    """Makes something.

    Args:
      how: how it
        is made.
      rate: how fast.

    Reference:
      Somebody. Somewhere.
    """
    return how, rate, count, part


def test_a_function_is_read_by_its_signature_and_docstring():
    named = describe(example, given=("count", "part"))
    assert named.help == "Makes something." and named.paper == "Somebody. Somewhere."
    kinds = {key: (p.kind, p.required) for key, p in named.parameters.items()}
    assert kinds == {"how": (WORD, True), "rate": (NUMBER, False)}
    assert named.parameters["how"].help == "how it is made."
    assert named.build(7, b"", how="x") == ("x", None, 7, b"")


def test_what_a_spec_cannot_say_is_refused():
    with pytest.raises(ValueError, match="A spec cannot say part, a <class 'bytes'>"):
        describe(example)
    with pytest.raises(ValueError, match="pfedme would have two arguments 'learning_rate'"):
        describe(fo.pfedme, {"optimizer": (optimizers.sgd, {})})
