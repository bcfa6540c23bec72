"""The work of one client in one round: start, K steps, finish."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import messages, trees
from fedjax_opt.core.algorithm import Algorithm, Context, Uniform, get_variables
from fedjax_opt.core.model import Model, Objective
from fedjax_opt.engine import diagnostics
from fedjax_opt.execution.jobs import Job

# Never the number of a local step, nor of the streams of rows (batching.py) and probes (feeding.py).
_OWN = 2**31 - 5

# feed, key, step -> (batch, mask): how one client's k-th minibatch comes about.
Draw = Callable[[Any, jax.Array, jax.Array], tuple[Any, jax.Array | None]]


def own_key(key: jax.Array) -> jax.Array:
    """A client's key in a round -> the one that algorithms and wrappers may use."""
    return jax.random.fold_in(key, _OWN)


class Tally(NamedTuple):
    """What is noted while a client works: sums over steps, and the first step that went wrong."""

    loss_sum: jax.Array
    first_loss: jax.Array
    metric_sums: dict[str, jax.Array]
    bad_step: jax.Array


def work(
    algorithm: Algorithm,
    model: Model,
    draw: Draw,
    feed: Any,
    key: jax.Array,
    context: Context,
    num_steps: jax.Array | int,
    watch: tuple[str, ...] = (),
    observe: Callable[[Any], dict[str, jax.Array]] | None = None,
) -> Job:
    """The training of one client.

    Args:
      algorithm: the algorithm.
      model: the model.
      draw: how minibatches come about.
      feed: what `draw` needs to know about this client.
      key: this client's key for this round.
      context: what the client knows.
      num_steps: how often the loop runs. A Python int is known beforehand and makes the loop
        differentiable in reverse mode; an array may be 0, for a client that does not take part.
      watch: names of diagnostics.
      observe: variables -> what is noted of the client's model: at its start and after each step, or at
        its start and its end where the number of steps is an array.

    Returns:
      A job. What comes of it: the upload, the client's new persistent state, the tally, and what the
      diagnostics need.
    """
    context = context._replace(key=own_key(key))
    record = _Record(observe, num_steps)
    perturbed = "perturbation_norm" in watch

    def one_step(local, start, k):
        batch, mask = draw(feed, key, k)
        objective = Objective(model, jax.random.fold_in(key, k), mask)
        change = ()
        if perturbed:
            here, there = (objective.gradient(v, batch)[0] for v in (get_variables(local), start))
            change = trees.subtract(here, there)
        return *algorithm.step(local, objective, batch, context._replace(step=k)), change

    def begin():
        local = algorithm.start(context.message, context.client)
        start: Any = get_variables(local) if watch else ()
        evaluation = jax.eval_shape(one_step, local, start, jnp.zeros((), jnp.int32))[1]
        nothing = Tally(
            loss_sum=jnp.zeros((), evaluation.loss.dtype),
            first_loss=jnp.zeros((), evaluation.loss.dtype),
            metric_sums=trees.zeros_like(evaluation.metrics),
            bad_step=jnp.full((), -1, jnp.int32),
        )
        no_change = trees.zeros_like(start.params) if perturbed else ()
        return local, nothing, no_change, record.begun(local), start

    def step(carry, k):
        local, tally, perturbation, seen, start = carry
        local, evaluation, change = one_step(local, start, k)
        share = trees.reciprocal(context.num_steps)
        perturbation = trees.add_scaled(perturbation, share, change)
        bad = (tally.bad_step < 0) & ~jnp.isfinite(evaluation.loss)
        tally = Tally(
            loss_sum=tally.loss_sum + evaluation.loss,
            first_loss=jnp.where(k == 0, evaluation.loss, tally.first_loss),
            metric_sums=trees.add(tally.metric_sums, evaluation.metrics),
            bad_step=jnp.where(bad, k, tally.bad_step),
        )
        return local, tally, perturbation, record.stepped(seen, local, k), start

    def finish(carry):
        local, tally, perturbation, seen, start = carry
        upload, client = algorithm.finish(local, context)
        averaged, kept = {}, record.ended(seen, local)
        if watch:
            end = get_variables(local).params
            averaged, also = diagnostics.of_client(watch, start.params, end, perturbation)
            kept |= also
        if "upload_bytes" in watch:
            sent = messages.num_bytes(upload) + messages.num_bytes(context.report)
            averaged["upload_bytes"] = Uniform(jnp.asarray(sent, jnp.result_type(float)))
        return upload, client, tally, (averaged, kept)

    return Job(begin, step, finish, num_steps)


class _Record(NamedTuple):
    """What is seen of a client's model: after every step of a known number, else at both ends."""

    observe: Callable[[Any], dict[str, jax.Array]] | None
    num_steps: Any

    @property
    def length(self) -> int:
        return self.num_steps + 1 if isinstance(self.num_steps, int) else 2

    def begun(self, local: Any) -> dict[str, jax.Array]:
        return {
            name: jnp.full(self.length, jnp.nan, value.dtype).at[0].set(value)
            for name, value in self._look(local).items()
        }

    def stepped(self, seen: dict[str, jax.Array], local: Any, k: jax.Array) -> Any:
        return self._write(seen, local, k + 1) if isinstance(self.num_steps, int) else seen

    def ended(self, seen: dict[str, jax.Array], local: Any) -> dict[str, jax.Array]:
        return seen if isinstance(self.num_steps, int) else self._write(seen, local, 1)

    def _write(self, seen, local, place):
        found = self._look(local)
        return {name: values.at[place].set(found[name]) for name, values in seen.items()}

    def _look(self, local):
        return {} if self.observe is None else self.observe(get_variables(local))
