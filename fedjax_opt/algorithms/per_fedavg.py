"""Per-FedAvg: a global model that is good after one step on a client's own data.

    objective  (1 / N) sum_i f_i(x - alpha f_i'(x))
    local      y' = y - alpha g(y; b1),  v = g(y'; b2)
               y <- y - eta v                                      first order
               y <- y - eta (v - alpha H(y; b3) v)                 exact, by a Hessian-vector product
               H v ~ (g(y + d v; b3) - g(y - d v; b3)) / (2 d)     Hessian-free, by a central difference
    upload     y - x
    server     x+ = x + eta_s sum_i w_i (y_i - x)

b1, b2 and b3 are contiguous parts of the local step's minibatch: halves for the first-order form, thirds
for the others. Of a partly filled minibatch the rows that count are parted, by their rank; a part for
which none is left is all of them. d = difference_step (1 + ||y||) / ||v||: both points lie
difference_step (1 + ||y||) away from y, however long v is.

Batch statistics that move on are those found at y', on b2. The loss that is reported is the one at y, on
b1. What is personal is the step of adaptation, for which a client needs data: `metrics.fine_tuned` with
sgd(alpha) and one step.

Reference:
  Fallah, Mokhtari, Ozdaglar. Personalized federated learning with theoretical guarantees: a
  model-agnostic meta-learning approach. NeurIPS 2020. Algorithm 1.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.algorithms.local_training import descend
from fedjax_opt.core import Algorithm, Evaluation, Objective, StaticInt, Variables, checks, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form

FORMS = ("first_order", "hessian_free", "exact")


@constructor
def per_fedavg(
    optimizer: optax.GradientTransformation,
    adaptation_rate: chex.Numeric,
    hessian: str = "first_order",
    server_learning_rate: chex.Numeric = 1.0,
    difference_step: chex.Numeric = 1e-2,
) -> Algorithm:
    """Per-FedAvg: `y <- y - eta (I - alpha H(y)) g(y - alpha g(y))` in every local step.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`. It takes the outer step, sgd(eta) in the paper.
      adaptation_rate: alpha, not negative: the step size of the adaptation.
      hessian: 'first_order' leaves H out, with two gradients per local step; 'hessian_free' replaces H v
        by a difference of two gradients, with four in all; 'exact' computes it.
      server_learning_rate: eta_s, not negative.
      difference_step: for 'hessian_free', how far from y the two gradients are taken, in units of
        1 + ||y||; positive. The error is of its square, and rounding is divided by it; so are the jumps
        of a gradient where ReLUs switch, which is why it should not be short with them.

    Returns:
      An `Algorithm` without client state. The batch size must be a multiple of 2 for 'first_order', and
      of 3 otherwise. Terms that wrappers add to the objective are differentiated too. Those in the
      model's features are bound to the whole minibatch: `contrastive` does not fit parts of it, and
      `max_entropy` is averaged over all rows that count of a partly filled one.

    Example:
      The loss of each client after one step of adaptation:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=4, dimension=2, num_examples=6)
      >>> algorithm = fo.per_fedavg(fo.optimizers.sgd(0.1), 0.2, hessian="exact")
      >>> state = fo.first_state(algorithm, {"x": jnp.zeros(2)}, num_clients=4)
      >>> federation = fo.Federation(model, data, cohort=2, local_steps=2, batch_size=6)
      >>> run = fo.run_rounds(algorithm, federation, state, 5)
      >>> adapted = fo.metrics.fine_tuned(
      ...     model, run.state.variables, data, fo.optimizers.sgd(0.2), steps=1, batch_size=6
      ... )
      >>> fo.evaluate_clients(model, adapted, data)["loss"].shape
      (4,)
    """
    alpha = checks.number("adaptation_rate", adaptation_rate, low=0.0)
    checks.choice("hessian", hessian, FORMS)
    difference_step = checks.number("difference_step", difference_step, low=0.0, open_low=True)
    curvature = {
        "first_order": None,
        "hessian_free": Partial(_central_difference, difference_step),
        "exact": Partial(_hessian_vector_product),
    }[hessian]
    num_parts = StaticInt(2 if curvature is None else 3)
    step = Partial(_step, local_form(optimizer), alpha, num_parts, curvature)
    return fedavg(optimizer, server_learning_rate)._replace(step=step)


class _Part(NamedTuple):
    """One of the minibatches of a local step, and the objective that counts its rows."""

    objective: Objective
    batch: Any

    def gradient(self, variables: Variables) -> tuple[Any, Evaluation]:
        return self.objective.gradient(variables, self.batch)


def _step(optimizer, alpha, num_parts, curvature, local, objective, batch, context):
    first, second, *third = _parts(objective, batch, int(num_parts))
    here = local.variables
    gradient, evaluation = first.gradient(here)
    adapted = here._replace(params=trees.add_scaled(here.params, -alpha, gradient))
    direction, after = second.gradient(adapted)
    if third:
        bent = curvature(third[0], here, direction)
        direction = trees.add_scaled(direction, -alpha, bent)
    return descend(optimizer, local, direction, after, context), evaluation


def _hessian_vector_product(part, variables, vector):
    def gradient(params):
        return part.gradient(variables._replace(params=params))[0]

    return jax.jvp(gradient, (variables.params,), (vector,))[1]


def _central_difference(difference_step, part, variables, vector):
    norm = jnp.sqrt(trees.squared_norm(vector))
    length = jnp.asarray(difference_step, norm.dtype)
    length = length * (1 + jnp.sqrt(trees.squared_norm(variables.params)))
    # Along the unit vector, so that nothing is divided by a d that may be huge or infinite.
    unit = trees.scale(1 / jnp.where(norm > 0, norm, 1), vector)

    def gradient(away):
        params = trees.add_scaled(variables.params, away, unit)
        return part.gradient(variables._replace(params=params))[0]

    change = trees.subtract(gradient(length), gradient(-length))
    return trees.scale(norm / (2 * length), change)


def _parts(objective: Objective, batch: Any, count: int) -> list[_Part]:
    """The minibatches of one local step."""
    leaves = jax.tree.leaves(batch)
    if not leaves:
        # Costs are derived without any data.
        return [_Part(objective, batch)] * count
    size = leaves[0].shape[0]
    if size % count:
        raise ValueError(
            f"batch_size must be a multiple of {count} here, since per_fedavg takes {count} minibatches"
            f" in a local step and parts the batch into them; got {size}."
        )
    if objective.mask is None:
        length = size // count
        return [_Part(objective, _rows(batch, p * length, length)) for p in range(count)]
    masks = (_share(objective.mask, p, count) for p in range(count))
    return [_Part(objective._replace(mask=mask), batch) for mask in masks]


def _rows(batch, first, length):
    return jax.tree.map(lambda x: x[first : first + length], batch)


def _share(mask, part, count):
    """The rows that count of one part; all that count where there are too few for every part."""
    rank = jnp.cumsum(mask, dtype=jnp.int32) - 1
    total = rank[-1] + 1
    low, high = part * total // count, (part + 1) * total // count
    return jnp.where(high > low, mask & (rank >= low) & (rank < high), mask)
