"""Minibatches: which rows they hold, which of them count, and that their gradient is exact."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_opt as fo
from fedjax_opt.engine.minibatches import rows_feed
from tests.core import problems

LEVEL = 1e-4  # A right implementation fails at this level once in ten thousand seeds.
LONGEST = 20
FEDAVG = fo.fedavg(fo.optimizers.sgd(0.1))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _drawn(batching, batch_size, steps, full, offset, size, seed):
    rows = jnp.arange(1000, dtype=jnp.int32)
    feed = rows_feed(batch_size, batching, full, None, rows, (offset, size))

    def at(step):
        return feed.draw(jax.random.key(seed), step)

    return jax.vmap(at)(jnp.arange(steps, dtype=jnp.int32))


def drawn(batching, batch_size, offset, size, steps, seed=0, full=False):
    """The rows and masks of a client's first minibatches, `[steps, B]`; an example is its own row."""
    traced = jnp.int32(offset), jnp.int32(size), seed
    return jax.tree.map(np.asarray, _drawn(batching, batch_size, steps, full, *traced))


@settings(deadline=None, max_examples=60)
@given(
    batch_size=st.sampled_from([1, 4, 7]),
    size=st.integers(1, LONGEST),
    offset=st.integers(0, 900),
    seed=st.integers(0, 2**31 - 1),
)
def test_shuffled_epochs_hold_every_example_once(batch_size, size, offset, seed):
    per_epoch, epochs = -(-size // batch_size), 3
    rows, mask = drawn("shuffled", batch_size, offset, size, LONGEST * epochs, seed)
    mine = np.arange(offset, offset + size)
    # What fills the last minibatch of an epoch is of the same client too.
    assert np.isin(rows, mine).all()
    for epoch in range(epochs):
        steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        np.testing.assert_array_equal(np.sort(rows[steps][mask[steps]]), mine)
        filled = mask[steps].sum(1)
        assert np.all(filled[:-1] == batch_size) and filled[-1] == size - filled[:-1].sum()
        assert np.all(np.diff(mask[steps].astype(int)) <= 0), "filled rows come first"


def test_each_epoch_has_its_own_order():
    rows, mask = drawn("shuffled", 5, 0, 10, 8)
    epochs = rows.reshape(4, 10)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert mask.all()


def test_nothing_is_masked_where_sizes_divide():
    rows, mask = drawn("shuffled", 5, 30, 10, 2, full=True)
    assert mask is None
    np.testing.assert_array_equal(np.sort(rows.ravel()), np.arange(30, 40))


def test_replacement_is_uniform_and_always_full():
    rows, mask = drawn("replacement", 8, 100, 13, 2500)
    assert mask is None
    assert rows.min() >= 100 and rows.max() < 113
    assert stats.chisquare(np.bincount(rows.ravel() - 100, minlength=13)).pvalue > LEVEL
    # Rows of one minibatch, and of the next, are independent.
    table = np.zeros((13, 13))
    np.add.at(table, (rows[:, 0] - 100, rows[:, 1] - 100), 1)
    assert stats.chi2_contingency(table).pvalue > LEVEL
    table = np.zeros((13, 13))
    np.add.at(table, (rows[:-1, 0] - 100, rows[1:, 0] - 100), 1)
    assert stats.chi2_contingency(table).pvalue > LEVEL


def run(data, rounds=1, model=problems.MODEL, **options):
    """Rounds of FedAvg in which all clients take part."""
    size = len(data)
    federation = fo.Federation(model, data, cohort=fo.cohorts.cyclic(size), **options)
    return fo.run_rounds(FEDAVG, federation, problems.start(FEDAVG, size), rounds)


def test_clients_and_rounds_draw_differently():
    """The metric reads the first row of each minibatch: two clients with the same data would agree."""

    def first_row(variables, batch, key):
        del key
        return batch["y"][0] + 0 * jnp.sum(variables.params["w"]), fo.Aux(losses=batch["y"])

    data, model = problems.ragged([6, 6]), fo.Model(problems.MODEL.init, first_row)
    twins = fo.ClientData.from_list([data[0], data[0]])
    seen = run(data, 2, model, local_steps=1, batch_size=6).history.client_loss
    of_twins = run(twins, 20, model, local_steps=1, batch_size=6).history.client_loss
    assert len(np.unique(seen)) == 4
    assert np.any(of_twins[:, 0] != of_twins[:, 1])
    assert len(np.unique(of_twins[:, 0])) > 1


@pytest.mark.parametrize(
    ("sizes", "epochs"), [((3, 8, 13), 3), ((4, 8, 12), 3), ((3, 8), jnp.array([5, 2]))]
)
def test_local_epochs_take_the_steps_that_each_size_needs(sizes, epochs):
    """Whether they differ between clients or not."""
    found = run(problems.ragged(sizes), 2, local_steps=fo.epochs(epochs), batch_size=4).history
    expected = np.broadcast_to(epochs, len(sizes)) * [-(-n // 4) for n in sizes]
    np.testing.assert_array_equal(found.num_steps, [expected] * 2)


def test_the_gradient_of_a_partly_filled_batch_is_the_mean_over_its_rows():
    """One step on fewer rows than B: FedAvg's update is then the client's exact gradient."""
    sizes = (1, 2, 5)
    data = problems.ragged(sizes)
    w = np.asarray(problems.start(FEDAVG, 3).variables.params["w"])
    found = run(data, local_steps=1, batch_size=8)
    clients = [data[i] for i in range(3)]
    steps = [-0.1 * problems.gradient(w, c["x"], c["y"]) for c in clients]
    expected = w + np.average(steps, axis=0, weights=sizes)
    problems.assert_close(found.state.variables.params["w"], expected)
    losses = np.array([problems.mean_loss(w, c["x"], c["y"]) for c in clients])
    problems.assert_close(found.history.client_loss[0], losses)


def test_what_is_not_a_mean_over_rows_stays_in_the_loss():
    """Weight decay in the loss is neither masked nor scaled by how full a minibatch is."""

    def decayed(variables, batch, key):
        loss, aux = problems.MODEL.loss(variables, batch, key)
        return loss + 0.5 * jnp.sum(variables.params["w"] ** 2), aux

    data, model = problems.ragged([3]), fo.Model(problems.MODEL.init, decayed)
    w = np.asarray(problems.start(FEDAVG, 1).variables.params["w"])
    found = run(data, model=model, local_steps=1, batch_size=8).state.variables.params["w"]
    gradient = problems.gradient(w, data[0]["x"], data[0]["y"]) + w
    problems.assert_close(found, w - 0.1 * gradient)


@pytest.mark.parametrize(
    ("sizes", "batching", "is_full"),
    [([4, 6], "shuffled", False), ([4, 8], "shuffled", True), ([4, 6], "replacement", True)],
)
def test_only_partial_batches_need_the_loss_of_each_example(sizes, batching, is_full):
    def without_losses(variables, batch, key):
        return problems.MODEL.loss(variables, batch, key)[0], fo.Aux()

    def bare():
        model = fo.Model(problems.MODEL.init, without_losses)
        return run(
            problems.ragged(sizes), model=model, local_steps=2, batch_size=4, batching=batching
        )

    if is_full:
        assert np.isfinite(bare().history.loss[0])
        return
    with pytest.raises(ValueError, match=r"partly filled .* return Aux\(losses=\.\.\.\)"):
        bare()
