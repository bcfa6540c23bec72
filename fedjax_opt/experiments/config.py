"""An experiment as a file, and as the options of a command: both can say the same.

            a file                                  options
task        "digits(num_clients=50)"                digits(num_clients=50)
algorithms  ["fedavg", "slow: fedprox(mu=1)"]       fedavg   slow: fedprox(mu=1)
seeds       [0, 1, 2]                               0,1,2
grid        learning_rate = [0.1, 0.3]              learning_rate=0.1,0.3
            mu = "loguniform(0.001, 1.0)"           mu=loguniform(0.001, 1.0)
"""

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_opt.experiments.experiment import (
    DEFAULTS,
    FIELDS,
    SETTINGS,
    Experiment,
    Member,
    check,
    kind_of,
    parse_member,
)
from fedjax_opt.experiments.rundir import toml_lines, toml_value
from fedjax_opt.experiments.search import RANGE, Range, parse_range
from fedjax_opt.experiments.specs import Spec, format_value, parse, parse_value, unknown

# A type, and what it is called: one, and several.
_CALLED = {
    int: ("a whole number", "a list of whole numbers, such as [0, 1, 2]"),
    float: ("a number", ""),
    str: ("a word", "a list of words"),
    Spec: ("a text, 'name' or 'name(key=value)'", ""),
    Member: ("", "a list of texts, such as ['fedavg', 'slow: fedavg(learning_rate=0.01)']"),
    Mapping: ("a table of hyperparameters that is not empty, each with a list of values or, in a random"
              " search, a range such as 'loguniform(0.001, 1)'", ""),
}  # fmt: skip


def _called(name: str) -> str:
    kind, several = kind_of(name)
    return _CALLED[kind][several]


# --- files ----------------------------------------------------------------------------------------


def to_toml(experiment: Experiment) -> str:
    """The experiment as a TOML file that explains itself.

    Args:
      experiment: what is to be run.

    Returns:
      A text from which `from_toml` makes the same experiment.

    Example:
      >>> from fedjax_opt.experiments import Experiment, parse, parse_member, to_toml
      >>> text = to_toml(Experiment(parse("digits"), (parse_member("fedavg"),), rounds=50))
      >>> [line for line in text.splitlines() if line.startswith("rounds")]
      ['rounds = 50']
    """
    parts = []
    for name in FIELDS:
        comment = textwrap.fill(help_of(name), 96, initial_indent="# ", subsequent_indent="# ")
        parts.append(f"{comment}\n{_entry(name, getattr(experiment, name))}\n")
    return "\n".join(parts)


def help_of(name: str) -> str:
    """What a field means, and its choices."""
    meaning, choices, _ = FIELDS[name]
    return meaning + f" Choices: {', '.join(choices)}." * bool(choices)


