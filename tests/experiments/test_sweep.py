"""Many runs as one program: each is the run that it would be alone, whatever is beside it."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

import fedjax_opt as fo
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.sweep import (
    Interrupted,
    Range,
    Trial,
    expand,
    run_trials,
    sample,
)
from tests.core import problems

pytestmark = pytest.mark.slow  # every sweep is compiled

SIZES = (5, 8, 3, 12, 7, 4)
DATA = problems.ragged(SIZES)
FEDERATION = fo.Federation(
    problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4, test=DATA.examples
)
ROUNDS, EVERY = 7, 3


def scaffold(rate):
    return fo.scaffold(fo.optimizers.sgd(rate))


def trials_of(rates=(0.01, 0.1, 0.2), seeds=(0, 1, 5), build=scaffold):
    built = {rate: build(rate) for rate in rates}
    return [
        Trial("scaffold", built[rate], FEDERATION, seed, {"learning_rate": rate})
        for rate in rates
        for seed in seeds
    ]


def changed(trials, changes):
    """The trials on another federation, and what is left for the sweep."""
    federation, options = problems.changed(FEDERATION, changes)
    return [
        t._replace(federation=federation) if getattr(t, "federation", 0) is FEDERATION else t
        for t in trials
    ], options


def sweep(trials, **changes):
    trials, options = changed(trials, changes)
    return run_trials(trials, **{"rounds": ROUNDS, "evaluate_every": EVERY} | options)


def alone(trial, **changes):
    (trial,), options = changed([trial], changes)
    return fo.simulate(
        trial.algorithm, trial.federation, ROUNDS, evaluate_every=EVERY,
        seed=trial.seed, strategy="scan", on_nonfinite="stop", progress=False, **options,
    )  # fmt: skip


def assert_is_alone(found, i, expected):
    """Trial i of a sweep is the run that `fo.simulate` gave."""
    done = len(expected.history["round"])
    assert found.rounds[i] == done
    history, evaluations = found.history[i], found.evaluations[i]
    assert {name: x.dtype for name, x in history.items()} == {
        name: x.dtype for name, x in expected.history.items()
    }
    for name, values in expected.history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-10, atol=1e-15, err_msg=name)
    np.testing.assert_array_equal(history["cohort"], expected.history["cohort"])
    for name in expected.evaluations.keys() - {"seconds"}:
        np.testing.assert_allclose(evaluations[name], expected.evaluations[name], 1e-10)
    problems.assert_close(found.variables[i], expected.variables, 1e-10)


def assert_agree(found, expected, rtol=1e-10):
    """The same trials, computed in other ways."""
    assert found.failures == expected.failures and found.rounds == expected.rounds
    for one, other in zip(
        found.history + found.evaluations, expected.history + expected.evaluations, strict=True
    ):
        for name in other.keys() - {"seconds"}:
            np.testing.assert_allclose(one[name], other[name], rtol, err_msg=name)


@pytest.fixture(scope="module")
def mixed():
    """Nine trials on four devices; the three in the middle diverge."""
    trials = trials_of((0.01, 1e30, 0.1))
    return trials, sweep(trials)


def test_each_trial_is_the_run_alone(mixed):
    trials, found = mixed
    for i, trial in enumerate(trials):
        assert_is_alone(found, i, alone(trial))
    assert found.evaluations[0]["round"].tolist() == [3, 6, 7]
    assert found.history[0]["loss"].shape == (7,) and found.history[0]["cohort"].shape == (7, 3)
    assert [t.identity for t in found.trials] == [t.identity for t in trials] and found.seconds > 0


def test_a_trial_that_diverged_is_marked_and_the_others_go_on(mixed):
    trials, found = mixed
    diverged = [trial.point["learning_rate"] == 1e30 for trial in trials]
    assert [bool(failure) for failure in found.failures] == diverged
    assert [rounds < ROUNDS for rounds in found.rounds] == diverged
    for i in np.flatnonzero(diverged):
        expected = alone(trials[i])
        assert found.failures[i] == expected.stopped
        assert np.isfinite(found.variables[i].params["w"]).all()
        assert len(found.history[i]["loss"]) == found.rounds[i]
    kept = [i for i, bad in enumerate(diverged) if not bad]
    without = sweep([trials[i] for i in kept])
    for i, own in zip(kept, without.history, strict=True):
        for name, values in own.items():
            np.testing.assert_allclose(values, found.history[i][name], 1e-12)


def test_records_say_everything_once(mixed):
    trials, found = mixed
    for i, trial in enumerate(trials):
        mine = [
            r
            for r in found.records
            if (r["hyperparameters"], r["seed"]) == (trial.point, trial.seed)
        ]
        assert all(r["label"] == "scaffold" for r in mine)
        if found.failures[i]:
            assert mine[-1]["diverged"] == found.failures[i]
            assert mine[-1]["round"] == found.rounds[i] and "loss" not in mine[-1]
            continue
        assert [r["round"] for r in mine] == [3, 6, 7]
        for e, record in enumerate(mine):
            row, history = record["round"] - 1, found.history[i]
            assert record["loss"] == found.evaluations[i]["loss"][e]
            assert record["distance"] == found.evaluations[i]["distance"][e]
            assert record["train_loss"] == history["loss"][row]
            assert record["update_norm"] == history["update_norm"][row]
            steps = history["num_steps"][: row + 1]
            assert record["participations"] == (steps > 0).sum()
            assert record["client_steps"] == steps.sum()
            assert record["longest_steps"] == steps.max(axis=1).sum()
            assert "cohort" not in record


def mesh(count):
    return Mesh(np.array(jax.devices()[:count]), ("clients",))


@pytest.mark.parametrize(
    ("strategy", "clients"),
    [
        ("scan", "vmap"),
        ("vmap", "auto"),
        (fo.Strategy("chunked", size=4), "scan"),
        (fo.Strategy("sharded", mesh=mesh(2), inner="vmap"), "scan"),
        ("auto", "sharded"),
    ],
    ids=str,
)
def test_all_strategies_agree(mixed, strategy, clients):
    trials, expected = mixed
    found = sweep(trials, strategy=strategy, client_strategy=clients)
    assert_agree(found, expected)


COMPILED = []


def note_compilation(event, duration, **about):
    if event.endswith("backend_compile_duration"):
        COMPILED.append(about["fun_name"])


jax.monitoring.register_event_duration_secs_listener(note_compilation)


@pytest.fixture
def compilations():
    """Names of the functions that are compiled while a test runs."""
    COMPILED.clear()
    return COMPILED


def test_64_trials_are_one_program(compilations):
    model, traces = problems.counted()
    seen = []

    def watch(progress):
        seen.append(len(traces))

    trials = trials_of(np.geomspace(1e-3, 0.1, 16).tolist(), range(4))
    found = sweep(trials, model=model, on_chunk=watch)
    assert len(found.history) == 64
    assert all(np.isfinite(own["loss"]).sum() == ROUNDS for own in found.history)
    assert len(seen) == 64 // 4 * 3, "16 waves on 4 devices, 3 chunks each"
    assert len(set(seen)) == 1, "nothing is traced after the first chunk"
    assert sum("play" in name for name in compilations) == 1
    assert sum("begin" in name for name in compilations) == 1
    # Nor with other numbers, and other numbers of them.
    sweep(trials_of((0.3, 0.4, 0.5), range(7, 10)), model=model, rounds=8)
    assert len(traces) == seen[0] and sum("play" in name for name in compilations) == 1


def test_one_trial_spreads_its_clients_and_compiles_once(compilations):
    trials = trials_of([0.1], [3])
    found = sweep(trials, cohort=5)
    assert_is_alone(found, 0, alone(trials[0], cohort=5))
    assert sum("jit(play)" in name for name in compilations) == 1


def test_progress_is_told_after_each_chunk():
    told = []
    found = sweep(trials_of((0.01, 1e30)), strategy="vmap", on_chunk=told.append)
    # Three that go on, and three that have done three rounds and then diverge.
    assert [p.done for p in told] == [3 * 3 + 3 * 3, 3 * 6 + 3 * 7, 3 * 7 + 3 * 7]
    assert all(p.total == 6 * ROUNDS for p in told)
    assert [p.round for p in told] == [3, 6, 7]
    assert np.all(np.diff([p.seconds for p in told]) > 0)
    assert sorted(map(str, found.records)) == sorted(str(r) for p in told for r in p.records)
    assert len(told[0].trials) == 6 and len(told[-1].trials) == 3, "who diverged is not told again"


def test_ctrl_c_keeps_what_was_done(mixed):
    trials, expected = mixed

    def press(progress):
        if progress.trials[0].identity == trials[4].identity and progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(trials, on_chunk=press)
    assert isinstance(caught.value, Interrupted)
    found = caught.value.trials
    assert found.rounds == (7, 7, 7, 3, 3, 3, 3, 3, 0), "a wave is four trials"
    for own, whole in zip(found.history[:8], expected.history[:8], strict=True):
        np.testing.assert_array_equal(own["loss"], whole["loss"][: len(own["loss"])])
    problems.assert_identical(found.variables[:4], expected.variables[:4])
    assert found.variables[4:] == (None,) * 5


def test_before_the_first_chunk_there_is_nothing_to_keep(monkeypatch):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(waves, "begin", press)
    with pytest.raises(Interrupted) as caught:
        sweep(trials_of())
    found = caught.value.trials
    assert found.history[0] == {} and not any(found.rounds) and found.records == ()


def test_a_trial_that_diverges_may_raise(mixed):
    trials, expected = mixed
    with pytest.raises(
        fo.NonFiniteLossError, match=r"1e\+30.* seed 0: Round 3: the loss"
    ) as caught:
        sweep(trials, on_nonfinite="raise")
    found = caught.value.result
    assert found.rounds == (6, 6, 6, 3, 0, 0, 0, 0, 0)
    assert found.failures[3] == expected.failures[3]


def test_models_need_not_be_kept():
    assert sweep(trials_of(), keep_models=False).variables == (None,) * 9


def test_numbers_of_the_federation_may_differ(compilations):
    trials = [
        t._replace(federation=FEDERATION.replace(local_steps=k), point={"k": k, **t.point})
        for k in (1, 4)
        for t in trials_of((0.01, 0.1), [2])
    ]
    found = sweep(trials)
    assert sum("jit(play)" in name for name in compilations) == 1
    for i, trial in enumerate(trials):
        assert_is_alone(found, i, alone(trial))


def test_what_differs_in_structure_is_a_program_of_its_own(compilations):
    """GHBM's tau, the size of a minibatch, the cohort, the data; and one program for its seeds."""
    other = problems.ragged((3, 9, 4, 4))
    kinds = [
        (fo.ghbm(fo.optimizers.sgd(0.1), 2), FEDERATION),
        (fo.ghbm(fo.optimizers.sgd(0.1), 3), FEDERATION),
        (scaffold(0.1), FEDERATION.replace(batch_size=3)),
        (scaffold(0.1), FEDERATION.replace(cohort=2)),
        (scaffold(0.1), FEDERATION.replace(clients=other, test=other.examples)),
    ]
    trials = [
        Trial(f"{i}", algorithm, federation, seed)
        for seed in (0, 1)
        for i, (algorithm, federation) in enumerate(kinds)
    ]
    found = sweep(trials, strategy="scan")
    assert sum("jit(play)" in name for name in compilations) == len(kinds)
    for i, trial in enumerate(trials):
        assert_is_alone(found, i, alone(trial))


