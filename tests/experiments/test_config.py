"""Experiments: a file and options can say the same, and what cannot be run is refused."""

import dataclasses
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.experiments import results
from fedjax_opt.experiments.config import from_options, from_toml, to_options, to_toml
from fedjax_opt.experiments.experiment import (
    FIELDS,
    Experiment,
    Member,
    check,
    parse_member,
    with_suggestions,
)
from fedjax_opt.experiments.points import grids_of
from fedjax_opt.experiments.search import Range, parse_range
from fedjax_opt.experiments.specs import Spec, parse

MEMBERS = (
    "fedavg",
    "fedprox(learning_rate=0.1, mu=0.01)",
    "ghbm(learning_rate=0.1, tau=3, nesterov=true) + clipped(max_norm=10)",
    "fedavg(learning_rate=0.5) + compressed(upload=[top_k(sparsity=0.9), uniform(bits=4)])",
    "per_fedavg(learning_rate=0.1, adaptation_rate=0.1) + private(where='**/{scale,bias}')",
)
GRIDS = {
    "learning_rate": (0.1, 1, 1e-5),
    "fedprox:mu": (0.0, 0.5),
    "tau": (1, 10),
    "nesterov": (True, False),
    "hessian": ("first_order", "exact"),
    "clipped.max_norm": (0.5, 5),
    "compressed.upload": (Spec("sign", {}), Spec("uniform", {"bits": 8})),
    "private.where": ("state/**", ("a b", "**/{scale,bias}")),
}
CONTROLLERS = (parse("K-error(window=5)"), parse("K-step(factor=2.5, metric=accuracy)"))
TASKS = (Spec("digits", {}), parse("plays(which=play)"), parse("femnist(folder='a \"b')"))
RANGES = {
    "learning_rate": Range(0.001, 1.0, logarithmic=True),
    "fedprox:mu": Range(0.0, 1.0),
}
LABELS = st.from_regex(r"[A-Za-zéß0-9](?:[\w .+-]{0,8}[\w.+-])?", fullmatch=True)


def a_whole(low):
    return st.none() | st.integers(low, 10**6)


@st.composite
def experiments(draw):
    """Experiments that can be run, with every field in use."""
    members = [parse_member(text) for text in MEMBERS]
    members[3] = members[3]._replace(label=draw(LABELS))
    if len({member.label for member in members}) < len(members):
        members[3] = members[3]._replace(label="another one")
    grid = {
        name: GRIDS[name] for name in draw(st.lists(st.sampled_from(sorted(GRIDS)), unique=True))
    }
    samples = draw(st.none() | st.integers(1, 2)) if grid else None
    if samples is not None:
        grid |= {name: RANGES[name] for name in draw(st.sets(st.sampled_from(sorted(RANGES))))}
    steps, epochs = draw(st.sampled_from([(None, None), (7, None), (None, 2)]))
    # Local epochs leave the learning rate to be controlled, and that needs one to start from.
    controller = draw(
        st.sampled_from([None, parse("eta-rounds"), *([] if epochs else CONTROLLERS)])
    )
    if controller == parse("eta-rounds"):
        members = members[1:]
    made = Experiment(
        task=draw(st.sampled_from(TASKS)),
        algorithms=tuple(members),
        rounds=draw(a_whole(1)),
        seeds=tuple(draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=4, unique=True))),
        cohort_size=draw(a_whole(1)),
        batch_size=draw(a_whole(1)),
        local_steps=steps,
        local_epochs=epochs,
        controller=controller,
        evaluate_every=draw(st.integers(1, 100)),
        test_examples=draw(a_whole(1)),
        weighting=draw(st.sampled_from(["samples", "uniform"])),
        batching=draw(st.sampled_from(["shuffled", "replacement"])),
        diagnostics=draw(st.sampled_from([(), ("upload_bytes",), ("upload_bytes", "client_distance")])),
        grid=grid,
        samples=samples,
        search_seed=draw(st.integers(0, 100)),
        criterion=draw(st.sampled_from([c for c in results.CRITERIA if c != "rounds_to_target"])),
        metric=draw(st.sampled_from([None, "loss", "max f1"])),
        smoothing=draw(st.floats(0.0, 0.99)),
        target=draw(st.none() | st.floats(0.0, 1.0)),
        download_mbps=draw(st.none() | st.floats(0.001, 1e6)),
        upload_mbps=draw(st.none() | st.floats(0.001, 1e6)),
        device_gflops=draw(st.none() | st.floats(0.001, 1e6)),
    )  # fmt: skip
    return with_suggestions(made)


def looks(experiment):
    """What an experiment looks like: 1, 1.0 and True are equal, and should stay what they are."""
    return repr(experiment.replace(grid=dict(experiment.grid)))


