"""What a plan needs to know of a federation: sizes, speeds, clients and local steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.algorithms import fedavg
from fedjax_opt.core import Algorithm, Controller, Federation
from fedjax_opt.core.federation import Epochs
from fedjax_opt.costs import Devices, client_flops, megabits, of
from fedjax_opt.optimizers import sgd

#: A Raspberry Pi 3B+ over 4G, as in Mills, Hu and Min (2023): megabits per second from and to the
#: server, and the operations per second with which 40 million of a local step take 17 ms.
DOWNLOAD_MBPS, UPLOAD_MBPS, FLOPS_PER_SECOND = 20.0, 5.0, 2.4e9


class Problem(NamedTuple):
    """What is planned for.

    Attributes:
      model_megabits: what travels, (down, up).
      devices: the clients' `Devices`.
      num_clients: M.
      cohort_size: N.
      local_steps: K as it is now, in the mean over clients; None where a schedule sets it.
    """

    model_megabits: tuple[float, float]
    devices: Devices
    num_clients: int
    cohort_size: int
    local_steps: int | None


def problem_of(
    federation: Federation, algorithm: Algorithm | None = None, devices: Devices | None = None
) -> Problem:
    """The problem of a federation.

    Args:
      federation: the federation.
      algorithm: what is sent and computed; None for FedAvg.
      devices: the clients' links and speeds; None for the paper's, with the time that a local step takes
        there.
    """
    if isinstance(federation.clients, int) or federation.cohort is None:
        raise ValueError(
            "federation must have its clients' examples and a cohort to be planned for. Give what"
            " travels in megabits, cohort_size and num_clients instead."
        )
    algorithm = fedavg(sgd(0.1)) if algorithm is None else algorithm
    batch = minibatch(federation)
    variables = jax.eval_shape(
        federation.model.init, jax.eval_shape(lambda: jax.random.key(0)), batch
    )
    down, up = megabits(of(algorithm, variables))
    if devices is None:
        step = client_flops(algorithm, federation.model, batch).step
        devices = Devices(DOWNLOAD_MBPS, UPLOAD_MBPS, float(step) / FLOPS_PER_SECOND)
    steps = mean_steps(federation)
    return Problem(
        (float(down), float(up)), devices, federation.num_clients, federation.cohort.size,
        None if steps is None else max(round(steps), 1),
    )  # fmt: skip


def minibatch(federation: Federation) -> Any:
    """The shapes of a minibatch of a federation."""
    clients: Any = federation.clients
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (federation.batch_size, *x.shape[1:]), jnp.asarray(x[:1]).dtype
        ),
        clients.examples,
    )


def mean_steps(federation: Federation) -> float | None:
    """The local steps of a client in a round; the first of a controller, None of a schedule."""
    steps: Any = federation.local_steps
    if isinstance(steps, Epochs):
        clients: Any = federation.clients
        epoch = np.ceil(np.asarray(clients.sizes) / federation.batch_size)
        return float(np.mean(np.asarray(steps.count) * epoch))
    if isinstance(steps, Controller):
        steps = steps.value(steps.init(), 0)
    return None if callable(steps) else float(np.mean(steps))
