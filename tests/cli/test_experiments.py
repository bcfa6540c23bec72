"""`fedjax-opt run`, `sweep`, `compare`, `report` and `list` as a person uses them, in this process."""

import json
import shlex
import signal
import tomllib

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.cli import main
from fedjax_opt.cli.experiment_options import command_line
from fedjax_opt.experiments import comparing, curves, from_toml, read, waves
from fedjax_opt.experiments.rundir import RunDirectory
from tests.core import problems

SMALL = "--rounds 4 --cohort-size 2 --local-steps 2 --batch-size 4 --evaluate-every 2"
TASK = "'digits(num_clients=6)'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def command(monkeypatch, capsys, folder):
    """Runs the command in the folder; returns its status, standard output and standard error."""
    monkeypatch.setattr(fo, "use_cpu_devices", lambda: None)  # JAX has started already
    monkeypatch.chdir(folder)

    def run(text):
        try:
            status = main(shlex.split(text))
        except SystemExit as ending:
            status = ending.code
        return status, *capsys.readouterr()

    return run


def compared(command, folder):
    """A comparison that the tests of this module share: three algorithms, two rates, two seeds."""
    output = folder / "compared"
    if not output.exists():
        status, printed, _ = command(
            f"compare {TASK} fedavg 'far: scaffold + proximal(mu=0.01)' 'ghbm(tau=2)' {SMALL}"
            " --grid learning_rate=0.1,0.3 --seeds 0,1 --target 0.01 --diagnostics client_distance"
            " --output compared"
        )
        assert status == 0, printed
        (folder / "printed.txt").write_text(printed)
    return output, (folder / "printed.txt").read_text()


@pytest.mark.slow
def test_compare_runs_every_point_and_seed_and_writes_a_page(command, folder):
    output, printed = compared(command, folder)
    found = curves(read(output).records)
    labels = ["fedavg", "far", "ghbm"]
    assert [(one.label, one.hyperparameters["learning_rate"]) for one in found] == [
        (label, rate) for label in labels for rate in (0.1, 0.3)
    ]
    for one in found:
        assert one.seeds == (0, 1) and one.rounds.tolist() == [2, 4]
        assert np.isfinite(one.columns["client_distance"]).all()
    table = printed.split("rounds to 1%")[1].splitlines()
    assert [line.split()[0] for line in table[2:5]] == labels
    for line in (output / "history.jsonl").read_text().splitlines():
        assert {"label", "seed", "round", "hyperparameters"} <= json.loads(line).keys()
    assert read(output).about["status"] == "finished"
    page = (output / "report.html").read_text()
    assert all(label in page for label in labels) and "client" in page
    assert "20 Mbit/s down and 5 Mbit/s up" in page
    # What the task settled, too, such as its clients.
    assert all(
        f"<dt>{name}</dt>" in page for name in ("clients", "cohort", "local steps", "rounds")
    )


@pytest.mark.slow
def test_the_best_model_is_exported(command, folder):
    output, _ = compared(command, folder)
    status, printed, _ = command("export compared best.npz")
    assert status == 0 and printed == "Model: best.npz\n"
    told = json.loads((folder / "best.json").read_text())["about"]
    top = {one.label: one.values("accuracy").max(axis=1).mean() for one in read(output).best()}
    assert told["algorithm"] == max(top, key=lambda label: top[label])
    model = fo.load_model(folder / "best.npz")
    assert sum(x.size for x in jax.tree.leaves(model.params)) == 4810
    for words, message in (
        ("compared best.npz --algorithm fedavgg", "Did you mean 'fedavg'"),
        ("compared best.npz --seed 5", "seed must be one of 0, 1"),
        ("compared best.pickle/", "path must be new for a folder"),
        ("nowhere best.npz", "holds no run"),
    ):
        (folder / "best.pickle").mkdir(exist_ok=True)
        status, _, errors = command(f"export {words}")
        assert status == 2 and message in errors