@settings(max_examples=60)
@given(experiments())
def test_files_round_trip(experiment):
    text = to_toml(experiment)
    assert looks(from_toml(text)) == looks(experiment)
    assert to_toml(from_toml(text)) == text


@settings(max_examples=60)
@given(experiments())
def test_options_round_trip(experiment):
    assert looks(from_options(to_options(experiment))) == looks(experiment)


def test_a_file_explains_every_key():
    text = to_toml(Experiment(Spec("digits"), (parse_member("fedavg"),)))
    lines = text.splitlines()
    for name in FIELDS:
        (at,) = [
            i
            for i, line in enumerate(lines)
            if line.lstrip("# [").startswith((f"{name} =", f"{name}]"))
        ]
        assert lines[at - 1].startswith("# ")
    assert tomllib.loads(text)["algorithms"] == ["fedavg"]


def test_defaults_are_those_of_a_run():
    experiment = from_toml('task = "digits"\nalgorithms = ["fedavg"]')
    fields = {field.name: field.default for field in dataclasses.fields(fo.Federation)}
    defaults = fields | fo.simulate.__kwdefaults__
    for name in ("evaluate_every", "weighting", "batching", "diagnostics"):
        assert getattr(experiment, name) == defaults[name]
    assert to_options(experiment) == {
        "task": ["digits"],
        "algorithms": ["fedavg(learning_rate=0.4)"],
    }


def test_odd_characters_survive():
    odd = 'a\\b "c" \x7f\n\tü🙂'
    experiment = Experiment(
        Spec("femnist", {"folder": odd}), (parse_member("fedprox(mu=1, learning_rate=1)"),)
    )
    assert from_toml(to_toml(experiment)) == experiment
    assert from_options(to_options(experiment)) == experiment


# --- algorithms and ranges as text --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, label, names",
    [
        ("fedavg", "fedavg", ["fedavg"]),
        ("fedavg(learning_rate=1)+clipped(max_norm=1)", "fedavg+clipped", ["fedavg", "clipped"]),
        (" slow one : fedavg ", "slow one", ["fedavg"]),
        ("A-1.5: fedavg + private(where='a:b')", "A-1.5", ["fedavg", "private"]),
        ("femnist(folder=C:/x)", "femnist", ["femnist"]),
    ],
)
def test_members(text, label, names):
    member = parse_member(text)
    assert member.label == label
    assert [spec.name for spec in (member.algorithm, *member.wrappers)] == names
    assert parse_member(str(member)) == member


def test_members_that_are_none():
    with pytest.raises(ValueError, match="Cannot read ''"):
        parse_member("slow: ")
    assert parse_member("my.package:own(x=1)").label == "own"
    with pytest.raises(ValueError, match="Cannot read 'a/b: fedavg'"):
        parse_member("a/b: fedavg")


def test_ranges():
    assert parse_range(" loguniform(1e-3,1) ") == Range(0.001, 1.0, logarithmic=True)
    for text in ("uniform(1)", "normal(0, 1)", "uniform(a, b)", "uniform(0, inf)", "0.1"):
        with pytest.raises(ValueError, match=r"written uniform\(low, high\) or loguniform"):
            parse_range(text)


def test_the_grid_of_each_algorithm():
    members = tuple(map(parse_member, ("fedavg", "prox: fedprox", "fedprox + clipped(max_norm=1)")))
    grid = {
        "learning_rate": (0.1, 0.2),
        "mu": (0.5,),
        "clipped.max_norm": (1.0, 2.0),
        "prox:learning_rate": (0.3,),
        "fedprox+clipped:local_steps": (5, 10),
    }
    experiment = check(Experiment(Spec("digits"), members, grid=grid))
    grids = grids_of({member.label: member for member in members}, experiment.grids)
    assert list(grids.values()) == [
        {"learning_rate": (0.1, 0.2)},
        {"learning_rate": (0.3,), "mu": (0.5,)},
        {
            "learning_rate": (0.1, 0.2),
            "mu": (0.5,),
            "clipped.max_norm": (1.0, 2.0),
            "local_steps": (5, 10),
        },
    ]


# --- options ------------------------------------------------------------------------------------------


