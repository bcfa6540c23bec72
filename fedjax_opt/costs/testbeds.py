"""Devices and links that were measured, by name, and how a round on them divides.

A Raspberry Pi 3B+ was timed over 100 minibatches (`PI_3B_PLUS`: mean and standard deviation in
seconds, by task). Of five Raspberry Pi 2B and five 3B, as one testbed over Wi-Fi, the time of a local
epoch is known (`PI_2B_AND_3B`: seconds by model; the round of independent learning, in which nothing is
sent), and no board on its own. Their link is not printed: `WIFI` follows from what FedAvg's 6.37 Mbit
model takes of its round of 30 s, 5% down and 6% up, which are whole percents. `LTE` is "typical of 4G
LTE in the UK".

References:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 4.2
  and Table 2 (`LTE`, `PI_3B_PLUS`); also section 5.2.2 of the thesis.
  Mills. Federated machine learning in edge computing. PhD thesis, University of Exeter. Section 4.2.5
  and Table 4.4 (`PI_2B_AND_3B`, `WIFI`).
"""

from types import MappingProxyType
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.costs.round_time import Devices, check_devices


class Mbps(NamedTuple):
    """Megabits per second.

    Attributes:
      download: D.
      upload: U.
    """

    download: float
    upload: float


class Timed(NamedTuple):
    """Seconds of a minibatch.

    Attributes:
      mean: over 100 of them.
      deviation: their standard deviation.
    """

    mean: float
    deviation: float


LTE = Mbps(20.0, 5.0)
WIFI = Mbps(6.37 / (0.05 * 30), 6.37 / (0.06 * 30))
PI_3B_PLUS = MappingProxyType(
    {
        "Sent140": Timed(5.2e-3, 2.1e-4),
        "FEMNIST": Timed(0.017, 5.1e-4),
        "CIFAR100": Timed(0.31, 1.7e-2),
        "Shakespeare": Timed(1.5, 8.5e-2),
    }
)
PI_2B_AND_3B = MappingProxyType({"MNIST-2NN": 29.0, "CIFAR10-CNN": 100.0})


class RoundParts(NamedTuple):
    """Where the time of a round goes, in seconds: that of the slowest client, and the server's.

    Attributes:
      down: of the download.
      client: of the local steps.
      up: of the upload.
      server: of the aggregation.
    """

    down: jax.Array
    client: jax.Array
    up: jax.Array
    server: jax.Array

    @property
    def seconds(self) -> jax.Array:
        """The whole round."""
        return self.down + self.client + self.up + self.server

    @property
    def shares(self) -> "RoundParts":
        """Each part's share of the round."""
        return RoundParts(*(part / self.seconds for part in self))


def round_parts(
    devices: Devices,
    num_steps: chex.Numeric,
    megabits_down: float,
    megabits_up: float,
    server_seconds: float = 0.0,
) -> RoundParts:
    """A round of all clients, divided into down, client, up and server.

    Args:
      devices: the clients' `Devices`.
      num_steps: K, a number or one per client `[N]`.
      megabits_down: what a client downloads.
      megabits_up: what it uploads.
      server_seconds: how long aggregation takes.

    Returns:
      The `RoundParts` of the client that is the last to report.

    Example:
      >>> import fedjax_opt as fo
      >>> pi = fo.costs.testbeds.PI_3B_PLUS["FEMNIST"]
      >>> parts = fo.costs.round_parts(
      ...     fo.costs.devices(*fo.costs.testbeds.LTE, pi.mean), 80, megabits_down=6.71, megabits_up=6.71
      ... )
      >>> round(float(parts.seconds), 2), round(float(parts.shares.client), 2)
      (3.04, 0.45)
    """
    devices, _ = check_devices(devices)
    for name, value in (
        ("num_steps", num_steps),
        ("megabits_down", megabits_down),
        ("megabits_up", megabits_up),
        ("server_seconds", server_seconds),
    ):
        checks.number(name, value, low=0.0, open_high=True)
    dtype = jnp.result_type(float)
    parts = jnp.broadcast_arrays(
        jnp.asarray(megabits_down, dtype) / devices.download_mbps,
        jnp.asarray(num_steps, dtype) * devices.seconds_per_step,
        jnp.asarray(megabits_up, dtype) / devices.upload_mbps,
    )
    rows = jnp.stack([jnp.ravel(part) for part in parts])
    slowest = jnp.argmax(jnp.sum(rows, axis=0))
    down, client, up = rows[:, slowest]
    return RoundParts(down, client, up, jnp.asarray(server_seconds, dtype))
