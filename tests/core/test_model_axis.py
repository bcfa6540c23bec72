"""Models divided over a second axis of the mesh: the same numbers, and a part of the memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import fedjax_opt as fo
from fedjax_opt.execution import placement, strategies
from tests.core import problems

SIDE = 32
SIZES = [5, 8, 3, 12, 7, 4, 9]


def _init(key, batch):
    del batch
    return fo.Variables({"w": jax.random.normal(key, (SIDE, SIDE)), "b": jnp.zeros(SIDE)})


def _loss(variables, batch, key):
    del key
    hidden = jnp.tanh(batch["x"] @ variables.params["w"] + variables.params["b"][None])
    losses = (jnp.sum(hidden, axis=1) - batch["y"]) ** 2 / 2
    return losses.mean(), fo.Aux(losses=losses)


MODEL = fo.Model(_init, _loss)


def data():
    rng = np.random.default_rng(0)
    return fo.ClientData.from_list(
        [{"x": rng.normal(size=(n, SIDE)) / SIDE, "y": rng.normal(size=n)} for n in SIZES]
    )


def _strategy(clients, model):
    devices = np.array(jax.devices()[: clients * model]).reshape(clients, model)
    return fo.Strategy("sharded", mesh=Mesh(devices, ("clients", "model")))


def _simulate(algorithm, strategy):
    return fo.simulate(
        algorithm,
        fo.Federation(
            MODEL, data(), cohort=5, local_steps=fo.epochs(1), batch_size=4, test=data().examples
        ),
        4,
        evaluate_every=2,
        strategy=strategy,
        progress=False,
    )


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: fo.scaffold(fo.optimizers.sgd(0.05), option=1), (2, 2)),
        (lambda: fo.fedgbo(fo.optimizers.adam(0.01)), (1, 4)),
    ],
    ids=["scaffold on 2 x 2", "fedgbo on 1 x 4"],
)
def test_a_divided_model_gives_the_same_numbers(make, shape):
    """From its making on: no device ever holds the whole of w, of its statistics or of a control."""
    expected, found = _simulate(make(), "scan"), _simulate(make(), _strategy(*shape))
    problems.assert_close(found.state, expected.state, 1e-10)
    problems.assert_close(found.history, expected.history, 1e-10)
    del found.evaluations["seconds"], expected.evaluations["seconds"]
    problems.assert_close(found.evaluations, expected.evaluations, 1e-10)
    large = [x for x in jax.tree.leaves(found.state) if x.shape[-2:] == (SIDE, SIDE)]
    assert len(large) >= 2
    for x in large:
        (part,) = {shard.data.size for shard in x.addressable_shards}
        assert part * shape[1] == x.size


def test_arrays_are_cut_along_their_longest_axis_that_divides():
    mesh = _strategy(1, 4).mesh
    algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
    params = {"a": jnp.zeros((40, 50, 36)), "b": jnp.zeros((30, 50)), "c": jnp.zeros(1020)}
    state = fo.first_state(algorithm, params, num_clients=8)
    found = jax.tree.map(lambda s: s.spec, placement.shardings(state, mesh))
    whole = PartitionSpec()
    control = found.clients.control
    assert found.server.variables.params == {"a": PartitionSpec("model"), "b": whole, "c": whole}
    assert control == {"a": PartitionSpec(None, "model"), "b": whole, "c": whole}
    assert found.round == found.key == whole
    placed = strategies.place({"state": state, "x": np.zeros(2048)}, _strategy(1, 4))
    assert placed["x"].sharding.is_fully_replicated
    assert placed["state"].clients.control["a"].sharding.spec == PartitionSpec(None, "model")


def test_a_round_needs_less_memory_on_each_device():
    """A model of 0.5 MB: what the compiled round holds on one device, with and without a second axis."""
    algorithm = fo.fedavg(fo.optimizers.sgd(0.05))

    def loss(variables, batch, key):
        del key
        return jnp.mean((batch["x"] @ variables.params["w"]) ** 2), fo.Aux()

    model = fo.Model(lambda key, batch: None, loss)
    batches = {"x": jnp.ones((2, 1, 1, 256))}

    def needed(strategy):
        state = fo.first_state(algorithm, {"w": jnp.ones((256, 256))}, num_clients=2)
        round_fn = jax.jit(fo.make_round(algorithm, model, strategy=strategy))
        state = fo.place(state, strategy)
        memory = round_fn.lower(state, jnp.arange(2), batches).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    assert needed(_strategy(2, 2)) < 0.7 * needed(_strategy(2, 1))
