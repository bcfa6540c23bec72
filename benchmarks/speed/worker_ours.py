"""fedjax_opt's worker: run_rounds with the sharded strategy, every core a device."""

import platform
import time
from importlib.metadata import version

import common

import fedjax_opt as fo

args = common.worker_parser(__doc__).parse_args()
fo.use_cpu_devices()  # before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def forward(params, x):
    h = x
    for i, (w, b) in enumerate(params):
        h = (jax.nn.relu(h) if i else h) @ w + b
    return h


def setup():
    task = common.TASKS[args.task]
    clients = common.client_data(task)
    data = fo.place(fo.ClientData.from_list(clients))
    first = jax.tree.map(jnp.asarray, common.first_params(task))
    first_loss = common.train_loss(first, clients)
    model = fo.models.classifier(lambda key, batch: first, forward)
    algorithm = fo.fedavg(fo.optimizers.sgd(task.learning_rate))
    batch = {name: value[: task.batch] for name, value in clients[0].items()}
    params = model.init(jax.random.key(0), batch)
    state = fo.init_state(algorithm, params, num_clients=data.num_clients, key=jax.random.key(1))
    state = fo.place(state)

    def run():
        nonlocal state
        start = time.perf_counter()
        result = fo.run_rounds(
            algorithm,
            model,
            data,
            state,
            rounds=args.rounds,
            cohort_size=task.clients,
            batch_size=task.batch,
            local_steps=task.local_steps,
            strategy="sharded",
        )
        state = jax.block_until_ready(result.state)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": common.train_loss(state.variables.params, clients)}

    first_run = run()
    run()
    versions = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {
        "compile_seconds": first_run["seconds"],
        "first_loss": first_loss,
        "versions": {
            "python": platform.python_version(),
            "fedjax_opt": getattr(fo, "__version__", "unknown"),
        }
        | versions,
    }, run


common.serve(setup)
