"""Wrong arguments: a ValueError that names the argument, its value and what is allowed."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems

N, COHORT, STEPS, ROWS = 5, 3, 2, 4
FEDAVG = fo.fedavg(fo.optimizers.sgd(0.1))
SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1))
MIMELITE = fo.mimelite(fo.optimizers.sgdm(0.1, 0.9))
DATA = problems.ragged((4, 6, 3, 8, 5))
BATCHES = {"x": np.ones((COHORT, STEPS, ROWS, 3)), "y": np.ones((COHORT, STEPS, ROWS))}
IDS = np.array([0, 1, 2])


def call_round(algorithm=FEDAVG, model=problems.MODEL, ids=IDS, batches=BATCHES, **options):
    state = options.pop("state", None) or problems.start(algorithm, N)
    return fo.make_round(algorithm, model, strategy="scan")(state, ids, batches, **options)


def call_run(algorithm=FEDAVG, model=problems.MODEL, data=DATA, **options):
    rounds, strategy = options.pop("rounds", 1), options.pop("strategy", "scan")
    options = {"cohort": 2, "batch_size": 4, "local_steps": 1} | options
    federation = fo.Federation(model, data, **options)
    state = problems.start(algorithm, len(data))
    return fo.run_rounds(algorithm, federation, state, rounds, strategy=strategy)


def with_loss(loss):
    return fo.Model(problems.MODEL.init, loss)


def _without_rows(*place):
    mask = np.ones((COHORT, STEPS, ROWS), bool)
    mask[place] = False
    return mask


def test_the_arguments_that_the_others_spoil_are_right():
    assert np.isfinite(call_round()[1].loss) and np.isfinite(call_run().history.loss[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": np.arange(6)}, "cohort must not be larger than the population of 5 .* got 6"),
        ({"ids": np.array([0, 1, 5])}, r"cohort must hold ids in \[0, 4\], got 0 to 5"),
        ({"ids": np.array([-1, 1, 2])}, r"cohort must hold ids in \[0, 4\], got -1 to 2"),
        ({"ids": np.array([0.0, 1.0, 2.0])}, "cohort must be whole, got float64"),
        ({"ids": np.zeros((0,), int)}, r"cohort must be a list of client ids .* got shape \(0,\)"),
        ({"ids": np.int64(2)}, r"cohort must be a list of client ids .* got shape \(\)"),
        ({"algorithm": SCAFFOLD, "ids": np.array([1, 2, 1])}, r"not repeat .* got \[1\] more than"),
        ({"num_steps": 0}, r"num_steps must lie in \[1, 2\], got 0"),
        ({"num_steps": 3}, r"num_steps must lie in \[1, 2\], got 3"),
        (
            {"num_steps": np.array([1, 2, 3])},
            r"num_steps must lie in \[0, 2\], got array",
        ),
        ({"num_steps": [1, -1, 2]}, r"num_steps must lie in \[0, 2\], got \[1, -1, 2\]"),
        ({"num_steps": np.array([1, 2])}, r"num_steps must have .* \[3\], got shape \[2\]"),
        ({"num_steps": 1.0}, "num_steps must be whole, got float64"),
        ({"weights": np.zeros(3)}, r"weights must not all be 0, got \[0"),
        ({"weights": np.array([1, np.nan, 1])}, r"weights must lie in \[0\.0, inf\), got .*nan"),
        ({"weights": np.array([1, np.inf, 1])}, r"weights must lie in \[0\.0, inf\), got .*inf"),
        ({"weights": np.array([1.0, -1.0, 1.0])}, r"weights must lie in .* got array\(\[ 1\., -1"),
        ({"weights": np.ones(2)}, r"weights must have one entry per client, \[3\], .* \[2\]"),
        ({"weights": np.ones((3, 1))}, r"weights must have one entry .* got shape \[3, 1\]"),
        ({"batches": {}}, "batches must hold at least one array, got an empty tree"),
        (
            {"batches": BATCHES | {"x": np.ones((2, STEPS, ROWS, 3))}},
            r"batches\['x'\] must have leading axes \[S=3, K, B\], got shape \[2, 2, 4, 3\]",
        ),
        (
            {"batches": BATCHES | {"y": np.ones((COHORT, STEPS, 7))}},
            r"batches\['y'\] must have leading axes \[S=3, K=2, B=4\], got shape \[3, 2, 7\]",
        ),
        (
            {"batches": BATCHES | {"y": np.ones(COHORT)}},
            r"batches\['y'\] must have leading axes .* got shape \[3\]",
        ),
        (
            {"batches": {name: leaf[:, :0] for name, leaf in BATCHES.items()}},
            r"batches must hold at least one step and one row, got \[K=0, B=4\]",
        ),
        (
            {"batches": {name: leaf[:, :, :0] for name, leaf in BATCHES.items()}},
            r"batches must hold at least one step and one row, got \[K=2, B=0\]",
        ),
        (
            {"mask": np.ones((COHORT, STEPS, 7), bool)},
            r"mask must have .* got shape \[3, 2, 7\]",
        ),
        (
            {"mask": np.ones((COHORT, STEPS, ROWS, 1), bool)},
            r"mask must have .* got shape \[3, 2, 4, 1\]",
        ),
        ({"mask": _without_rows(1, 0)}, "mask must leave a row .* none for client 1 in step 0"),
        (
            {"mask": _without_rows(2, 1), "num_steps": [1, 1, 2]},
            "mask must leave a row .* none for client 2 in step 1",
        ),
        (
            {"algorithm": MIMELITE, "probe_batches": BATCHES, "probe_mask": _without_rows(2)},
            "probe_mask must leave a row .* none for client 2",
        ),
        ({"algorithm": MIMELITE}, "probe_batches must be given"),
        (
            {"algorithm": MIMELITE, "probe_batches": {"x": np.ones((2, 1, 4, 3))}},
            r"probe_batches\['x'\] must have leading axes \[S=3, P, B\]",
        ),
        (
            {"algorithm": MIMELITE, "probe_batches": {"x": BATCHES["x"]}},
            "probe_batches must have the tree structure of batches.*'y'.*, got .*'x'",
        ),
        (
            {"algorithm": MIMELITE, "probe_batches": BATCHES, "probe_mask": np.ones((3, 2, 7))},
            r"probe_mask must have .* got shape \[3, 2, 7\]",
        ),
    ],
)
def test_a_round_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        call_round(**options)


def test_steps_that_are_not_taken_need_no_rows():
    """Nor do clients that never reported, in their steps and in their probes."""
    steps = call_round(mask=_without_rows(2, 1), num_steps=[2, 2, 1])
    problems.assert_identical(steps, call_round(num_steps=[2, 2, 1]))
    absent = {"algorithm": MIMELITE, "probe_batches": BATCHES, "num_steps": [2, 2, 0]}
    masks = {"mask": _without_rows(2), "probe_mask": _without_rows(2)}
    problems.assert_close(call_round(**absent, **masks), call_round(**absent))


@pytest.mark.parametrize(
    "call", [lambda a: fo.make_round(a, problems.MODEL), lambda a: fo.first_state(a, {}, N)]
)
def test_a_constructor_that_was_not_called_is_no_algorithm(call):
    with pytest.raises(
        ValueError, match=r"algorithm must be an Algorithm, .* got <function fedavg"
    ):
        call(fo.fedavg)


def test_a_stateless_cohort_may_repeat_a_client():
    assert np.isfinite(call_round(ids=np.array([1, 2, 1]))[1].loss)


def test_lists_are_as_good_as_arrays():
    arrays = call_round(weights=np.array([1.0, 2.0, 3.0]), num_steps=np.array([1, 2, 1]))
    lists = call_round(ids=[0, 1, 2], weights=[1.0, 2.0, 3.0], num_steps=[1, 2, 1])
    problems.assert_identical(lists, arrays)
    problems.assert_identical(
        call_run(local_steps=[1, 2, 1, 2, 1]), call_run(local_steps=np.array([1, 2, 1, 2, 1]))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": 6}, "cohort must not be larger .* of 5 clients, got 6"),
        ({"cohort": 0}, "cohort must be .*at least 1, got 0"),
        ({"cohort": 2.0}, "cohort must be a whole number or a Sampler .* got float"),
        ({"cohort": "all"}, "cohort must be a whole number or a Sampler .* got str"),
        ({"cohort": None}, "cohort"),
        ({"local_steps": 0}, "local_steps must be .*at least 1, got 0"),
        ({"local_steps": np.array([1, 2, 0, 1, 1])}, r"local_steps must lie in \[1, inf\]"),
        ({"local_steps": np.ones(4, int)}, r"local_steps must be .* \[5\], .* got shape \(4,\)"),
        ({"local_steps": 1.5}, "local_steps must be whole, got float"),
        ({"local_steps": "2"}, "local_steps must be .* '2'"),
        ({"local_steps": None}, "local_steps"),
        ({"batch_size": 0}, "batch_size must be .*at least 1, got 0"),
        ({"rounds": 0}, "rounds must be .*at least 1, got 0"),
        ({"rounds": 2.0}, r"rounds must be a whole number of at least 1, got 2\.0"),
        ({"batching": "random"}, "batching must be one of 'shuffled', 'replacement', got 'random'"),
        (
            {"weighting": "size"},
            "weighting must be one of 'samples', 'uniform', 'weights', got 'size'",
        ),
        ({"strategy": "fast"}, "strategy must be one of 'auto', .* got 'fast'"),
    ],
)
def test_a_run_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        call_run(**options)


def test_an_empty_client_cannot_be_trained():
    data = fo.ClientData.from_arrays(
        DATA[:2].examples, [0, 0, 0, 2, 2, 2, 2, 2, 2, 2], allow_empty=True
    )
    with pytest.raises(
        ValueError, match=r"no empty client .* client 1 .*clients\[clients.sizes > 0"
    ):
        call_run(data=data)
    assert np.isfinite(call_run(data=data[data.sizes > 0]).history.loss[0])


def per_example(variables, batch, key):
    loss, aux = problems.MODEL.loss(variables, batch, key)
    return aux.losses, aux


def whole_number(variables, batch, key):
    loss, aux = problems.MODEL.loss(variables, batch, key)
    return loss.astype(jnp.int32), aux


def nothing_beside(variables, batch, key):
    return problems.MODEL.loss(variables, batch, key)[0], {}


def other_state(variables, batch, key):
    loss, aux = problems.MODEL.loss(variables, batch, key)
    return loss, aux._replace(state={"seen": jnp.zeros(2)})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (per_example, r"model.loss must return a scalar .* got float64\[4\]"),
        (whole_number, r"model.loss must return a scalar floating-point loss.* got int32\[\]"),
        (nothing_beside, r"model.loss must return \(loss, Aux\), got \(float64\[\], {}\)"),
        (other_state, "aux.state must have the tree structure .* got"),
    ],
)
@pytest.mark.parametrize("call", [call_round, call_run])
def test_a_loss_must_keep_its_contract(call, loss, message):
    with pytest.raises(ValueError, match=message):
        call(model=with_loss(loss))


def test_state_of_another_shape_is_refused():
    state = fo.first_state(FEDAVG, fo.Variables({"w": jnp.zeros(3)}, {"seen": jnp.zeros(3)}), N)
    with pytest.raises(
        ValueError, match=r"aux.state\['seen'\] must be float64\[3\] .* float64\[2\]"
    ):
        call_round(model=with_loss(other_state), state=state)


def test_losses_and_metrics_have_one_entry_per_example():
    mask = np.ones((COHORT, STEPS, ROWS), bool)

    def short_losses(variables, batch, key):
        loss, aux = problems.MODEL.loss(variables, batch, key)
        return loss, aux._replace(losses=aux.losses[:2])

    def short_metric(variables, batch, key):
        loss, aux = problems.MODEL.loss(variables, batch, key)
        return loss, aux._replace(metrics={"m": aux.losses[:2]})

    with pytest.raises(
        ValueError, match=r"aux.losses must have one entry .* \[4\], got shape \[2\]"
    ):
        call_round(model=with_loss(short_losses), mask=mask)
    with pytest.raises(ValueError, match=r"metric 'm' must have .* \[4\], got shape \[2\]"):
        call_round(model=with_loss(short_metric), mask=mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variables": {"w": jnp.arange(3)}}, r"params\['w'\] has dtype int64; .* floating point"),
        ({"variables": {}}, "params has no leaves"),
        ({"num_clients": 0}, "num_clients must be .*at least 1, got 0"),
        ({"num_clients": 2.5}, r"num_clients must be a whole number of at least 1, got 2\.5"),
        ({"key": "seed"}, "key must be .* 'seed'"),
    ],
)
def test_first_state_refuses(arguments, message):
    arguments = {"variables": {"w": jnp.zeros(3)}, "num_clients": 5} | arguments
    with pytest.raises(ValueError, match=message):
        fo.first_state(FEDAVG, **arguments)


def test_a_seed_may_be_of_numpy():
    variables = {"w": jnp.zeros(3)}
    problems.assert_identical(
        fo.first_state(FEDAVG, variables, N, np.int64(3)), fo.first_state(FEDAVG, variables, N, 3)
    )
