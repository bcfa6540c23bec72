"""Algorithms, wrappers, controllers, tasks and their parts by name: each is a public function.

A name is that of a public function of its room which returns such a thing. The function says all that is
to be known of it: its arguments and their defaults, which of them are numbers that may be traced (`Any`)
and which are structure (`int`, `bool`, `str`), what each means, and whose idea it was. A new algorithm
needs nothing here: its clients have SGD. One that is named by the optimiser of its clients, such as
`fedgbo-adam(learning_rate=0.01, b1=0.9)`, is in `_NAMED_BY_OPTIMIZER`. Any other part of a thing is
named in its argument: `compressed(upload=top_k(sparsity=0.9))`.

The hyperparameters of an algorithm have their own names: `learning_rate`. A wrapper's follow its name,
`clipped.max_norm`, and a part's follow what the part is for, `compressed.upload.sparsity`.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import chex
import jax
import numpy as np
import optax
from jax.tree_util import Partial

from fedjax_opt import algorithms as alg
from fedjax_opt import bounds, compression, controllers, optimizers, tasks, wrappers
from fedjax_opt.compression import Codec
from fedjax_opt.core import Algorithm, Controller, Federation
from fedjax_opt.experiments.specs import Spec, unknown
from fedjax_opt.optimizers import Triple
from fedjax_opt.tasks.own import ROUNDS, Loaded, imported, load_files
from fedjax_opt.wrappers import aggregators

NUMBER, WHOLE, BOOL = "a number", "a whole number", "true or false"
WORD, WORDS = "a word", "a word or a list of words"
ANY = "a value"  # of somebody's own function, which does not say what it takes
_OF_ANNOTATION = {
    **dict.fromkeys((Any, float, chex.Numeric, optax.ScalarOrSchedule), NUMBER),
    **{int: WHOLE, bool: BOOL, str: WORD},
}
# Arguments that are things with names themselves, and of which kind.
_PARTS = {
    "upload": "codec", "download": "codec", "codec": "codec", "aggregator": "aggregator",
    "optimizer": "optimizer",
}  # fmt: skip
# The constructor of an argument, whose own arguments are then those of the whole, and new names for
# them where two would be the same.
Slots = Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]]
_NONE: Mapping[str, Any] = MappingProxyType({})


class Parameter(NamedTuple):
    """What a named thing takes.

    Attributes:
      default: the function's; None if it has none.
      required: whether it must be given.
      kind: what it may be: a number, which may be traced, or else structure; of a part one of `KINDS`.
      help: what it means.
    """

    default: Any
    required: bool
    kind: str
    help: str


class Named(NamedTuple):
    """A function by its name.

    Attributes:
      build: the function, of what it is applied to and of its arguments by name.
      parameters: these arguments.
      help: what it makes, in a line.
      paper: where that is from; empty if nowhere.
    """

    build: Callable[..., Any]
    parameters: dict[str, Parameter]
    help: str
    paper: str


def describe(
    function: Callable[..., Any], slots: Slots = _NONE, given: Sequence[str] = (), own: bool = False
) -> Named:
    """What a function takes and means, by its signature and its docstring.

    Args:
      function: a constructor.
      slots: the constructors of arguments that the name settles.
      given: what it is applied to: its first arguments, that no text names.
      own: whether it is somebody's own, whose arguments may be of any type.
    """
    parameters: dict[str, Parameter] = {}
    for slot, (constructor, names) in slots.items():
        parameters |= {names.get(key, key): p for key, p in _parameters(constructor).items()}
        given = (*given, slot)
    found = _parameters(function, given, own)
    if same := parameters.keys() & found.keys():
        raise ValueError(f"{function.__name__} would have two arguments {min(same)!r}: rename one.")
    parameters |= found
    sources = function, inspect.getmodule(function)
    cited = (" ".join(_section(source, "References?").split()) for source in sources)
    return Named(
        build=functools.partial(_build, function, slots, given),
        parameters=parameters,
        help=(inspect.getdoc(function) or "").partition("\n")[0],
        paper=next(filter(None, cited), ""),
    )


def _build(
    function: Any, slots: Slots, given: Sequence[str], *values: Any, **arguments: Any
) -> Any:
    made = dict(zip(given, values, strict=False))
    for slot, (constructor, names) in slots.items():
        shown = {key: names.get(key, key) for key in inspect.signature(constructor).parameters}
        own = {key: arguments.pop(name) for key, name in shown.items() if name in arguments}
        made[slot] = constructor(**own)
    return function(**made, **arguments)


def _parameters(
    function: Any, without: Sequence[str] = (), own: bool = False
) -> dict[str, Parameter]:
    text = _section(function, "Args|Attributes")
    entries = re.findall(r"^  (\w+(?:, \w+)*): (.*?)(?=^  \S|\Z)", text, re.M | re.S)
    # Several may share an entry: 'eps, initial_v: as for `fedadam`.'
    meaning = {key: " ".join(words.split()) for keys, words in entries for key in keys.split(", ")}
    return {
        key: Parameter(
            default=None if p.default is p.empty else p.default,
            required=p.default is p.empty,
            kind=_kind(key, p.annotation, own),
            help=meaning.get(key, ""),
        )
        for key, p in inspect.signature(function).parameters.items()
        if key not in without and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def _kind(key: str, annotation: Any, own: bool) -> str:
    if key in _PARTS and not own:
        return _PARTS[key]
    if get_origin(annotation) is Annotated:  # with limits, which its function checks
        annotation = get_args(annotation)[0]
    options = [option for option in get_args(annotation) if option is not NoneType]
    if Sequence[str] in options:
        return WORDS
    if str in options:  # or a path
        return WORD
    if len(options) == 1:
        annotation = options[0]
    if own and annotation not in _OF_ANNOTATION:
        return NUMBER if annotation is inspect.Parameter.empty else ANY
    if annotation not in _OF_ANNOTATION:
        raise ValueError(f"A spec cannot say {key}, a {annotation}: give it a slot.")
    return _OF_ANNOTATION[annotation]


def _section(function: Any, title: str) -> str:
    text = inspect.getdoc(function) or ""
    found = re.search(rf"^(?:{title}):\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    return found.group(1) if found else ""


# --- the rooms ------------------------------------------------------------------------------------


def _returning(room: Any, result: Any, given: Sequence[str] = ()) -> dict[str, Named]:
    """The public functions of a room that return such a thing, if a text can say what they take."""
    found = {}
    for name, function in vars(room).items():
        if inspect.isfunction(function) and function.__annotations__.get("return") is result:
            with contextlib.suppress(ValueError):
                if not _takes_any_number(function):
                    found[name] = describe(function, given=given)
    return found


def _takes_any_number(function: Any) -> bool:
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values())


_THREE = (optimizers.sgdm, optimizers.rmsprop, optimizers.adam)
_NAMED_BY_OPTIMIZER = ("mfl", "fedgbo", "mime", "mimelite", "mimexlite")
# Adam as the thesis on CE-FedAvg has it.
_ADAM = functools.partial(optimizers.adam, b2=0.999, eps=1e-8, initial_v=0.0)
_ADAM.__doc__ = optimizers.adam.__doc__
_CLIENTS = {"ce_fedavg": _ADAM}  # in place of SGD
_RENAMED = {"pfedme": {"learning_rate": "inner_learning_rate"}}


def _algorithms() -> Iterable[tuple[str, Named]]:
    for name, function in vars(alg).items():
        if not inspect.isfunction(function):
            continue
        clients = _CLIENTS.get(name, optimizers.sgd), _RENAMED.get(name, {})
        if name in _NAMED_BY_OPTIMIZER:
            for each in _THREE:
                yield f"{name}-{each.__name__}", describe(function, {"optimizer": (each, {})})
        elif "server" in inspect.signature(function).parameters:
            for each in _THREE:
                server = each, {"learning_rate": "server_learning_rate"}
                slots = {"optimizer": clients, "server": server}
                yield f"{name}-{each.__name__}", describe(function, slots)
        else:
            yield name, describe(function, {"optimizer": clients})


def _one_step(initial_steps: Any) -> Controller:
    """One local step in every round: distributed SGD.

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    del initial_steps
    return controllers.constant(1)


