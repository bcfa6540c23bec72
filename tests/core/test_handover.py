"""Clients that begin on one device and end on another."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_opt as fo
from fedjax_opt.execution import handover, strategies
from tests.core import problems


def _strategy(count):
    mesh = Mesh(np.array(jax.devices()[:count]), ("clients",))
    return fo.Strategy("sharded", mesh=mesh)


@pytest.mark.parametrize(
    ("size", "parts"), [(3, 2), (7, 2), (5, 3), (5, 4), (7, 4), (9, 8), (15, 8), (21, 8), (40, 9)]
)
def test_everyone_takes_each_step_once_and_in_order(size, parts):
    """For every K, devices have equally much to do, and clients move at a stop to the device before."""
    counts = np.arange(1, 31)
    every = jax.vmap(lambda steps: handover.timetable(size, parts, steps))(counts)
    places = handover.places(size, parts)
    assert sorted(places) == list(range(len(places)))
    here = np.concatenate(
        [places[handover.heads(size, parts)][:, None], places.reshape(parts, -1)], 1
    )
    for steps, first, end in zip(
        counts, np.asarray(every.first), np.asarray(every.end), strict=True
    ):
        work = (end - first).sum(axis=(1, 2))
        assert work.sum() == size * steps and np.ptp(work) <= 1
        taken = {client: [] for client in range(size)}
        for phase in range(first.shape[1]):
            for part, turn in np.ndindex(here.shape):
                span = range(first[part, phase, turn], end[part, phase, turn])
                if len(span):
                    taken[here[part, turn]] += [(phase, part, k) for k in span]
        for client, path in taken.items():
            assert [k for _, _, k in path] == list(range(steps))
            assert path[-1][1] == handover.owners(size, parts)[client]
            for (phase, part, _), (next_phase, next_part, _) in itertools.pairwise(path):
                assert next_part == part or (next_part == part - 1 and next_phase > phase)


def test_flags_by_hand():
    """Five clients, two devices, K = 10: the example of the module."""
    shifts = jax.tree.map(np.asarray, handover.timetable(5, 2, 10))
    assert handover.places(5, 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert handover.heads(5, 2)[1] == 2
    spans = np.stack([shifts.first, shifts.end], axis=-1).tolist()
    # Both stop after 16 steps.
    assert spans[0][0][1:] == [[0, 10], [0, 6], [5, 5]]
    assert spans[0][1][1:] == [[10, 10], [6, 10], [5, 10]]
    assert spans[1][0][:3] == [[0, 5], [0, 10], [0, 1]]
    assert spans[1][1][:3] == [[5, 5], [10, 10], [1, 10]]
    assert np.argwhere(shifts.is_passed_on).tolist() == [[1, 0, 0]]
    assert np.argwhere(shifts.is_taken_over).tolist() == [[0, 1, 3]]
    assert shifts.is_new.sum() == 5 and shifts.is_done.sum() == 5


@pytest.mark.parametrize(("size", "devices"), [(5, 2), (6, 4), (9, 8)])
def test_same_numbers_as_on_one_device(size, devices):
    """With states, statistics and all that is noted on the way; another K compiles nothing."""
    algorithm = fo.scaffold(fo.optimizers.adam(0.05))
    data = problems.ragged([6] * 9)
    model, traces = problems.counted()

    def play(strategy, steps):
        return fo.run_rounds(
            algorithm,
            fo.Federation(
                model,
                data,
                cohort=size,
                local_steps=jnp.int32(steps),
                batch_size=4,
                client_test=data,
            ),
            problems.start(algorithm, 9),
            2,
            strategy=strategy,
            diagnostics=["client_distance", "perturbation_norm"],
        )

    strategy = _strategy(devices)
    assert handover.applies(strategies.resolve(strategy), size, unequal=False)
    play(strategy, 5)
    compiled = len(traces)
    for steps in (1, 2, 7):
        found = play(strategy, steps)
        assert len(traces) == compiled
        expected = play("scan", steps)
        compiled = len(traces)
        problems.assert_close(found.history, expected.history)
        problems.assert_close(found.state, expected.state)


def test_no_client_is_computed_twice():
    """Each of three clients takes its four steps once, on two devices."""
    steps = []

    def loss(variables, batch, key):
        jax.debug.callback(lambda x: steps.append(float(x)), batch["x"][0, 0])
        return problems.MODEL.loss(variables, batch, key)

    data = fo.ClientData.from_list(
        [{"x": np.full((1, 3), float(i)), "y": np.ones(1)} for i in range(3)]
    )
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    state = problems.start(algorithm, 3)
    fo.run_rounds(
        algorithm,
        fo.Federation(
            fo.Model(problems.MODEL.init, loss), data, cohort=3, local_steps=4, batch_size=1
        ),
        state,
        1,
        strategy=_strategy(2),
    )
    jax.effects_barrier()
    assert sorted(steps) == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_only_where_it_helps():
    """Equal work, more clients than devices, and some left over."""
    strategy = strategies.resolve(_strategy(2))
    assert handover.applies(strategy, 5, unequal=False)
    assert not handover.applies(strategy, 5, unequal=True)
    assert not handover.applies(strategy, 4, unequal=False)
    assert not handover.applies(strategy, 1, unequal=False)
    assert not handover.applies(strategy._replace(inner="vmap"), 5, unequal=False)
    assert not handover.applies(strategies.resolve("scan"), 5, unequal=False)
