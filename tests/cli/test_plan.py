"""`fedjax-opt plan` as a person uses it, in this process."""

import json
import math
import shlex
import struct
import sys

import jax
import jax.numpy as jnp
import pytest

import fedjax_opt as fo
from fedjax_opt.cli import main

LINK = "--model-size 6.71Mbit --download 20Mbit/s --upload 5Mbit/s --step-seconds 0.017"
CLIENTS = f"{LINK} --cohort 60 --hours 10"
CONSTANTS = "--smoothness 4 --strong-convexity 0.1 --initial-loss 4.1 --gradient-bound 2"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs the command; returns its status, standard output and standard error."""
    monkeypatch.setattr(fo, "use_cpu_devices", lambda: None)  # JAX has started already
    monkeypatch.chdir(tmp_path)

    def run(text):
        try:
            status = main(["plan", *shlex.split(text)])
        except SystemExit as ending:
            status = ending.code
        return status, *capsys.readouterr()

    return run


def test_the_paper_s_task_with_a_plot(command, tmp_path):
    """Ten hours of FEMNIST: a recommendation with its costs, in 80 columns, and a picture."""
    status, output, errors = command("--task femnist --hours 10 --cohort 20,60 --plot p/plan.png")
    assert (status, errors) == (0, "")
    text, picture = output.split("\nPlot: ")
    assert text.startswith("FEMNIST (DNN) on a Raspberry Pi 3B+ over 4G\n")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("6.71 Mbit (839 kB)", "20 Mbit/s down, 5 Mbit/s up", "budget         10 h"):
        assert part in text
    for part in ("assumed, from K_0 = 80 and eta_0 = 0.3", "kept at 1/(4L)", "fo.simulate("):
        assert part in text
    for row in ("fixed *", "K-rounds", "dSGD", "K-rounds, as tuned", "tuned K_0", "20 *", "60"):
        assert f"\n  {row}" in text
    content = (tmp_path / picture.strip()).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24])[0] > 1500 and len(content) > 40_000


def test_json_is_the_plan(command):
    """The same numbers as from Python, and no table."""
    status, output, errors = command("--task FEMNIST --hours 10 --json")
    assert (status, errors) == (0, "")
    data = json.loads(output)
    task = fo.planning.paper_tasks()["FEMNIST"]
    tuned = fo.planning.TunedRun(80, 0.3, 10_000, 60, math.log(62))
    plan = fo.plan(
        task.model_megabits, task.devices, constants=tuned, seconds=36_000, num_clients=3000
    )
    assert data.pop("title") == "FEMNIST (DNN) on a Raspberry Pi 3B+ over 4G"
    assert data == fo.planning.as_dict(plan)
    # Twice the steps in the tuned run are all but twice as many in the plan, whose rounds are longer;
    # seconds cannot be exceeded.
    assert 0.98 < plan.elasticities["tuned K_0"]["local steps"] < 1
    assert data["recommended"]["seconds"] <= 36_000
    names = {row["name"]: row for row in data["forecasts"]}
    assert names["fixed, as tuned"]["runs"][0][0] == names["K-rounds, as tuned"]["runs"][0][0] == 80


@pytest.mark.parametrize("name", ["sent140", "cifar100", "shakespeare"])
def test_every_task_has_the_paper_s_round(command, name):
    """Without a budget it is the paper's: 10,000 rounds, with its K_0, eta_0 and round times."""
    status, output, _ = command(f"--task {name} --json")
    data = json.loads(output)
    task = {key.lower(): task for key, task in fo.planning.paper_tasks().items()}[name]
    size = task.model_megabits
    seconds = fo.costs.client_seconds(task.devices, task.local_steps, size, size)
    assert status == 0
    assert (data["local_steps"], data["cohort_size"]) == (task.local_steps, task.cohort_size)
    assert data["learning_rate"] == pytest.approx(task.learning_rate, rel=1e-9)
    assert data["recommended"]["rounds"] == 10_000
    assert data["recommended"]["seconds"] == pytest.approx(10_000 * float(seconds), rel=1e-6)


def test_a_tuned_run_that_does_not_fit_is_left_out(command):
    """K_0 = 80 takes two minutes a round: not within one, nor with a K of at most 30."""
    for text in ("--hours 0.02", "--hours 5 --max-local-steps 30"):
        status, output, _ = command(f"--task shakespeare {text} --json")
        data = json.loads(output)
        names = [row["name"] for row in data["forecasts"]]
        assert status == 0 and names == ["fixed", "K-rounds", "dSGD"]
        assert data["recommended"]["rounds"] >= 1


