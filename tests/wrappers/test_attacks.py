"""What attackers send, who they are, and what a guard and a robust rule are worth together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

N, S, K = 6, 4, 2
COHORT = np.array([5, 0, 3, 2])
FEDAVG = fo.fedavg(opt.sgd(0.1))


def _moves(algorithm, strategy="scan"):
    """How far each client of the cohort alone would move the model, in one program for all."""
    rng = np.random.default_rng(0)
    batches = {"x": rng.normal(size=(S, K, 3, 3)), "y": rng.normal(size=(S, K, 3))}
    round_fn = fo.make_round(algorithm, helpers.LINEAR, strategy=helpers.STRATEGIES[strategy])
    start = fo.first_state(algorithm, {"w": np.array([0.3, -0.2, 0.1])}, N)
    states = [round_fn(start, COHORT, batches, weights)[0] for weights in np.eye(S)]
    found = [np.asarray(s.variables.params["w"] - start.variables.params["w"]) for s in states]
    return np.stack(found)


@pytest.fixture(scope="module")
def honest():
    return _moves(FEDAVG)


@pytest.mark.parametrize(
    ("attack", "factor"),
    [
        (lambda a, who: fo.attacks.sign_flip(a, who, scale=3.0), -3.0),
        (lambda a, who: fo.attacks.scaling(a, who, factor=100), 100.0),
    ],
)
def test_attackers_attack_and_nobody_else(honest, attack, factor):
    """Named by id or by a mask. (NaN is in the tests of the guard: nothing else shows who sent it.)"""
    mask = np.isin(np.arange(N), [0, 2, 4])
    for who in ([0, 2, 4], mask, mask.tolist()):
        moves = _moves(attack(FEDAVG, who), "scan" if who is mask else "vmap")
        np.testing.assert_allclose(moves[[1, 3]], factor * honest[[1, 3]], rtol=1e-12)
        np.testing.assert_allclose(moves[[0, 2]], honest[[0, 2]], rtol=1e-12)


def _reports(attack, strategy="vmap"):
    """The correction that each client's report alone would make, by an algorithm that reports it."""

    def note(server, mean, facts):
        return server._replace(variables=fo.Variables(facts.report))

    plain = fo.mimelite(opt.sgdm(0.1))
    algorithm = attack(plain._replace(server_step=note))
    rng = np.random.default_rng(0)
    batches = {"x": rng.normal(size=(S, K, 3, 3)), "y": rng.normal(size=(S, K, 3))}
    round_fn = fo.make_round(algorithm, helpers.LINEAR, strategy=helpers.STRATEGIES[strategy])
    start = fo.first_state(algorithm, {"w": np.array([0.3, -0.2, 0.1])}, N)
    run = [round_fn(start, COHORT, batches, w, probe_batches=batches)[0] for w in np.eye(S)]
    return np.stack([np.asarray(state.variables.params["w"]) for state in run])


def test_the_report_of_a_probe_is_attacked_as_well():
    honest = _reports(lambda a: a)
    np.testing.assert_array_equal(_reports(lambda a: fo.attacks.scaling(a, [], 9.0)), honest)
    for strategy in ("scan", "vmap"):
        flipped = _reports(lambda a: fo.attacks.sign_flip(a, [0, 2], scale=3.0), strategy)
        np.testing.assert_allclose(flipped[[1, 3]], -3 * honest[[1, 3]], rtol=1e-12)
        np.testing.assert_allclose(flipped[[0, 2]], honest[[0, 2]], rtol=1e-12)
    upload_only = _reports(lambda a: fo.attacks.replaced(a, [0], lambda upload, key: upload))
    np.testing.assert_array_equal(upload_only, honest)
    double = _reports(
        lambda a: fo.attacks.replaced(
            a, [0], lambda x, key: x, lambda x, key: jax.tree.map(lambda y: 2 * y, x)
        )
    )
    np.testing.assert_allclose(double[1], 2 * honest[1], rtol=1e-12)


def test_a_false_report_is_drawn_apart_from_the_honest_one():
    """A probe that draws with its key and a lie that draws with its own: the lie is no copy."""

    def noise(report, key):
        return jax.tree.map(lambda x: jax.random.normal(key, x.shape, x.dtype), report)

    def drawn(algorithm):
        def probe(message, client, data):
            return noise(algorithm.probe(message, client, data), data.key)

        return algorithm._replace(probe=probe)

    honest = _reports(drawn)
    false = _reports(lambda a: fo.attacks.replaced(drawn(a), [0], lambda x, key: x, noise))
    assert np.all(np.abs(false - honest)[1] > 1e-3)
    np.testing.assert_array_equal(np.delete(false, 1, 0), np.delete(honest, 1, 0))


def test_what_stays_at_home_is_not_attacked():
    """SCAFFOLD's full gradient is asked for by a probe, and never sent."""
    algorithm = fo.scaffold(opt.sgd(0.1), 1)
    attacked = fo.attacks.scaling(algorithm, [0], 1e6)
    rng = np.random.default_rng(0)
    batches = {"x": rng.normal(size=(S, K, 3, 3)), "y": rng.normal(size=(S, K, 3))}
    start = fo.first_state(algorithm, {"w": np.array([0.3, -0.2, 0.1])}, N)
    kept = [
        fo.make_round(a, helpers.LINEAR, strategy="scan")(
            start, COHORT, batches, probe_batches=batches
        )[0]
        for a in (algorithm, attacked)
    ]
    helpers.assert_same_bits(kept[0].clients, kept[1].clients)


