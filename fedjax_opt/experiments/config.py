"""An experiment as a file, and as the options of a command: both can say the same."""

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_opt.experiments.checking import check as check
from fedjax_opt.experiments.experiment import SETTINGS as SETTINGS
from fedjax_opt.experiments.experiment import Experiment as Experiment
from fedjax_opt.experiments.experiment import Member as Member
from fedjax_opt.experiments.experiment import format_range as format_range
from fedjax_opt.experiments.experiment import parse_member as parse_member
from fedjax_opt.experiments.experiment import parse_range as parse_range
from fedjax_opt.experiments.keys import KEYS as KEYS
from fedjax_opt.experiments.keys import read, show, split, write
from fedjax_opt.experiments.rundir import toml_lines, toml_value
from fedjax_opt.experiments.search import Range as Range
from fedjax_opt.experiments.specs import unknown

_REQUIRED = ("task", "algorithms")


def to_toml(experiment: Experiment) -> str:
    """The experiment as a TOML file that explains itself.

    Args:
      experiment: what is to be run.

    Returns:
      A text from which `from_toml` makes the same experiment.

    Example:
      >>> from fedjax_opt.experiments.config import Experiment, parse_member, to_toml
      >>> from fedjax_opt.experiments.specs import parse
      >>> text = to_toml(Experiment(parse("digits"), (parse_member("fedavg"),), rounds=50))
      >>> [line for line in text.splitlines() if line.startswith("rounds")]
      ['rounds = 50']
    """
    return "\n".join(
        f"{_comment(key.help, key.choices)}\n{_entry(name, getattr(experiment, name))}\n"
        for name, key in KEYS.items()
    )


def from_toml(text: str, where: str = "config") -> Experiment:
    """Reads an experiment from TOML.

    Args:
      text: the file's text.
      where: the file's name, for messages.

    Returns:
      An `Experiment` that `check` has seen. What is not right is refused by its key.

    Example:
      >>> from fedjax_opt.experiments.config import from_toml
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
        return _complete({name: read(name, held) for name, held in _known(tomllib.loads(text))})
    except ValueError as error:  # of TOML's own, too
        raise ValueError(f"{where}: {error}") from None


def to_options(experiment: Experiment) -> dict[str, list[str]]:
    """The experiment as texts by key, as a user would type them behind `--key`.

    Args:
      experiment: what is to be run.

    Returns:
      One text or several for each field that is not left at its default.

    Example:
      >>> from fedjax_opt.experiments.config import Experiment, parse_member, to_options
      >>> from fedjax_opt.experiments.specs import parse
      >>> to_options(Experiment(parse("digits"), (parse_member("fedavg"),), seeds=(0, 1, 2)))
      {'task': ['digits'], 'algorithms': ['fedavg'], 'seeds': ['0,1,2']}
    """
    defaults = Experiment._field_defaults
    values = {name: getattr(experiment, name) for name in KEYS}
    return {
        name: show(value)
        for name, value in values.items()
        if name not in defaults or value != defaults[name]
    }


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
      >>> from fedjax_opt.experiments.config import from_options
      >>> experiment = from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> from_options({"rounds": ["20"], "seeds": ["0,1"]}, experiment).seeds
      (0, 1)
    """
    values = {name: _from_texts(name, texts) for name, texts in _known(options)}
    if base is None:
        return _complete(values)
    if any(name in values for name in SETTINGS):  # one of them takes the place of the other
        base = base._replace(**dict.fromkeys(SETTINGS))
    return check(base._replace(**values))


def _from_texts(name: str, texts: Sequence[str]) -> Any:
    try:
        held = split(name, texts)
    except TypeError:
        called = KEYS[name].called
        raise ValueError(f"{name} must be {called}, got {' '.join(texts)!r}.") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return read(name, held)


def _known(found: Mapping[str, Any]) -> Any:
    for name in found:
        if name not in KEYS:
            raise unknown("key", name, KEYS, f"There are {', '.join(KEYS)}.")
    return found.items()


def _complete(values: dict[str, Any]) -> Experiment:
    for name in _REQUIRED:
        if name not in values:
            raise ValueError(f"{name} is missing. {KEYS[name].help}")
    return check(Experiment(**values))


def _comment(text: str, choices: Sequence[str]) -> str:
    if choices:
        text += f" Choices: {', '.join(choices)}."
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ")


def _entry(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    held = write(value)
    if not isinstance(held, dict):
        return f"{name} = {toml_value(held)}"
    if not held:
        return f"# [{name}]"
    return "\n".join([f"[{name}]", *toml_lines(held)])