# The paper's names, and the rules; each is applied to the value that it starts from.
_RULES = {
    "dSGD": _one_step,
    "fixed": controllers.constant,
    "K-rounds": controllers.steps_by_rounds,
    "K-error": controllers.steps_by_error,
    "K-step": controllers.steps_on_plateau,
    "eta-rounds": controllers.rate_by_rounds,
    "eta-error": controllers.rate_by_error,
    "eta-step": controllers.rate_on_plateau,
    "eta-exponential": controllers.rate_exponential,
    "K-theory": controllers.theory,
}
_STARTS = ("initial_steps", "initial_rate", "value")
_PROBLEM = {"constants": (bounds.FedAvgConstants, _NONE), "link": (bounds.Link, _NONE)}


def _controllers() -> Iterable[tuple[str, Named]]:
    for name, rule in _RULES.items():
        first = [key for key in inspect.signature(rule).parameters if key in _STARTS]
        yield name, describe(rule, _PROBLEM if name == "K-theory" else _NONE, first)


#: All that has a name, by what it is. Controllers are built of K_0 first, or of eta_0 those called eta-.
KINDS: dict[str, dict[str, Named]] = {
    "task": {n: describe(getattr(tasks, n)) for n in ("from_files", *tasks.NAMES)},
    "algorithm": dict(_algorithms()),
    "wrapper": _returning(wrappers, Algorithm, given=("algorithm",)),
    "controller": dict(_controllers()),
    "codec": _returning(compression, Codec),
    "aggregator": _returning(aggregators, Partial),
    "optimizer": _returning(optimizers, Triple),
}
_JOIN = {"codec": compression.chain}  # makes one of several in a list


