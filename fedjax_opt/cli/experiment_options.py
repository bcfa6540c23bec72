"""The options of `fedjax-opt run`, `sweep` and `compare`: the keys of a configuration file, as flags."""

import argparse
import pathlib
import shlex
import tomllib
from typing import Any

from fedjax_opt.cli import units
from fedjax_opt.experiments.config import from_options, from_toml, help_of, shown, to_options
from fedjax_opt.experiments.experiment import DEFAULTS, DRIFT, FIELDS, Experiment
from fedjax_opt.experiments.names import KINDS, WORD, WORDS
from fedjax_opt.experiments.specs import Spec, parse_value

_POSITIONAL = ("task", "algorithms")
# Keys whose flags are called otherwise, and take a rate with its unit.
_RATES = {"download_mbps": "--download", "upload_mbps": "--upload"}
# What `run` refuses, with a word on what to use instead: its help does not offer it.
_OF_A_SEARCH = ("grid", "samples", "search_seed", "criterion")
# What a command takes where neither a flag nor a file says anything.
_DEFAULTS = {"compare": {"diagnostics": list(DRIFT)}}

_GRID = (
    "Values to try of a hyperparameter; once for each of them: --grid learning_rate=0.1,0.3 --grid"
    " mu=0.01,0.1. Of a wrapper: clipped.max_norm=1,10; of one algorithm alone: label:learning_rate=0.1;"
    " or of the federation: local_steps, local_epochs, cohort, batch_size, batching, weighting. With"
    " --samples also a range: 'learning_rate=loguniform(0.001,1)'."
)


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Adds what says what to run, where results go, and what devices to imagine."""
    parser.add_argument("task", nargs="?", metavar="TASK", help=_help("task"))
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help=_help("algorithms"))
    add_data_options(parser)
    described = parser.add_argument_group("what is run (in a file: the same names with _ for -)")
    for name in FIELDS:
        if name not in (*_POSITIONAL, *_RATES):
            described.add_argument(
                _flag(name),
                dest=f"key_{name}",
                action="append",
                metavar="NAME=VALUES" if name == "grid" else name.split("_")[-1].upper(),
                help=argparse.SUPPRESS
                if command == "run" and name in _OF_A_SEARCH
                else _help(name) + _default(command, name),
            )
    for name in _RATES:
        described.add_argument(
            _flag(name), dest=f"key_{name}", metavar="RATE", action="append",
            help=f"{_help(name)} Here with a unit, such as 20Mbit/s or 2.5MB/s; in a file {name}.",
        )  # fmt: skip
    described.add_argument(
        "--config",
        type=pathlib.Path,
        metavar="FILE",
        help="a TOML file that says all of this; whatever is given beside it takes its place",
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="DIR",
        help="where results go: a new directory, or one in which the same run is to be continued"
        " (default: a new one in runs/)",
    )
    results.add_argument(
        "--print-config",
        action="store_true",
        help="print the TOML file that says the same, and end",
    )
    results.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would run, its memory, operations, bytes and an estimate of its time, and end",
    )


def _of_own_data() -> dict[str, str]:
    """The arguments of `from_files` that options give, with what each means."""
    known = KINDS["task"]["from_files"].parameters
    return {
        name: p.help.replace("%", "%%") for name, p in known.items() if name not in ("path", "seed")
    }


def add_data_options(parser: argparse.ArgumentParser, tasks: str = "") -> None:
    """Adds what says which data are learned on.

    Args:
      parser: of the command.
      tasks: what else `--task` may name there.
    """
    own = parser.add_argument_group("own data")
    own.add_argument(
        "--data", metavar="FILE",
        help="CSV, Parquet, .npz, a folder of images by class, or a saved Hugging Face data set",
    )  # fmt: skip
    for name, about in _of_own_data().items():
        own.add_argument(
            f"--{name.replace('_', '-')}", dest=f"own_{name}", metavar="VALUE", help=about
        )
    own.add_argument(
        "--task", dest="own_task", metavar="FUNCTION",
        help=f"{tasks}package.module:function that returns a Federation, or any task with its arguments",
    )  # fmt: skip


def data_task(options: argparse.Namespace) -> str | None:
    """The text of the task that `add_data_options` were given for; None if none was."""
    own = {name: getattr(options, f"own_{name}") for name in _of_own_data()}
    given = {name: text for name, text in own.items() if text is not None}
    if options.data is None and given:
        raise ValueError(
            f"--{min(given).replace('_', '-')} is of own data: give --data FILE as well."
        )
    if options.data is not None and options.own_task is not None:
        raise ValueError("--data and --task both say what is learned on: give one of them.")
    if options.data is None:
        return options.own_task
    kinds = KINDS["task"]["from_files"].parameters
    arguments: dict[str, Any] = {"path": options.data}
    for name, text in given.items():
        # A word is a word: a column may be called 1, and a split has arguments of its own.
        if kinds[name].kind == WORDS:
            arguments[name] = tuple(part.strip() for part in text.split(","))
        else:
            arguments[name] = text if kinds[name].kind == WORD else parse_value(text)
    return str(Spec("from_files", arguments))


def _task_of(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    """The task and the algorithms: with own data every word is an algorithm, else the first the task."""
    task = data_task(options)
    if task is None:
        return options.task, options.algorithms
    return task, [*([] if options.task is None else [options.task]), *options.algorithms]


def _flag(name: str) -> str:
    return _RATES.get(name, f"--{name.replace('_', '-')}")


def _help(name: str) -> str:
    if name == "grid":
        return _GRID
    return help_of(name).replace("%", "%%")


def _default(command: str, name: str) -> str:
    """What an option is where it is left out; a key whose default is None says so itself."""
    value = _DEFAULTS.get(command, {}).get(name, DEFAULTS[name])
    return f" (default: {shown(value)[0]})" if value or value == 0 else ""


def read_experiment(options: argparse.Namespace) -> Experiment:
    """What the flags say, or the file, or both."""
    texts = {
        name: value
        for name in FIELDS
        if name not in _POSITIONAL and (value := getattr(options, f"key_{name}")) is not None
    }
    for name in _RATES.keys() & texts.keys():
        texts[name] = [repr(units.parse(_flag(name), text, "rate")) for text in texts[name]]
    task, words = _task_of(options)
    if task is not None:
        texts["task"] = [task]
    if words:
        texts["algorithms"] = words
    usual = _DEFAULTS.get(options.command, {})
    if options.config is None:
        return from_options(usual | texts)
    try:
        written = options.config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--config must be a TOML file that can be read: {error}.") from error
    experiment = from_toml(written, str(options.config))
    texts = {
        name: text for name, text in usual.items() if name not in tomllib.loads(written)
    } | texts
    return from_options(texts, experiment) if texts else experiment


def command_line(command: str, experiment: Experiment, output: Any = None) -> str:
    """The command that runs an experiment."""
    texts = to_options(experiment)
    for name in _DEFAULTS.get(command, {}):  # which another value, or none, takes the place of
        texts[name] = shown(getattr(experiment, name))
    words = ["fedjax-opt", command, *texts.pop("task"), *texts.pop("algorithms")]
    for name, values in texts.items():
        for value in values:
            words += [_flag(name), f"{value}Mbit/s" if name in _RATES else value]
    if output is not None:
        words += ["--output", str(output)]
    return shlex.join(words)
