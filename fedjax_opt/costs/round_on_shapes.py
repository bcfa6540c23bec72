"""A round of an algorithm on shapes alone: the programs off which bytes and operations are read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_opt.core import Algorithm, Model, Variables
from fedjax_opt.engine.client import Invitation, client_job, client_probe
from fedjax_opt.engine.minibatches import Feed
from fedjax_opt.engine.server import report_contribution


class Known(NamedTuple):
    """What a client has in front of it, as shapes: arguments of its programs."""

    message: Any
    client: Any
    report: Any
    own_report: Any
    batch: Any
    examples: Any
    key: jax.ShapeDtypeStruct


class Round(NamedTuple):
    """The two halves of a round, and what they are given.

    Attributes:
      server: the server's state.
      known: what a client knows.
      carry: what it carries from step to step; the first part is the algorithm's local state.
      probe: known -> the client's report; `()` without one.
      begin: known -> carry.
      step: (carry, known) -> carry.
      finish: (carry, known) -> `ClientResult`.
    """

    server: Any
    known: Known
    carry: Any
    probe: Callable[[Known], Any]
    begin: Callable[[Known], Any]
    step: Callable[[Any, Known], Any]
    finish: Callable[[Any, Known], Any]


def round_on_shapes(
    algorithm: Algorithm,
    model: Model,
    variables: Variables,
    batch: Any,
    examples: Any,
) -> Round:
    """A round of one local step on a minibatch; a probe may see all examples of the client at once."""

    def parts(known):
        feed = Feed(
            draw=lambda key, step: (known.batch, None),
            chunk=lambda index: (known.examples, None),
            num_chunks=1,
            extra=lambda key: (known.batch, None),
            num_examples=1,
        )
        invitation = Invitation(known.message, 0, 0, 1, 1, 1, known.key, known.report)
        return model, feed, invitation, known.client

    def probe(known):
        return () if algorithm.probe is None else client_probe(algorithm, *parts(known))

    def job(known):
        return client_job(algorithm, *parts(known), known.own_report)

    def begin(known):
        return job(known).begin()

    server = jax.eval_shape(algorithm.init, variables)
    message = jax.eval_shape(algorithm.broadcast, server)
    client = jax.eval_shape(algorithm.init_client, variables)
    key = jax.eval_shape(lambda: jax.random.key(0))
    known = Known(message, client, (), (), batch, examples, key)
    own_report = jax.eval_shape(probe, known)
    # A mean of reports has the shapes of one, whatever rule makes it.
    summed = algorithm._replace(aggregate=None)
    report = jax.eval_shape(lambda own: report_contribution(summed, own, 1.0).mean, own_report)
    known = known._replace(report=report, own_report=own_report)
    return Round(
        server,
        known,
        jax.eval_shape(begin, known),
        probe,
        begin,
        lambda carry, known: job(known).step(carry, 0),
        lambda carry, known: job(known).finish(carry),
    )