# --- from a spec to what it means -----------------------------------------------------------------


def find(kind: str, name: str) -> Named:
    """What has a name, or an error with the nearest name that there is."""
    if ":" in name:
        function = imported(kind, name)
        if not callable(function):
            raise ValueError(f"{kind} {name!r} must be a function, got {type(function).__name__}.")
        return describe(function, own=True)
    if name not in KINDS[kind]:
        raise unknown(kind, name, KINDS[kind], f"`fedjax-opt list {kind}s` shows all.")
    return KINDS[kind][name]


def bind(kind: str, spec: Spec) -> tuple[Named, dict[str, Any]]:
    """What a spec names, and its arguments, all of them known, of the right kind, and enough."""
    named, arguments = find(kind, spec.name), {}
    for key, value in spec.arguments.items():
        if key not in named.parameters:
            takes = ", ".join(named.parameters) or "no arguments"
            raise unknown(f"{spec.name}'s argument", key, named.parameters, f"It takes {takes}.")
        arguments[key] = _read(f"{spec.name}'s {key}", named.parameters[key].kind, value)
    for key, parameter in named.parameters.items():
        if parameter.required and key not in spec.arguments:
            raise ValueError(f"{spec.name} needs {key}: write {spec.name}({key}=...).")
    return named, arguments


def make(kind: str, spec: Spec, *given: Any, **more: Any) -> Any:
    """What a spec means.

    Args:
      kind: one of `KINDS`.
      spec: a name and its arguments. Numbers may be traced.
      *given: what it is applied to.
      **more: further arguments.
    """
    named, arguments = bind(kind, spec)
    return named.build(*given, **arguments, **more)


def _read(name: str, kind: str, value: Any) -> Any:
    """An argument; parts are made."""
    if kind in KINDS:
        part, join = _part(value), _JOIN.get(kind)
        if part:
            return make(kind, part)
        parts = [_part(one) for one in value] if isinstance(value, (tuple, list)) else []
        if join and parts and all(parts):
            return join(*(make(kind, one) for one in parts if one))
        known = ", ".join(KINDS[kind])
        raise ValueError(f"{name} must be one of the {kind}s {known}; got {value!r}.")
    if not _fits(kind, value):
        advice = " Values to try go into the grid." if isinstance(value, (tuple, list)) else ""
        raise ValueError(f"{name} must be {kind}, got {value!r}.{advice}")
    return value


def _part(value: Any) -> Spec | None:
    """A part as a spec: a word is one without arguments. None if it is no single part."""
    return Spec(value) if isinstance(value, str) else value if isinstance(value, Spec) else None


def _fits(kind: str, value: Any) -> bool:
    if kind == ANY:
        return True
    if isinstance(value, (bool, np.bool_)):
        return kind == BOOL
    if kind == NUMBER:
        return isinstance(value, (int, float, np.generic, np.ndarray, jax.Array))
    if kind == WHOLE:
        return isinstance(value, (int, np.integer))
    if kind == WORDS and isinstance(value, (tuple, list)):
        return all(isinstance(word, str) for word in value)
    return kind in (WORD, WORDS) and isinstance(value, str)


def build(algorithm: Spec, wrappers: Sequence[Spec] = ()) -> Algorithm:
    """The algorithm that specs describe.

    Args:
      algorithm: a name of `KINDS["algorithm"]`, and its hyperparameters. Numbers may be traced.
      wrappers: names of `KINDS["wrapper"]` with theirs, the innermost first.

    Returns:
      An `Algorithm`.

    Example:
      >>> from fedjax_opt.experiments.names import build
      >>> from fedjax_opt.experiments.specs import parse
      >>> algorithm = build(parse("fedavg(learning_rate=0.1)"), [parse("clipped(max_norm=10)")])
    """
    names = [wrapper.name for wrapper in wrappers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"wrapper {name!r} is given {names.count(name)} times: give it once.")
    made = make("algorithm", algorithm)
    for wrapper in wrappers:
        made = make("wrapper", wrapper, made)
    return made


