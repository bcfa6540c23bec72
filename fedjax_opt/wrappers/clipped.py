"""Gradient clipping in every local step of any algorithm.

    g  <-  g min(1, max_norm / ||g||)       with g the gradient of the loss and of every penalty

It acts before an algorithm's own corrections. To clip after them put `optax.clip_by_global_norm` before
the triple with `fedjax_opt.optimizers.chain`. Probes (Mime, SCAFFOLD's option I) are not clipped.
"""

from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, checks, trees


def clipped(algorithm: Algorithm, max_norm: Any) -> Algorithm:
    """Clips the norm of every local gradient.

    Args:
      algorithm: any algorithm.
      max_norm: the largest Euclidean norm of a minibatch's gradient, positive; a hyperparameter that may
        be traced.

    Returns:
      The algorithm with clipped gradients.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.clipped(fo.fedavg(fo.optimizers.sgd(0.1)), max_norm=10.0)

    Reference:
      Pascanu, Mikolov, Bengio. On the difficulty of training recurrent neural networks. ICML 2013.
    """
    max_norm = checks.number("max_norm", max_norm, low=0.0, open_low=True)
    return algorithm._replace(step=Partial(_step, algorithm.step, max_norm))


def _step(inner, max_norm, local, objective, batch, context):
    def clip(gradient):
        norm = jnp.sqrt(trees.squared_norm(gradient))
        # Of two positive numbers, so that a gradient of zero divides by max_norm and stays zero.
        limit = jnp.asarray(max_norm, norm.dtype)
        return trees.scale(limit / jnp.maximum(norm, limit), gradient)

    return inner(local, objective.with_transform(clip), batch, context)
