"""Tables and figures of papers: every one builds, says what the paper reports, and judges orderings."""

import numpy as np
import pytest

import fedjax_opt as fo
from benchmarks.papers.catalogue import ENTRIES, find
from benchmarks.papers.entry import MEASURES, Claim, Entry, Part, columns, experiment, prepared
from benchmarks.papers.measured import cells, measure, verdicts
from fedjax_opt.experiments.config import from_toml, to_toml

SIZES = [
    (name, quick)
    for name, entry in ENTRIES.items()
    for quick in (False, True)
    if (entry.quick if quick else entry.full)
]


@pytest.mark.parametrize("name, quick", SIZES)
def test_every_entry_builds(name, quick):
    entry = find(name)
    parts = entry.parts(quick)
    assert parts and len({part.name for part in parts}) == len(parts)
    assert set(entry.measures) <= MEASURES.keys()
    for part in parts:
        assert from_toml(to_toml(part.experiment)) == part.experiment
        same = [other for other in parts if other.group == part.group]
        # A page holds one task, and what is compared is there.
        assert len({str(other.experiment.task) for other in same}) == 1
        labels = {member.label for other in same for member in other.experiment.algorithms}
        for claim in part.claims:
            assert {claim.better, claim.worse} <= labels and claim.measure in entry.measures
        if {"rounds", "minutes"} & set(entry.measures):
            assert part.experiment.target is not None
        if part.sampler is not None:
            assert part.experiment.cohort_size is None
    assert (entry.quick_differs if quick else True) and entry.finds


@pytest.mark.parametrize("name, quick", SIZES)
def test_numbers_are_quoted_with_their_table(name, quick):
    entry = find(name)
    assert entry.where.startswith(("Table", "Figure"))
    for part in entry.parts(quick):
        assert part.beside.startswith(("Table", "Figure"))
        for told in part.reported.values():
            assert told.keys() <= set(entry.measures)
            for text in told.values():
                if text != "X":  # not reached
                    float(text.partition("±")[0].removesuffix("GB").removesuffix("+"))


def told(name, part, label, measure="accuracy"):
    parts = {one.name: one for one in find(name).parts()}
    return parts[part].reported[label][measure]


def test_numbers_are_those_of_the_papers():
    assert told("fedgbo-table4", "cifar100", "fedgbo-sgdm") == "49.2±0.7"
    assert told("fedgbo-table4", "shakespeare", "mimelite-sgdm", "match") == "7.6GB"
    assert told("fedgbo-table5", "K-50", "mimexlite-sgdm") == "50.4±0.3"
    assert told("decaying-k", "cifar100-K-rounds", "K-rounds", "steps") == "0.090"
    assert told("ghbm-table8", "resnet20-non-iid", "fedhbm") == "83.4±0.3"
    assert told("ghbm-table8", "lenet-iid", "fedavg") == "83.1±0.3"
    assert told("ghbm-table9", "cyclic", "ghbm") == "39.0±0.7"
    assert told("fedacg-table1", "cifar10-100", "fedacg") == "89.10"
    assert told("fedacg-table1", "cifar100-500", "fedacg", "rounds") == "616"
    assert told("fedacg-table2", "cifar10-500", "feddc") == "75.06"
    assert told("fedacg-table3", "cifar100", "feddyn") == "38.47"
    assert told("fedacg-table4", "cifar100", "lambda 0.85 beta 0") == "46.80"
    assert told("fedacg-table5", "iid", "lambda 0.85") == "86.83"
    assert told("fedacg-table7", "cifar10-500", "feddc", "rounds") == "596"
    assert told("fedacg-table8", "cifar100-100", "moon") == "64.73"
    assert told("ce-fedavg", "s-0.9-W-20-C-0.5", "ce-fedavg", "rounds") == "104.6"
    assert told("ce-fedavg", "s-0.6-W-40-C-1.0", "fedavg", "rounds") == "152.4"
    assert told("mtfl", "fedadam", "gamma beta private", "rounds") == "31"


def test_full_size_is_that_of_the_papers():
    table = {part.name: part.experiment for part in find("fedgbo-table4").parts(leaf="here")}
    assert table["femnist"].task.arguments["folder"] == "here/data/femnist/data"
    assert len(table["cifar100"].algorithms) == 7 and len(table["sent140"].algorithms) == 6
    assert table["cifar100"].seeds == (0, 1, 2, 3, 4)
    schedules = [p.experiment for p in find("decaying-k").parts() if p.group == "femnist"]
    assert len(schedules) == 8 and len({str(one.controller) for one in schedules}) == 8
    assert {(e.cohort_size, e.local_steps, e.rounds) for e in schedules} == {(60, 80, 10_000)}
    (dynamic,) = find("fedacg-table3").parts()
    assert dynamic.sampler is not None and dynamic.sampler.size == 10
    assert dynamic.sampler.least_population == 250