class Hyperparameter(NamedTuple):
    """What one is set to.

    Attributes:
      value: as given, or else by default; None if there is neither.
      fixed: whether it is structure, compiled in; all others may be traced.
    """

    value: Any
    fixed: bool


def hyperparameters(algorithm: Spec, wrappers: Sequence[Spec] = ()) -> dict[str, Hyperparameter]:
    """All hyperparameters of an algorithm and what is around it, by name.

    Example:
      >>> from fedjax_opt.experiments.names import hyperparameters
      >>> from fedjax_opt.experiments.specs import parse
      >>> found = hyperparameters(parse("ghbm(tau=10)"), [parse("clipped(max_norm=10)")])
      >>> [name for name, each in found.items() if not each.fixed]
      ['learning_rate', 'beta', 'server_learning_rate', 'clipped.max_norm']
      >>> found["beta"]
      Hyperparameter(value=0.9, fixed=False)
    """
    found = _hyperparameters("", "algorithm", algorithm)
    for wrapper in wrappers:
        found |= _hyperparameters(f"{wrapper.name}.", "wrapper", wrapper)
    return found


def _hyperparameters(prefix: str, kind: str, spec: Spec) -> dict[str, Hyperparameter]:
    found = {}
    for key, parameter in find(kind, spec.name).parameters.items():
        value = spec.arguments.get(key, parameter.default)
        found[prefix + key] = Hyperparameter(value, parameter.kind != NUMBER)
        part = _part(value)
        if parameter.kind in KINDS and part:
            found |= _hyperparameters(f"{prefix}{key}.", parameter.kind, part)
    return found


def replaced(
    algorithm: Spec, wrappers: Sequence[Spec], values: Mapping[str, Any]
) -> tuple[Spec, tuple[Spec, ...]]:
    """The same specs with other hyperparameters."""
    known = hyperparameters(algorithm, wrappers)
    for name, value in values.items():
        if name not in known:
            raise unknown("hyperparameter", name, known, f"There are {', '.join(known)}.")
        if name in find("algorithm", algorithm.name).parameters:
            algorithm = _with(algorithm, [name], value)
        else:
            first, *path = name.split(".")
            wrappers = [_with(w, path, value) if w.name == first else w for w in wrappers]
    return algorithm, tuple(wrappers)


def _with(spec: Spec, path: list[str], value: Any) -> Spec:
    key, *rest = path
    if rest:
        inner = _part(spec.arguments[key])
        assert inner is not None  # a name of `hyperparameters` leads through parts
        value = _with(inner, rest, value)
    return Spec(spec.name, {**spec.arguments, key: value})


# --- controllers and tasks ------------------------------------------------------------------------

#: Controllers that watch a plateau need examples to watch it on.
WATCHING = ("K-step", "eta-step")


def controls_rate(controller: Spec) -> bool:
    """Whether a controller sets the learning rate; all others set the local steps."""
    return controller.name.startswith("eta-")


def build_controller(controller: Spec, initial: Any, evaluate_every: int = 1) -> Controller:
    """The controller that a spec describes.

    Args:
      controller: a name of `KINDS["controller"]`, and its arguments.
      initial: K_0 for those that control K, eta_0 for those that control eta.
      evaluate_every: the rounds between evaluations, for those that watch the validation examples.

    Example:
      >>> from fedjax_opt.experiments.names import build_controller
      >>> from fedjax_opt.experiments.specs import parse
      >>> controller = build_controller(parse("K-error(window=50)"), 20)
      >>> int(controller.value(controller.init(), 0))
      20
    """
    watching = {"every": evaluate_every} if controller.name in WATCHING else {}
    return make("controller", controller, initial, **watching)


def load_task(task: Spec) -> Loaded:
    """The federation that a task's spec describes, with its data, and what is said of it.

    Args:
      task: a name of `KINDS["task"]`, or package.module:function, and its arguments.

    Example:
      >>> from fedjax_opt.experiments.names import load_task
      >>> from fedjax_opt.experiments.specs import parse
      >>> load_task(parse("digits(num_clients=50)")).federation.num_clients
      50
    """
    if task.name == "from_files":
        _, given = bind("task", task)
        return load_files(**given)
    made = make("task", task)
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
