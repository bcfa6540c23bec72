"""One client's work of a round, done again in plain Python: the numbers that the compiled round has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems
from tests.core.test_simulate import BASE, N

SGD = fo.optimizers.sgd(0.1)

pytestmark = pytest.mark.slow  # a client is played operation by operation


def _rate(round_number):
    return jnp.where(round_number < 2, 0.1, 0.05)


@pytest.mark.parametrize(
    "algorithm",
    [
        fo.mime(SGD),
        fo.scheduled(lambda rate: fo.localghbm(fo.optimizers.sgd(rate), 0.9), _rate),
    ],
    ids=["mime", "scheduled"],
)  # fmt: skip
def test_it_does_what_the_compiled_round_does(algorithm):
    sampler = fo.cohorts.unreliable(fo.cohorts.uniform(4), dropout=0.3, stragglers=0.5)
    federation = BASE.replace(cohort=sampler, local_steps=jnp.int32(3))
    start = fo.init_state(algorithm, federation)
    state = fo.run_rounds(algorithm, federation, start, 3, strategy="scan").state
    after, info = fo.run_rounds(algorithm, federation, state, 1, strategy="scan")
    took_part = np.flatnonzero(info.num_steps[0])
    assert 0 < len(took_part) < 4
    for slot in took_part[-1:]:
        again = fo.replay(algorithm, federation, state, int(info.cohort[0][slot]))
        assert again.round == 3 and len(again.losses) == info.num_steps[0][slot]
        np.testing.assert_allclose(again.losses.mean(), info.client_loss[0][slot], rtol=1e-12)
        kept = jax.tree.map(lambda x, client=again.client: x[client], after.clients)
        problems.assert_close(again.client_state, kept)


def test_the_client_of_a_run_that_failed_is_found(tmp_path):
    """A guard is not asked; examples may be in files; the loss sees numbers."""
    seen = []

    def loss(variables, batch, key):
        value, aux = problems.MODEL.loss(variables, batch, key)
        number = getattr(value, "primal", value)  # within a gradient
        if not isinstance(number, jax.core.Tracer):
            seen.append(float(number))
        return value, aux

    examples = {name: np.array(x) for name, x in BASE.clients.examples.items()}
    examples["y"][BASE.clients.offsets[4]] = np.nan
    data = fo.ClientData(examples, BASE.clients.offsets, BASE.clients.sizes)
    data = fo.data.store(data, tmp_path / "data")
    model = fo.Model(problems.MODEL.init, loss)
    federation = BASE.replace(model=model, clients=data, cohort=N, local_steps=3)
    algorithm = fo.scaffold(SGD)
    with pytest.raises(
        fo.NonFiniteLossError, match=r"Round 0: .*client 4 \(loss nan from"
    ) as error:
        fo.simulate(algorithm, federation, 3, strategy="scan", progress=False)
    state = error.value.result.state
    seen.clear()
    again = fo.replay(algorithm, federation.replace(guard=fo.Guard()), state)
    assert (again.round, again.client) == (0, 4)
    bad_step = int(np.argmax(np.isnan(again.losses)))
    assert f"from local step {bad_step} on" in str(error.value)
    assert np.isnan(jax.tree.leaves(again.upload)[0]).all()
    np.testing.assert_array_equal(seen[-3:], again.losses)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        fo.replay(algorithm, federation, state, 4)


def test_a_report_of_a_probe_is_looked_at():
    """A client whose gradient is not finite before any work begins."""
    algorithm = fo.attacks.nan_upload(fo.mime(SGD), clients=[1])
    federation = BASE.replace(cohort=N)
    again = fo.replay(algorithm, federation, fo.init_state(algorithm, federation))
    assert again.client == 1 and again.losses.shape == (0,)
    assert np.isnan(jax.tree.leaves(again.upload)[0]).all()


def test_a_client_that_is_not_there_is_named():
    algorithm = fo.fedavg(SGD)
    federation = BASE.replace(cohort=fo.cohorts.cyclic(2))
    state = fo.init_state(algorithm, federation)
    with pytest.raises(ValueError, match=r"in round 0, whose cohort is \[0, 1\], got 5"):
        fo.replay(algorithm, federation, state, 5)
    with pytest.raises(ValueError, match="No client gives a number that is not finite in round 0"):
        fo.replay(algorithm, federation, state)