def test_numbers_stay_weakly_typed():
    """So that a model in half precision keeps it, as in `simulate`."""
    examples = jax.tree.map(np.float32, DATA.examples)
    federation = FEDERATION.replace(
        clients=fo.ClientData.from_sizes(examples, DATA.sizes), test=examples,
        initial={"w": np.ones(problems.DIMENSION, np.float32)},
    )  # fmt: skip
    trials = [t._replace(federation=federation) for t in trials_of((0.01, 0.1), [0])]
    found = run_trials(trials, 2)
    expected = fo.simulate(trials[0].algorithm, federation, 2, progress=False).variables
    assert found.variables[0].params["w"].dtype == expected.params["w"].dtype


def test_a_controller_and_diagnostics():
    """The learning rate is a schedule."""

    def rate(t):
        return 0.1 / (t.astype(float) + 1)

    trials = [
        Trial(
            "x",
            fo.scheduled(lambda eta: fo.fedgbo(fo.optimizers.sgdm(eta, 0.9)), rate),
            FEDERATION,
            4,
        )
    ]
    options = {
        "local_steps": fo.controllers.steps_by_error(4),
        "diagnostics": ("client_distance", "client_update_norm", "momentum_deviation"),
        "cohort": fo.cohorts.unreliable(fo.cohorts.uniform(3), dropout=0.3),
    }
    found = sweep(trials, **options)
    assert_is_alone(found, 0, alone(trials[0], **options))
    assert "client_distance" in found.records[0] and "learning_rate" in found.records[0]
    # Of a diagnostic of each client a record has the mean.
    last = found.history[0]["client_update_norm"][found.records[0]["round"] - 1]
    assert found.records[0]["client_update_norm"] == pytest.approx(np.nanmean(last))