@pytest.mark.slow
def test_costs_in_the_records_are_those_of_the_algorithm(command, folder):
    """SCAFFOLD's two models up and two down, for two clients in each of four rounds."""
    output, _ = compared(command, folder)
    by_label = {one.label: one.columns for one in curves(read(output).records)}
    size = 4 * 4810  # bytes of the digits' model
    assert by_label["fedavg"]["bytes_up"][0].tolist() == [size * 2 * 2, size * 2 * 4]
    assert by_label["far"]["bytes_up"][0, -1] == 2 * size * 2 * 4
    digits = fo.tasks.digits(num_clients=6)
    batch = {name: array[:4] for name, array in digits.test.items()}
    flops = fo.costs.client_flops(fo.fedavg(fo.optimizers.sgd(0.1)), digits.model, batch)
    assert by_label["fedavg"]["flops"][0, -1] == 2 * 4 * flops.client(2.0)
    # Link and device of the paper: 20 and 5 Mbit/s, 2.4 GFLOP/s.
    link = 8e-6 * size * (1 / 20 + 1 / 5)
    seconds = 4 * (link + flops.client(2.0) / 2.4e9)
    np.testing.assert_allclose(by_label["fedavg"]["simulated_seconds"][0, -1], seconds)


@pytest.mark.slow
def test_a_run_equals_simulate_and_its_model_can_be_read(command, folder):
    status, printed, _ = command(
        f"run {TASK} 'fedavg(learning_rate=0.1)' {SMALL} --seeds 0 --output alone"
    )
    assert status == 0, printed
    digits = fo.tasks.digits(num_clients=6).replace(cohort=2, local_steps=2, batch_size=4)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    expected = fo.simulate(algorithm, digits, 4, evaluate_every=2, seed=0, progress=False)
    (found,) = curves(read(folder / "alone").records)
    np.testing.assert_allclose(
        found.values("accuracy")[0], expected.evaluations["accuracy"], rtol=1e-6
    )
    model = fo.experiments.read_model(folder / "alone", "fedavg, seed 0", like=expected.variables)
    for ours, theirs in zip(model.params.values(), expected.variables.params.values(), strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7)
    # The same command once more has nothing to do, and says the same.
    again = command(f"run {TASK} 'fedavg(learning_rate=0.1)' {SMALL} --seeds 0 --output alone")
    assert again[1].splitlines()[-3:] == printed.splitlines()[-3:]


@pytest.mark.slow
def test_a_sweep_prints_its_points_from_the_best_on(command):
    status, printed, _ = command(
        f"sweep {TASK} fedavg {SMALL} --samples 3 --grid 'learning_rate=loguniform(0.01,0.5)'"
        " --output swept"
    )
    assert status == 0
    lines = printed.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("learning_rate")) + 2
    rows = [line.split() for line in lines[first : first + 3]]
    scores = [float(row[1]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert [row[-1] == "*" for row in rows] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("controller", "name"), [("'K-rounds'", "num_steps"), ("'eta-rounds'", "learning_rate")]
)
def test_controllers_change_steps_and_rates(command, folder, controller, name):
    output = f"controlled-{name}"
    status, printed, _ = command(
        f"run {TASK} 'fedavg(learning_rate=0.1)' {SMALL} --controller {controller} --output {output}"
    )
    assert status == 0, printed
    (found,) = curves(read(folder / output).records)
    if name == "learning_rate":
        np.testing.assert_allclose(
            found.columns["learning_rate"][0], 0.1 / np.sqrt([2.0, 4.0]), rtol=1e-6
        )
    else:  # ceil(2 r^(-1/3)) = 2, 2, 2, 2 for r = 1 .. 4; 2 clients in each round
        assert found.columns["client_steps"][0].tolist() == [8, 16]


def test_an_interrupted_sweep_goes_on_in_the_middle_of_a_run(command, folder, monkeypatch):
    """SIGTERM comes while rounds are played: these are kept, and none is played twice."""
    text = f"sweep {TASK} fedavg {SMALL} --grid learning_rate=0.1,0.3 --seeds 0,1 --output "
    # Two waves, so that one is finished, and in the other one half of the rounds are done.
    by_two = comparing.run_trials
    monkeypatch.setattr(
        comparing,
        "run_trials",
        lambda *given, strategy, **rest: by_two(*given, strategy=fo.Strategy("chunked", 2), **rest),
    )
    assert command(text + "whole")[0] == 0
    original, played = waves.play, []

    def play(*arguments, **rest):
        played.append(arguments)
        if len(played) == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments, **rest)

    with pytest.raises(SystemExit) as ending, monkeypatch.context() as patch:
        patch.setattr(waves, "play", play)
        patch.setattr("os._exit", lambda status: (_ for _ in ()).throw(SystemExit(status)))
        main(shlex.split(text + "cut"))
    assert ending.value.code == 143 and len(played) == 3
    cut = folder / "cut"
    assert read(cut).about["status"] == "interrupted"
    monkeypatch.setattr(waves, "play", play)
    ended, _, errors = command(text + "cut")
    assert ended == 0 and "begins anew" not in errors
    assert len(played) == 4
    found, whole = read(cut), read(folder / "whole")
    assert found.about["status"] == "finished" and found.records == whole.records
    assert found.labels == whole.labels and len(found.labels) == 4
    for path in (cut / "models").glob("*.npz"):
        with np.load(path) as model, np.load(folder / "whole" / "models" / path.name) as other:
            problems.assert_identical(dict(model), dict(other))


