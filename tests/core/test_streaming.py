"""Examples that stay on the host: the same run, whatever is read when."""

import contextlib
from functools import partial

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.execution.strategies import Strategy
from fedjax_opt.training import chunks
from tests.core.problems import MODEL, counted, ragged

SIZES = np.random.default_rng(3).integers(1, 30, 40)
SETTING = {"evaluate_every": 3, "progress": False, "strategy": "scan"}


def scaffold():
    return fo.scaffold(fo.optimizers.sgd(0.02))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    data = ragged(SIZES)
    return data, fo.data.store(data, tmp_path_factory.mktemp("streaming") / "clients")


def simulate(clients, rounds, cohort=5, model=MODEL, algorithm=None, **options):
    federation = fo.Federation(
        model, clients, cohort=cohort, local_steps=fo.epochs(1), batch_size=4
    )
    return fo.simulate(algorithm or scaffold(), federation, rounds, **SETTING | options)


def read(stored, sampler, key, first, rounds):
    """What is sent for some rounds, in chunks of three."""
    draw = partial(chunks.cohort_ids, sampler, key, 3, len(stored.sizes))
    stream = chunks.FileExamples(stored, Strategy("scan"), draw)
    with contextlib.closing(stream):
        stream.prefetch(first, rounds)
        return stream.take(first, rounds)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize(
    "sampler",
    [
        fo.cohorts.uniform(5),
        # Of five slots one is filled on average, so that slots without a client read one as well.
        fo.cohorts.available(5, np.full(40, 0.025)),
    ],
    ids=["uniform", "with empty slots"],
)
def test_a_streamed_run_is_the_run(both, sampler):
    data, stored = both
    plain, streamed = (simulate(which, 10, sampler) for which in (data, stored))
    assert_same(plain.history, streamed.history)
    assert_same(plain.state._replace(key=()), streamed.state._replace(key=()))


def test_a_resumed_stream_reads_from_where_it_is(both):
    data, stored = both
    whole = simulate(data, 10)
    half = simulate(stored, 4)
    rest = simulate(stored, 10, state=half.state)
    assert_same(whole.state.server, rest.state.server)


def test_only_the_cohorts_are_sent(both):
    _, stored = both
    sampler, key = fo.cohorts.uniform(2), jax.random.key(7)
    sent = read(stored, sampler, key, 6, 2)
    drawn = {int(i) for r in (6, 7) for i in sampler.draw(key, r, len(SIZES))[0]}
    for client in drawn:
        assert_same(sent[client], stored[client])
    needed = sum(SIZES[i] for i in drawn)
    rows = sent.num_examples
    assert needed <= rows < 2 * needed < stored.num_examples
    # What is not needed is not there.
    assert not np.asarray(sent.examples["x"])[needed:].any()
    # There is never room for more than all; a slot that nobody fills reads client 0.
    assert read(stored, fo.cohorts.uniform(40), key, 0, 3).num_examples == stored.num_examples
    assert_same(read(stored, fo.cohorts.available(2, np.zeros(40)), key, 0, 2)[0], stored[0])


def test_equal_clients_compile_once(tmp_path):
    """Chunks meet some clients twice, and differ in what they need; there is room for all of them."""
    model, traces = counted()
    stored = fo.data.store(ragged([4] * 30), tmp_path / "equal")
    simulate(stored, 2, 4, model, evaluate_every=2)
    compiled = len(traces)
    simulate(stored, 20, 4, model, evaluate_every=2)
    assert len(traces) - compiled <= 1  # the initial variables


def test_examples_have_the_precision_that_the_caller_has_set(both):
    """`enable_x64` holds in the thread that calls it, and not in the one that reads."""
    _, stored = both
    with enable_x64(False):
        sent = read(stored, fo.cohorts.uniform(5), jax.random.key(0), 0, 3)
    assert sent.examples["x"].dtype == np.float32


def test_what_needs_all_examples_is_refused(both):
    _, stored = both
    with pytest.raises(ValueError, match=r"momentum_deviation.*in files"):
        algorithm = fo.fedcm(fo.optimizers.sgd(0.1), 0.1)
        simulate(stored, 2, 2, algorithm=algorithm, diagnostics=["momentum_deviation"])


def test_an_error_while_reading_reaches_the_caller(both):
    _, stored = both
    broken = fo.ClientData(stored.examples, stored.offsets + stored.num_examples, stored.sizes)
    with pytest.raises(ValueError):
        simulate(broken, 2, 2)
