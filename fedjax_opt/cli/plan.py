"""`fedjax-opt plan`: how many local steps, which learning rate, how long, how many bytes.

Quantities carry their units: --model-size 6.71Mbit (or 850kB), --upload 5Mbit/s. There are five
ways to say what is known of the problem:

  --task femnist
      a task of the paper, on a Raspberry Pi 3B+ over 4G
  --data letters.csv --client user --label y, or --task "digits(num_clients=50)"
      own data, or any federation: what travels and is computed is derived from its model, and K is as it
      is now (with --eta0, both were good)
  --k0 80 --eta0 0.3 --k0-rounds 10000
      a K and an eta that were good in a run of so many rounds
  --smoothness 4 --strong-convexity 0.1 --initial-loss 4.1 --gradient-bound 2
      the constants of the bound
  --k0 80
      only a K: what it costs, without any theory
"""

import argparse
import json
import math
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fedjax_opt as fo
from fedjax_opt.cli.experiment_options import add_data_options, data_task
from fedjax_opt.cli.files import check_plot_path
from fedjax_opt.cli.plan_options import add_options
from fedjax_opt.cli.units import parse
from fedjax_opt.core import checks
from fedjax_opt.experiments.names import KINDS, load_task, suggested_for
from fedjax_opt.experiments.specs import parse as parse_spec
from fedjax_opt.experiments.specs import unknown
from fedjax_opt.planning.problem import problem_of

_USAGE = """fedjax-opt plan --task NAME [--hours H] [options]
       fedjax-opt plan --data FILE [--client COLUMN] --label COLUMN --hours H [options]
       fedjax-opt plan --model-size SIZE --download RATE --upload RATE --step-seconds T
                       --cohort N --hours H --k0 K [options]
       fedjax-opt plan --help"""
_CONSTANTS = ("smoothness", "strong_convexity", "initial_loss", "gradient_bound")
_FURTHER = ("optimal_loss", "noise", "heterogeneity")
_FLEET = 1000  # devices that stand for all clients where they differ
_PENALTY = 0.01
# What an argument of `plan` is called here.
_OPTIONS = {
    "--output": "--plot",
    "download_mbps": "--download",
    "upload_mbps": "--upload",
    "seconds_per_step": "--step-seconds",
    "joules_per_second": "--watts",
    "joules_per_byte_down": "--joules-per-megabyte",
    "seconds": "--hours",
    "total_bytes": "--total-bytes",
    "client_bytes": "--client-bytes",
    "cohort_size": "--cohort",
    "num_clients": "--clients",
    "learning_rate": "--learning-rate",
    "local_steps": "--k0",
    "max_local_steps": "--max-local-steps",
    "plateau_round": "--plateau-round",
    "rounds": "--rounds",
    "client_variance": "--client-variance",
    "constants.local_steps": "--k0",
    "constants.learning_rate": "--eta0",
    "constants.rounds": "--k0-rounds",
} | {f"constants.{name}": f"--{name.replace('_', '-')}" for name in (*_CONSTANTS, *_FURTHER)}


class _Task(NamedTuple):
    """What is planned for: megabits, speeds, clients, and what was good, if that is known."""

    title: str
    down: float
    up: float
    devices: Any
    num_clients: int
    cohort_size: int
    local_steps: int
    learning_rate: float | None
    num_classes: int | None
    rounds: int


_PAPER = {
    name.lower(): _Task(
        f"{name} ({task.model})", task.model_megabits, task.model_megabits, task.devices,
        task.num_clients, task.cohort_size, task.local_steps, task.learning_rate, task.num_classes,
        10_000,
    )
    for name, task in fo.planning.paper_tasks().items()
}  # fmt: skip


class _Known(NamedTuple):
    """What is known of the problem: constants, or a K, and where that is from."""

    constants: Any
    local_steps: int | None
    origin: str


