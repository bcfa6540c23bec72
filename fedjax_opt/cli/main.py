"""The command `fedjax-opt`: parses, makes every CPU core a device, and runs."""

import argparse
import os
import re
import sys
from collections.abc import Sequence

import fedjax_opt as fo
from fedjax_opt.cli import (
    data,
    demo,
    experiments,
    export,
    launch,
    listing,
    plan,
    report,
    together,
)
from fedjax_opt.experiments.specs import unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    try:
        options = _parse(sys.argv[1:] if arguments is None else list(arguments))
        if getattr(options, "joins", True):
            fo.use_cpu_devices()
            together.join(options.chosen)
        status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever reads, `head` for one, has seen enough; nor may the interpreter flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        # The library names the argument, its value and what is allowed, or what is to be installed:
        # that is all a user needs.
        print(f"fedjax-opt: {error}", file=sys.stderr)
        together.leave(2)
        return 2
    except KeyboardInterrupt as error:
        print("\nfedjax-opt: interrupted", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # At once: an interpreter that tidies up while XLA still computes can crash.
        os._exit(error.exit_code if isinstance(error, fo.Interrupted) else 130)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedjax-opt", description="Federated optimisation in JAX, from the command line."
    )
    parser.add_argument("--version", action="version", version=f"fedjax_opt {fo.__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="chosen"
    )
    for command in (demo, experiments, export, report, listing, plan, data, launch):
        command.add_parser(commands)
    if arguments and arguments[0][:1] != "-" and arguments[0] not in commands.choices:
        raise unknown("command", arguments[0], commands.choices, "`fedjax-opt --help` shows all.")
    options, rest = parser.parse_known_args(arguments)
    if rest:
        word = rest[0].partition("=")[0]
        what = "option" if word.startswith("-") else "argument"
        known = re.findall(r"--[a-z][a-z-]*", commands.choices[options.chosen].format_help())
        raise unknown(what, word, known, f"`fedjax-opt {options.chosen} --help` shows all.")
    return options
