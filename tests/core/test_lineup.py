"""Clients dealt to devices by work."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_opt as fo
from fedjax_opt.execution import lineup, strategies
from tests.core import problems


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
def test_parts_have_their_share(parts):
    """As many clients in each part, and no part above another by more than the largest client."""
    rng = np.random.default_rng(parts)
    for each in (1, 2, 5):
        work = rng.pareto(1.0, size=parts * each).astype(np.float64)
        dealt = np.asarray(lineup.deal(jnp.asarray(work), parts))
        assert sorted(dealt) == list(range(parts * each))
        loads = work[dealt].reshape(parts, each).sum(axis=1)
        assert np.ptp(loads) <= work.max()


def test_a_snake_by_hand():
    """9 7 5 to and fro: 9 with 4 and 3, 7 with 5 and 1; the absent are last."""
    dealt = lineup.deal(jnp.array([1, 9, 4, 7, 5, 3]), 2)
    assert np.asarray(dealt).tolist() == [1, 2, 5, 3, 4, 0]
    dealt = lineup.deal(jnp.array([0, 2, 0, 2]), 2)
    assert np.asarray(dealt).tolist() == [1, 2, 3, 0]


def _mesh(count):
    return Mesh(np.array(jax.devices()[:count]), ("clients",))


class Client(NamedTuple):
    number: jax.Array
    num_steps: jax.Array


def test_nothing_is_computed_for_who_fills_up():
    strategy = strategies.resolve(fo.Strategy("sharded", mesh=_mesh(2)))
    computed = []

    def function(shared, client):
        jax.debug.callback(lambda c: computed.append(int(c)), client.number)
        return shared * client.number, client.number + 1.0

    def play(numbers):
        steps = jnp.array([1, 2, 3])
        places = lineup.Lineup(strategy, steps, unequal=True)
        summed, stacked = places.map(function, 2.0, places.seat(Client(numbers, steps)))
        return summed, stacked, places.in_order(stacked)

    summed, by_place, in_order = jax.jit(play)(jnp.array([3.0, 5.0, 4.0]))
    jax.effects_barrier()
    assert sorted(computed) == [3, 4, 5]
    assert float(summed) == 24
    assert np.asarray(by_place).tolist() == [5, 0, 6, 4]
    assert np.asarray(in_order).tolist() == [4, 6, 5]


def test_results_stay_in_the_order_of_the_cohort():
    """Six clients of very unequal sizes, with everything that is noted of each."""
    data = problems.ragged([40, 3, 5, 31, 4, 18])
    algorithm = fo.scaffold(fo.optimizers.sgd(0.05))

    def play(strategy):
        return fo.run_rounds(
            algorithm,
            fo.Federation(
                problems.MODEL,
                data,
                cohort=6,
                local_steps=fo.epochs(1),
                batch_size=4,
                client_test=data,
            ),
            problems.start(algorithm, 6),
            2,
            strategy=strategy,
            diagnostics=["client_distance"],
        )

    expected, found = play("scan"), play(fo.Strategy("sharded", mesh=_mesh(4)))
    problems.assert_identical(found.history.cohort, expected.history.cohort)
    problems.assert_identical(found.history.num_steps, expected.history.num_steps)
    problems.assert_close(found.history, expected.history)
    problems.assert_close(found.state, expected.state)


def test_a_fixed_number_of_steps_is_still_differentiable():
    """Three clients on two devices: one of them is given nobody, without a loop of unknown length."""
    data = problems.ragged([4, 4, 4])

    def final_loss(rate, strategy):
        algorithm = fo.fedavg(fo.optimizers.sgd(rate))
        run = fo.run_rounds(
            algorithm,
            fo.Federation(problems.MODEL, data, cohort=3, local_steps=2, batch_size=4),
            problems.start(algorithm, 3),
            1,
            strategy=strategy,
        )
        return jnp.sum(run.state.variables.params["w"] ** 2)

    strategy = fo.Strategy("sharded", mesh=_mesh(2))
    found, expected = jax.grad(final_loss)(0.1, strategy), jax.grad(final_loss)(0.1, "scan")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
