"""FedJAX's worker: fedjax.algorithms.fed_avg on the jit back end; apply() alone is timed."""

import platform
import time
from importlib.metadata import version

import common
import fedjax
import jax
import jax.numpy as jnp

args = common.worker_parser(__doc__).parse_args()


def forward(params, batch, rng=None):
    del rng
    h = batch["x"]
    for i, (w, b) in enumerate(params):
        h = (jax.nn.relu(h) if i else h) @ w + b
    return h


def setup():
    task = common.TASKS[args.task]
    data = common.client_data(task)
    datasets = [fedjax.ClientDataset(client) for client in data]
    first = jax.tree_util.tree_map(jnp.asarray, common.first_params(task))
    model = fedjax.Model(
        init=lambda rng: first,
        apply_for_train=forward,
        apply_for_eval=forward,
        train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
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
        return {"seconds": seconds, "loss": common.train_loss(state.params, data)}

    first_loss = common.train_loss(first, data)
    first_run = run()
    run()
    versions = {name: version(name) for name in ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")}
    return {
        "compile_seconds": first_run["seconds"],
        "first_loss": first_loss,
        "versions": {"python": platform.python_version()} | versions,
    }, run


common.serve(setup)
