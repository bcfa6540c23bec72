"""Compressed messages: what the clients send, and what they receive, goes through a codec.

    upload     u' = C(u),  the server averages the u' of the clients
    with error feedback    u' = C(u + e),  e+ = u + e - u'   (e stays with the client)
    download   the client starts from D(message), the server keeps what it has

Error feedback is for what would be lost: the steps of the model's parameters, and the change of what
clients keep and the server has the mean of, which an upload marks as `Uniform` (SCAFFOLD's c_i). Moments
and batch statistics begin at the server's value in every round, and what is not sent of their way to the
clients' value is in the next difference again. Remembered too it would count twice, go too far, and make
a variance negative.

The wrapped algorithm sees what a receiver would see, and does not know of the codec. What travels is a
`Coded`: its value as it is read, and its size in bytes, which `costs.of` and the diagnostic
'upload_bytes' count in place of its arrays. A probe's report travels as it is.

References:
  Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT. IEEE
  Internet of Things Journal, 2020.
  Seide, Fu, Droppo, Li, Yu. 1-bit stochastic gradient descent and its application to data-parallel
  distributed training of speech DNNs. Interspeech 2014 (error feedback).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.compression.codec import (
    Codec,
    compress,
    decompress,
    expected_bytes,
    layout,
    size_in_bytes,
)
from fedjax_opt.core import Algorithm, Coded, Uniform, Variables, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.core.messages import upload_shape
from fedjax_opt.wrappers.nested import nested


class Server(NamedTuple):
    """The wrapped algorithm's server state, and the random bits of the next download's codec."""

    inner: Any
    seed: jax.Array


class Client(NamedTuple):
    """The wrapped algorithm's client state, and what earlier uploads left out of some leaves."""

    inner: Any
    error: Any


@constructor
def compressed(
    algorithm: Algorithm,
    upload: Codec | None = None,
    download: Codec | None = None,
    error_feedback: bool = False,
) -> Algorithm:
    """Sends what an algorithm uploads and downloads through codecs.

    Args:
      algorithm: any algorithm; `private` goes inside: what stays at home needs no codec.
      upload: the codec of the uploads, which are changes; None to send them as they are.
      download: the codec of the server's message; None to send it as it is. The message holds the model
        itself, not a change of it, so a codec that leaves entries out is refused. Adam's moments need
        companions=compression.exponential(8) there: most of v is too small for evenly spaced codes.
      error_feedback: whether a client adds what a codec left out of the parameters, and of what is
        marked as `Uniform`, to its next upload, and keeps it until then. Refused for a codec that
        rescales, and for FedDC with a codec that leaves entries out, which would diverge.

    Returns:
      The algorithm.

    Example:
      FedGBO with a tenth of the entries, eight bits each:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.compressed(
      ...     fo.fedgbo(fo.optimizers.sgdm(0.1)), upload=fo.compression.ce_fedavg(sparsity=0.9)
      ... )
    """
    _check(upload, download, error_feedback)
    if upload is not None:
        algorithm = _with_coded_uploads(algorithm, upload, bool(error_feedback))
    return algorithm if download is None else _with_coded_downloads(algorithm, download)


def _check(upload, download, error_feedback):
    for name, codec in (("upload", upload), ("download", download)):
        if codec is not None and not isinstance(codec, Codec):
            raise ValueError(
                f"{name} must be a Codec of fedjax_opt.compression or None, got {codec!r}."
            )
    if upload is None and download is None:
        raise ValueError("Give upload or download, a Codec; got None for both.")
    if download is not None and download.sparsifiers:
        raise ValueError(
            "download must not leave entries out: what is downloaded is the model itself, not a change,"
            " and what is left out would be 0. Use a quantiser such as compression.uniform(8)."
        )
    if error_feedback and upload is None:
        raise ValueError("error_feedback=True needs an upload codec, got upload=None.")
    if error_feedback and upload is not None and upload.rescales:
        raise ValueError(
            "error_feedback=True does not go with random_k(rescale=True): what is remembered would be"
            " multiplied by n / k again and again. Use one of the two."
        )


def coded(codec: Codec, tree: Any, key: jax.Array) -> Coded:
    """A message as it travels: what the receiver reads, and the bytes of it."""
    if isinstance(tree, Coded):
        raise ValueError(
            "compressed goes around an upload or a download once: put one codec behind the other by"
            " compression.chain."
        )
    payload = compress(codec, tree, key)
    return Coded(
        decompress(codec, payload, tree),
        size_in_bytes(codec, payload, tree),
        expected_bytes(codec, tree),
        codec,
        payload,
    )


