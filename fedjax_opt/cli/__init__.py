"""The command line, `fedjax-opt`."""

from fedjax_opt.cli.main import main as main
