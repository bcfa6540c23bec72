"""Clients one after the other in plain Python, each checked: the strategy of the debug mode."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees


class ClientFailure(Exception):
    """A client's work raised an error, or gave a number that is not finite.

    Attributes:
      client: the client's inputs, as the round hands them out.
      shared: what all clients see.
      cause: the first error that was raised; None if a result was merely not finite.
    """

    def __init__(self, what: str, client: Any, shared: Any, cause: Exception | None):
        super().__init__(what)
        self.client, self.shared, self.cause = client, shared, cause


def map_reduce(function: Any, shared: Any, clients: Any) -> tuple[Any, Any]:
    """As `strategies.map_reduce`, outside of any compiled program; raises a `ClientFailure`."""
    total, results = None, []
    for i in range(jax.tree.leaves(clients)[0].shape[0]):
        client = jax.tree.map(lambda x, i=i: x[i], clients)
        contribution, result = _checked(function, shared, client)
        total = contribution if total is None else trees.add(total, contribution)
        results.append(result)
    return total, jax.tree.map(lambda *rows: jnp.stack(rows), *results)


def _checked(function: Any, shared: Any, client: Any) -> Any:
    if int(client.num_steps) == 0:  # whatever it computes, nobody listens
        return function(shared, client)
    cause = None
    try:
        try:
            with jax.debug_nans(True):
                found = function(shared, client)
        except FloatingPointError as error:
            # A NaN on the way may be meant, and cut later by a selection: the results decide.
            cause = error
            found = function(shared, client)
    except Exception as error:
        raise ClientFailure(f"{type(error).__name__}: {error}", client, shared, error) from error
    wrong = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.all(jnp.isfinite(leaf)))
    ]
    if wrong:
        what = f"{len(wrong)} of its results are not finite" + (
            f"; first, {cause}" if cause else ""
        )
        raise ClientFailure(what, client, shared, cause) from cause
    return found