def test_users_are_tested_with_models_of_their_own():
    """As `fo.simulate` does it, in the mean over clients; the last of them has no test examples."""

    def build(rate):
        return fo.independent(fo.optimizers.sgd(rate))

    kept = np.arange(sum(SIZES) - SIZES[-1])
    own = fo.ClientData.from_arrays(
        jax.tree.map(lambda x: x[kept], DATA.examples),
        np.repeat(np.arange(len(SIZES)), SIZES)[kept], len(SIZES), allow_empty=True,
    )  # fmt: skip
    trials = trials_of(seeds=(1,), build=build)
    found = sweep(trials, client_test=own)
    expected = alone(trials[1], client_test=own).evaluations
    np.testing.assert_allclose(found.evaluations[1]["global_loss"], expected["loss"], 1e-10)
    means = np.nanmean(expected["client_loss"], axis=1)
    np.testing.assert_allclose(found.evaluations[1]["loss"], means, 1e-10)
    assert found.records[0]["loss"] != found.records[0]["global_loss"]


def test_without_a_test_set_there_are_records_still():
    found = sweep(trials_of(), test=None)
    assert list(found.evaluations[0]) == ["round", "seconds"]
    assert found.records[0]["round"] == 3 and "loss" not in found.records[0]
    assert found.records[0]["train_loss"] == found.history[0]["loss"][2]