def _entry(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    if isinstance(value, Mapping):
        table = {key: _held(axis) for key, axis in value.items()}
        return "\n".join([f"[{name}]", *toml_lines(table)]) if table else f"# [{name}]"
    kind, several = kind_of(name)
    if kind in (Spec, Member):
        value = list(map(str, value)) if several else str(value)
    return f"{name} = {toml_value(value)}"


def _held(axis: Any) -> Any:
    """What a file has for the values of a hyperparameter."""
    if isinstance(axis, Range):
        return str(axis)
    # Words, lists and specs are texts of their own, so that 'true' and true stay two things.
    return [v if isinstance(v, (int, float)) else format_value(v) for v in axis]


def from_toml(text: str, where: str = "config") -> Experiment:
    """Reads an experiment from TOML.

    Args:
      text: the file's text.
      where: the file's name, for messages.

    Returns:
      An `Experiment` that `check` has seen. What is not right is refused by its key.

    Example:
      >>> from fedjax_opt.experiments import from_toml
      >>> experiment = from_toml('''
      ... task = "digits"
      ... algorithms = ["fedavg", "fedprox(mu=0.1)"]
      ... seeds = [0, 1, 2]
      ... [grid]
      ... learning_rate = [0.1, 0.3]
      ... ''')
      >>> experiment.algorithms[1].label
      'fedprox'
    """
    try:
        found = tomllib.loads(text)
        return _complete({name: _read(name, held) for name, held in _known(found)})
    except ValueError as error:  # of TOML's own, too
        raise ValueError(f"{where}: {error}") from None


def _read(name: str, held: Any) -> Any:
    """The value of a field, from what a file has."""
    kind, several = kind_of(name)
    try:
        if kind is Mapping:
            return _read_grid(held)
        if not several:
            return _read_one(kind, held)
        if not isinstance(held, (list, tuple)):
            raise TypeError
        return tuple(_read_one(kind, one) for one in held)
    except TypeError:
        raise ValueError(f"{name} must be {_called(name)}, got {held!r}.") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_one(kind: Any, held: Any) -> Any:
    if kind in (Spec, Member):
        text = _read_one(str, held)
        return parse(text) if kind is Spec else parse_member(text)
    allowed = (float, int) if kind is float else kind
    if not isinstance(held, allowed) or isinstance(held, bool):
        raise TypeError
    return kind(held)


def _read_grid(held: Any) -> dict[str, tuple[Any, ...] | Range]:
    if not isinstance(held, Mapping) or not held:
        raise TypeError
    found: dict[str, tuple[Any, ...] | Range] = {}
    for name, axis in held.items():
        if isinstance(axis, str):
            found[name] = parse_range(axis)
        elif isinstance(axis, list) and all(isinstance(v, (int, float, str)) for v in axis):
            found[name] = tuple(parse_value(v) if isinstance(v, str) else v for v in axis)
        else:
            raise TypeError
    return found


# --- options --------------------------------------------------------------------------------------


def to_options(experiment: Experiment) -> dict[str, list[str]]:
    """The experiment as texts by key, as a user would type them behind `--key`.

    Args:
      experiment: what is to be run.

    Returns:
      One text or several for each field that is not left at its default.

    Example:
      >>> from fedjax_opt.experiments import Experiment, parse, parse_member, to_options
      >>> to_options(Experiment(parse("digits"), (parse_member("fedavg"),), seeds=(0, 1, 2)))
      {'task': ['digits'], 'algorithms': ['fedavg'], 'seeds': ['0,1,2']}
    """
    values = {name: getattr(experiment, name) for name in FIELDS}
    return {
        name: shown(v) for name, v in values.items() if name not in DEFAULTS or v != DEFAULTS[name]
    }


def shown(value: Any) -> list[str]:
    """The texts of an option."""
    if isinstance(value, Mapping):
        texts = {k: str(v) if isinstance(v, Range) else _joined(v) for k, v in value.items()}
        return [f"{name}={text}" for name, text in texts.items()]
    if isinstance(value, (str, Spec)):
        return [str(value)]
    if isinstance(value, (tuple, list)):
        members = any(isinstance(one, Member) for one in value)
        return list(map(str, value)) if members else [_joined(value)]
    return [format_value(value)]


def _joined(values: Sequence[Any]) -> str:
    return ",".join(map(format_value, values))


def from_options(
    options: Mapping[str, Sequence[str]], base: Experiment | None = None
) -> Experiment:
    """Reads an experiment from the options of a command.

    Args:
      options: texts by key; a key that is not there is left at its default.
      base: an experiment of which only these fields change, as that of a file.

    Returns:
      An `Experiment` that `check` has seen.

    Example:
      >>> from fedjax_opt.experiments import from_options
      >>> experiment = from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> from_options({"rounds": ["20"], "seeds": ["0,1"]}, experiment).seeds
      (0, 1)
    """
    values = {name: _read(name, _of_texts(name, texts)) for name, texts in _known(options)}
    if base is None:
        return _complete(values)
    if any(name in values for name in SETTINGS):  # one of them takes the place of the other
        base = base.replace(**dict.fromkeys(SETTINGS))
    return _complete({name: getattr(base, name) for name in FIELDS} | values)


def _of_texts(name: str, texts: Sequence[str]) -> Any:
    """What a file has for the texts of an option."""
    kind, several = kind_of(name)
    try:
        if kind is Member:
            return list(texts)
        if kind is Mapping:
            return _split_grid(texts)
        if several:
            return list(parse_value(f"[{','.join(texts)}]"))
        if len(texts) == 1:
            return texts[0] if kind in (str, Spec) else parse_value(texts[0])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    raise ValueError(f"{name} must be {_called(name)}, got {' '.join(texts)!r}.")


def _split_grid(texts: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ValueError(f"expected hyperparameter=value,value, got {text!r}.")
        if not RANGE.fullmatch(values):
            listed = values if values.startswith("[") else f"[{values}]"
            values = _held(parse_value(listed))
        if name in found:
            raise ValueError(f"{name} is given twice: give all of its values at once.")
        found[name] = values
    return found


def _known(found: Mapping[str, Any]) -> Any:
    for name in found:
        if name not in FIELDS:
            raise unknown("key", name, FIELDS, f"There are {', '.join(FIELDS)}.")
    return found.items()


def _complete(values: dict[str, Any]) -> Experiment:
    for name, field in FIELDS.items():
        if name not in values and name not in DEFAULTS:
            raise ValueError(f"{name} is missing. {field.help}")
    return check(Experiment(**values))
