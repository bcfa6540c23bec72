"""What a round tells about itself."""

from typing import NamedTuple

import jax

from fedjax_opt.core.aliases import Tree


class Info(NamedTuple):
    """What happened in a round. Clients that did not take part count for nothing in the means.

    Attributes:
      round: the round's number, counted from 0.
      loss: the mean training loss over the cohort (aggregation weights) and the local steps; NaN, as
        all means, in a round in which nobody counts.
      first_loss: the same of the first local step alone: the loss of the broadcast model.
      metrics: the mean of each of the model's metrics, as `loss`.
      update_norm: the Euclidean norm of the change of the global parameters; 0 if nobody counts.
      cohort: the ids of the clients `[S]`; -1 for a slot that nobody filled.
      client_loss: the mean loss over each client's local steps `[S]`.
      num_steps: the local steps that each client took `[S]`; 0 if it did not take part.
      bad_step: the first local step with a non-finite loss, by client `[S]`; -1 if none.
      finite: whether losses and the aggregate were finite. If not, the round was not applied: the
        state is the last good one.
      diagnostics: what was asked for, by name; see `fedjax_opt.engine.diagnostics`.
      faults: who was left out and why, a `Faults`; `()` without a guard.
    """

    round: jax.Array
    loss: jax.Array
    first_loss: jax.Array
    metrics: dict[str, jax.Array]
    update_norm: jax.Array
    cohort: jax.Array
    client_loss: jax.Array
    num_steps: jax.Array
    bad_step: jax.Array
    finite: jax.Array
    diagnostics: dict[str, jax.Array]
    faults: Tree = ()
