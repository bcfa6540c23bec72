"""What aggregation does to a batch-normalised neuron, with private patches and without.

With z = W_0 x + b_0 over a client's examples before aggregation and zbar after it, batch normalisation
puts out gamma (z - mu)/sigma + beta. Aggregation moves the mean and the variance of that by

    private     gamma Delta_mu/sigma                                       gamma^2 Delta_sigma^2/sigma^2
    shared      beta' + gamma' (E[zbar] - mu')/sigma' - (mean before)     gamma'^2 Var[zbar]/sigma'^2
                                                                              - (variance before)

with Delta_mu = E[zbar] - E[z], Delta_sigma^2 = Var[zbar] - Var[z], and mu', sigma', gamma', beta' the
federated values. The thesis takes mu = E[z] and sigma^2 = Var[z]; here they need not be, and what is
before aggregation is what the client's own layer puts out. (4.10) says that the first are smaller than
the second in magnitude. It prints gamma'^2 for gamma^2, the variance before aggregation.

Reference:
  Mills. Federated machine learning in edge computing. PhD thesis, University of Exeter. Section 4.1.2,
  equations 4.5 to 4.10.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import checks


class BatchNorm(NamedTuple):
    """A layer of batch normalisation, each field `[units]`.

    Attributes:
      mean: mu.
      variance: sigma^2, with what the layer adds to it.
      scale: gamma.
      shift: beta.
    """

    mean: chex.Array
    variance: chex.Array
    scale: chex.Array
    shift: chex.Array


class ActivationShift(NamedTuple):
    """By how much aggregation moves each neuron's output over a client's examples, `[units]`.

    Attributes:
      private_mean: the change of the mean, if the client keeps its own layer.
      shared_mean: the same, if the layer is aggregated as well.
      private_variance: the change of the variance, if the client keeps its own layer.
      shared_variance: the same, if the layer is aggregated as well.
    """

    private_mean: jax.Array
    shared_mean: jax.Array
    private_variance: jax.Array
    shared_variance: jax.Array

    @property
    def smaller(self) -> jax.Array:
        """Where (4.10) holds: the private layer moves less, in mean and in variance."""
        mean = jnp.abs(self.private_mean) < jnp.abs(self.shared_mean)
        return mean & (jnp.abs(self.private_variance) < jnp.abs(self.shared_variance))


def activation_shift(
    before: chex.Array, after: chex.Array, private: BatchNorm, shared: BatchNorm
) -> ActivationShift:
    """The shift of a layer's outputs by aggregation, with a private patch and without: (4.5) to (4.10).

    Args:
      before: what comes into the layer from the client's own weights, `[examples, units]`.
      after: the same examples through the aggregated weights.
      private: the client's `BatchNorm`.
      shared: the aggregated one.

    Returns:
      An `ActivationShift`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> own = fo.metrics.BatchNorm(jnp.ones(1), jnp.ones(1), jnp.ones(1), jnp.zeros(1))
      >>> everyones = own._replace(mean=jnp.array([3.0]))
      >>> z = jnp.array([[0.0], [2.0]])
      >>> moved = fo.metrics.activation_shift(z, z + 0.5, own, everyones)
      >>> moved.private_mean.tolist(), moved.shared_mean.tolist()
      ([0.5], [-1.5])
    """
    before, after = checks.as_array("before", before), checks.as_array("after", after)
    if before.ndim != 2 or before.shape != after.shape:
        raise ValueError(
            "before and after must be [examples, units] of the same examples, got shapes"
            f" {list(before.shape)} and {list(after.shape)}."
        )
    mean, variance = _output(before, private)
    kept_mean, kept_variance = _output(after, private)
    shared_mean, shared_variance = _output(after, shared)
    changes = kept_mean - mean, shared_mean - mean, kept_variance - variance
    return ActivationShift(*map(jnp.asarray, (*changes, shared_variance - variance)))


def _output(z, layer):
    """The mean and the variance of what a layer puts out."""
    slope = layer.scale / jnp.sqrt(layer.variance)
    return slope * (jnp.mean(z, axis=0) - layer.mean) + layer.shift, slope**2 * jnp.var(z, axis=0)
