"""Algorithms, wrappers, controllers, tasks and their parts by name.

A name is that of a public function of its room which returns such a thing. A new algorithm needs
nothing here: its clients have SGD. One that is named by the optimiser of its clients, such as
`fedgbo-adam`, is in `_NAMED_BY_OPTIMIZER`.
"""

import contextlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from jax.tree_util import Partial

from fedjax_opt import algorithms as alg
from fedjax_opt import bounds, compression, controllers, optimizers, tasks
from fedjax_opt import wrappers as around
from fedjax_opt.compression import Codec
from fedjax_opt.core import Algorithm, Controller, Federation
from fedjax_opt.experiments.derived import Choices, Part, Recipe, derive
from fedjax_opt.experiments.making import check, make
from fedjax_opt.experiments.specs import Spec
from fedjax_opt.optimizers import Triple
from fedjax_opt.tasks.own import ROUNDS, Loaded, load_files
from fedjax_opt.wrappers import aggregators


def _clients(optimizer: Any, **names: str) -> dict[str, Part]:
    return {"optimizer": Part(optimizer, names)}


_SGD = _clients(optimizers.sgd)
_THREE = (optimizers.sgdm, optimizers.rmsprop, optimizers.adam)


def _by_name(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


def _each(constructors: Iterable[Any], *parts: Any, **rest: Any) -> dict[str, Recipe]:
    return _by_name(derive(each.__name__, each, *parts, **rest) for each in constructors)


def _with_three(constructor: Any) -> dict[str, Recipe]:
    """An algorithm with each of three optimisers on its clients."""
    return _by_name(
        derive(f"{constructor.__name__}-{optimizer.__name__}", constructor, _clients(optimizer))
        for optimizer in _THREE
    )


def _adaptive_fedopt(optimizer: Any) -> Recipe:
    server = Part(optimizer, {"learning_rate": "server_learning_rate"})
    name = f"adaptive_fedopt-{optimizer.__name__}"
    return derive(name, alg.adaptive_fedopt, {**_SGD, "server": server})


_NAMED_BY_OPTIMIZER = (alg.mfl, alg.fedgbo, alg.mime, alg.mimelite, alg.mimexlite)
_NOT_WITH_SGD_ALONE = (*_NAMED_BY_OPTIMIZER, alg.adaptive_fedopt, alg.ce_fedavg, alg.pfedme)
_WITH_SGD = [
    constructor
    for constructor in vars(alg).values()
    if inspect.isfunction(constructor) and constructor not in _NOT_WITH_SGD_ALONE
]

#: Algorithms by name.
ALGORITHMS: dict[str, Recipe] = {
    **_each(_WITH_SGD, _SGD),
    **_by_name(map(_adaptive_fedopt, _THREE)),
    **{name: r for each in _NAMED_BY_OPTIMIZER for name, r in _with_three(each).items()},
    **_each((alg.ce_fedavg,), _clients(optimizers.adam)),
    **_each((alg.pfedme,), _clients(optimizers.sgd, learning_rate="inner_learning_rate")),
}


def _returning(room: Any, kind: Any, **rest: Any) -> dict[str, Recipe]:
    """The public functions of a room that return a kind of thing, if a spec can say what they take."""
    found = {}
    for name, function in vars(room).items():
        if inspect.isfunction(function) and function.__annotations__.get("return") is kind:
            kinds = {p.kind for p in inspect.signature(function).parameters.values()}
            with contextlib.suppress(ValueError):
                if inspect.Parameter.VAR_POSITIONAL not in kinds:
                    found[name] = derive(name, function, **rest)
    return found


#: Optimisers of a server by name.
OPTIMIZERS: dict[str, Recipe] = _returning(optimizers, Triple)
#: Codecs by name; several in a list are a chain.
CODECS: dict[str, Recipe] = _returning(compression, Codec)
_CODEC = Choices("codec", CODECS, join=compression.chain)
CODECS |= _returning(compression, Codec, choices={"codec": _CODEC})
#: Rules of aggregation by name.
AGGREGATORS: dict[str, Recipe] = _returning(aggregators, Partial)
_PARTS = {
    "upload": _CODEC,
    "download": _CODEC,
    "aggregator": Choices("aggregator", AGGREGATORS),
    "optimizer": Choices("optimizer", OPTIMIZERS),
}
#: Wrappers by name; `build` takes the algorithm first.
WRAPPERS: dict[str, Recipe] = _returning(around, Algorithm, choices=_PARTS, given=("algorithm",))


def _one_step(initial_steps: Any) -> Controller:
    """One local step in every round: distributed SGD.

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    del initial_steps
    return controllers.constant(1)


# The paper's names, the rules, and what the rules call the value that they start from.
_RULES = (
    ("dSGD", _one_step, "initial_steps"),
    ("fixed", controllers.constant, "value"),
    ("K-rounds", controllers.steps_by_rounds, "initial_steps"),
    ("K-error", controllers.steps_by_error, "initial_steps"),
    ("K-step", controllers.steps_on_plateau, "initial_steps"),
    ("eta-rounds", controllers.rate_by_rounds, "initial_rate"),
    ("eta-error", controllers.rate_by_error, "initial_rate"),
    ("eta-step", controllers.rate_on_plateau, "initial_rate"),
)
_PROBLEM = {"constants": Part(bounds.FedAvgConstants), "link": Part(bounds.Link)}

#: Controllers by name; `build` takes K_0 first, or eta_0 for those called eta-.
CONTROLLERS: dict[str, Recipe] = {
    **{name: derive(name, rule, given=(start,)) for name, rule, start in _RULES},
    "K-theory": derive("K-theory", controllers.theory, _PROBLEM, given=("initial_steps",)),
}

#: Tasks by name.
TASKS: dict[str, Recipe] = _each(
    [tasks.from_files, *(getattr(tasks, name) for name in tasks.NAMES)]
)

#: All of them, by what they make.
RECIPES: dict[str, dict[str, Recipe]] = {
    "task": TASKS,
    "algorithm": ALGORITHMS,
    "wrapper": WRAPPERS,
    "controller": CONTROLLERS,
    "codec": CODECS,
    "aggregator": AGGREGATORS,
    "optimizer": OPTIMIZERS,
}


def build(algorithm: Spec, wrappers: Sequence[Spec] = ()) -> Algorithm:
    """The algorithm that specs describe.

    Args:
      algorithm: a name of `ALGORITHMS`, and its hyperparameters. Numbers may be traced.
      wrappers: names of `WRAPPERS` with theirs, the innermost first.

    Returns:
      An `Algorithm`.

    Example:
      >>> from fedjax_opt.experiments.recipes import build
      >>> from fedjax_opt.experiments.specs import parse
      >>> algorithm = build(parse("fedavg(learning_rate=0.1)"), [parse("clipped(max_norm=10)")])
    """
    names = [wrapper.name for wrapper in wrappers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"wrapper {name!r} is given {names.count(name)} times: give it once.")
    made = make("algorithm", ALGORITHMS, algorithm)
    for wrapper in wrappers:
        made = make("wrapper", WRAPPERS, wrapper, made)
    return made


#: Controllers that watch a plateau need examples to watch it on.
WATCHING = ("K-step", "eta-step")


def controls_rate(controller: Spec) -> bool:
    """Whether a controller sets the learning rate; all others set the local steps."""
    return controller.name.startswith("eta-")


def build_controller(controller: Spec, initial: Any, evaluate_every: int = 1) -> Controller:
    """The controller that a spec describes.

    Args:
      controller: a name of `CONTROLLERS`, and its arguments.
      initial: K_0 for those that control K, eta_0 for those that control eta.
      evaluate_every: the rounds between evaluations, for those that watch the validation examples.

    Example:
      >>> from fedjax_opt.experiments.recipes import build_controller
      >>> from fedjax_opt.experiments.specs import parse
      >>> controller = build_controller(parse("K-error(window=50)"), 20)
      >>> int(controller.value(controller.init(), 0))
      20
    """
    watching = {"every": evaluate_every} if controller.name in WATCHING else {}
    return make("controller", CONTROLLERS, controller, initial, **watching)


def load_task(task: Spec) -> Federation:
    """The federation that a task's spec describes, with its data.

    Args:
      task: a name of `TASKS`, and its arguments.

    Example:
      >>> from fedjax_opt.experiments.recipes import load_task
      >>> from fedjax_opt.experiments.specs import parse
      >>> load_task(parse("digits(num_clients=50)")).num_clients
      50
    """
    return load(task).federation


def load(task: Spec) -> Loaded:
    """A task's federation, and what is said of it before it starts.

    Args:
      task: a name of `TASKS`, or package.module:function, and its arguments.
    """
    if task.name == "from_files":
        check("task", TASKS, task)
        given: dict[str, Any] = dict(task.arguments)
        return load_files(**given)
    made = make("task", TASKS, task)
    if not isinstance(made, Federation):
        raise ValueError(f"task {task.name!r} must return a Federation, got {type(made).__name__}.")
    return Loaded(made, [])


def is_own(task: Spec) -> bool:
    """Whether a task is somebody's own data, for which nothing is suggested."""
    return task.name not in tasks.NAMES


def suggested_for(task: Spec) -> tasks.Suggested:
    """For how many rounds a task is trained, and with which algorithms."""
    if is_own(task):
        return tasks.Suggested(ROUNDS, {})
    return tasks.suggested(task.name, task.arguments.get("local_steps"))
