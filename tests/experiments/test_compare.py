"""`fo.compare` and `fo.sweep`: any federation, model and metric, in as few programs as can be."""

import functools
import json
import re

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments import Range, comparing, read, trials, waves
from tests.core import problems

pytestmark = pytest.mark.slow  # every comparison is compiled

DATA = problems.ragged((5, 8, 3, 12, 7, 4))
FEDERATION = fo.Federation(
    problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4, test=DATA.examples
)


def fedavg(rate):
    return fo.fedavg(fo.optimizers.sgd(rate))


def prox(rate, mu=0.1):
    return fo.fedprox(fo.optimizers.sgd(rate), mu)


BOTH = {"FedAvg": fedavg, "FedProx": prox}


def compare(algorithms=BOTH, rounds=6, federation=FEDERATION, **options):
    given = {"seeds": (0, 1), "evaluate_every": 3, "progress": False, "grid": {"rate": [0.01, 0.1]}}
    return fo.compare(algorithms, federation, rounds, **given | options)


def in_order(found):
    def key(record):
        point = json.dumps(record["hyperparameters"], sort_keys=True)
        return record["label"], point, record["seed"], record["round"]

    return sorted(found.records, key=key)


@pytest.fixture(scope="module")
def both():
    return compare()


def test_each_run_is_that_of_simulate(both):
    assert [(one.label, one.hyperparameters) for one in both.curves] == [
        (label, {"rate": rate}) for label in BOTH for rate in (0.01, 0.1)
    ]
    for one in both.curves:
        for i, seed in enumerate(one.seeds):
            expected = fo.simulate(
                BOTH[one.label](**one.hyperparameters), FEDERATION, 6, seed=seed, evaluate_every=3,
                progress=False,
            )  # fmt: skip
            np.testing.assert_allclose(
                one.columns["distance"][i], expected.evaluations["distance"], 1e-10
            )


