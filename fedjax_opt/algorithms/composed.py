"""Algorithms that are a wrapper around another one, by their names.

    FedProx         proximal(fedavg)            loss + (mu / 2) ||y - x||^2
    FedMAX          max_entropy(fedavg)         loss + beta KL(uniform || softmax(features))
    MOON            contrastive(fedavg)         loss + mu l,  l of the features of y, x, i's last model
    AdaptiveFedOpt  server_optimizer(fedavg)    d = sum_i w_i (x - y_i),   x+ = x - U(d)
    CE-FedAvg       compressed(mfl)             upload Q(top(y - x)),  E(m_i - m), E(v_i - v) there

The wrappers' files have the equations. U is FedAvgM's momentum, Adagrad, Adam or Yogi, without bias
correction and with v_0 a parameter (tau^2 in the original, 1 in the FedGBO paper).

top keeps the (1 - s) n entries of largest magnitude of each tensor, Q quantises evenly between the
extremes of each sign, E by exponent. If the moments were sparsified on their own, weights and
moments of one entry would be of different rounds, and training would diverge.

References:
  FedProx: Li et al. Federated optimization in heterogeneous networks. MLSys 2020.
  FedMAX: Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
    communication-efficient federated learning. ECML PKDD 2020.
  MOON: Li, He, Song. Model-contrastive federated learning. CVPR 2021.
  AdaptiveFedOpt: Reddi et al. Adaptive federated optimization. ICLR 2021.
  FedAvgM: Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated
    visual classification. 2019.
  CE-FedAvg: Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence
    in IoT. IEEE Internet of Things Journal, 2020.
"""

import warnings

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt import compression
from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.algorithms.mfl import mfl
from fedjax_opt.core import Algorithm, checks
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Statistics, Triple, adagrad, adam, sgdm, yogi
from fedjax_opt.optimizers.triples import check_rate
from fedjax_opt.wrappers.compressed import compressed
from fedjax_opt.wrappers.local_terms import contrastive, max_entropy, proximal
from fedjax_opt.wrappers.server_optimizer import server_optimizer