def test_a_learning_rate_that_is_too_large_is_named_and_explained(command):
    """1/(4L) is 0.3 here: the plan is made, and says that the bound does not hold."""
    status, output, _ = command("--task femnist --hours 10 --learning-rate 0.6")
    assert status == 0
    assert "FAILS          eta <= 1/(4L)" in output
    said = " ".join(output.split())
    assert "eta = 0.6 is above 1/(4L) = 0.3: the bound does not hold there" in said


def test_only_a_k(command):
    """No constants, no bound: what K costs, by arithmetic, with energy."""
    status, output, _ = command(
        f"{CLIENTS} --k0 80 --plateau-round 100 --watts 5 --spread 1 --json"
    )
    data = json.loads(output)
    assert status == 0 and data["bound"] is None and data["schedule"] == "K-rounds"
    rows = {row["name"]: row for row in data["forecasts"]}
    seconds = 6.71 / 20 + 6.71 / 5 + 80 * 0.017
    rounds = math.floor(36_000 / seconds)
    assert rows["fixed"]["rounds"] == rounds
    assert rows["fixed"]["joules"] == pytest.approx(5 * 0.017 * 80 * rounds * 60, rel=1e-9)
    assert rows["K-step"]["runs"][0] == [80, 100] and rows["K-step"]["runs"][1][0] == 8
    assert rows["dSGD"]["total_bytes"] == pytest.approx(rows["dSGD"]["rounds"] * 60 * 1_677_500)


def test_without_matplotlib(command, monkeypatch):
    """The table is there, and the reason why the picture is not."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, output, errors = command(f"{CLIENTS} --k0 80 --plot plan.svg")
    assert status == 2 and "Schedules within the budget" in output
    assert "--plot needs matplotlib: pip install" in errors


def test_estimated_constants(command, monkeypatch):
    """`--estimate` plans with what the estimators find on the digits of 20 clients."""
    asked, planned = {}, {}

    def found(model, data, variables, **arguments):
        flat = jax.tree.map(jnp.ones_like, variables)  # guesses: ln(10), and 650 squares of 1
        batch = {"x": jnp.ones((1, 64), jnp.float32), "y": jnp.zeros(1, int)}
        loss, _ = jax.jit(model.loss, static_argnums=2)(flat, batch, None)
        asked.update(arguments, clients=data.num_clients, loss=float(loss))
        return fo.bounds.EstimatedConstants("constants", *[None] * 6)

    def plan(model_megabits, devices, **arguments):
        planned.update(arguments, model_megabits=model_megabits)
        raise ValueError("seen enough")

    monkeypatch.setattr(fo.bounds, "estimate_constants", found)
    monkeypatch.setattr(fo, "plan", plan)
    status, _, errors = command("--estimate --hours 1")
    assert (status, errors) == (2, "fedjax-opt: seen enough\n")
    assert (asked["clients"], asked["cohort_size"], asked["strong_convexity"]) == (20, 5, 0.01)
    assert asked["loss"] == pytest.approx(math.log(10) + 0.01 / 2 * 650, rel=1e-5)
    assert planned["constants"] == "constants" and planned["seconds"] == 3600
    assert planned["model_megabits"] == pytest.approx((650 * 32e-6,) * 2)


# What is typed, and what the message must say.
WRONG = [
    ("", ["--model-size is missing", "fedjax-opt plan --task femnist --hours 10"]),
    ("--task femnst", ["--task 'femnst' is not known", "Did you mean 'femnist'?"]),
    ("--task femnist --upload -5Mbit/s", ["--upload must be above 0, got '-5Mbit/s'"]),
    ("--task femnist --upload=-5Mbit/s", ["--upload must be above 0, got '-5Mbit/s'"]),
    ("--task femnist --upload 5Mbit", ["--upload must be a bandwidth", "Did you mean 5Mbit/s?"]),
    ("--task femnist --download 20", ["--download needs a unit"]),
    ("--task femnist --model-size 6.71Mb", ["--model-size", "bits or bytes", "6.71MB"]),
    ("--task femnist --model-size 3s", ["--model-size must be a size", "is a time"]),
    ("--task femnist --model-size 7Tbit", ["days to transfer"]),
    ("--task femnist --step-seconds 5Mbit", ["--step-seconds must be a time"]),
    ("--task femnist --download 2000Gbit/s", ["--download", "megabits per second"]),
    ("--task femnist --hours 0", ["--hours must lie in (0.0"]),
    ("--task femnist --hours -2", ["--hours must lie in (0.0", "-2"]),
    ("--task femnist --hours nan", ["--hours", "finite"]),
    ("--task femnist --hours ten", ["--hours", "ten"]),
    ("--task femnist --hours 0.0001", ["--hours must last for at least one round", "1.678 s"]),
    ("--task femnist --total-bytes 1MB", ["--total-bytes must last", "101 MB"]),
    ("--task femnist --client-bytes 1kB", ["--client-bytes must last"]),
    ("--task femnist --rounds 0", ["--rounds must lie in"]),
    ("--task femnist --spread 0.5", ["--spread must lie in [1.0"]),
    ("--task femnist --cohort ten", ["--cohort must be a whole number, or several"]),
    ("--task femnist --cohort 4000", ["--cohort must be at most all 3000 clients"]),
    ("--task femnist --learning-rate 0", ["--learning-rate must lie in (0.0"]),
    ("--task femnist --k0 0", ["--k0 must be a whole number of at least 1"]),
    ("--task femnist --eta0 0", ["--eta0 must lie in"]),
    ("--task femnist --max-local-steps 0", ["--max-local-steps must be"]),
    ("--task femnist --plot plan.foo", ["--plot must end in .png"]),
    ("--task femnist --estimate", ["--estimate", "--task", "give one"]),
    ("--task femnist --unknown 1", ["--unknown"]),
    (CLIENTS, ["K cannot be chosen", "--smoothness", "--k0", "--task"]),
    (
        f"{CLIENTS} --smoothness 4",
        ["missing: --strong-convexity, --initial-loss, --gradient-bound"],
    ),
    (f"{CLIENTS} {CONSTANTS.replace('0.1', '8')}", ["kappa", "at least 1", "4 / 8 = 0.5"]),
    (f"{CLIENTS} {CONSTANTS.replace('0.1', '0')}", ["--strong-convexity must be above 0"]),
    (f"{CLIENTS} {CONSTANTS} --noise -1", ["--noise must lie in [0.0"]),
    (f"{CLIENTS} {CONSTANTS} --estimate", ["--estimate and --smoothness"]),
    (f"{LINK} --cohort 60 --k0 5", ["a budget is missing", "--hours", "--client-bytes"]),
    (f"{LINK} --hours 1 --k0 5", ["--cohort must be given"]),
    (f"{CLIENTS} --k0 5 --watts -1", ["--watts must lie in"]),
]


@pytest.mark.parametrize(("text", "parts"), WRONG, ids=[text or "nothing" for text, _ in WRONG])
def test_wrong_input_is_named_and_explained(command, tmp_path, text, parts):
    """Status 2, the option's name, what is wrong with it; nothing printed, nothing written."""
    status, output, errors = command(text)
    assert (status, output) == (2, "")
    assert [part for part in parts if part not in errors] == []
    assert "Traceback" not in errors and not list(tmp_path.iterdir())


