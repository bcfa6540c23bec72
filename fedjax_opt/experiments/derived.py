"""Recipes: constructors by name, with what they take read off their signatures and docstrings.

A constructor says all that is to be known of it: its arguments and their defaults, which of them are
numbers that may be traced (`Any`) and which are structure (`int`, `bool`, `str`), what each means, and
whose idea it was. An argument that is an optimiser, a codec or the like is made in one of two ways:

    parts      by a constructor that the recipe's name settles; its arguments become the recipe's own,
               as in `fedgbo-adam(learning_rate=0.01, b1=0.9)`
    choices    by another recipe, which a spec names, as in `compressed(upload=top_k(sparsity=0.9))`
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import chex
import optax

NUMBER, WHOLE, BOOL = "a number", "a whole number", "true or false"
WORD, WORDS, PART = "a word", "a word or a list of words", "a part"
ANY = "a value"  # of somebody's own function, which does not say what it takes
_KINDS = {
    **dict.fromkeys((Any, float, chex.Numeric, optax.ScalarOrSchedule), NUMBER),
    **{int: WHOLE, bool: BOOL, str: WORD},
}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Parameter(NamedTuple):
    """An argument of a recipe.

    Attributes:
      default: the constructor's; None if it has none.
      required: whether it must be given.
      kind: what it may be: a number, which may be traced, or else structure.
      help: what it means.
      choices: the recipes of a part; None for other kinds.
    """

    default: Any
    required: bool
    kind: str
    help: str
    choices: "Choices | None" = None


class Recipe(NamedTuple):
    """A constructor by name.

    Attributes:
      name: its name in specs.
      build: the constructor as a function of the arguments, after what it is applied to.
      parameters: its arguments by name.
      help: what it makes, in a line.
      paper: where that is from; empty if nowhere.
    """

    name: str
    build: Callable[..., Any]
    parameters: dict[str, Parameter]
    help: str
    paper: str

    @property
    def defaults(self) -> dict[str, Any]:
        """Every argument with its default; None if there is none."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    @property
    def fixed(self) -> frozenset[str]:
        """The arguments that are structure: they cannot be traced."""
        return frozenset(name for name, p in self.parameters.items() if p.kind != NUMBER)

    @property
    def required(self) -> frozenset[str]:
        """The arguments that must be given."""
        return frozenset(name for name, p in self.parameters.items() if p.required)


class Choices(NamedTuple):
    """The recipes by which an argument may be made.

    Attributes:
      kind: what they make, in a word.
      recipes: the recipes by name.
      join: makes one of several; None if there can only be one.
    """

    kind: str
    recipes: Mapping[str, Recipe]
    join: Callable[..., Any] | None = None


class Part(NamedTuple):
    """The constructor of an argument.

    Attributes:
      make: the constructor.
      names: what the recipe calls its arguments, where that is not what they are called.
    """

    make: Callable[..., Any]
    names: Mapping[str, str] = _NOTHING


def derive(
    name: str,
    constructor: Callable[..., Any],
    parts: Mapping[str, Part] = _NOTHING,
    *,
    choices: Mapping[str, Choices] = _NOTHING,
    given: Sequence[str] = (),
    own: bool = False,
) -> Recipe:
    """The recipe of a constructor."""
    found = [
        (part.names.get(key, key), parameter)
        for part in parts.values()
        for key, parameter in _parameters(part.make).items()
    ]
    found += _parameters(constructor, {*parts, *given}, choices, own).items()
    names = [key for key, _ in found]
    for key in names:
        if names.count(key) > 1:
            raise ValueError(f"{name} would have two arguments {key!r}: rename one of its parts'.")
    return Recipe(
        name=name,
        build=functools.partial(_build, constructor, parts, tuple(given)),
        parameters=dict(found),
        help=(inspect.getdoc(constructor) or "").partition("\n")[0],
        paper=_paper(constructor),
    )


def _build(constructor, parts, given, *values, **arguments):
    made = {}
    for key, part in parts.items():
        names = {own: part.names.get(own, own) for own in inspect.signature(part.make).parameters}
        own = {own: arguments.pop(name) for own, name in names.items() if name in arguments}
        made[key] = part.make(**own)
    return constructor(**dict(zip(given, values, strict=True)), **made, **arguments)


def _parameters(function, without=(), choices: Mapping[str, Choices] = _NOTHING, own=False):
    entries = re.findall(
        r"^  (\w+(?:, \w+)*): (.*?)(?=^  \S|\Z)", _section(function, "Args|Attributes"), re.M | re.S
    )
    # Several may share an entry: 'eps, initial_v: as for `fedadam`.'
    meaning = {key: " ".join(entry.split()) for keys, entry in entries for key in keys.split(", ")}
    return {
        key: Parameter(
            default=None if p.default is p.empty else p.default,
            required=p.default is p.empty,
            kind=PART if key in choices else _kind(key, p.annotation, own),
            help=meaning.get(key, ""),
            choices=choices.get(key),
        )
        for key, p in inspect.signature(function).parameters.items()
        if key not in without and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def _kind(key: str, annotation: Any, own: bool) -> str:
    if (
        get_origin(annotation) is Annotated
    ):  # with the limits of a number, which its function checks
        annotation = get_args(annotation)[0]
    options = [option for option in get_args(annotation) if option is not NoneType]
    if Sequence[str] in options:
        return WORDS
    if str in options:  # or a path
        return WORD
    if len(options) == 1:
        annotation = options[0]
    if own and annotation not in _KINDS:
        return NUMBER if annotation is inspect.Parameter.empty else ANY
    if annotation not in _KINDS:
        raise ValueError(f"A spec cannot say {key}, a {annotation}: name it in parts or choices.")
    return _KINDS[annotation]


def _paper(constructor) -> str:
    """What its docstring cites, or the head of its file."""
    sources = constructor, inspect.getmodule(constructor)
    cited = (" ".join(_section(source, "References?").split()) for source in sources)
    return next(filter(None, cited), "")


def _section(function, title: str) -> str:
    text = inspect.getdoc(function) or ""
    found = re.search(rf"^(?:{title}):\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    return found.group(1) if found else ""
