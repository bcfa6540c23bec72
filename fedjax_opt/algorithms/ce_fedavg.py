"""CE-FedAvg: FedAvg-Adam whose uploads are sparse and quantised; and FedAvg with the same codec.

    local    y, m, v <- one step of Adam
    upload   U(top(y - x)),  E(m_i - m) and E(v_i - v) at the same entries
    server   x, m and v advance by the weighted means of what was uploaded

top keeps the (1 - s) n entries of largest magnitude of each tensor, U quantises evenly between the
extremes of each sign, E by exponent. If the moments were sparsified on their own, weights and moments of
one entry would be of different rounds, and training would diverge.

Reference:
  Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT. IEEE
  Internet of Things Journal, 2020.
"""

from typing import Any

import optax

from fedjax_opt import compression
from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.algorithms.mfl import mfl
from fedjax_opt.core import Algorithm
from fedjax_opt.wrappers.compressed import compressed


def ce_fedavg(
    optimizer: optax.GradientTransformation, sparsity: Any = 0.9, bits: int = 8
) -> Algorithm:
    """CE-FedAvg: `mfl` with the codec of `fedjax_opt.compression.ce_fedavg` on its uploads.

    Args:
      optimizer: Adam, as a triple or of optax; any other works, too.
      sparsity: s in [0, 1), the share of the entries that are not sent; may be traced.
      bits: the width of the codes, 3 to 16.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.ce_fedavg(fo.optimizers.adam(1e-3), sparsity=0.95)

    Reference:
      Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT.
      2020.
    """
    return compressed(mfl(optimizer), upload=compression.ce_fedavg(sparsity, bits))


def compressed_fedavg(
    optimizer: optax.GradientTransformation, sparsity: Any = 0.9, bits: int = 8
) -> Algorithm:
    """FedAvg with the same codec: what CE-FedAvg is compared with.

    Args:
      optimizer: the clients' optimiser.
      sparsity: s in [0, 1); may be traced.
      bits: the width of the codes, 3 to 16.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.compressed_fedavg(fo.optimizers.sgd(0.1), sparsity=0.95)

    Reference:
      Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT.
      2020.
    """
    return compressed(fedavg(optimizer), upload=compression.ce_fedavg(sparsity, bits))