def test_an_attack_on_nobody_changes_no_bit(honest):
    np.testing.assert_array_equal(_moves(fo.attacks.sign_flip(FEDAVG, [])), honest)


def test_who_attacks_is_a_leaf():
    algorithms = [fo.attacks.scaling(FEDAVG, [i], float(i)) for i in range(3)]
    assert len({jax.tree.structure(algorithm) for algorithm in algorithms}) == 1


def test_a_compressed_upload_is_attacked_in_what_is_decoded(honest):
    """Outside of a codec; it travels in as many bytes as before."""
    coded = fo.compressed(FEDAVG, fo.compression.uniform(8, stochastic=False))
    plain, attacked = _moves(coded), _moves(fo.attacks.sign_flip(coded, [0]))
    np.testing.assert_allclose(attacked[1], -plain[1], rtol=1e-12)
    variables = fo.Variables({"w": jnp.zeros(3)})
    assert fo.costs.of(fo.attacks.sign_flip(coded, [0]), variables) == fo.costs.of(coded, variables)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fo.attacks.sign_flip(FEDAVG, [0.5]), r"clients must be .* got float64\[1\]"),
        (lambda: fo.attacks.nan_upload(FEDAVG, 3), r"clients must be a list of ids .* int64\[\]"),
        (lambda: fo.attacks.sign_flip(FEDAVG, [0], scale=0), "scale must lie in"),
        (lambda: fo.attacks.scaling(FEDAVG, [0], "much"), "factor must be a number, got 'much'"),
        (lambda: fo.attacks.replaced(FEDAVG, [0], 3), "function must be a function .* got 3"),
        (
            lambda: fo.attacks.replaced(FEDAVG, [0], abs, abs),
            "report_function must be None for an algorithm without a probe",
        ),
        (
            lambda: fo.attacks.replaced(fo.mime(opt.sgdm(0.1)), [0], abs, 3),
            r"report_function must be a function of \(report, key\) or None, got 3",
        ),
        (
            lambda: _moves(fo.attacks.replaced(FEDAVG, [0], lambda u, key: u.params)),
            "function.upload, key. must have the tree structure",
        ),
    ],
)
def test_wrong_attacks_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# A run on digits ------------------------------------------------------------------------------


def test_a_guard_and_a_robust_rule_bear_what_neither_the_rule_nor_nothing_does(caplog):
    """30% drop out, 10% upload NaN and 10% turn their update around: within 2 points of a clean run.

    A mean bears so few that turn theirs around, once the NaN is gone, but not if they shout.
    """
    train, test = fo.data.load_digits()
    data = fo.ClientData.from_arrays(train, fo.data.dirichlet(train["y"], 40, alpha=10.0, seed=0))
    model = fo.models.mlp([16], num_classes=10)
    order = np.random.default_rng(0).permutation(40)
    mean = fo.fedavg(opt.sgd(0.2))
    clean = fo.aggregated(mean, fo.aggregators.trimmed_mean(0.2))
    guard = fo.Guard(max_norm=100.0, min_clients=5)

    def under_attack(algorithm, scale):
        broken = fo.attacks.nan_upload(algorithm, order[:4])
        return fo.attacks.sign_flip(broken, order[4:8], scale)

    attacked = under_attack(clean, 1.0)
    lossy = fo.cohorts.unreliable(fo.cohorts.uniform(20), dropout=0.3)

    def accuracy(algorithm, sampler, guard=None):
        result = fo.simulate(
            algorithm,
            fo.Federation(
                model,
                data,
                cohort=sampler,
                local_steps=8,
                batch_size=8,
                weighting="uniform",
                guard=guard,
            ),
            60,
            seed=0,
            evaluate_every=60,
            strategy="scan",
            on_nonfinite="stop",
            progress=False,
        )
        return float(fo.evaluate(model, result.variables, test)["accuracy"]), result

    with jax.numpy_dtype_promotion("standard"):  # with x64 on, argmax is int64 and digits are int32
        reached, _ = accuracy(clean, fo.cohorts.uniform(20))
        guarded, result = accuracy(attacked, lossy, guard)
        unguarded, stopped = accuracy(attacked, lossy)
        robust, _ = accuracy(under_attack(clean, 4.0), lossy, guard)
        not_robust, _ = accuracy(under_attack(mean, 4.0), lossy, guard)
    assert reached > 0.9
    assert guarded > reached - 0.02
    assert unguarded < reached - 0.1
    assert robust > reached - 0.02 and not_robust < reached - 0.04
    assert "the server's update was not" in stopped.stopped
    asked, fault = result.history["asked"], result.history["fault"]
    left_out = fault == fo.Fault.UPLOAD_NOT_FINITE
    assert set(asked[left_out].tolist()) == set(order[:4].tolist())
    assert 0.25 < np.mean(fault == fo.Fault.DROPPED_OUT) < 0.35
    assert not result.history["skipped"].any() and len(result.history["loss"]) == 60
