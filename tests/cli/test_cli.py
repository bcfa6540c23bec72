"""The command line as a user meets it: but for wrong input, each test starts a process of its own."""

import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import tomllib

import pytest

import fedjax_opt as fo
from fedjax_opt.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = "import sys; from fedjax_opt.cli import main; sys.exit(main())"
TINY = ("--rounds", "4", "--clients", "10", "--cohort-size", "2", "--local-steps", "2")


def _start(arguments, folder, command=COMMAND):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-c", command, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(arguments, folder, command=COMMAND):
    """Exit status, standard output and standard error."""
    process = _start(arguments, folder, command)
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output, errors


def test_help_names_the_commands(tmp_path):
    """`--help` is an answer: it goes to standard output, and is no failure."""
    status, output, errors = _run(["--help"], tmp_path)
    assert (status, errors) == (0, "")
    assert "fedjax-opt" in output
    assert "demo" in output


def test_help_of_the_demo_gives_the_defaults(tmp_path):
    """Every option is listed with what it is when left out."""
    status, output, errors = _run(["demo", "--help"], tmp_path)
    assert (status, errors) == (0, "")
    for option in ("rounds", "clients", "cohort-size", "local-steps", "batch-size", "alpha"):
        assert f"--{option}" in output
    assert "(default: fedjax_opt_demo.png)" in output


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path):
    """As with `fedjax-opt data list | head -1`."""
    with _start(["data", "list"], tmp_path) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, "")


def test_version(tmp_path):
    """The version is the package's."""
    status, output, errors = _run(["--version"], tmp_path)
    assert (status, errors) == (0, "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert output == f"fedjax_opt {project['version']}\n"


def _table(output):
    """The rows of the printed table by algorithm, cells apart."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: row[1:] for row in rows if row and row[0] in ("FedAvg", "FedGBO", "SCAFFOLD")}


def test_demo_prints_a_table_and_saves_a_plot(tmp_path):
    """Three algorithms with accuracies and costs, and a picture where it was asked for."""
    picture = tmp_path / "new folder" / "curves.png"
    arguments = ["demo", *TINY, "--target", "0.01", "--output", picture]
    status, output, errors = _run(arguments, tmp_path)
    assert (status, errors) == (0, "")
    rows = _table(output)
    assert list(rows) == ["FedAvg", "FedGBO", "SCAFFOLD"]
    for last, _, _, best, reached, up, down, *_ in rows.values():
        assert 0.0 <= float(last.removesuffix("%")) <= float(best.removesuffix("%")) <= 100.0
        assert reached == "4"  # the only evaluation, and the target is below chance
        assert min(float(up), float(down)) > 0
    # SCAFFOLD's control variates travel beside the model.
    assert float(rows["SCAFFOLD"][5]) > float(rows["FedAvg"][5])
    assert str(picture) in output
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > 800 and height > 400 and len(content) > 10_000


def test_demo_without_matplotlib_says_what_is_missing(tmp_path):
    """The table is printed all the same; the picture is not, and the reason is."""
    command = f"import sys; sys.modules['matplotlib'] = None; {COMMAND}"
    arguments = ["demo", *TINY, "--target", "1", "--output", "curves.png"]
    status, output, errors = _run(arguments, tmp_path, command)
    assert (status, errors) == (0, "")
    assert list(_table(output)) == ["FedAvg", "FedGBO", "SCAFFOLD"]
    assert "not reached" in output
    assert "No plot. Plots need matplotlib: pip install" in output
    assert not (tmp_path / "curves.png").exists()


# What is typed, and what the message must name.
WRONG = [
    ([], "COMMAND"),
    (["train"], "train"),
    (["demo", "--round-count", "3"], "--round-count"),
    (["demo", "--rounds", "many"], "--rounds"),
    (["demo", "--rounds", "0"], "rounds must be"),
    (["demo", "--clients", "10", "--cohort-size", "11"], "cohort must"),
    (["demo", "--clients", "0"], "clients"),
    (["demo", "--clients", "100000"], "clients"),
    (["demo", "--alpha", "-1"], "alpha"),
    (["demo", "--alpha", "nan"], "alpha"),
    (["demo", "--batch-size", "0"], "batch_size must be"),
    (["demo", "--local-steps", "0"], "local_steps must be"),
    (["demo", "--seeds", "0"], "seeds must be"),
    (["demo", "--target", "1.1"], "--target"),
    (["demo", "--target", "nan"], "--target"),
    (["demo", "--output", "curves.foo"], "--output must end in"),
    (["demo", "--output", "/proc/curves.png"], "--output must be a file that can be written"),
]


@pytest.mark.parametrize(
    ("arguments", "named"), WRONG, ids=[" ".join(typed) or "nothing" for typed, _ in WRONG]
)
def test_wrong_input_is_named_and_is_no_crash(arguments, named, tmp_path, monkeypatch, capsys):
    """Status 2, as for every wrong use of a command; the argument's name; no traceback."""
    monkeypatch.setattr(fo, "use_cpu_devices", lambda: None)  # JAX has started already
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as ending:
        status = ending.code
    errors = capsys.readouterr().err
    assert status == 2
    assert named in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal on POSIX systems")
def test_ctrl_c_ends_quietly(tmp_path):
    """An interrupted run says so in one line, and its status is a shell's for SIGINT."""
    # A test that runs in the background inherits an ignored SIGINT; a person's terminal has none.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    process = _start(["demo", "--rounds", "1000000"], tmp_path, heed + COMMAND)
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    try:
        # Its first line is printed when the training is about to begin.
        assert process.stdout.readline().startswith("Digits:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130
    # On a line of its own, below a progress bar.
    assert errors == "\nfedjax-opt: interrupted\n"