def test_flags_and_file_say_the_same(command, folder):
    text = (
        f"compare {TASK} fedavg 'slow: fedprox(mu=0.1) + clipped(max_norm=10)' {SMALL} --seeds 0,1,2"
        " --grid learning_rate=0.1,0.3 --criterion final --print-config"
    )
    status, printed, _ = command(text)
    assert status == 0
    assert tomllib.loads(printed)["grid"] == {"learning_rate": [0.1, 0.3]}
    (folder / "same.toml").write_text(printed)
    assert command("compare --config same.toml --print-config")[1] == printed
    changed = from_toml(command("compare --config same.toml --seeds 7 --print-config")[1])
    assert changed == from_toml(printed).replace(seeds=(7,))


def test_links_are_kept_and_the_page_s_drift_is_measured(command, folder):
    """What decides the simulated time, or what is measured, is in the file and in the command."""
    status, printed, _ = command(
        f"compare {TASK} fedavg scaffold {SMALL} --upload 250kB/s --device-gflops 3 --print-config"
    )
    held = tomllib.loads(printed)
    assert status == 0 and (held["upload_mbps"], held["device_gflops"]) == (2.0, 3.0)
    assert "download_mbps" not in held and held["diagnostics"] == ["client_distance"]
    words = shlex.split(command_line("compare", from_toml(printed)))
    assert words[words.index("--upload") + 1] == "2.0Mbit/s"
    assert command(shlex.join([*words[1:], "--print-config"]))[1] == printed
    # As a file says; where it says nothing, as without one.
    (folder / "short.toml").write_text('task = "digits"\nalgorithms = ["fedavg"]\n')
    short = from_toml(command("compare --config short.toml --print-config")[1])
    assert short.diagnostics == ("client_distance",)
    (folder / "none.toml").write_text(
        'task = "digits"\nalgorithms = ["fedavg"]\ndiagnostics = []\n'
    )
    none = command("compare --config none.toml --print-config")[1]
    assert from_toml(none).diagnostics == ()
    words = shlex.split(command_line("compare", from_toml(none)))
    assert command(shlex.join([*words[1:], "--print-config"]))[1] == none


