"""What travels: the size of messages, and the shape of an upload before there is one."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.algorithm import Algorithm, Coded, Context, Kept, ProbeData


def array_bytes(tree: Any) -> int:
    """The bytes of the arrays of a tree, or of shapes of them."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Any) -> Any:
    """What travels, in bytes: what a codec says where there is one, else the arrays themselves."""
    nodes = jax.tree.leaves(tree, is_leaf=_is_coded)
    return sum(node.num_bytes if _is_coded(node) else array_bytes(node) for node in nodes)


def expected_bytes(tree: Any) -> int:
    """The same from shapes alone, on average over what the values may be; rounded."""
    total = 0.0
    for node in jax.tree.leaves(tree, is_leaf=_is_coded):
        if not _is_coded(node):
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

    def work(variables):
        message = algorithm.broadcast(algorithm.init(variables))
        client = algorithm.init_client(variables)
        report = ()
        if algorithm.probe is not None:
            report = algorithm.probe(message, client, ProbeData(any_gradient, any_gradient))
        shared = report.shared if isinstance(report, Kept) else report
        one, share = jnp.ones((), jnp.int32), jnp.ones((), jnp.result_type(float))
        context = Context(message, client, shared, report, one, one, share, one, jax.random.key(0))
        return algorithm.finish(algorithm.start(message, client), context)[0]

    return jax.eval_shape(work, variables)


def any_gradient(variables: Any, adjust: Any = None) -> Any:
    """A value of a gradient's shape, whatever data and objective it is of."""
    del adjust
    return variables.params


def _is_coded(node: Any) -> bool:
    return isinstance(node, Coded)