def test_options_in_the_words_of_a_command():
    experiment = from_options(
        {
            "task": ["digits(num_clients=20)"],
            "algorithms": ["fedavg", "slow: fedprox(mu=1)"],
            "seeds": ["0,1", "2"],
            "rounds": ["30"],
            "target": ["1"],
            "diagnostics": ["client_distance,upload_bytes"],
            "samples": ["4"],
            "grid": ["learning_rate=loguniform(1e-3, 1)", "slow:mu=[0.1, 1]", "local_steps=5,10"],
        }
    )
    assert experiment.seeds == (0, 1, 2) and experiment.target == 1.0
    assert experiment.algorithms[1] == Member("slow", Spec("fedprox", {"mu": 1}))
    assert experiment.diagnostics == ("client_distance", "upload_bytes")
    assert experiment.grid == {
        "learning_rate": Range(0.001, 1.0, logarithmic=True),
        "slow:mu": (0.1, 1),
        "local_steps": (5, 10),
    }


def test_options_change_what_a_file_says():
    base = from_toml('task = "digits"\nalgorithms = ["fedavg"]\nlocal_epochs = 2\nrounds = 9')
    changed = from_options({"local_steps": ["5"], "seeds": ["3"]}, base)
    assert changed == base.replace(local_steps=5, local_epochs=None, seeds=(3,))
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 1, got 0"):
        from_options({"rounds": ["0"]}, base)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"round": ["3"]}, "key 'round' is not known. Did you mean 'rounds'?"),
        ({"rounds": ["many"]}, "rounds must be a whole number, got 'many'"),
        ({"rounds": ["1", "2"]}, "rounds must be a whole number, got '1 2'"),
        ({"seeds": ["0,x"]}, "seeds must be a list of whole numbers"),
        ({"seeds": ["0,("]}, "seeds: Cannot read '[0,(]'"),
        ({"grid": ["learning_rate"]}, "grid: expected hyperparameter=value,value"),
        (
            {"grid": ["learning_rate="]},
            "grid: learning_rate must have a list of at least one value",
        ),
        ({"grid": []}, "grid must be a table of hyperparameters that is not empty"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError) as caught:
        from_options({"task": ["digits"], "algorithms": ["fedavg"], **options})
    assert message in str(caught.value)


# --- files that are refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("wrong", ["1979-05-27", "[1979-05-27]", "{a = 1979-05-27}", "[[true]]"])
def test_a_wrong_type_is_named_by_its_key(name, wrong):
    lines = {"task": '"digits"', "algorithms": '["fedavg"]', name: wrong}
    with pytest.raises(ValueError, match=f"^exp.toml: {name} must be .*, got ") as caught:
        from_toml("\n".join(f"{key} = {value}" for key, value in lines.items()), "exp.toml")
    assert "datetime" in str(caught.value) or "True" in str(caught.value)


