"""The script of papers' tables and figures as a person uses it, in this process."""

import functools
import shlex

import pytest

import fedjax_opt as fo
from benchmarks.papers import run as reproduce
from benchmarks.papers.catalogue import ENTRIES, find
from benchmarks.papers.entry import Claim, Entry, Part, experiment
from fedjax_opt.cli import dry_run
from fedjax_opt.experiments import comparing
from fedjax_opt.experiments.pricing import Prices
from fedjax_opt.tasks.own import Loaded

SIZES = [
    (name, quick)
    for name, entry in ENTRIES.items()
    for quick in (False, True)
    if (entry.quick if quick else entry.full)
]


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs the command in a folder; returns its status, standard output and standard error."""
    monkeypatch.setattr(fo, "use_cpu_devices", lambda: None)  # JAX has started already
    monkeypatch.chdir(tmp_path)

    def run(text):
        status = reproduce.main(shlex.split(text))
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def any_data(monkeypatch):
    """Every task has the data of digits, and prices are not derived."""

    @functools.cache
    def digits(num_clients):
        return fo.tasks.digits(num_clients)

    def load(spec):
        return Loaded(digits(spec.arguments.get("num_clients", 100)), [])

    price = Prices(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr(reproduce, "load_task", load)
    monkeypatch.setattr(comparing, "prices", lambda *_: price)
    monkeypatch.setattr(comparing, "operations_of", lambda *_: None)
    monkeypatch.setattr(dry_run, "_matrix_rate", lambda: 1e9)
    monkeypatch.setattr(dry_run, "_step_memory", lambda *_: 0)


@pytest.mark.parametrize("name, quick", SIZES)
def test_every_entry_can_be_planned(command, any_data, tmp_path, name, quick):
    status, printed, failed = command(f"{name} --dry-run {'--quick' if quick else ''}")
    assert status == 0, failed
    entry = find(name)
    assert all(f"{part.name}: " in printed for part in entry.parts(quick))
    assert entry.where in " ".join(printed.split()) and not any(tmp_path.iterdir())


def test_parts_without_data_are_named_and_the_others_planned(command, any_data, monkeypatch):
    load = reproduce.load_task

    def without_cifar(spec):
        if spec.name == "cifar100_pam":
            raise FileNotFoundError("no cifar100")
        return load(spec)

    monkeypatch.setattr(reproduce, "load_task", without_cifar)
    status, printed, _ = command("fedgbo-table4 --dry-run")
    assert status == 0 and "cifar100: cannot be planned without its data. no cifar100" in printed
    assert "femnist: 1438 examples" in printed and "3 of 4 parts: about" in printed
    status, _, failed = command("fedgbo-table4 --dry-run --only cifar100")
    assert status == 2 and "no cifar100" in failed


def test_where_leaf_s_files_should_be(command):
    status, _, failed = command("fedgbo-table4 --dry-run --only femnist --leaf nowhere")
    assert status == 2 and "nowhere/data/femnist" in failed and "by --leaf DIR" in failed


def test_all_are_listed(command):
    status, printed, _ = command("--list")
    assert status == 0 and all(name in printed for name in ENTRIES)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "--list"),
        ("gbhm-table9", "Did you mean 'ghbm-table9'"),
        ("ghbm-table9 --quick --only digits-cylic", "Did you mean 'digits-cyclic'"),
        ("ghbm-table3", "Use --quick"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(command, text, message):
    status, _, failed = command(text)
    assert status == 2 and message in failed


@pytest.fixture
def small(monkeypatch):
    """An entry of two parts: uniform cohorts, and cyclic ones."""

    def part(name, members, sampler):
        made = experiment(
            "digits(num_clients=6)", members, rounds=2, local_steps=2, batch_size=4,
            evaluate_every=1, seeds=(0, 1),
        )  # fmt: skip
        told = {"fedavg": {"accuracy": "12.3±0.4"}}
        claims = (Claim("fedcm", "fedavg"),)
        return Part(name, name, made, "Table 1", told, claims, sampler)

    def parts():
        fedavg, fedcm = "fedavg(learning_rate=0.1)", "fedcm(learning_rate=0.1)"
        return [
            part("uniform", [fedavg], fo.cohorts.uniform(2)),
            part("cyclic", [fedavg, fedcm], fo.cohorts.cyclic(2)),
        ]

    entry = Entry("small", "Somebody.", "Table 1", "It works.", quick=parts)
    monkeypatch.setitem(ENTRIES, "small", entry)


@pytest.mark.slow
def test_numbers_stand_beside_the_papers_and_on_the_page(command, small, tmp_path):
    status, printed, failed = command("small --quick --output out")
    assert status == 0, failed
    written = (tmp_path / "out" / "reproduced.md").read_text()
    for text in (printed, written):
        assert "12.3 ± 0.4" in text and "fedcm above fedavg in accuracy" in text
    page = (tmp_path / "out" / "cyclic.html").read_text()
    assert '<th scope="row">fedavg</th><td>12.3 ± 0.4</td>' in page and "It works." in page
    assert "python -m benchmarks.papers.run small --quick --output out" in page
    assert "distance between clients" in page.lower()  # as a page of compare has it
    uniform, cyclic = (
        fo.experiments.read(tmp_path / "out" / name).records for name in ("uniform", "cyclic")
    )
    assert len(uniform) == 4 and uniform[0]["accuracy"] != cyclic[0]["accuracy"]
    # Once more there is nothing to do; elsewhere nothing is overwritten.
    again = command("small --quick --output out")
    assert again[0] == 0 and again[1].splitlines()[-1] == printed.splitlines()[-1]
    (tmp_path / "out" / "mine.txt").write_text("")
    status, _, failed = command("small --quick --output out")
    assert status == 2 and "mine.txt" in failed
