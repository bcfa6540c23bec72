"""What travels: the size of messages, and the shape of an upload before there is one."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.algorithm import Algorithm, Context, Kept, ProbeData
from fedjax_opt.core.coded import decoded, is_coded


def array_bytes(tree: Any) -> int:
    """The bytes of the arrays of a tree, or of shapes of them."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Any) -> Any:
    """What travels, in bytes: what a codec says where there is one, else the arrays themselves."""
    nodes = jax.tree.leaves(tree, is_leaf=is_coded)
    return sum(node.num_bytes if is_coded(node) else array_bytes(node) for node in nodes)


def expected_bytes(tree: Any) -> int:
    """The same from shapes alone, on average over what the values may be; rounded."""
    total = 0.0
    for node in jax.tree.leaves(tree, is_leaf=is_coded):
        if not is_coded(node):
            total += array_bytes(node)
        elif node.expected_bytes is None:
            raise ValueError(
                "The size of what is compressed is not known before the run: the codec's sparsity is"
                " traced. Give it as a number, or measure diagnostics=['upload_bytes'] in a run."
            )
        else:
            total += node.expected_bytes
    return round(total)


def upload_shape(algorithm: Algorithm, variables: Any) -> Any:
    """Shapes of what a client uploads, whatever its data."""
    return jax.eval_shape(lambda variables: _upload(algorithm, variables), variables)


def contribution_shape(algorithm: Algorithm, variables: Any) -> Any:
    """Shapes of what the server makes of one client's upload, before it is summed or stacked."""

    def work(variables):
        return received(algorithm, _upload(algorithm, variables), jnp.ones((), jnp.int32))

    return jax.eval_shape(work, variables)


def report_shape(algorithm: Algorithm, variables: Any) -> Any:
    """Shapes of what a client's probe sends; `()` for an algorithm without one."""
    return jax.eval_shape(lambda variables: sent(_report(algorithm, variables)), variables)


def received(algorithm: Algorithm, upload: Any, num_steps: Any) -> Any:
    """What the server makes of one client's upload before it is summed or stacked.

    `contribution` calls it; call it yourself to fill a `Stacked` for an `Aggregator`.

    Args:
      algorithm: the algorithm.
      upload: what the client sent; of a `Coded` upload its value.
      num_steps: K_i, the local steps that it took.

    Returns:
      The contribution.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedcm(fo.optimizers.sgd(0.1))
      >>> found = fo.received(algorithm, fo.Variables({"w": jnp.ones(3)}), num_steps=2)
      >>> found.delta_per_step["w"].tolist()
      [0.5, 0.5, 0.5]
    """
    upload = decoded(upload)
    return upload if algorithm.receive is None else algorithm.receive(upload, num_steps)


def sent(report: Any) -> Any:
    """The part of a client's report that leaves it."""
    return report.shared if isinstance(report, Kept) else report


def _report(algorithm, variables):
    if algorithm.probe is None:
        return ()
    message = algorithm.broadcast(algorithm.init(variables))
    any_data = ProbeData(any_gradient, any_gradient)
    return algorithm.probe(message, algorithm.init_client(variables), any_data)


def _upload(algorithm, variables):
    message = algorithm.broadcast(algorithm.init(variables))
    client, report = algorithm.init_client(variables), _report(algorithm, variables)
    one = jnp.ones((), jnp.int32)
    context = Context(
        message, client, sent(report), report, one, one, one, one, one, jax.random.key(0)
    )
    return algorithm.finish(algorithm.start(message, client), context)[0]


def any_gradient(variables: Any, adjust: Any = None) -> Any:
    """A value of a gradient's shape, whatever data and objective it is of."""
    del adjust
    return variables.params
