"""One more term in what an algorithm minimises: in its local steps, and in what its probe asks."""

from typing import Any

from jax.tree_util import Partial

from fedjax_opt.core import Algorithm


def with_term(algorithm: Algorithm, adjust: Any) -> Algorithm:
    """The algorithm on another objective.

    Args:
      algorithm: any algorithm.
      adjust: (objective, batch) -> objective, a `Partial`.
    """
    probe = algorithm.probe
    return algorithm._replace(
        step=Partial(_step, algorithm.step, adjust),
        probe=None if probe is None else Partial(_probe, probe, adjust),
    )


def _step(inner, adjust, local, objective, batch, context):
    return inner(local, adjust(objective, batch), batch, context)


def _probe(inner, adjust, message, client, probe_data):
    return inner(message, client, probe_data.adjusted(adjust))
