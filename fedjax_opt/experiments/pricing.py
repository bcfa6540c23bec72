"""What a run of an experiment has cost at each evaluation, from what its clients did until then.

Traffic and operations are derived from the algorithm's own functions; the simulated time is that of the
runtime model with equal devices, a round being as long as its client with the most steps.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 3.2,
  whose link (20 Mbit/s down, 5 Mbit/s up) and device (a Raspberry Pi 3B+) are the defaults.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import Algorithm, Federation, checks
from fedjax_opt.costs import Flops, client_flops, megabits, of
from fedjax_opt.planning.problem import (
    DOWNLOAD_MBPS,
    FLOPS_PER_SECOND,
    UPLOAD_MBPS,
    minibatch,
)

#: Columns that `priced` adds to a record.
COLUMNS = ("bytes_up", "bytes_down", "flops", "simulated_seconds")


class Device(NamedTuple):
    """A client's link and processor.

    Attributes:
      download_mbps: megabits per second from the server.
      upload_mbps: megabits per second to the server.
      flops_per_second: its speed. The default is that of the paper's FEMNIST: 40 million operations of
        a local step in 17 ms.
    """

    download_mbps: float = DOWNLOAD_MBPS
    upload_mbps: float = UPLOAD_MBPS
    flops_per_second: float = FLOPS_PER_SECOND


class Prices(NamedTuple):
    """What one client costs in a round, and what a run keeps in memory.

    Attributes:
      bytes_up: uploaded.
      bytes_down: downloaded.
      flops: operations beside its local steps.
      flops_per_step: operations of a local step.
      seconds: of a client without a local step: its link, and what it computes beside them.
      seconds_per_step: of a local step.
      memory: bytes of a run beside its data: the server's, all clients' state, one client at work.
    """

    bytes_up: float
    bytes_down: float
    flops: float
    flops_per_step: float
    seconds: float
    seconds_per_step: float
    memory: float = 0.0


def operations_of(algorithm: Algorithm, federation: Federation) -> Flops:
    """What a client of the mean size computes in a round."""
    clients: Any = federation.clients
    samples = max(round(float(np.mean(clients.sizes))), 1)
    return client_flops(algorithm, federation.model, minibatch(federation), samples)


def prices(
    algorithm: Algorithm,
    federation: Federation,
    device: Device | None = None,
    operations: Flops | None = None,
) -> Prices:
    """What a client costs in a round of an algorithm on a federation.

    Args:
      algorithm: the algorithm.
      federation: its model, the size of a minibatch, and how many examples a client has.
      device: the clients' link and speed.
      operations: of a client, if they are known; else they are counted.

    Returns:
      The `Prices`. A full-batch probe is that of a client of the mean size.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.pricing import prices
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> prices(algorithm, fo.tasks.digits()).bytes_up  # 4,810 parameters
      19240.0
    """
    device = device or Device()
    for name, value in device._asdict().items():
        checks.number(name, value, low=0.0, open_low=True, open_high=True)
    model, batch = federation.model, minibatch(federation)
    operations = operations or operations_of(algorithm, federation)
    variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), batch)
    traffic = of(algorithm, variables)
    besides = float(operations.probe + operations.start + operations.finish)
    down, up = megabits(traffic)
    return Prices(
        bytes_up=float(traffic.bytes_up),
        bytes_down=float(traffic.bytes_down),
        flops=besides,
        flops_per_step=float(operations.step),
        seconds=down / device.download_mbps
        + up / device.upload_mbps
        + besides / device.flops_per_second,
        seconds_per_step=float(operations.step) / device.flops_per_second,
        memory=float(
            traffic.server_memory
            + federation.num_clients * traffic.client_state
            + traffic.client_memory
        ),
    )


def priced(record: Mapping[str, Any], price: Prices) -> dict[str, Any]:
    """A record of a trial with what it had cost by then, all clients together.

    Args:
      record: of `Trials.records`: it says how many clients took part in all rounds (`participations`),
        how many steps they took (`client_steps`), and how many those with the most took
        (`longest_steps`).
      price: the `Prices`.

    Returns:
      The record with `COLUMNS`; as it is, if it is of a trial that diverged.

    Example:
      >>> from fedjax_opt.experiments.pricing import Prices, priced
      >>> price = Prices(10.0, 20.0, 1.0, 2.0, 0.5, 0.1)
      >>> record = {"round": 2, "participations": 6, "client_steps": 30, "longest_steps": 10}
      >>> found = priced(record, price)
      >>> found["bytes_up"], found["flops"], found["simulated_seconds"]
      (60.0, 66.0, 2.0)
    """
    if "participations" not in record:
        return dict(record)
    clients, steps = record["participations"], record["client_steps"]
    return {
        **record,
        "bytes_up": clients * price.bytes_up,
        "bytes_down": clients * price.bytes_down,
        "flops": clients * price.flops + steps * price.flops_per_step,
        "simulated_seconds": record["round"] * price.seconds
        + record["longest_steps"] * price.seconds_per_step,
    }
