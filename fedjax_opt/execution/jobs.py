"""A piece of work in steps, which can be laid down between two of them; and the loop over its steps."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")
# What all clients see, one client's inputs; of its work, what is summed and what is stacked.
Shared = TypeVar("Shared")
Client = TypeVar("Client")
Sum = TypeVar("Sum")
Rows = TypeVar("Rows")


class Job(NamedTuple, Generic[Tree]):
    """A client's work, which can be laid down between two steps; `whole` is all of it."""

    begin: Callable[[], chex.ArrayTree]
    step: Callable[..., chex.ArrayTree]
    finish: Callable[..., Tree]
    num_steps: jax.Array | int

    def whole(self) -> Tree:
        """What comes of all of it."""
        return self.finish(counted_loop(self.num_steps, self.step, self.begin()))


def whole(job_of: Callable[[Shared, Client], Job[Tree]], shared: Shared, client: Client) -> Tree:
    """What comes of all of one client's work."""
    return job_of(shared, client).whole()


def counted_loop(
    count: jax.Array | int, body: Callable[[Tree, jax.Array], Tree], carry: Tree
) -> Tree:
    """carry = body(carry, k) for k = 0, ..., count - 1."""
    if isinstance(count, int):
        steps = jnp.arange(count, dtype=jnp.int32)
        return jax.lax.scan(lambda c, k: (body(c, k), None), carry, steps)[0]
    carry = jax.lax.fori_loop(jnp.int32(0), count, lambda k, c: body(c, k), carry)
    return _forward_only(carry)


@jax.custom_jvp
def _forward_only(tree):
    """The identity; it is transposed before the loop is, and so the first to object."""
    return tree


@_forward_only.defjvp
def _forward_only_jvp(primals, tangents):
    (tree,), (tangent,) = primals, tangents
    return tree, jax.tree.map(_one_way, tangent)


def _one_way(tangent):
    if tangent.dtype == jax.dtypes.float0:
        return tangent
    return jax.custom_derivatives.linear_call(lambda _, t: t, _refuse, (), tangent)


def _refuse(_, cotangent):
    del cotangent
    raise ValueError(
        "Reverse-mode differentiation (jax.grad, jax.vjp) needs a fixed number of local steps, but"
        " the number is dynamic here: local_steps is a traced value, a schedule or one value per"
        " client, the sampler lets clients fall short of it, or local_epochs or a full-batch probe"
        " depends on each client's size. Pass"
        " local_steps as a Python int (and no num_steps to a round function), or use forward mode"
        " (jax.jvp, jax.jacfwd), which works in all of these cases."
    )