@constructor
def fedprox(
    optimizer: optax.GradientTransformation,
    mu: chex.Numeric,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """FedProx: `g + mu (y - x)` in every local step; `proximal` around `fedavg`.

    Args:
      optimizer, server_learning_rate: as for `fedavg`.
      mu: the weight of the proximal term, not negative; 0 is FedAvg.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedprox(fo.optimizers.sgd(0.1), mu=0.01)
    """
    return proximal(fedavg(optimizer, server_learning_rate), mu)


@constructor
def fedmax(
    optimizer: optax.GradientTransformation,
    beta: chex.Numeric,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """FedMAX: `max_entropy` around `fedavg`. The model must return `Aux.features`.

    Args:
      optimizer, server_learning_rate: as for `fedavg`.
      beta: the weight of the entropy term, not negative; 0 is FedAvg.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedmax(fo.optimizers.sgd(0.1), beta=10.0)
    """
    return max_entropy(fedavg(optimizer, server_learning_rate), beta)


@constructor
def moon(
    optimizer: optax.GradientTransformation,
    mu: chex.Numeric = 1.0,
    temperature: chex.Numeric = 0.5,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """MOON: `contrastive` around `fedavg`. The model must return `Aux.features`.

    Args:
      optimizer, server_learning_rate: as for `fedavg`.
      mu: the weight of the contrastive term, not negative; 0 is FedAvg.
      temperature: tau > 0.

    Returns:
      An `Algorithm` whose clients keep their last local model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.moon(fo.optimizers.sgd(0.1), mu=1.0, temperature=0.5)
    """
    return contrastive(fedavg(optimizer, server_learning_rate), mu, temperature)


@constructor
def adaptive_fedopt(
    optimizer: optax.GradientTransformation, server: optax.GradientTransformation
) -> Algorithm:
    """FedAvg's clients with an optimiser on the server: `server_optimizer` around `fedavg`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server: the server's, a triple or any optax transformation on the pseudo-gradient.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import optax
      >>> import fedjax_opt as fo
      >>> algorithm = fo.adaptive_fedopt(fo.optimizers.sgd(0.1), server=optax.lamb(1e-2))
    """
    return server_optimizer(fedavg(optimizer), server)


@constructor
def fedavgm(
    optimizer: optax.GradientTransformation,
    server_learning_rate: optax.ScalarOrSchedule = 1.0,
    momentum: chex.Numeric = 0.9,
) -> Algorithm:
    """FedAvgM: `m+ = beta m + d`, `x+ = x - eta_s m+` on the server.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      momentum: beta, in [0, 1).

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavgm(fo.optimizers.sgd(0.1), momentum=0.9)
    """
    momentum = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    rate = check_rate(server_learning_rate, "server_learning_rate")
    # The triple's momentum is normalised, m (1 - beta); a step longer by 1 / (1 - beta) undoes it.
    longer = Partial(_longer, rate, momentum) if callable(rate) else rate / (1 - momentum)
    return adaptive_fedopt(optimizer, sgdm(longer, momentum))


def _longer(schedule, momentum, count):
    return schedule(count) / (1 - momentum)


@constructor
def fedadam(
    optimizer: optax.GradientTransformation,
    server_learning_rate: optax.ScalarOrSchedule = 0.1,
    b1: chex.Numeric = 0.9,
    b2: chex.Numeric = 0.99,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1e-6,
) -> Algorithm:
    """FedAdam: Adam without bias correction on the server.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to sqrt(v), positive; tau in the paper.
      initial_v: v_0; tau^2 in the paper, 1 in the FedGBO paper's experiments.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadam(fo.optimizers.sgd(0.1), server_learning_rate=0.01)
    """
    return adaptive_fedopt(optimizer, adam(server_learning_rate, b1, b2, eps, initial_v))


@constructor
def fedyogi(
    optimizer: optax.GradientTransformation,
    server_learning_rate: optax.ScalarOrSchedule = 0.1,
    b1: chex.Numeric = 0.9,
    b2: chex.Numeric = 0.99,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1e-6,
) -> Algorithm:
    """FedYogi: Yogi on the server, whose second moment falls no faster than it rises.

    Args:
      optimizer, server_learning_rate, b1, eps, initial_v: as for `fedadam`.
      b2: one minus the weight of d^2 in the second moment, in [0, 1).

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedyogi(fo.optimizers.sgd(0.1), server_learning_rate=0.01)
    """
    return adaptive_fedopt(optimizer, yogi(server_learning_rate, b1, b2, eps, initial_v))


@constructor
def fedadagrad(
    optimizer: optax.GradientTransformation,
    server_learning_rate: optax.ScalarOrSchedule = 0.1,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1e-6,
) -> Algorithm:
    """FedAdagrad: Adagrad on the server, without a first moment.

    Args:
      optimizer, server_learning_rate, eps, initial_v: as for `fedadam`.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadagrad(fo.optimizers.sgd(0.1), server_learning_rate=0.01)
    """
    return adaptive_fedopt(optimizer, adagrad(server_learning_rate, eps, initial_v))


@constructor
def ce_fedavg(
    optimizer: optax.GradientTransformation, sparsity: chex.Numeric = 0.9, bits: int = 8
) -> Algorithm:
    """CE-FedAvg: `mfl` with the codec of `fedjax_opt.compression.ce_fedavg` on its uploads.

    Args:
      optimizer: Adam, as a triple or of optax; any other works, too. The thesis starts v at 0, and a v
        that starts at 1 is warned about: steps are short until it has decayed.
      sparsity: s in [0, 1), the share of the entries that are not sent; may be traced.
      bits: the width of the codes, 3 to 16.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> adam = fo.optimizers.adam(1e-3, b2=0.999, eps=1e-8, initial_v=0.0)
      >>> algorithm = fo.ce_fedavg(adam, sparsity=0.95)
    """
    if isinstance(optimizer, Triple) and _starts_at_one(optimizer):
        warnings.warn(
            "ce_fedavg: optimizer's second moment v starts at 1, where the thesis has 0: steps are short"
            " until it has decayed. Use fedjax_opt.optimizers.adam(0.001, b2=0.999, eps=1e-8,"
            " initial_v=0.0).",
            stacklevel=3,
        )
    return compressed(mfl(optimizer), upload=compression.ce_fedavg(sparsity, bits))


def _starts_at_one(optimizer: Triple) -> bool:
    """Whether a second moment starts at 1, if that is known."""
    numbers = jax.tree.leaves(optimizer)
    if checks.is_traced(numbers) or any(map(jnp.ndim, numbers)):
        return False
    with jax.ensure_compile_time_eval():
        stats = optimizer.init(jnp.zeros(1))
        found = jax.tree.leaves(stats, is_leaf=lambda node: isinstance(node, Statistics))
        moments = jax.tree.leaves([x.v for x in found if isinstance(x, Statistics)])
        return any(float(v[0]) == 1 for v in moments)


@constructor
def compressed_fedavg(
    optimizer: optax.GradientTransformation, sparsity: chex.Numeric = 0.9, bits: int = 8
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
    """
    return compressed(fedavg(optimizer), upload=compression.ce_fedavg(sparsity, bits))
