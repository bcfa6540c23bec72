"""fedjax_opt's worker: run_rounds with the sharded strategy, every core a device."""

import platform
import time
from importlib.metadata import version

import common

import fedjax_opt as fo

parser = common.worker_parser(__doc__)
parser.add_argument("--ids", action="store_true", help="texts as token ids (w1)")
args = parser.parse_args()
fo.use_cpu_devices()  # before JAX starts

import jax  # noqa: E402
import ours  # noqa: E402


def setup():
    task = common.TASKS[args.task]
    clients = common.client_data(task)  # to evaluate
    data = fo.place(fo.ClientData.from_list(common.client_data(task, args.ids)))
    algorithm = fo.fedavg(fo.optimizers.sgd(task.learning_rate))
    model, first = ours.first_variables(task, args.ids)
    state, play = ours.start(task, algorithm, model, data, first)

    def loss():
        return common.train_loss(task, ours.from_ours(state.variables.params), clients)

    def run():
        nonlocal state
        start = time.perf_counter()
        result = play(state, args.rounds)
        state = jax.block_until_ready(result.state)
        return {"seconds": time.perf_counter() - start, "loss": loss()}

    first_loss = loss()
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