class TestPlans:
    """How many trials at once, and how; on machines that are not here."""

    @pytest.fixture
    def machine(self, monkeypatch):
        def be(backend, devices):
            monkeypatch.setattr(jax, "default_backend", lambda: backend)
            monkeypatch.setattr(jax, "device_count", lambda: devices)

        return be

    def sizes(self, *arguments):
        return [
            (plan.size, plan.trials.name, plan.clients.name) for plan in waves.plans(*arguments)
        ]

    @pytest.mark.parametrize(
        ("trials", "cohort", "expected"),
        [
            (64, 22, (4, "sharded", "scan")),
            (9, 10, (4, "sharded", "scan")),  # 30 clients' work, or 27 and waiting
            (5, 20, (1, "scan", "sharded")),  # 40, or 25
            (1, 10, (1, "scan", "sharded")),
            (1, 1, (4, "sharded", "scan")),
        ],
    )
    def test_on_cpu_devices_are_kept_busy(self, trials, cohort, expected):
        assert self.sizes("auto", "auto", trials, cohort) == [expected]

    def test_on_one_cpu_device_one_after_the_other(self, machine):
        machine("cpu", 1)
        assert self.sizes("auto", "auto", 64, 10) == [(1, "scan", "scan")]

    def test_on_an_accelerator_as_many_as_fit(self, machine):
        machine("gpu", 1)
        options = self.sizes("auto", "auto", 10, 4)
        assert options == [
            (10, "vmap", "vmap"), (5, "vmap", "vmap"), (2, "vmap", "vmap"),
            (1, "scan", "vmap"), (1, "scan", "chunked"), (1, "scan", "scan"),
        ]  # fmt: skip

    def test_on_several_accelerators(self, machine):
        machine("gpu", 4)
        options = waves.plans("auto", "auto", 10, 4)
        assert [plan.size for plan in options] == [12, 4, 1, 1]
        assert {plan.meshed.name for plan in options} == {"sharded"}
        assert options[0].trials.inner == "vmap"

    def test_waves_are_evenly_full(self):
        assert self.sizes(fo.Strategy("chunked", size=8), "scan", 10, 4) == [(5, "vmap", "scan")]
        assert self.sizes("vmap", "scan", 10, 4) == [(10, "vmap", "scan")]
        assert self.sizes("sharded", "scan", 10, 4) == [(4, "sharded", "scan")]

    def test_devices_are_not_split_twice(self):
        with pytest.raises(ValueError, match="must not be 'sharded' for trials and for their cl"):
            waves.plans("sharded", "sharded", 4, 4)
        assert self.sizes("auto", "sharded", 64, 2) == [(1, "scan", "sharded")]

    @pytest.mark.parametrize(
        ("memory", "size"), [(float("inf"), 10), (1250, 10), (1249, 5), (500, 2), (249, 1), (0, 1)]
    )
    def test_memory_decides(self, machine, memory, size):
        machine("gpu", 1)
        options = waves.plans("auto", "scan", 10, 4)
        assert waves.fit(options, lambda plan: 100 * plan.size, memory).size == size

    def test_the_device_is_asked(self, machine, monkeypatch):
        class Device:
            def memory_stats(self):
                return {"bytes_limit": 3000, "bytes_in_use": 2000}

        machine("gpu", 1)
        monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
        options = waves.plans("auto", "scan", 8, 4)
        assert waves.fit(options, lambda plan: 300 * plan.size, None).size == 2

    def test_the_compiled_program_is_asked(self, machine, monkeypatch, compilations):
        """A pretended accelerator whose memory is too small for four trials at once."""
        machine("gpu", 1)
        asked, real = {}, waves.needed_bytes

        def needed(shared, wave, setup):
            asked[len(wave.key)] = real(shared, wave, setup)
            return asked[len(wave.key)]

        monkeypatch.setattr(waves, "needed_bytes", needed)
        trials = trials_of((0.01, 0.1), (0, 1))
        whole = sweep(trials)
        assert list(asked) == [4]
        assert sum("jit(play)" in name for name in compilations) == 1, "what was asked is what runs"
        halves = sweep(trials, memory=asked[4])
        assert list(asked) == [4, 2] and asked[2] < 0.8 * asked[4]
        states = sum(x.size * 8 for x in jax.tree.leaves(alone(trials[0]).state._replace(key=())))
        assert asked[4] - asked[2] > 2 * states
        assert_agree(whole, halves)