def add_parser(commands: Any) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "plan",
        help="local steps, learning rate, time and bytes for a model, its links and a budget",
        description=__doc__,
        usage=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # '-5Mbit/s' is a value, and a wrong one, rather than an option that is not known.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    add_data_options(parser, "a task of the paper (sent140, femnist, cifar100, shakespeare), ")
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plans, and prints the table or JSON; saves the plot where one is asked for."""
    try:
        if options.plot:
            check_plot_path(options.plot)
        title, plan, origin = _plan(options)
    except ValueError as error:
        raise ValueError(_in_words_of_the_command(str(error))) from error
    if options.json:
        print(json.dumps({"title": title} | fo.planning.as_dict(plan), indent=2))
    else:
        print(fo.planning.table(plan, title, origin))
    if options.plot:
        try:
            fo.planning.save_plot(plan, options.plot, title)
        except ImportError:
            missing = "--plot needs matplotlib: pip install 'fedjax_opt[bench]'."
            raise ValueError(missing) from None
        if not options.json:
            print(f"\nPlot: {options.plot}")
    return 0


def _plan(options):
    task = _task(options)
    down = _quantity(options, "model_size", "size", task and task.down)
    up = _quantity(
        options, "upload_size", "size", down if options.model_size or not task else task.up
    )
    sizes = _cohort(options.cohort, task)
    clients = options.clients if options.clients is not None else task and task.num_clients
    devices = _devices(options, task, clients, max(sizes or [1]))
    known = _known(options, task, max(sizes or [1]))
    if options.hours is not None:
        checks.number("--hours", options.hours, low=0.0, open_low=True)
    seconds = None if options.hours is None else 3600 * options.hours
    total, each = (
        None if text is None else parse(f"--{name}-bytes", text, "size") * 125_000
        for name, text in (("total", options.total_bytes), ("client", options.client_bytes))
    )
    rounds = options.rounds
    if (seconds, rounds, total, each) == (None,) * 4:
        if task is None:
            raise ValueError(
                "a budget is missing: --hours H, --rounds R, --total-bytes SIZE (all clients"
                " together) or --client-bytes SIZE (each client)."
            )
        rounds = options.k0_rounds or task.rounds
    plan = fo.plan(
        (down, up),
        devices,
        constants=known.constants,
        local_steps=known.local_steps,
        client_variance=options.client_variance,
        seconds=seconds,
        rounds=rounds,
        total_bytes=total,
        client_bytes=each,
        cohort_size=sizes,
        num_clients=clients,
        learning_rate=options.learning_rate,
        plateau_round=options.plateau_round,
        max_local_steps=options.max_local_steps,
        energy=_energy(options),
    )
    title = "Federated training" if task is None else task.title
    if task and not (options.download or options.upload or options.step_seconds):
        title += " on a Raspberry Pi 3B+ over 4G"
    return title, plan, known.origin


def _task(options) -> _Task | None:
    """A task of the paper, or the digits as if they were one, or any federation; None without."""
    text = data_task(options)
    if options.estimate:
        if text is not None:
            raise ValueError(
                "--estimate is about the digits, and --task about another task: give one."
            )
        steps = _PAPER["sent140"]
        size = 650 * 32e-6
        return steps._replace(
            title="Digits (logistic regression)", num_classes=10, down=size, up=size,
            num_clients=20, cohort_size=5,
        )  # fmt: skip
    if text is None or text.lower() in _PAPER:
        return None if text is None else _PAPER[text.lower()]
    if text.isidentifier() and text not in KINDS["task"]:
        names = dict.fromkeys([*_PAPER, *KINDS["task"]])
        raise unknown("--task", text, names, f"There are {', '.join(names)}.")
    spec = parse_spec(text)
    federation = load_task(spec).federation
    found = problem_of(federation)
    name = pathlib.Path(spec.arguments.get("path", spec.name.rpartition(":")[2])).stem
    return _Task(
        f"{name} ({found.num_clients} clients)", *found.model_megabits, found.devices, found.num_clients,
        found.cohort_size, found.local_steps or 1, None, None, suggested_for(spec).rounds,
    )  # fmt: skip


def _quantity(options, name, kind, default):
    text, option = getattr(options, name), f"--{name.replace('_', '-')}"
    if text is not None:
        return parse(option, text, kind, bare=name == "step_seconds")
    if default is None:
        raise ValueError(
            f"{option} is missing. Give it, or one of the paper's tasks, as in: fedjax-opt plan --task"
            " femnist --hours 10"
        )
    return default


def _cohort(text, task):
    """The cohort sizes to compare; None for that of the constants."""
    if text is None:
        return [task.cohort_size] if task else None
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(
            f"--cohort must be a whole number, or several with commas between, got {text!r}."
        )
    return [int(part) for part in text.split(",")]


def _devices(options, task, clients, largest_cohort):
    values = [
        _quantity(options, name, kind, task and getattr(task.devices, field))
        for name, kind, field in (
            ("download", "rate", "download_mbps"),
            ("upload", "rate", "upload_mbps"),
            ("step_seconds", "time", "seconds_per_step"),
        )
    ]
    checks.number("--spread", options.spread, low=1.0, open_high=True)
    if options.spread == 1:
        return fo.costs.devices(*values)
    count = _FLEET if clients is None else min(clients, _FLEET)
    count = max(count, largest_cohort)
    drawn = [fo.costs.lognormal(value, options.spread) for value in values]
    return fo.costs.draw_devices(jax.random.key(0), count, *drawn)


def _known(options, task, cohort_size):
    given = {
        name: getattr(options, name)
        for name in (*_CONSTANTS, *_FURTHER)
        if getattr(options, name) is not None
    }
    if options.estimate:
        if given:
            raise ValueError(f"--estimate and --{next(iter(given)).replace('_', '-')}: give one.")
        return _Known(_estimated(cohort_size), options.k0, "estimated from the digits")
    if given:
        missing = [name for name in _CONSTANTS if name not in given]
        if missing:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise ValueError(
                f"the bound needs all of its constants; missing: {names}. Where they are not known,"
                " give a K and an eta that were good in some run: --k0, --eta0 and --k0-rounds."
            )
        constants = fo.bounds.FedAvgConstants(cohort_size=cohort_size, **given)
        return _Known(constants, options.k0, "")
    steps = options.k0 if options.k0 is not None or task is None else task.local_steps
    rate = options.eta0 if options.eta0 is not None or task is None else task.learning_rate
    if steps is not None and rate is not None:
        run = fo.planning.TunedRun(
            local_steps=steps,
            learning_rate=rate,
            rounds=options.k0_rounds if options.k0_rounds is not None else 10_000,
            cohort_size=task.cohort_size if task else cohort_size,
            initial_loss=math.log(task.num_classes) if task and task.num_classes else 1.0,
        )
        return _Known(run, None, "kappa = 10 is assumed, and scales the bound")
    if steps is None:
        raise ValueError(
            "K cannot be chosen. Give the bound's constants (--smoothness, --strong-convexity,"
            " --initial-loss, --gradient-bound), or a K that was found good (--k0; better with --eta0"
            " and --k0-rounds), or a task of the paper (--task)."
        )
    return _Known(None, steps, "")


def _estimated(cohort_size):
    """The constants of logistic regression with a penalty, on the digits of 20 unlike clients."""
    train, _ = fo.data.load_digits()
    data = fo.ClientData.from_arrays(train, fo.data.dirichlet(train["y"], 20, alpha=0.3))
    plain = fo.models.mlp([], num_classes=10)

    def loss(variables, batch, key):
        value, aux = plain.loss(variables, batch, key)
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(variables.params))
        return value + _PENALTY / 2 * squares, aux

    return fo.bounds.estimate_constants(
        fo.Model(plain.init, loss), data, plain.init(jax.random.key(0), data[0]),
        batch_size=8, cohort_size=min(cohort_size, 20), strong_convexity=_PENALTY,
        lower_bound=0.0, tolerance=1e-4,
    ).constants  # fmt: skip


def _energy(options):
    if options.watts is None and options.joules_per_megabyte is None:
        return None
    each = (options.joules_per_megabyte or 0.0) / 1e6
    return fo.costs.EnergyRates(
        joules_per_second=options.watts or 0.0, joules_per_byte_down=each, joules_per_byte_up=each
    )


def _in_words_of_the_command(message):
    """The same message with the option's name for the argument's."""
    name, space, rest = message.partition(" ")
    return f"{_OPTIONS.get(name, name)}{space}{rest}"