def test_it_says_what_it_is(both, tmp_path):
    pytest.importorskip("pandas")
    assert both.rule.metric == "loss" and not both.rule.maximise
    best = both.best()
    assert {one.label: one.hyperparameters["rate"] for one in best} == {
        "FedAvg": 0.1,
        "FedProx": 0.1,
    }
    table = both.table()
    assert "FedProx: rate=0.1" in table and "chosen on the test set" in table
    frame = both.to_pandas()
    assert len(frame) == 2 * 2 * 2 * 2 and set(frame["rate"]) == {0.01, 0.1}
    assert both.plot().axes[0].get_xlabel() == "communication rounds"
    page = both.report(tmp_path / "page.html", title="Two & more")
    assert "Two &amp; more" in page.read_text() and (tmp_path / "page.csv").exists()
    again = read(both.save(tmp_path / "saved"))
    assert in_order(again) == in_order(both) and again.table() == table
    assert again.labels == [
        f"{label} (rate={rate}), seed {seed}"
        for label in ("FedAvg", "FedProx") for rate in (0.01, 0.1) for seed in (0, 1)
    ]  # fmt: skip
    path = again.export(tmp_path / "best.npz", "FedProx", seed=1)
    told = json.loads((tmp_path / "best.json").read_text())["about"]
    assert (told["algorithm"], told["hyperparameters"], told["seed"]) == (
        "FedProx",
        {"rate": 0.1},
        1,
    )
    for one in (both, again):
        leaves = (jax.tree.leaves(x.params) for x in (fo.load_model(path), one.model("FedProx", 1)))
        for ours, theirs in zip(*leaves, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    lowest = {
        one.label: one.values("loss").min(axis=1)
        for one in both.curves if one.hyperparameters == {"rate": 0.1}
    }  # fmt: skip
    label = min(lowest, key=lambda name: lowest[name].mean())
    again.export(tmp_path / "any.npz")
    told = json.loads((tmp_path / "any.json").read_text())["about"]
    assert (told["algorithm"], told["seed"]) == (label, int(np.argmin(lowest[label])))
    for wrong, message in (
        ({"algorithm": "FedAvgg"}, "Did you mean 'FedAvg'"),
        ({"seed": 7}, "seed must be one of 0, 1"),
    ):
        with pytest.raises(ValueError, match=message):
            again.model(**wrong)


def test_one_algorithm_has_all_points_in_its_table():
    grid = {"rate": Range(0.01, 0.2, logarithmic=True), "mu": [0.0, 1.0]}
    found = fo.sweep(
        prox, FEDERATION, 3, grid=grid, samples=4, seeds=1, evaluate_every=3, progress=False
    )
    lines = found.table().splitlines()
    assert lines[0].split()[:2] == ["rate", "mu"] and len(found.curves) == 4
    assert sum(line.rstrip().endswith("*") for line in lines[2:6]) == 1


def test_fields_of_the_federation_and_of_one_algorithm_alone():
    grid = {"local_steps": [1, 2], "cohort": [2, 3], "FedProx": {"mu": [0.0, 1.0]}}
    given = {"FedAvg": fedavg(0.1), "FedProx": lambda mu: prox(0.1, mu)}
    found = compare(given, grid=grid, seeds=1)
    points = [(one.label, *one.hyperparameters.values()) for one in found.curves]
    assert len(points) == 4 + 8
    assert ("FedAvg", 1, 2) in points and ("FedProx", 2, 3, 1.0) in points
    for one in found.curves:
        point = dict(one.hyperparameters)
        own = given["FedProx"](point.pop("mu")) if "mu" in point else given["FedAvg"]
        expected = fo.simulate(
            own, FEDERATION.replace(**point), 6, evaluate_every=3, progress=False
        ).evaluations["loss"]
        np.testing.assert_allclose(one.columns["loss"][0], expected, 1e-10)
    assert "local steps" not in found.about["facts"] and found.about["facts"]["clients"] == 6


def test_each_point_has_its_own_price():
    """Bytes follow from a codec's numbers; steps from the federation's."""

    def sparse(sparsity):
        return fo.compressed(fedavg(0.1), upload=fo.compression.top_k(sparsity=sparsity))

    grid = {"sparsity": [0.25, 0.75], "local_steps": [1, 4]}
    found = compare({"sparse": sparse}, grid=grid, seeds=1)
    for one in found.curves:
        alone = compare(
            {"sparse": sparse(one.hyperparameters["sparsity"])}, grid=None, seeds=1,
            federation=FEDERATION.replace(local_steps=one.hyperparameters["local_steps"]),
        ).curves[0]  # fmt: skip
        for name in ("bytes_up", "flops", "simulated_seconds"):
            np.testing.assert_array_equal(one.columns[name], alone.columns[name])
    assert len({one.columns["bytes_up"][0, -1] for one in found.curves}) == 2


def test_a_directory_is_extended(tmp_path, monkeypatch):
    """More seeds, points, algorithms and rounds: what was played is not played again."""
    chunks, original = [], waves.play

    def play(shared, wave, states, count, setup):
        chunks.append(int(count) * len(wave.key))
        return original(shared, wave, states, count, setup=setup)

    monkeypatch.setattr(waves, "play", play)
    options = {"strategy": "scan", "output": tmp_path / "run"}
    first = compare({"FedAvg": fedavg}, grid={"rate": [0.1]}, seeds=1, **options)
    assert first.path == tmp_path / "run" and sum(chunks) == 6
    wide = {"rounds": 9, "seeds": 2, "grid": {"rate": [0.1, 0.2]}}
    again = compare(BOTH, **wide, **options)
    assert sum(chunks) == 6 + 3 + 7 * 9
    whole = compare(BOTH, strategy="scan", **wide)
    for one, other in zip(in_order(again), in_order(whole), strict=True):
        numbers = {k: v for k, v in other.items() if isinstance(v, int | float)}
        assert {k: one[k] for k in numbers} == pytest.approx(numbers, rel=1e-10)
        assert one["hyperparameters"] == other["hyperparameters"]
    assert again.table() == whole.table()
    del chunks[:]
    assert compare(BOTH, **wide, **options).records == again.records and not chunks
    with pytest.raises(ValueError, match=r"another run: rounds is 9 there and 6 here"):
        compare(BOTH, **wide | {"rounds": 6}, **options)
    with pytest.raises(ValueError, match=r"FedAvg .*has other data, numbers or functions there"):
        halved = functools.wraps(fedavg)(lambda rate: fedavg(rate / 2))
        compare({**BOTH, "FedAvg": halved}, **wide, **options)
    with pytest.raises(ValueError, match=r"holds another run: federation is"):
        compare(BOTH, federation=FEDERATION.replace(batch_size=3), **wide, **options)


def test_an_interrupted_one_goes_on(tmp_path, monkeypatch):
    original, played = waves.play, []

    def play(*arguments, **rest):
        played.append(arguments)
        if len(played) == 4:
            raise KeyboardInterrupt
        return original(*arguments, **rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(waves, "play", play)
        compare(output=tmp_path / "run")
    assert read(tmp_path / "run").about["status"] == "interrupted"
    assert in_order(compare(output=tmp_path / "run")) == in_order(compare())
    assert len(list((tmp_path / "run" / "states").iterdir())) == 8
    compare(output=tmp_path / "other", keep_states=False)
    assert not list((tmp_path / "other").glob("states/*"))


def test_points_are_chosen_on_validation_examples():
    """A share of each client's examples, in which nobody trains."""
    found = compare(validation=0.25)
    assert found.rule.chosen_by == "validation_loss" and "test set" not in found.table()
    assert found.about["facts"]["validation examples"] == 1 + 2 + 1 + 3 + 2 + 1
    for one in found.best():
        own = [c for c in found.curves if c.label == one.label]
        scores = [c.columns["validation_loss"].min(axis=1).mean() for c in own]
        assert own[int(np.argmin(scores))] is one
    held = comparing.held_out(FEDERATION, 0.25)
    expected = fo.simulate(fedavg(0.1), held, 6, progress=False)
    metrics = fo.evaluate(problems.MODEL, expected.variables, held.validation)
    (curve,) = (c for c in found.curves if (c.label, c.hyperparameters["rate"]) == ("FedAvg", 0.1))
    np.testing.assert_allclose(curve.columns["validation_loss"][0, -1], metrics["loss"], 1e-10)


@pytest.mark.parametrize("name", ["seed", "round", "label", "diverged", "bytes_up", "update_norm"])
def test_a_metric_may_have_any_name(name, tmp_path):
    model, clients, _ = fo.data.quadratics(num_clients=4, dimension=2)

    def loss(*arguments):
        value, aux = model.loss(*arguments)
        return value, aux._replace(metrics={name: value})

    federation = fo.Federation(
        fo.Model(model.init, loss), clients, cohort=2, local_steps=2, batch_size=1,
        test=clients.examples,
    )  # fmt: skip
    found = compare(
        {"FedAvg": fedavg(0.1)}, 3, federation, grid=None, metric=f"min test_{name}",
        output=tmp_path / "run",
    )  # fmt: skip
    (curve,) = read(tmp_path / "run").curves
    np.testing.assert_array_equal(curve.columns[f"test_{name}"], curve.columns["loss"])
    assert found.best()[0].seeds == (0, 1)


LABELS = np.arange(20) % 3
WRONG = {
    "3": (np.where(np.arange(20) == 9, 3, LABELS), "but y is 3 in row 1 of client 2, of which"),
    "-1": (np.where(np.arange(20) == 9, -1, LABELS), "but y is -1 in row 1 of client 2, of which"),
    "floats": (LABELS + 0.5, "but y is 0.5 in row 0 of client 0, which the model refuses: .*whole"),
    "one-hot": (
        np.eye(3)[LABELS],
        r"but y is \[1.0, 0.0, 0.0\] in row 0 of client 0, which .*refuses",
    ),
    "[n, 1]": (LABELS[:, None], r"but y is \[0\] in row 0 of client 0, which the model refuses"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("stored", [False, True])
def test_labels_that_the_model_does_not_take_are_named(kind, stored, tmp_path):
    y, message = WRONG[kind]
    x = np.random.default_rng(0).normal(size=(20, 2))
    people = [
        (str(c), {"x": x[rows], "y": y[rows]}) for c, rows in enumerate(np.split(np.arange(20), 5))
    ]
    if stored:
        clients = fo.data.store(people, tmp_path / "people")
    else:
        clients = fo.ClientData.from_sizes({"x": x, "y": y}, [4] * 5)
    federation = fo.Federation(
        fo.models.mlp([], 3), clients, cohort=5, local_steps=2, batch_size=4
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=f"clients must have labels that the model takes.* {message}"
    ):
        compare({"FedAvg": fedavg(0.1)}, 3, federation, grid=None, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if kind in ("3", "-1"):
        with pytest.raises(fo.NonFiniteLossError, match=message):
            fo.simulate(fedavg(0.1), federation, 3, progress=False)


def test_a_loss_that_needs_a_key_has_no_wrong_labels():
    def loss(variables, batch, key):
        noise = jax.random.normal(key.reshape(()))
        losses = (variables.params["w"] + 0.01 * noise - batch["y"]) ** 2
        return losses.mean(), fo.Aux(losses=losses)

    clients = fo.ClientData.from_sizes({"y": np.linspace(0, 1, 6)}, [3, 3])
    model = fo.Model(lambda key, batch: fo.Variables({"w": np.zeros(())}), loss)
    federation = fo.Federation(model, clients, cohort=2, local_steps=1, batch_size=3)
    found = compare({"FedAvg": fedavg(0.1)}, 3, federation, grid=None)
    assert not any("diverged" in record for record in found.records)


def test_inputs_that_are_not_finite_are_no_wrong_labels():
    x = np.full((6, 2), np.nan, np.float32)
    clients = fo.ClientData.from_sizes({"x": x, "y": np.arange(6) % 2}, [3, 3])
    federation = fo.Federation(fo.models.mlp([], 2), clients, cohort=2, local_steps=1, batch_size=3)
    found = compare({"FedAvg": fedavg(0.1)}, 3, federation, grid=None)
    assert all("diverged" in record for record in found.records)


def test_the_host_looks_at_no_round_twice(monkeypatch):
    """Else its work would grow with the square of the rounds."""
    counted, original = [], trials.Log._count

    def count(log, num_steps):
        counted.append(len(num_steps))
        original(log, num_steps)

    monkeypatch.setattr(trials.Log, "_count", count)
    compare({"FedAvg": fedavg(0.1)}, 12, grid=None, evaluate_every=2)
    assert counted == [2] * 12


def test_few_programs(monkeypatch):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **about: (
            compiled.append(about.get("fun_name", ""))
            if event.endswith("backend_compile_duration")
            else None
        )
    )
    grid = {"rate": [0.01, 0.02, 0.05], "local_steps": [1, 3], "FedProx": {"mu": [0.1, 0.2]}}
    compare(federation=FEDERATION.replace(batch_size=2), grid=grid, seeds=3)
    assert sum("jit(play)" in name for name in compiled) == 2


VALUE = {"FedAvg": fedavg(0.1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithms": {}}, "algorithms must be a mapping of labels"),
        ({"algorithms": fedavg}, "algorithms must be a mapping of labels"),
        ({"algorithms": {"a": 3}}, "a must be an Algorithm, or a function that returns one, got 3"),
        ({"algorithms": {"": fedavg}}, "a label must be a word, got ''"),
        ({"algorithms": {"a": lambda rate: rate}}, r"a \(rate=0.01\): it must return an Algorithm"),
        ({"federation": problems.MODEL}, "federation must be a Federation, such as"),
        ({"federation": FEDERATION.replace(cohort=None)}, "federation.cohort must be given"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0"),
        ({"seeds": []}, "seeds must hold at least one seed"),
        ({"seeds": [1, 1]}, "seeds must differ, but 1 comes twice"),
        ({"seeds": [-1]}, "seeds must be a whole number of at least 0"),
        ({"grid": 3}, "grid must be a mapping"),
        ({"grid": {"mo": [1]}}, "hyperparameter 'mo' is not known. Did you mean 'mu'"),
        ({"grid": {"FedAcg": {"rate": [1]}}}, "label 'FedAcg' is not known. Did you mean 'FedAvg'"),
        ({"grid": {"FedAvg": {"mu": [1]}}}, "hyperparameter 'mu' is not known"),
        ({"algorithms": VALUE}, "'rate' is no field .* FedAvg is an algorithm already.*a function"),
        ({"grid": {"rate": []}}, "grid: rate must have a list of at least one value"),
        ({"grid": {"rate": 0.1}}, "grid: rate must have a list of at least one value"),
        ({"grid": {"rate": "0.1"}}, "grid: rate must have a list of at least one value"),
        ({"grid": {"rate": [0.1, 0.1]}}, "grid: rate must not repeat a value, got 0.1 twice"),
        ({"grid": {"rate": [fedavg]}}, "values of rate must be numbers, words or lists of them"),
        ({"grid": {"rate": [-1.0]}}, r"FedAvg \(rate=-1.0\): learning_rate must lie in"),
        ({"grid": {"mu": [1.0]}}, "FedAvg.*it needs rate: put it into the grid"),
        ({"grid": {"rate": Range(0.1, 1.0)}}, "grid: rate is a range: say by samples how many"),
        ({"grid": {"rate": [0.1], "cohort": Range(1, 3)}, "samples": 1}, "cohort must have whole"),
        ({"grid": {"rate": [0.1], "cohort": [7]}}, "cohort=7.*population of 6 clients, got 7"),
        ({"grid": {"rate": [0.1], "local_steps": [0]}}, "local_steps must be .* got 0"),
        ({"grid": {"rate": [0.1], "batching": ["x"]}}, "batching must be one of"),
        (
            {"grid": {"rate": [0.1], "local_steps": [1], "local_epochs": [1]}},
            "Give local_steps or local_epochs",
        ),
        ({"samples": 3}, "samples must be at most 2, all points of the grid of FedAvg, got 3"),
        ({"metric": "thing"}, "metric must be a name with what is better of it"),
        ({"criterion": "last"}, "criterion must be one of 'best', 'final'"),
        ({"criterion": "rounds_to_target"}, "needs a target"),
        ({"smoothing": 1.0}, "smoothing must lie in"),
        ({"baseline": "x"}, "baseline must be one of 'FedAvg', 'FedProx', got 'x'"),
        ({"validation": 1.5}, "validation must lie in"),
        ({"validation": 0.1, "federation": FEDERATION.replace(validation=DATA.examples)}, "left out"),
        ({"diagnostics": ["x"]}, "diagnostics"),
        ({"evaluate_every": 0}, "evaluate_every must be"),
        ({"output": "/dev/null/run"}, "/dev/null/run cannot be written"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_to_do(options, message):
    with pytest.raises((ValueError, OSError), match=message):
        compare(**options)


@pytest.mark.parametrize(
    ("values", "chosen", "end"),
    [
        ((0.1, 0.2, 0.4), 0.4, "largest that was tried.*--grid 'a:rate=0.1,0.2,0.4,0.8'"),
        ((0.4, 0.1, 0.2), 0.1, "smallest that was tried.*--grid 'a:rate=0.05,0.1,0.2,0.4'"),
        ((0.1, 0.2, 0.4), 0.2, None),
        ((0.1, 0.2), 0.2, None),  # of two each is an end
    ],
)
def test_a_choice_at_the_end_of_its_grid(values, chosen, end):
    record = {"label": "a", "seed": 0, "round": 1, "hyperparameters": {"rate": chosen}, "loss": 1.0}
    about = {"grids": {"a": {"rate": list(values)}}}
    notes = fo.Comparison("rounds = 1\n", about, [record]).notes()
    assert len(notes) == (end is not None)
    assert all(re.search(end, note) for note in notes)
