"""FedJAX's worker: fedjax.algorithms.fed_avg on the jit back end; apply() alone is timed."""

import platform
import time
from importlib.metadata import version

import common
import fedjax
import jax
import jax.numpy as jnp

args = common.worker_parser(__doc__).parse_args()


def mlp(params, h, first=0):
    for i in range(first, len(params) // 2):
        h = (jax.nn.relu(h) if i > first else h) @ params[f"w{i}"] + params[f"b{i}"]
    return h


def cnn(params, x):
    """JAX's own convolution and pooling, which are fast here: FedJAX has no compiled loop."""
    layout = ("NHWC", "HWIO", "NHWC")
    for i in range(len(common.FEATURES)):
        x = jax.lax.conv_general_dilated(
            x, params[f"w{i}"], (1, 1), "SAME", dimension_numbers=layout
        )
        x = jax.nn.relu(x + params[f"b{i}"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return mlp(params, x.reshape(len(x), -1), first=len(common.FEATURES))


def gru(params, ids):
    """The input products of all time steps at once, as in our own model; Haiku's GRU is slower."""
    size = common.HIDDEN
    x = params["embedding"][ids.T]
    for i in range(2):
        kernel, bias = params[f"recurrent_kernel{i}"], params[f"recurrent_bias{i}"]

        def step(h, given, kernel=kernel, bias=bias):
            own = h @ kernel + bias
            both = jax.nn.sigmoid(given[:, : 2 * size] + own[:, : 2 * size])
            reset, update = jnp.split(both, 2, axis=-1)
            new = jnp.tanh(given[:, 2 * size :] + reset * own[:, 2 * size :])
            h = (1 - update) * new + update * h
            return h, h

        given = x @ params[f"input_kernel{i}"] + params[f"input_bias{i}"]
        x = jax.lax.scan(step, jnp.zeros_like(given[0, :, :size]), given)[1]
    return (x @ params["w"] + params["b"]).swapaxes(0, 1)


def train_loss(batch, logits):
    losses = fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)
    return losses.reshape(len(losses), -1).mean(axis=1)


def setup():
    task = common.TASKS[args.task]
    data = common.client_data(task)
    datasets = [fedjax.ClientDataset(client) for client in data]
    first = jax.tree_util.tree_map(jnp.asarray, common.first_params(task))
    apply = {"mlp": mlp, "cnn": cnn, "gru": gru}[task.model]

    def forward(params, batch, rng=None):
        del rng
        return apply(params, batch["x"])

    model = fedjax.Model(
        init=lambda rng: first,
        apply_for_train=forward,
        apply_for_eval=forward,
        train_loss=train_loss,
        eval_metrics={},
    )
    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(task.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=task.batch, num_epochs=None, num_steps=task.local_steps, seed=None
        ),
    )
    state = algorithm.init(model.init(None))
    key = jax.random.PRNGKey(0)

    def run():
        nonlocal state, key
        rounds = []
        for _ in range(args.rounds):
            key, use = jax.random.split(key)
            keys = list(jax.random.split(use, task.clients))
            rounds.append(list(zip(range(task.clients), datasets, keys, strict=True)))
        jax.block_until_ready(rounds[-1][-1][-1])
        start = time.perf_counter()
        for clients in rounds:
            state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": common.train_loss(task, state.params, data)}

    first_loss = common.train_loss(task, first, data)
    first_run = run()
    run()
    versions = {name: version(name) for name in ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")}
    return {
        "compile_seconds": first_run["seconds"],
        "first_loss": first_loss,
        "versions": {"python": platform.python_version()} | versions,
    }, run


common.serve(setup)
