"""The hyperparameters of an algorithm and its wrappers, by one name each: what a sweep may vary.

An algorithm's have their own names: `learning_rate`. A wrapper's follow its name, `clipped.max_norm`,
and a part's follow what the part is for, `compressed.upload.sparsity`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_opt.experiments.derived import NUMBER, Recipe
from fedjax_opt.experiments.making import find, part_of
from fedjax_opt.experiments.recipes import ALGORITHMS, WRAPPERS
from fedjax_opt.experiments.specs import Spec, unknown


class Hyperparameter(NamedTuple):
    """What one is set to.

    Attributes:
      value: as given, or else by default; None if there is neither.
      fixed: whether it is structure, compiled in; all others may be traced.
    """

    value: Any
    fixed: bool


def hyperparameters(algorithm: Spec, wrappers: Sequence[Spec] = ()) -> dict[str, Hyperparameter]:
    """All hyperparameters by name.

    Args:
      algorithm: the algorithm.
      wrappers: what is around it.

    Example:
      >>> from fedjax_opt.experiments.hyperparameters import hyperparameters
      >>> from fedjax_opt.experiments.specs import parse
      >>> found = hyperparameters(parse("ghbm(tau=10)"), [parse("clipped(max_norm=10)")])
      >>> [name for name, each in found.items() if not each.fixed]
      ['learning_rate', 'beta', 'server_learning_rate', 'clipped.max_norm']
      >>> found["beta"]
      Hyperparameter(value=0.9, fixed=False)
    """
    found = _of("", find("algorithm", ALGORITHMS, algorithm.name), algorithm)
    for wrapper in wrappers:
        found |= _of(f"{wrapper.name}.", find("wrapper", WRAPPERS, wrapper.name), wrapper)
    return found


def replaced(
    algorithm: Spec, wrappers: Sequence[Spec], values: Mapping[str, Any]
) -> tuple[Spec, tuple[Spec, ...]]:
    """The same specs with other hyperparameters."""
    known = hyperparameters(algorithm, wrappers)
    for name, value in values.items():
        if name not in known:
            raise unknown("hyperparameter", name, known, f"There are {', '.join(known)}.")
        if name in find("algorithm", ALGORITHMS, algorithm.name).parameters:
            algorithm = _with(algorithm, [name], value)
        else:
            first, *path = name.split(".")
            wrappers = [_with(w, path, value) if w.name == first else w for w in wrappers]
    return algorithm, tuple(wrappers)


def _of(prefix: str, recipe: Recipe, spec: Spec) -> dict[str, Hyperparameter]:
    found = {}
    for key, parameter in recipe.parameters.items():
        value = spec.arguments.get(key, parameter.default)
        found[prefix + key] = Hyperparameter(value, parameter.kind != NUMBER)
        part = part_of(value)
        if parameter.choices and part:
            inner = find(parameter.choices.kind, parameter.choices.recipes, part.name)
            found |= _of(f"{prefix}{key}.", inner, part)
    return found


def _with(spec: Spec, path: list[str], value: Any) -> Spec:
    key, *rest = path
    if rest:
        inner = part_of(spec.arguments[key])
        assert inner is not None  # a name of `hyperparameters` leads through parts
        value = _with(inner, rest, value)
    return Spec(spec.name, {**spec.arguments, key: value})
