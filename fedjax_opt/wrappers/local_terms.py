"""What every client minimises, changed: terms in its loss, and clipping of its gradient.

    proximal       loss + (mu / 2) ||y - x||^2,    so g + mu (y - x);   x where the client starts
    weight_decay   loss + (rate / 2) ||y||^2,      so g + rate y
    max_entropy    loss + beta mean over the batch of KL(u || softmax(h))
    contrastive    loss + mu l,  l = -log( a / (a + b) ),  a = e^{cos(z, z_x)/tau},
                                                           b = e^{cos(z, z_i)/tau}
    clipped        g min(1, max_norm / ||g||),     g of the loss and of every term

h and z are the model's features (its penultimate activations): n of them in max_entropy, where u is
the uniform distribution and KL(u || p) = -log n - (1 / n) sum_j log p_j, which is zero where
activations are all alike. In contrastive they are those, on the same minibatch, of the local model,
of the model that the client starts from (z_x) and of the one with which it finished last time
(z_i). Before a client ever took part that is the initial model, as in the authors' code; in the
very first round both are the same, and the term is a constant.

Terms act in local steps and in what a probe asks; a proximal term is zero there, and probes are not
clipped. Every rule then sees the gradient of the changed objective: FedCM mixes it, SCAFFOLD's
control variates hold it. PyTorch's optimisers add weight decay after such corrections instead; for
that, or to clip after them, put `optax.add_decayed_weights` or `optax.clip_by_global_norm` before
the triple with `fedjax_opt.optimizers.chain`. The loss that is reported stays the model's own.

References:
  proximal: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous
    networks. MLSys 2020.
  weight_decay: Krogh, Hertz. A simple weight decay can improve generalization. NeurIPS 1991.
  max_entropy: Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
    communication-efficient federated learning. ECML PKDD 2020.
  contrastive: Li, He, Song. Model-contrastive federated learning. CVPR 2021.
  clipped: Pascanu, Mikolov, Bengio. On the difficulty of training recurrent neural networks. ICML 2013.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, Evaluation, Variables, checks, get_variables, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.core.model import mean_over_rows
from fedjax_opt.wrappers.nested import nested

# The norm below which features count as zero, as in PyTorch's cosine similarity.
_SMALLEST = 1e-8


class Anchored(NamedTuple):
    """The wrapped algorithm's local state, and the model at which the client started.

    Of that model a proximal term keeps the parameters alone.
    """

    inner: Any
    anchor: Any


class WithPrevious(NamedTuple):
    """The wrapped algorithm's client state, and the client's last local model."""

    inner: Any
    previous: Variables


@constructor
def proximal(algorithm: Algorithm, mu: chex.Numeric) -> Algorithm:
    """Pulls local models towards the broadcast one: `g + mu (y - x)`.

    Args:
      algorithm: any algorithm.
      mu: the weight of the proximal term, not negative.

    Returns:
      The algorithm with the term in every local gradient.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.proximal(fo.fedgbo(fo.optimizers.sgdm(0.1, 0.9)), mu=0.01)
    """
    mu = checks.number("mu", mu, low=0.0)
    anchored = nested(algorithm, local=_anchored_params)
    return anchored._replace(step=Partial(_proximal_step, anchored.step, mu))


@constructor
def weight_decay(algorithm: Algorithm, rate: chex.Numeric) -> Algorithm:
    """Adds `(rate / 2) ||y||^2` to every local objective.

    Args:
      algorithm: any algorithm.
      rate: the decay, not negative; a hyperparameter that may be traced.

    Returns:
      The algorithm with the term in every gradient.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.weight_decay(fo.scaffold(fo.optimizers.sgd(0.1)), rate=1e-3)
    """
    return _with_term(algorithm, Partial(_decayed, checks.number("rate", rate, low=0.0)))


@constructor
def max_entropy(algorithm: Algorithm, beta: chex.Numeric) -> Algorithm:
    """Adds `beta KL(uniform || softmax(features))` to every local objective.

    Args:
      algorithm: any algorithm.
      beta: the weight of the term, not negative.

    Returns:
      The algorithm with the term in every gradient. The model's loss must return `Aux(features=...)`,
      `[B, ...]`.

    Example:
      FedMAX with FedGBO's optimiser:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.max_entropy(fo.fedgbo(fo.optimizers.adam(0.01)), beta=10.0)
    """
    return _with_term(algorithm, Partial(_levelled, checks.number("beta", beta, low=0.0)))


@constructor
def contrastive(
    algorithm: Algorithm, mu: chex.Numeric, temperature: chex.Numeric = 0.5
) -> Algorithm:
    """Adds MOON's contrastive term, with weight mu, to every local objective.

    Args:
      algorithm: any algorithm.
      mu: the weight of the term, not negative.
      temperature: tau > 0.

    Returns:
      The algorithm, whose clients keep their last local model as well. Each local step evaluates two
      more models, without gradients. The model's loss must return `Aux(features=...)`, `[B, ...]`.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.contrastive(fo.fedacg(fo.optimizers.sgd(0.1)), mu=1.0)
    """
    mu = checks.number("mu", mu, low=0.0)
    temperature = checks.number("temperature", temperature, low=0.0, open_low=True)
    around = nested(algorithm, client=WithPrevious, local=_anchored)
    term = Partial(_contrasted, mu, temperature)
    probe = None
    if around.probe is not None:
        probe = Partial(_contrastive_probe, around.probe, around.start, term)
    return around._replace(
        probe=probe,
        step=Partial(_contrastive_step, around.step, term),
        finish=Partial(_contrastive_finish, around.finish),
    )


@constructor
def clipped(algorithm: Algorithm, max_norm: chex.Numeric) -> Algorithm:
    """Clips the norm of every local gradient, before an algorithm's own corrections.

    Args:
      algorithm: any algorithm.
      max_norm: the largest Euclidean norm of a minibatch's gradient, positive; a hyperparameter that may
        be traced.

    Returns:
      The algorithm with clipped gradients.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.clipped(fo.fedavg(fo.optimizers.sgd(0.1)), max_norm=10.0)
    """
    max_norm = checks.number("max_norm", max_norm, low=0.0, open_low=True)
    return algorithm._replace(step=Partial(_clipped_step, algorithm.step, max_norm))


def _with_term(algorithm, term):
    """The algorithm on the objective that `term(objective, batch)` makes, also where a probe asks."""
    probe = None if algorithm.probe is None else Partial(_term_probe, algorithm.probe, term)
    return algorithm._replace(step=Partial(_term_step, algorithm.step, term), probe=probe)


def _term_step(step, term, local, objective, batch, context):
    return step(local, term(objective, batch), batch, context)


def _term_probe(probe, term, message, client, probe_data):
    return probe(message, client, probe_data.adjusted(term))


def _weighted(weight, value, evaluation):
    """A term of the loss, in its dtype."""
    return (jnp.asarray(weight, value.dtype) * value).astype(evaluation.loss.dtype)


def _decayed(rate, objective, batch):
    def penalty(variables, evaluation):
        return _weighted(rate, trees.squared_norm(variables.params) / 2, evaluation)

    return objective.with_penalty(penalty)


def _levelled(beta, objective, batch):
    def penalty(variables, evaluation):
        features = _features(evaluation, "max_entropy")
        log_p = jax.nn.log_softmax(features, axis=-1)
        uniform = jnp.full_like(log_p, 1 / features.shape[-1])
        divergence = optax.losses.kl_divergence(log_p, uniform)
        return _weighted(beta, mean_over_rows(divergence, objective.mask), evaluation)

    return objective.with_penalty(penalty)


def _features(evaluation: Evaluation, name: str) -> jax.Array:
    """The features `[B, n]`, one vector per example."""
    features = evaluation.features
    if features is None:
        raise ValueError(
            f"{name} needs the model's features (its penultimate activations), but model.loss returned"
            " none: return Aux(features=...), [B, ...]. The models of fedjax_opt.models do."
        )
    return features.reshape(features.shape[0], -1)


def _anchored(inner, message, client):
    # Not the message's model: it may have holes, which the client fills from what it keeps.
    return Anchored(inner, get_variables(inner))


def _anchored_params(inner, message, client):
    return Anchored(inner, get_variables(inner).params)


def _proximal_step(step, mu, local, objective, batch, context):
    def penalty(variables, evaluation):
        away = trees.subtract(variables.params, local.anchor)
        return _weighted(mu, trees.squared_norm(away) / 2, evaluation)

    return step(local, objective.with_penalty(penalty), batch, context)


def _contrastive_probe(probe, start, term, message, client, probe_data):
    # A probe asks at the model from which the client starts, where z is z_x.
    anchor = start(message, client).anchor
    return probe(message, client, probe_data.adjusted(Partial(term, anchor, client.previous)))


def _contrastive_step(step, term, local, objective, batch, context):
    contrasted = term(local.anchor, context.client.previous, objective, batch)
    return step(local, contrasted, batch, context)


def _contrastive_finish(finish, local, context):
    upload, client = finish(local, context)
    return upload, client._replace(previous=get_variables(local))


def _contrasted(mu, temperature, anchor, previous, objective, batch):
    of_anchor = _features(objective.evaluate(anchor, batch), "contrastive")
    of_previous = _features(objective.evaluate(previous, batch), "contrastive")

    def penalty(variables, evaluation):
        features = _features(evaluation, "contrastive")
        if features.shape != of_anchor.shape:
            raise ValueError(
                "contrastive compares features on the whole minibatch of a local step, and this"
                " algorithm takes gradients on parts of it, as per_fedavg does: features of shape"
                f" {list(features.shape)} against {list(of_anchor.shape)}."
            )
        scale = jnp.asarray(1 / temperature, features.dtype)
        cosine, others = optax.losses.cosine_similarity, (of_anchor, of_previous)
        near, far = (scale * cosine(features, z, epsilon=_SMALLEST) for z in others)
        # -log(e^near / (e^near + e^far)) = log(1 + e^(far - near))
        term = mean_over_rows(jax.nn.softplus(far - near), objective.mask)
        return _weighted(mu, term, evaluation)

    return objective.with_penalty(penalty)


def _clipped_step(step, max_norm, local, objective, batch, context):
    def clip(gradient):
        norm = jnp.sqrt(trees.squared_norm(gradient))
        # Of two positive numbers, so that a gradient of zero divides by max_norm and stays zero.
        limit = jnp.asarray(max_norm, norm.dtype)
        return trees.scale(limit / jnp.maximum(norm, limit), gradient)

    return step(local, objective.with_transform(clip), batch, context)