def test_memory_mapped_data_is_refused(tmp_path):
    stored = fo.data.store(DATA, tmp_path / "clients")
    with pytest.raises(ValueError, match=r"in files. Select all clients, .*fo.simulate"):
        sweep(trials_of(), clients=stored, rounds=1)
    assert sweep(trials_of(), clients=stored[:], rounds=1).rounds == (1,) * 9


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([], "trials must hold at least one Trial"),
        ([{"learning_rate": 0.1}], "trials must hold at least one Trial, and nothing else"),
        (trials_of() + trials_of(), r"\{\"learning_rate\": 0.01\} seed 0 comes twice"),
        ([Trial("", scaffold(0.1), FEDERATION)], "label must be a word, got ''"),
        (trials_of(seeds=[-1]), "seed must be a whole number of at least 0, got -1"),
        ([Trial("x", problems.MODEL, FEDERATION)], "algorithm must be an Algorithm"),
        (
            [Trial("x", scaffold(0.1), problems.MODEL)],
            "federation must be a Federation, got a Model",
        ),
    ],
)
def test_wrong_trials_are_refused(trials, message):
    with pytest.raises(ValueError, match=message):
        sweep(trials)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be .*at least 1, got 0"),
        ({"evaluate_every": 0}, "evaluate_every must be .*at least 1, got 0"),
        ({"on_nonfinite": "stop"}, "on_nonfinite must be one of 'keep', 'raise', got 'stop'"),
        ({"cohort": None}, r"federation.cohort must be given for run_trials"),
        ({"diagnostics": ["x"]}, "diagnostics.*'x'"),
        ({"strategy": "fast"}, "strategy must be one of"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sweep(trials_of(), **options)


def test_expand_is_the_product():
    assert expand({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "grid must name at least one hyperparameter"),
        ({"a": [1], "b": []}, "grid: 'b' must be a list of at least one value, got \\[\\]"),
        ({"a": "12"}, "grid: 'a' must be a list of at least one value, got '12'"),
        ({"a": 3}, "grid: 'a' must be a list of at least one value, got 3"),
        ({"a": [1, 2, 1]}, "grid: 'a' must not repeat a value, got 1 twice"),
    ],
)
def test_wrong_grids_are_refused(grid, message):
    with pytest.raises(ValueError, match=message):
        expand(grid)