@pytest.mark.parametrize(
    "lines, message",
    [
        ("rounds 3", "exp.toml: Expected '=' after a key"),
        ("rouds = 3", "key 'rouds' is not known. Did you mean 'rounds'?"),
        ("lr = 3", "There are task, algorithms, rounds,"),
        ("rounds = 0", "rounds must be a whole number of at least 1, got 0"),
        ("rounds = 3.0", "rounds must be a whole number, got 3.0"),
        ("rounds = true", "rounds must be a whole number, got True"),
        ('rounds = "3"', "rounds must be a whole number, got '3'"),
        ("seeds = []", "seeds must hold at least one seed, such as [0], got none"),
        ("seeds = 3", "seeds must be a list of whole numbers, such as [0, 1, 2], got 3"),
        ("seeds = [-1]", "seeds must be a whole number of at least 0, got -1"),
        ("seeds = [1, 1]", "seeds must differ, but 1 comes twice"),
        ("cohort_size = 0", "cohort_size must be a whole number of at least 1"),
        ("evaluate_every = 0", "evaluate_every must be"),
        ("test_examples = 0", "test_examples must be a whole number of at least 1"),
        ("local_steps = 5\nlocal_epochs = 1", "and leave the other out; got both"),
        ("local_steps = 5\n[grid]\nlocal_epochs = [1]", "Give local_steps or local_epochs"),
        ('controller = "K-round"', "controller 'K-round' is not known. Did you mean 'K-rounds'?"),
        ('controller = "K-error(windw=3)"', "'windw' is not known. Did you mean 'window'?"),
        ('controller = "K-rounds"\nlocal_epochs = 2', "leave local_epochs out"),
        ('controller = "K-rounds"\n[grid]\nlocal_steps = [2]', "leave local_steps in the grid out"),
        ('controller = "eta rounds"', "controller: Cannot read 'eta rounds'"),
        ('weighting = "sample"', "Did you mean 'samples'? There are samples, uniform, weights."),
        ('batching = "none"', "There are shuffled, replacement."),
        ('diagnostics = ["client_distanc"]', "Did you mean 'client_distance'?"),
        ('criterion = "bset"', "criterion 'bset' is not known. Did you mean 'best'?"),
        ('criterion = "rounds_to_target"', "needs a target"),
        ("target = 90", "target must lie in [0.0, 1.0], got 90"),
        ("smoothing = 1", "smoothing must lie in [0.0, 1.0), got 1"),
        ("upload_mbps = 0", "upload_mbps must lie in (0.0, inf), got 0"),
        ("samples = 3", "samples are drawn from a grid: give one, or leave samples out"),
        ("samples = 0\n[grid]\nlearning_rate = [1]", "samples must be a whole number of at least 1"),
        ("[grid]", "grid must be a table of hyperparameters that is not empty"),
        ("grid = 3", "grid must be a table"),
        ("[grid]\nlearning_rate = []", "grid: learning_rate must have a list of at least one value"),
        ("[grid]\nlearning_rate = 0.1", "grid must be a table of hyperparameters"),
        ("[grid]\nlearning_rate = [0.1, 0.1]", "learning_rate must not repeat a value, got 0.1 twice"),
        ("[grid]\nlearning_rte = [0.1]", "'learning_rte' is not known. Did you mean 'learning_rate'?"),
        ("[grid]\nmu = [0.1]", "hyperparameter 'mu' is not known"),
        ('[grid]\n"fedvg:learning_rate" = [0.1]', "Did you mean 'fedavg'?"),
        ("[grid]\nlearning_rate = [0.1, -1]", "fedavg: learning_rate must lie in"),
        ('[grid]\nlearning_rate = ["big"]', "learning_rate must be a number, got 'big'"),
        ("[grid]\nlocal_steps = [0]", "grid: local_steps must be a whole number of at least 1"),
        ('[grid]\nlearning_rate = "uniform(0.1, 1)"', "say by samples how many points to draw"),
        ('samples = 2\n[grid]\nlearning_rate = "uniform(1, 0.1)"', "must have finite ends, low < high"),
        ('samples = 2\n[grid]\nlearning_rate = "loguniform(0, 1)"', "positive to be logarithmic"),
        ('samples = 2\n[grid]\nlearning_rate = "uniform(-1, 1)"', "fedavg: learning_rate must lie in"),
        ('samples = 2\n[grid]\nlocal_steps = "uniform(1, 2)"', "whole numbers or words: give a list"),
        ('samples = 2\n[grid]\nlearning_rate = "uniform 1, 2"', "grid: A range is written"),
    ],
)  # fmt: skip
def test_files_that_are_refused(lines, message):
    with pytest.raises(ValueError) as caught:
        from_toml(f'task = "digits"\nalgorithms = ["fedavg"]\n{lines}', "exp.toml")
    assert str(caught.value).startswith("exp.toml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "task is missing. Data, split and model: `fedjax-opt list tasks` shows all."),
        ('task = "digits"', "algorithms is missing."),
        ('task = "digit"\nalgorithms = ["fedavg"]', "'digit' is not known. Did you mean 'digits'?"),
        ('task = "digits(n=3)"\nalgorithms = ["fedavg"]', "digits's argument 'n' is not known."),
        ('task = "femnist"\nalgorithms = ["fedavg"]', "femnist needs folder"),
        ('task = "digits"\nalgorithms = []', "algorithms must hold at least one"),
        ('task = "digits"\nalgorithms = ["fedavg", "fedavg(learning_rate=1)"]', "Give each its own"),
        ('task = "digits"\nalgorithms = ["fedvg"]', "'fedvg' is not known. Did you mean 'fedavg'?"),
        ('task = "digits"\nalgorithms = ["fedprox(mu=1)"]', "fedprox needs learning_rate"),
        ('task = "digits"\nalgorithms = ["x: fedavg(learning_rate=-1)"]', "x: learning_rate must lie"),
        ('task = "digits"\nalgorithms = ["fedavg + clipped(max_norm=0)"]', "max_norm must lie in"),
        ('task = "digits"\nalgorithms = ["ghbm"]\nsamples = 2\n[grid]\ntau = "uniform(1, 5)"',
         "tau is no number that may be drawn: give a list of values"),
    ],
)  # fmt: skip
def test_what_is_run_is_checked(text, message):
    with pytest.raises(ValueError) as caught:
        from_toml(text)
    assert message in str(caught.value)


def test_labels_of_values_are_checked():
    experiment = Experiment(Spec("digits"), (Member("a:b", Spec("fedavg")),))
    with pytest.raises(ValueError, match="A label is made of letters"):
        check(experiment)
    seeds = experiment.replace(algorithms=(parse_member("fedavg"),), seeds=(np.int64(3),))
    assert check(seeds).seeds == (3,)
    assert from_toml(to_toml(seeds)).seeds == (3,)