def test_a_dry_run_computes_nothing(command, folder):
    status, printed, _ = command(
        f"sweep {TASK} scaffold {SMALL} --grid learning_rate=0.1,0.3 --seeds 0,1 --dry-run"
    )
    assert status == 0
    row = next(line.split() for line in printed.splitlines() if line.startswith("scaffold"))
    assert row[1] == "4"  # runs
    assert float(row[4]) == pytest.approx(4 * 4 * 2 * 2 * 4 * 4810 / 1e6, abs=0.05)  # MB up
    assert "4 runs of 4 rounds as 1 program" in printed
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("command_and_options", "steps"),
    [("sweep --grid local_steps=1,7", 4), ("run --local-epochs 1", 60)],
)
def test_a_plan_counts_the_steps_that_are_asked_for(command, command_and_options, steps):
    """Those of a grid in the mean; six clients of about 240 examples have 60 minibatches of 4."""

    def flops(verb, options):
        text = f"{verb} {TASK} fedavg --rounds 4 --cohort-size 2 --batch-size 4 --dry-run {options}"
        printed = command(text)[1]
        row = next(line.split() for line in printed.splitlines() if line.startswith("fedavg"))
        return float(row[3]) / int(row[1])

    expected = flops("run", f"--local-steps {steps}")
    assert flops(*command_and_options.split(maxsplit=1)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("controller", ["K-rounds", "fixed"])
def test_a_plan_counts_the_steps_that_a_controller_starts_from(command, controller):
    text = f"run {TASK} 'fedavg(learning_rate=0.1)' {SMALL} --dry-run"
    plain, controlled = command(text)[1], command(f"{text} --controller {controller}")[1]
    rows = [
        next(line.split()[:4] for line in printed.splitlines() if line.startswith("fedavg"))
        for printed in (plain, controlled)
    ]
    assert rows[0] == rows[1]


def test_the_memory_of_a_plan_grows_with_the_minibatch(command):
    text = f"run {TASK} fedavg {SMALL.replace('--batch-size 4', '')} --dry-run --batch-size"
    small, large = (
        next(line.split() for line in command(f"{text} {size}")[1].splitlines() if "fedavg" in line)
        for size in (4, 4000)
    )
    # Inputs of 64 floats, hidden layers and logits are kept for the backward pass.
    assert float(large[2]) - float(small[2]) > 4000 * 4 * 64 / 1e6


def test_what_is_compressed_can_be_planned(command):
    """The longest algorithm that docs/experiments.md writes."""
    status, printed, errors = command(
        f"run {TASK} 'tight: fedgbo-adam(learning_rate=0.02) + clipped(max_norm=10)"
        f" + compressed(upload=[top_k(sparsity=0.9), uniform])' {SMALL} --dry-run"
    )
    assert status == 0, errors
    row = next(line.split() for line in printed.splitlines() if line.startswith("tight"))
    assert float(row[4]) < 0.1 * float(row[5])  # MB up, MB down


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run digits fedavgg", "algorithm 'fedavgg' is not known. Did you mean 'fedavg'?"),
        ("run digit fedavg", "task 'digit' is not known. Did you mean 'digits'?"),
        ("run digits", "algorithms is missing"),
        ("run digits 'fedavg(lerning_rate=1)'", "Did you mean 'learning_rate'?"),
        ("run digits fedavg --rounds 0", "rounds must be a whole number of at least 1, got 0"),
        ("run digits fedavg --rounds many", "rounds must be a whole number, got 'many'"),
        ("run digits fedavg --seeds 1,1", "seeds"),
        ("run digits fedavg --grid learning_rate=1", "run has no grid"),
        ("run digits fedavg --download 20", "--download needs a unit"),
        ("run digits fedavg --device-gflops 0", "device_gflops must lie in (0.0, inf), got 0"),
        ("run digits fedavg --lokal-steps 5", "Did you mean '--local-steps'?"),
        ("run digits fedavg scaffold", "run takes one algorithm, got 2: use `fedjax-opt compare`"),
        ("list algorithms more", "argument 'more' is not known"),
        ("run digits fedavg --output /dev/null/run", "fedjax-opt: /dev/null/run cannot be written"),
        ("runn digits fedavg", "command 'runn' is not known. Did you mean 'run'?"),
        (
            "run digits fedavg --cohort-size 101",
            "larger than the population of 100 clients, got 101",
        ),
        ("run digits fedavg --cohort-size 101 --dry-run", "population of 100 clients"),
        (
            "run digits fedavg --config nowhere.toml",
            "--config must be a TOML file that can be read",
        ),
        ("run digits fedavg --controller K-eror", "Did you mean 'K-error'?"),
        ("sweep digits fedavg", "sweep needs a grid"),
        (
            "sweep digits fedavg --grid learning_rate=",
            "learning_rate must have a list of at least one value",
        ),
        ("sweep digits fedavg --grid beta=0.1", "hyperparameter 'beta' is not known"),
        ("compare digits fedavg fedavg", "Give each its own"),
        ("report nowhere", "nowhere holds no run"),
        ("report around", "It holds others that are runs: around/one."),
        ("list ghmb", "Did you mean 'ghbm'?"),
        ("list fedagc", "Did you mean 'fedacg'?"),
    ],
)
def test_wrong_input_is_refused_with_what_to_do(command, folder, text, message):
    RunDirectory(folder / "around" / "one", "rounds = 1").close()
    status, _, errors = command(text)
    assert status == 2
    assert errors.startswith("fedjax-opt: ") and message in errors and errors.count("\n") == 1