@given(
    low=st.floats(1e-6, 1.0), factor=st.floats(1.001, 1e6), logarithmic=st.booleans(),
    seed=st.integers(0, 2**40),
)  # fmt: skip
def test_samples_stay_in_their_range(low, factor, logarithmic, seed):
    points = sample({"a": Range(low, low * factor, logarithmic)}, 20, seed)
    assert all(low <= point["a"] <= low * factor for point in points)
    assert len({point["a"] for point in points}) > 10


def test_samples_belong_to_name_and_seed():
    one, both = {"a": Range(0.0, 1.0)}, {"b": [1, 2, 3], "a": Range(0.0, 1.0)}
    few, many = sample(one, 5, seed=3), sample(both, 50, seed=3)
    assert [point["a"] for point in few] == [point["a"] for point in many[:5]]
    assert {point["b"] for point in many} == {1, 2, 3}
    assert sample(one, 5, seed=4) != few


def test_logarithmic_samples_are_uniform_in_the_exponent():
    points = sample({"a": Range(1e-4, 1.0, logarithmic=True)}, 4000)
    exponents = np.log10([point["a"] for point in points])
    # The mean of 4000 uniform numbers in [-4, 0] has a standard deviation of 4 / sqrt(12 * 4000).
    assert abs(exponents.mean() + 2) < 4 * 4 / np.sqrt(12 * 4000)


@pytest.mark.parametrize(
    ("ranges", "options", "message"),
    [
        ({}, {}, "ranges must name at least one"),
        ({"a": Range(0.0, 1.0, logarithmic=True)}, {}, "'a' must be positive to be logarithmic"),
        ({"a": Range(1.0, 1.0)}, {}, "'a' must have finite ends, low < high"),
        ({"a": Range(0.0, np.inf)}, {}, "'a' must have finite ends, low < high"),
        ({"a": []}, {}, "ranges: 'a' must be a list of at least one value"),
        ({"a": Range(0.0, 1.0)}, {"count": 0}, "count must be .*at least 1, got 0"),
        ({"a": Range(0.0, 1.0)}, {"seed": -1}, "seed must be .*at least 0, got -1"),
    ],
)
def test_wrong_ranges_are_refused(ranges, options, message):
    with pytest.raises(ValueError, match=message):
        sample(ranges, **{"count": 3} | options)
