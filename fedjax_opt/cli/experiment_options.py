"""The options of `fedjax-opt run`, `sweep` and `compare`: the keys of a configuration file, as flags."""

import argparse
import pathlib
import shlex
from typing import Any

from fedjax_opt.cli import units
from fedjax_opt.experiments.config import KEYS, Experiment, from_options, from_toml, to_options
from fedjax_opt.experiments.pricing import Device

_DEVICE = Device()
_POSITIONAL = ("task", "algorithms")


def add_options(parser: argparse.ArgumentParser, one_algorithm: bool) -> None:
    """Adds what says what to run, where results go, and what devices to imagine."""
    parser.add_argument("task", nargs="?", metavar="TASK", help=KEYS["task"].help)
    if one_algorithm:
        parser.add_argument("algorithms", nargs="?", metavar="ALGORITHM", help=_help("algorithms"))
    else:
        parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help=_help("algorithms"))
    described = parser.add_argument_group("what is run (in a file: the same names with _ for -)")
    for name in KEYS:
        if name in _POSITIONAL:
            continue
        described.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"key_{name}",
            action="append" if name == "grid" else "store",
            metavar="NAME=VALUES" if name == "grid" else name.split("_")[-1].upper(),
            help=_help(name),
        )
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
    fleet = parser.add_argument_group("the clients' devices, for the simulated time")
    fleet.add_argument("--download", metavar="RATE", help="20Mbit/s by default")
    fleet.add_argument("--upload", metavar="RATE", help="5Mbit/s by default")
    fleet.add_argument(
        "--device-gflops", type=float, metavar="G",
        help=f"billions of operations a second ({_DEVICE.flops_per_second / 1e9:g} by default, a"
        " Raspberry Pi 3B+)",
    )  # fmt: skip


def _help(name: str) -> str:
    key = KEYS[name]
    choices = f" Choices: {', '.join(key.choices)}." if key.choices else ""
    return f"{key.help}{choices}".replace("%", "%%")


def read_experiment(options: argparse.Namespace) -> Experiment:
    """What the flags say, or the file, or both."""
    texts = {
        name: value if isinstance(value, list) else [value]
        for name in KEYS
        if name not in _POSITIONAL and (value := getattr(options, f"key_{name}")) is not None
    }
    if options.task is not None:
        texts["task"] = [options.task]
    algorithms = options.algorithms or []
    if algorithms:
        texts["algorithms"] = algorithms if isinstance(algorithms, list) else [algorithms]
    if options.config is None:
        return from_options(texts)
    try:
        written = options.config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--config must be a TOML file that can be read: {error}.") from error
    experiment = from_toml(written, str(options.config))
    return from_options(texts, experiment) if texts else experiment


def read_device(options: argparse.Namespace) -> Device:
    """The clients' device."""
    rates = {}
    for flag, name in (("download", "download_mbps"), ("upload", "upload_mbps")):
        if getattr(options, flag) is not None:
            rates[name] = units.parse(f"--{flag}", getattr(options, flag), "rate")
    if options.device_gflops is not None:
        if not options.device_gflops > 0:
            raise ValueError(f"--device-gflops must be above 0, got {options.device_gflops}.")
        rates["flops_per_second"] = options.device_gflops * 1e9
    return _DEVICE._replace(**rates)


def command_line(command: str, experiment: Experiment, output: Any = None) -> str:
    """The command that runs an experiment."""
    texts = to_options(experiment)
    words = ["fedjax-opt", command, *texts.pop("task"), *texts.pop("algorithms")]
    for name, values in texts.items():
        for value in values:
            words += [f"--{name.replace('_', '-')}", value]
    if output is not None:
        words += ["--output", str(output)]
    return shlex.join(words)