def _with_coded_uploads(algorithm, codec, error_feedback):
    if not error_feedback:
        return algorithm._replace(finish=Partial(_finish, algorithm.finish, codec))
    remembering = nested(algorithm, client=Partial(_with_memory, algorithm, codec))
    return remembering._replace(finish=Partial(_finish_with_memory, remembering.finish, codec))


def _finish(finish, codec, local, context):
    upload, client = finish(local, context)
    return coded(codec, upload, context.key), client


def _with_memory(algorithm, codec, inner, variables):
    upload = upload_shape(algorithm, variables)
    if codec.sparsifiers:
        _refuse_sums_of_both(algorithm, upload)
    return Client(inner, _remembered_leaves(codec, trees.zeros_like(upload)))


def _refuse_sums_of_both(algorithm, upload):
    """Refuses FedDC: by how it averages its upload, not by name.

    Its server adds up the changes of the model, to move it by their sum in every round, and the changes
    of a control variate. Neither loop bears that much arrives a round late.
    """
    one = jnp.ones((), jnp.int32)
    received = upload
    if algorithm.receive is not None:
        received = jax.eval_shape(algorithm.receive, upload, one)
    sent, averaged = (sum(map(_is_uniform, _parts(tree))) for tree in (upload, received))
    if 0 < sent < averaged:
        raise ValueError(
            "error_feedback=True diverges here with a codec that leaves entries out: the server moves"
            " the model by a sum of all changes that it was sent (FedDC's drift), beside a control"
            " variate, and what comes a round late comes too late for both. Use a quantiser alone, such"
            " as compression.uniform(8)."
        )


def _parts(tree):
    return jax.tree.leaves(tree, is_leaf=lambda node: _is_uniform(node) or _is_model(node))


def _is_uniform(node):
    return isinstance(node, Uniform)


def _is_model(node):
    return isinstance(node, Variables)


def _remembered(codec, tree):
    """For each leaf of an upload, whether what a codec leaves out of it is sent later."""
    models = any(map(_is_model, jax.tree.leaves(tree, is_leaf=_is_model)))
    pairs = zip(layout(codec, tree), _marks(tree, otherwise=not models), strict=True)
    return [slot.leader is not None and mark for slot, mark in pairs]


def _marks(tree, otherwise):
    """True for the parameters of models and what is marked as `Uniform`, leaf by leaf."""
    marks = []
    for node in _parts(tree):
        if _is_uniform(node):
            marks += _marks(node.value, otherwise=True)
        elif _is_model(node):
            marks += [True] * len(jax.tree.leaves(node.params))
            marks += [False] * len(jax.tree.leaves(node.state))
        else:
            marks.append(otherwise)
    return marks


def _remembered_leaves(codec, tree):
    marks = _remembered(codec, tree)
    return tuple(leaf for leaf, mark in zip(jax.tree.leaves(tree), marks, strict=True) if mark)


def _finish_with_memory(finish, codec, local, context):
    upload, client = finish(local, context)
    errors = iter(client.error)
    leaves = zip(jax.tree.leaves(upload), _remembered(codec, upload), strict=True)
    wanted = jax.tree.unflatten(
        jax.tree.structure(upload),
        [leaf + next(errors) if remembered else leaf for leaf, remembered in leaves],
    )
    sent = coded(codec, wanted, context.key)
    left = trees.subtract(_remembered_leaves(codec, wanted), _remembered_leaves(codec, sent.inner))
    return sent, client._replace(error=left)


def _with_coded_downloads(algorithm, codec):
    read = nested(algorithm, server=_with_seed, message=Partial(_coded_message, codec))
    return read._replace(server_step=Partial(_server_step, read.server_step))


def _with_seed(inner, variables):
    return Server(inner, jnp.zeros(2, jnp.uint32))


def _coded_message(codec, inner, server):
    return coded(codec, inner, jax.random.wrap_key_data(server.seed, impl="threefry2x32"))


def _server_step(server_step, server, mean, situation):
    # The seed of the next download belongs to this run and round; the first download's is 0.
    seed = jax.random.bits(situation.key, (2,), jnp.uint32)
    return server_step(server, mean, situation)._replace(seed=seed)
