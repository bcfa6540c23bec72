"""From a spec to what it describes, by recipes; what does not fit is refused in the spec's own words."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_opt.experiments.derived import (
    ANY,
    BOOL,
    NUMBER,
    WHOLE,
    WORD,
    WORDS,
    Choices,
    Parameter,
    Recipe,
    derive,
)
from fedjax_opt.experiments.specs import Spec, unknown
from fedjax_opt.tasks.own import imported


def find(kind: str, recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """The recipe of a name, or an error with the nearest name that there is."""
    if ":" in name:
        function = imported(kind, name)
        if not callable(function):
            raise ValueError(f"{kind} {name!r} must be a function, got {type(function).__name__}.")
        return derive(name, function, own=True)
    if name not in recipes:
        raise unknown(kind, name, recipes, f"`fedjax-opt list {kind}s` shows all.")
    return recipes[name]


def check(kind: str, recipes: Mapping[str, Recipe], spec: Spec) -> Recipe:
    """The recipe of a spec whose arguments are all known, of the right kind, and enough."""
    recipe = find(kind, recipes, spec.name)
    for key, value in spec.arguments.items():
        if key not in recipe.parameters:
            takes = ", ".join(recipe.parameters) or "no arguments"
            raise unknown(f"{spec.name}'s argument", key, recipe.parameters, f"It takes {takes}.")
        _check_value(f"{spec.name}'s {key}", recipe.parameters[key], value)
    for key, parameter in recipe.parameters.items():
        if parameter.required and key not in spec.arguments:
            raise ValueError(f"{spec.name} needs {key}: write {spec.name}({key}=...).")
    return recipe


def make(kind: str, recipes: Mapping[str, Recipe], spec: Spec, *given: Any, **more: Any) -> Any:
    """What a spec describes."""
    recipe = check(kind, recipes, spec)
    arguments = {
        key: _made(recipe.parameters[key].choices, value) for key, value in spec.arguments.items()
    }
    return recipe.build(*given, **arguments, **more)


def part_of(value: Any) -> Spec | None:
    """A part as a spec: a word is one without arguments. None if it is no single part."""
    if isinstance(value, str):
        return Spec(value)
    return value if isinstance(value, Spec) else None


def _made(choices: Choices | None, value: Any) -> Any:
    if choices is None:
        return value
    part = part_of(value)
    if part:
        return make(choices.kind, choices.recipes, part)
    assert choices.join  # several of them; `check` has refused anything else
    return choices.join(*(_made(choices, one) for one in value))


def _check_value(name: str, parameter: Parameter, value: Any) -> None:
    if parameter.choices:
        _check_part(name, parameter.choices, value)
    elif not _fits(parameter.kind, value):
        advice = " Values to try go into the grid." if isinstance(value, (tuple, list)) else ""
        raise ValueError(f"{name} must be {parameter.kind}, got {value!r}.{advice}")


def _check_part(name: str, choices: Choices, value: Any) -> None:
    part = part_of(value)
    if part:
        check(choices.kind, choices.recipes, part)
    elif choices.join and isinstance(value, (tuple, list)) and value:
        for one in value:
            _check_part(name, choices._replace(join=None), one)
    else:
        names = ", ".join(choices.recipes)
        raise ValueError(f"{name} must be one of the {choices.kind}s {names}; got {value!r}.")


def _fits(kind: str, value: Any) -> bool:
    if kind == ANY:
        return True
    if kind == NUMBER and isinstance(value, str):
        return False
    if isinstance(value, (bool, np.bool_)):
        return kind == BOOL
    if kind == NUMBER:
        return isinstance(value, (int, float, np.generic, np.ndarray, jax.Array))
    if kind == WHOLE:
        return isinstance(value, (int, np.integer))
    if kind == WORDS and isinstance(value, (tuple, list)):
        return all(isinstance(word, str) for word in value)
    return kind in (WORD, WORDS) and isinstance(value, str)