def test_what_has_no_size_says_what_to_do():
    with pytest.raises(ValueError, match="Use --quick"):
        find("ghbm-table3").parts()
    with pytest.raises(ValueError, match="Did you mean 'fedgbo-table4'"):
        find("fedgbo-tabel4")


def test_a_part_may_have_its_own_cohorts():
    (_, cyclic) = find("ghbm-table9").parts(quick=True)
    digits = fo.tasks.digits()
    assert prepared(cyclic, digits).cohort is cyclic.sampler
    uniform = find("ghbm-table8").parts(quick=True)[0]
    assert prepared(uniform, digits) is digits


def test_columns_leave_out_what_is_empty():
    text = "a b 1.0 - 3\nc 4 5 6"
    assert columns(text, "accuracy", "match", "") == {
        "a b": {"accuracy": "1.0"},
        "c": {"accuracy": "4", "match": "5"},
    }


def records(label, curves, steps=10):
    return [
        {
            "label": label, "hyperparameters": {}, "seed": seed, "round": 10 * (place + 1),
            "accuracy": value, "bytes_up": 1e6 * (place + 1), "client_steps": steps,
            "simulated_seconds": 60.0 * (place + 1),
        }
        for seed, curve in enumerate(curves)
        for place, value in enumerate(curve)
    ]  # fmt: skip


CLAIMS = tuple(
    Claim("b", "a", measure) for measure in ("accuracy", "rounds", "minutes", "match", "upload")
)
CLAIMS += (Claim("a", "b"), Claim("c", "a"), Claim("c", "a", "rounds"))


@pytest.fixture
def rows():
    members = [f"{name}: fedavg(learning_rate=0.1)" for name in "abc"]
    made = experiment("digits", members, seeds=(0, 1), target=0.5)
    part = Part("p", "g", made, "Table 1", {"a": {"accuracy": "40.2±0.9"}}, CLAIMS)
    entry = Entry("e", "Somebody.", "Table 1", "b wins.", tuple(MEASURES), baseline="a")
    found = [
        *records("a", [[0.1, 0.4, 0.5], [0.2, 0.4, 0.6]], steps=20),
        *records("b", [[0.5, 0.7, 0.8], [0.5, 0.7, 0.9]]),
        *records("c", [[0.1, 0.2, 0.4], [0.1, 0.2, 0.8]]),
    ]
    return entry, measure(entry, [(part, found)])


def test_what_is_measured(rows):
    entry, (a, b, c) = rows
    np.testing.assert_allclose(a.values["accuracy"], [50, 60])
    np.testing.assert_allclose(b.values["accuracy"], [80, 90])
    assert a.values["rounds"].tolist() == [30, 30] and b.values["rounds"].tolist() == [10, 10]
    assert c.values["rounds"].tolist() == [np.inf, 30]
    assert b.values["minutes"].tolist() == [1, 1]
    # FedAvg's until its own best; others' until they have its mean, 55%.
    assert a.values["match"].tolist() == [3, 3] and b.values["match"].tolist() == [2, 2]
    assert b.values["steps"].tolist() == [0.5, 0.5] and b.values["upload"].tolist() == [1, 1]
    shown = dict(zip(entry.measures, cells(entry, a), strict=True))
    assert shown["accuracy"] == ("40.2±0.9", "55.0 ± 63.5") and shown["rounds"][0] == ""
    assert cells(entry, c)[1][1] == "not reached by 1 of 2"


def test_orderings_are_judged_seed_by_seed(rows):
    found = dict(zip(CLAIMS, verdicts(rows[1]), strict=True))
    # The intervals of both are wide, that of their difference is not.
    assert "above a in accuracy, %: holds (85.0" in found[CLAIMS[0]]
    for claim in CLAIMS[1:5]:
        assert ": holds (" in found[claim]
    assert ": does not hold (" in found[CLAIMS[5]]
    assert "not decided, the difference is within its interval" in found[CLAIMS[6]]
    assert ": not decided (" in found[CLAIMS[7]]


def test_a_run_that_diverged_proves_nothing():
    made = experiment("digits", ["a: fedavg(learning_rate=0.1)", "b: fedavg(learning_rate=0.2)"])
    part = Part("p", "g", made, "Table 1", {}, (Claim("b", "a"),))
    entry = Entry("e", "Somebody.", "Table 1", "b wins.", baseline="a")
    found = [*records("a", [[0.1, np.nan]]), *records("b", [[0.5, 0.7]])]
    rows = measure(entry, [(part, found)])
    assert cells(entry, rows[0]) == [("", "diverged")]
    assert "not decided" in verdicts(rows)[0]


def test_what_is_relative_needs_its_baseline(rows):
    entry, (_, b, _) = rows
    (alone,) = measure(entry, [(b.part, records("b", [[0.5, 0.7], [0.5, 0.7]]))])
    assert alone.values.keys() == {"accuracy", "rounds", "upload", "minutes"}
    assert cells(entry, alone)[-1] == ("", "")
    assert verdicts([alone]) == []