def test_help_teaches_the_units(command):
    """Every option, with its unit."""
    status, output, _ = command("--help")
    assert status == 0
    for part in ("--model-size SIZE", "6.71Mbit", "20Mbit/s", "--total-bytes", "sent140", "--json"):
        assert part in output


def test_any_federation_is_planned_for(command, tmp_path):
    status, output, errors = command('--task "digits(num_clients=20)" --hours 1 --json')
    assert (status, errors) == (0, "")
    found = json.loads(output)
    digits = fo.tasks.digits(num_clients=20)
    plan = fo.plan(digits, seconds=3600)
    assert found.pop("title") == "digits (20 clients) on a Raspberry Pi 3B+ over 4G"
    assert found == json.loads(json.dumps(fo.planning.as_dict(plan)))
    # A run that went well, on other links, for the rounds that the task suggests.
    status, output, _ = command(
        "--task digits --eta0 0.4 --k0 30 --download 1Mbit/s --upload 1Mbit/s --step-seconds 1 --json"
    )
    found = json.loads(output)
    assert status == 0 and found["recommended"]["rounds"] == 300 and found["learning_rate"]
    rows = ["who,a,y", *(f"{i % 4},{i % 7},{i % 3}" for i in range(80))]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    status, output, _ = command("--data own.csv --client who --label y --rounds 50 --json")
    found = json.loads(output)
    assert status == 0 and found["title"].startswith("own (4 clients)")
    assert found["cohort_size"] == 4 and found["recommended"]["rounds"] == 50
    for wrong, message in (
        ("--task digitts", "Did you mean 'digits'"),
        ("--client who", "give --data FILE as well"),
        ("--data own.csv --task digits", "give one of them"),
    ):
        status, _, errors = command(f"{wrong} --rounds 3")
        assert status == 2 and message in errors
