"""A model-contrastive term around any algorithm's local objective.

    loss  <-  loss + mu l,  l = -log( e^{cos(z, z_x)/tau} / (e^{cos(z, z_x)/tau} + e^{cos(z, z_i)/tau}) )

with z, z_x and z_i the features, on the same minibatch, of the local model, of the model that the client
starts from and of the model with which it finished last time. Before a client ever took part that is the
initial model, as in the authors' code; in the very first round it is then the same as the received one,
and the term is a constant.

Reference:
  Li, He, Song. Model-contrastive federated learning. CVPR 2021. Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, Variables, checks, get_variables
from fedjax_opt.core.model import mean_over_rows
from fedjax_opt.wrappers.features import features_of

# The norm below which features count as zero, as in PyTorch's cosine similarity.
_SMALLEST = 1e-8


class Client(NamedTuple):
    """The wrapped algorithm's client state, and the client's last local model."""

    inner: Any
    previous: Variables


class Local(NamedTuple):
    """The wrapped algorithm's local state, and the model at which the client started."""

    inner: Any
    anchor: Variables


def contrastive(algorithm: Algorithm, mu: Any, temperature: Any = 0.5) -> Algorithm:
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

    Reference:
      Li, He, Song. Model-contrastive federated learning. CVPR 2021.
    """
    mu = checks.number("mu", mu, low=0.0)
    temperature = checks.number("temperature", temperature, low=0.0, open_low=True)
    personal = algorithm.personal
    return algorithm._replace(
        init_client=Partial(_init_client, algorithm.init_client),
        probe=None
        if algorithm.probe is None
        else Partial(_probe, algorithm.probe, algorithm.start, mu, temperature),
        start=Partial(_start, algorithm.start),
        step=Partial(_step, algorithm.step, mu, temperature),
        finish=Partial(_finish, algorithm.finish),
        personal=None if personal is None else Partial(_personal, personal),
    )


def _init_client(inner, variables):
    return Client(inner(variables), variables)


def _probe(inner, start, mu, temperature, message, client, probe_data):
    # A probe asks at the model from which the client starts, where z is z_x. The message may have
    # holes, which the client fills from what it keeps.
    anchor = get_variables(start(message, client.inner))
    term = Partial(_with_term, mu, temperature, anchor, client.previous)
    return inner(message, client.inner, probe_data.adjusted(term))


def _personal(inner, server, client):
    return inner(server, client.inner)


def _start(inner, message, client):
    local = inner(message, client.inner)
    return Local(local, get_variables(local))


def _inside(context):
    return context._replace(client=context.client.inner)


def _step(inner, mu, temperature, local, objective, batch, context):
    previous = context.client.previous
    penalised = _with_term(mu, temperature, local.anchor, previous, objective, batch)
    moved, evaluation = inner(local.inner, penalised, batch, _inside(context))
    return Local(moved, local.anchor), evaluation


def _with_term(mu, temperature, anchor, previous, objective, batch):
    of_anchor = features_of(objective.evaluate(anchor, batch), "contrastive")
    of_previous = features_of(objective.evaluate(previous, batch), "contrastive")

    def penalty(variables, evaluation):
        del variables
        features = features_of(evaluation, "contrastive")
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
        return (jnp.asarray(mu, term.dtype) * term).astype(evaluation.loss.dtype)

    return objective.with_penalty(penalty)


def _finish(inner, local, context):
    upload, client = inner(local.inner, _inside(context))
    return upload, Client(client, get_variables(local.inner))