def test_an_unknown_key_of_a_file_is_refused(command, folder):
    (folder / "wrong.toml").write_text('task = "digits"\nalgorithms = ["fedavg"]\nround = 3\n')
    status, _, errors = command("run --config wrong.toml")
    assert status == 2 and "wrong.toml: key 'round' is not known. Did you mean 'rounds'?" in errors


@pytest.mark.slow
def test_a_directory_with_another_run_is_refused(command, folder):
    compared(command, folder)
    status, _, errors = command(f"run {TASK} fedavg {SMALL} --output compared")
    assert status == 2 and "compared holds another run" in errors
    assert "Choose another directory" in errors


@pytest.mark.slow
def test_a_report_of_several_runs_and_of_a_damaged_one(command, folder):
    output, _ = compared(command, folder)
    status, printed, _ = command("report compared --output page.html --title 'A <title>'")
    assert (status, printed) == (0, "Report: page.html\n")
    assert "A &lt;title&gt;" in (folder / "page.html").read_text()
    lines = (output / "history.jsonl").read_bytes()
    damaged = folder / "damaged"
    damaged.mkdir()
    for name in ("config.toml", "about.json"):
        (damaged / name).write_bytes((output / name).read_bytes())
    (damaged / "history.jsonl").write_bytes(lines[: len(lines) // 2])
    status, _, errors = command("report damaged")
    assert status == 2 and "history.jsonl is damaged" in errors


@pytest.mark.parametrize(
    "what", ["", "algorithms", "ghbm", "compressed", "K-error", "digits", "criteria"]
)
def test_list(command, what):
    status, printed, errors = command(f"list {what}")
    assert (status, errors) == (0, "") and max(map(len, printed.splitlines())) <= 96
    expected = {"": "fedavg", "ghbm": "tau", "K-error": "window", "criteria": "mean"}
    assert expected.get(what, what[:4]) in printed
    # A grid varies algorithms and what is around them, not the task.
    assert ("Can be swept" in printed) == (what == "ghbm")


def test_help_tells_defaults_and_offers_only_what_is_taken(command):
    told = {
        name: " ".join(command(f"{name} --help")[1].split()) for name in ("run", "sweep", "compare")
    }
    assert "[--grid" not in told["run"] and "[--samples" not in told["run"]
    for name in ("sweep", "compare"):
        assert "--grid learning_rate=0.1,0.3 --grid mu=0.01,0.1" in told[name]
    assert "test set. (default: 10)" in told["run"] and "drawn. (default: 0)" in told["run"]
    assert "(default: client_distance)" in told["compare"]
    assert "(default: client_distance)" not in told["run"]


@pytest.fixture
def letters(folder):
    """A table of twenty users; what they buy follows from two numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    lines = [f"u{i % 20},{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for i, (a, b) in enumerate(x)]
    (folder / "letters.csv").write_text("\n".join(["user,a,b,buys", *lines]))
    return "--data letters.csv --client user --label buys"


OWN = """
import fedjax_opt as fo


def federation(num_clients=8):
    model, clients, _ = fo.data.quadratics(num_clients=num_clients, dimension=3)
    return fo.Federation(
        model, clients, cohort=4, local_steps=5, batch_size=1, test=clients.examples
    )


def halved(learning_rate, share: float = 0.5):
    return fo.fedavg(fo.optimizers.sgd(share * learning_rate))
"""


@pytest.mark.slow
def test_a_grid_may_hold_parts(command, folder):
    """Each codec is a program of its own, with its own bytes, and its text in the record."""
    text = (
        f"sweep {TASK} 'fedavg(learning_rate=0.1) + compressed(upload=uniform)' {SMALL}"
        " --grid 'compressed.upload=top_k(sparsity=0.5),uniform' --output parts"
    )
    status, printed, errors = command(text)
    assert status == 0, errors
    found = {
        one.hyperparameters["compressed.upload"]: one.columns["bytes_up"][0, -1]
        for one in read(folder / "parts").curves
    }
    assert set(found) == {"top_k(sparsity=0.5)", "uniform"} and len(set(found.values())) == 2
    assert "top_k(sparsity=0.5)" in printed
    assert command(text)[0] == 0


@pytest.mark.slow
def test_own_data_from_a_file_to_a_page(command, folder, letters):
    """All that nobody said is on the screen, in the file, and on the page."""
    text = f"compare {letters} fedavg 'big: scaffold' --rounds 4 --evaluate-every 2 --output own"
    status, printed, errors = command(text)
    assert status == 0, errors
    for line in (
        "a     numeric",
        "buys  label",
        "20 clients",
        "Model: mlp(hidden=[64]), 2 classes.",
    ):
        assert line in printed
    for line in ("cohort size 10; batch size 32; local epochs 1", "learning rates 0.01, 0.03, 0.1"):
        assert line in " ".join(printed.split())
    config = tomllib.loads((folder / "own" / "config.toml").read_text())
    assert config["task"] == "from_files(path=letters.csv, client=user, label=buys)"
    assert (config["cohort_size"], config["local_epochs"], config["validation"]) == (10, 1, 0.2)
    assert config["grid"]["big:learning_rate"] == [0.01, 0.03, 0.1, 0.3]
    page = (folder / "own" / "report.html").read_text()
    assert "letters: 2 algorithms" in page and "Not said, so: cohort size 10" in page
    assert "optimistic" not in page, "points are chosen on validation examples"
    found = read(folder / "own")
    assert len(found.curves) == 8 and found.rule.chosen_by == "validation_accuracy"
    again = command(found.about["command"].removeprefix("fedjax-opt "))
    assert again[0] == 0 and again[1].splitlines()[-1] == printed.splitlines()[-1]
    assert command("report own --output other.html")[0] == 0
    with open(folder / "letters.csv", "a") as file:
        file.write("\nu1,0.5,0.1,yes")
    status, _, errors = command(text)
    assert status == 2 and "own holds another run: data was changed since" in errors


@pytest.mark.slow
def test_own_functions_by_their_import_paths(command, folder, monkeypatch):
    (folder / "own_functions.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    text = (
        "compare --task 'own_functions:federation(num_clients=6)' fedavg"
        " 'own_functions:halved(share=0.25)' --grid learning_rate=0.1,0.2 --rounds 4 --seeds 0"
        " --output functions"
    )
    status, printed, errors = command(text)
    assert status == 0, errors
    assert "halved: learning_rate=0.2" in printed and "last loss" in printed
    found = read(folder / "functions")
    assert found.about["facts"]["clients"] == 6
    assert set(found.about["sources"]) == {"own_functions:federation", "own_functions:halved"}
    (folder / "own_functions.py").write_text(OWN + "\n# changed\n")
    status, _, errors = command(text)
    assert status == 2 and "own_functions:federation was changed since" in errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run --data nowhere.csv --label y fedavg", "nowhere.csv"),
        ("run --data letters.csv fedavg", "label must name the column to predict"),
        ("run --data letters.csv --label bys fedavg", "bys"),
        ("run --data letters.csv --label buys --task digits fedavg", "give one of them"),
        ("run digits fedavg --label buys", "--label is of own data: give --data FILE as well"),
        ("run --data letters.csv --label buys --split sorted fedavg", "split must be one of iid"),
        ("run --data letters.csv --label buys --num-clients many fedavg", "num_clients must be"),
        ("run --data letters.csv --label buys --model mpl fedavg", "model must be 'linear'"),
        ("run --data letters.csv --label buys --test 2 fedavg", "test must lie in"),
        ("run --data letters.csv --label buys fedavgg", "Did you mean 'fedavg'?"),
        ("run --data letters.csv --label buys", "algorithms is missing"),
        ("run --data letters.csv --label buys --validation 2 fedavg", "validation must lie in"),
        ("run --task nowhere:federation fedavg", "task 'nowhere:federation' cannot be imported"),
        ("run --task json:dumps(x=1) fedavg", "dumps"),
        ("run digits json:dumpz", "algorithm 'json:dumpz' cannot be imported"),
        ("run digits json:__name__", "algorithm 'json:__name__' must be a function, got str"),
    ],
)
def test_own_things_that_do_not_fit_are_refused(command, letters, text, message):
    status, _, errors = command(f"{text} --rounds 2")
    assert status == 2 and errors.startswith("fedjax-opt: ") and message in errors
