"""What travels: the size of messages, and the shape of an upload before there is one."""

import jax
import jax.numpy as jnp

from fedjax_opt.core.algorithm import Algorithm, Context, ProbeData, received, sent
from fedjax_opt.core.aliases import Contribution, Params, Report, Tree, Upload
from fedjax_opt.core.model import Variables
from fedjax_opt.core.trees import is_coded


def array_bytes(tree: Tree) -> int:
    """The bytes of the arrays of a tree, or of shapes of them."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Tree) -> jax.Array | int:
    """What travels, in bytes: what a codec says where there is one, else the arrays themselves."""
    nodes = jax.tree.leaves(tree, is_leaf=is_coded)
    return sum(node.num_bytes if is_coded(node) else array_bytes(node) for node in nodes)


def expected_bytes(tree: Tree) -> int:
    """The same from shapes alone, on average over what the values may be; rounded."""
    total = 0.0
    for node in jax.tree.leaves(tree, is_leaf=is_coded):
        size = node.expected_bytes if is_coded(node) else array_bytes(node)
        if size is None:
            raise ValueError(
                "The size of what is compressed is not known before the run: the codec's sparsity is"
                " traced. Give it as a number, or measure diagnostics=['upload_bytes'] in a run."
            )
        total += size
    return round(total)


def upload_shape(algorithm: Algorithm, variables: Variables) -> Upload:
    """Shapes of what a client uploads, whatever its data."""
    return jax.eval_shape(lambda variables: _work(algorithm, variables)[1], variables)


def contribution_shape(algorithm: Algorithm, variables: Variables) -> Contribution:
    """Shapes of what the server makes of one client's upload, before it is summed or stacked."""

    def contribution(variables):
        return received(algorithm, _work(algorithm, variables)[1], jnp.ones((), jnp.int32))

    return jax.eval_shape(contribution, variables)


def report_shape(algorithm: Algorithm, variables: Variables) -> Report:
    """Shapes of what a client's probe sends; `()` for an algorithm without one."""
    return jax.eval_shape(lambda variables: sent(_work(algorithm, variables)[0]), variables)


def _work(algorithm: Algorithm, variables: Variables) -> tuple[Report, Upload]:
    """What a client reports and uploads that takes no step."""
    message = algorithm.broadcast(algorithm.init(variables))
    client, one = algorithm.init_client(variables), jnp.ones((), jnp.int32)
    report = ()
    if algorithm.probe is not None:
        report = algorithm.probe(message, client, ProbeData(any_gradient, any_gradient))
    context = Context(
        message, client, sent(report), report, one, one, one, one, one, jax.random.key(0)
    )
    return report, algorithm.finish(algorithm.start(message, client), context)[0]


def any_gradient(variables: Variables, adjust: object = None) -> Params:
    """A value of a gradient's shape, whatever data and objective it is of."""
    del adjust
    return variables.params
