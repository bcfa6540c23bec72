"""The contract: an algorithm is a value, a tuple of pure functions and nothing else.

One round of any algorithm, in the order in which its functions are called:

    message = broadcast(server)                                     down, to every client
    report  = probe(message, client, probe_data)                    optional; its mean is in the context
    local   = start(message, client)                                on each client of the cohort
    local, evaluation = step(local, objective, batch, context)      K times
    upload, client    = finish(local, context)                      up, to the server
    contribution      = receive(upload, num_steps)                  optional; then averaged
    mean, memory      = aggregate(stacked, situation, memory)       optional; else the weighted mean
    server  = server_step(server, mean, situation)

Each function is kept as a `jax.tree_util.Partial`, so an algorithm is itself a pytree whose leaves
are its hyperparameters: it can be an argument of `jit`, an axis of `vmap`, a variable of `grad`.

By convention a server state, a message and a local state each have a field `variables`, or a field
`inner` whose value has one. Wrappers find the model by it (`get_variables`, `set_variables`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import trees
from fedjax_opt.core.aliases import (
    Batch,
    ClientState,
    Contribution,
    LocalState,
    Memory,
    Message,
    ModelState,
    Number,
    Params,
    Report,
    ServerState,
    Tree,
    Upload,
)
from fedjax_opt.core.calls import Call, replaced, shown, text
from fedjax_opt.core.model import Evaluation, Objective, Variables
from fedjax_opt.core.struct import put, struct
from fedjax_opt.core.trees import Coded as Coded


class Context(NamedTuple):
    """What a client knows while it works, beside its own local state.

    Attributes:
      message: what the server broadcast.
      client: the client's persistent state as it was before this round.
      report: the cohort's mean report; `()` for an algorithm without a probe.
      own_report: this client's own report; a `Kept` if its probe returned one.
      num_steps: K, the number of local steps this client takes in this round.
      step: the number of local steps already taken.
      invited: |S|, how many clients were asked to take part in this round. How many of them will report
        nobody knows while they work.
      num_clients: N, the size of the population.
      round: t, counted from 0.
      key: this client's own in this round, for what an algorithm draws (a codec's rounding).
      id: this client's number, for what is done to some clients alone (an attack).
    """

    message: Message
    client: ClientState
    report: Report
    own_report: Report
    num_steps: jax.Array
    step: jax.Array
    invited: jax.Array
    num_clients: jax.Array
    round: jax.Array
    key: chex.PRNGKey | None = None
    id: jax.Array | None = None

    @property
    def participation(self) -> jax.Array:
        """C = |S| / N, the fraction of all clients that were asked to take part."""
        return _fraction(self.invited, self.num_clients)


class Situation(NamedTuple):
    """What the server knows about a round when it takes its step.

    Whoever calls `server_update` gives the first five; it adds those that follow from the `Total`.

    Attributes:
      round: t, counted from 0.
      key: the server's own in this round.
      num_clients: N, the size of the population.
      invited: how many clients were asked to take part.
      report: the cohort's mean report; `()` for an algorithm without a probe.
      count: how many of them reported and were counted, whatever their weights.
      weight: the sum of their weights, as these were given.
      num_steps: the weighted mean of K over them.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> situation = fo.Situation(0, jax.random.key(0), num_clients=8, invited=4)
      >>> float(situation._replace(count=2).participation)
      0.25
    """

    round: Number
    key: chex.PRNGKey
    num_clients: Number
    invited: Number
    report: Report = ()
    count: Number | None = None
    weight: Number | None = None
    num_steps: Any = None  # as the last two; an algorithm that divides by it is given a number

    @property
    def participation(self) -> jax.Array:
        """C = |S| / N, counting the clients that reported."""
        return _fraction(self.count, self.num_clients)


def _fraction(part: Number | None, whole: Number) -> jax.Array:
    dtype = jnp.result_type(float)
    return jnp.asarray(part, dtype) / jnp.asarray(whole, dtype)


class Stacked(NamedTuple):
    """The contributions of a round side by side, for an aggregator that asks to see them all.

    Attributes:
      value: the contributions, `[S, ...]`; parts marked as `Uniform` are still marked.
      weights: `[S]`, they sum to 1. Whoever has weight 0 has no say, and may have sent anything. Times
        `Situation.weight` they are the weights that were given.
      ids: the clients' numbers `[S]`; -1 for a client that did not report or was left out.
    """

    value: Contribution
    weights: jax.Array
    ids: jax.Array


class Aggregator(NamedTuple):
    """A rule that sees all contributions of a round at once, and may remember earlier rounds.

    Attributes:
      init: shapes of one contribution -> the memory before the first round, `()` for none.
      apply: (`Stacked`, `Situation`, memory) -> (value, memory). The value has the structure of one
        contribution. The memory comes back as it was if the round changes nothing.

    Example:
      The mean, clipped to the norm of the round before:

      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def apply(stacked, situation, memory):
      ...     mean = jax.tree.map(lambda x: jnp.tensordot(stacked.weights, x, 1), stacked.value)
      ...     norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(mean)))
      ...     factor = jnp.minimum(1.0, memory / norm)
      ...     return jax.tree.map(lambda x: factor * x, mean), norm
      >>> rule = fo.Aggregator(init=lambda shapes: jnp.asarray(jnp.inf), apply=apply)
      >>> algorithm = fo.aggregated(fo.fedavg(fo.optimizers.sgd(0.1)), rule)
      >>> float(fo.first_state(algorithm, {"w": jnp.ones(3)}, num_clients=5).aggregator)
      inf
    """

    init: Callable[[Contribution], Memory]
    apply: Callable[[Stacked, Situation, Memory], tuple[Contribution, Memory]]


class UniformMean(NamedTuple):
    """The mean by weights that are all 1: as the other, it is summed from client to client."""


class Uniform(NamedTuple):
    """Marks a part of an upload that is averaged uniformly, whatever the aggregation weights."""

    value: Tree


class Kept(NamedTuple):
    """A report of which only `shared` is sent and averaged; `own` stays with the client."""

    shared: Report
    own: Tree


class ProbeData(NamedTuple):
    """What a probe may ask about a client's data.

    Attributes:
      full_gradient: variables -> the gradient of the mean loss over all of the client's data.
      minibatch_gradient: variables -> the gradient on one minibatch drawn for the purpose.
      id: the client's number; None where shapes alone are asked for.
      key: the client's own key in this round, as in `Context`; None as `id`.

    Both gradients take a second argument, (objective, batch) -> objective, that changes what is
    differentiated.
    """

    full_gradient: Callable[..., Params]
    minibatch_gradient: Callable[..., Params]
    id: jax.Array | None = None
    key: chex.PRNGKey | None = None

    def adjusted(self, adjust: Callable[[Objective, Batch], Objective]) -> "ProbeData":
        """The same with other objectives: how a wrapper's term reaches an algorithm's probe."""

        def of(gradient):
            def adjusted_gradient(variables, further=None):
                def both(objective, batch):
                    objective = adjust(objective, batch)
                    return objective if further is None else further(objective, batch)

                return gradient(variables, both)

            return adjusted_gradient

        return self._replace(
            full_gradient=of(self.full_gradient), minibatch_gradient=of(self.minibatch_gradient)
        )


@jax.tree_util.register_static
class StaticInt(int):
    """A whole number that is structure of an algorithm (the length of a buffer), not a leaf."""


@struct("runs_on_empty")
class Algorithm:
    """A federated algorithm: seven pure functions, and what most do without.

    Attributes:
      init: variables -> server state.
      init_client: variables -> one client's persistent state, `()` for none.
      broadcast: server state -> message, all that a client downloads.
      start: (message, client state) -> local state.
      step: (local state, objective, batch, context) -> (local state, evaluation).
      finish: (local state, context) -> (upload, client state).
      server_step: (server state, mean contribution, situation) -> server state.
      probe: (message, client state, probe data) -> report, averaged over the cohort before any
        local work begins. None for no probe.
      receive: (upload, num_steps) -> contribution: what the server makes of one client's upload
        before it averages. It sees the value of a `Coded` upload. None for the upload itself.
      personal: (server state, client state) -> the model that this client uses for itself. None where
        that is the global model.
      aggregate: an `Aggregator`, which sees all contributions of a round at once. None for the weighted
        mean, and `UniformMean()`: both are summed from client to client, never stacked. `aggregated`
        sets it.
      runs_on_empty: whether the server takes its step also in a round in which nobody counts, with zeros
        for the mean (noise for privacy must be added then, too). By default it changes nothing.
      call: the constructor that made it and what that was given, for its repr; see `constructor`.

    Example:
      Its leaves are its hyperparameters, once for each function that reads them and once for its repr:

      >>> import jax
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1), server_learning_rate=0.5)
      >>> sorted(set(jax.tree.leaves(algorithm)))
      [0.1, 0.5]
      >>> algorithm
      fedavg(sgd(learning_rate=0.1), server_learning_rate=0.5)
    """

    init: Callable[[Variables], ServerState]
    init_client: Callable[[Variables], ClientState]
    broadcast: Callable[[ServerState], Message]
    start: Callable[[Message, ClientState], LocalState]
    step: Callable[[LocalState, Objective, Batch, Context], tuple[LocalState, Evaluation]]
    finish: Callable[[LocalState, Context], tuple[Upload, ClientState]]
    server_step: Callable[[ServerState, Contribution, Situation], ServerState]
    probe: Callable[[Message, ClientState, ProbeData], Report] | None = None
    receive: Callable[[Upload, Number], Contribution] | None = None
    personal: Callable[[ServerState, ClientState], Variables] | None = None
    aggregate: Aggregator | UniformMean | None = None
    runs_on_empty: bool = False
    call: Call | None = None

    def __post_init__(self) -> None:
        put(self, **{name: as_partial(function) for name, function in vars(self).items()})
        if isinstance(self.aggregate, Aggregator):
            put(self, aggregate=Aggregator(*map(as_partial, self.aggregate)))
        elif self.aggregate is not None and not isinstance(self.aggregate, UniformMean):
            raise ValueError(
                f"algorithm.aggregate must be an Aggregator or None, got {self.aggregate!r}. Use"
                " fedjax_opt.aggregated for a function of (values, weights)."
            )

    def _replace(self, **functions: Any) -> "Algorithm":
        """The same algorithm with other functions."""
        return dataclasses.replace(self, call=replaced(self, functions), **functions)

    def __repr__(self) -> str:
        return shown(self, vars(self))


class Scheduled(NamedTuple):
    """An algorithm whose learning rate changes from round to round; see `scheduled`.

    It is not an Algorithm: what a client or the server does in a round is known once its rate is.
    """

    make: Callable[[Number], Algorithm]
    setting: Any

    def __getattr__(self, name: str) -> Any:
        if name in Algorithm.__dataclass_fields__:  # a wrapper takes it for an Algorithm
            check_algorithm(self)
        raise AttributeError(f"Scheduled has no attribute {name!r}.")

    def __repr__(self) -> str:
        made = [text(self.make)]
        try:  # the algorithm for a rate that is not known
            jax.eval_shape(lambda rate: made.append(repr(self.make(rate))), 0.1)
        except Exception:  # of the user's function, which a repr must not raise
            del made[1:]
        return f"scheduled({made[-1]}, {text(self.setting)})"


def check_algorithm(algorithm: object) -> None:
    """Refuses what is not an algorithm, such as a constructor that was not called."""
    if isinstance(algorithm, Scheduled):
        raise ValueError(
            "algorithm must be an Algorithm here, got one that is scheduled. Wrap inside of the"
            " function: fo.scheduled(lambda eta: fo.proximal(fo.fedavg(fo.optimizers.sgd(eta)), 0.1),"
            " schedule)."
        )
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            "algorithm must be an Algorithm, such as"
            f" fedjax_opt.fedavg(fedjax_opt.optimizers.sgd(0.1)), got {algorithm!r}."
        )


def as_partial(function: Any) -> Any:
    """A function as a pytree: its bound arguments are leaves, its code is structure."""
    if isinstance(function, Partial) or not callable(function):
        return function
    return Partial(function)


def received(algorithm: Algorithm, upload: Upload, num_steps: Number) -> Contribution:
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
    upload = trees.decoded(upload)
    return upload if algorithm.receive is None else algorithm.receive(upload, num_steps)


def sent(report: Report) -> Report:
    """The part of a client's report that leaves it."""
    return report.shared if isinstance(report, Kept) else report


def get_variables(state: Tree) -> Variables:
    """The model inside a server state, message or local state."""
    while not hasattr(state, "variables"):
        if not hasattr(state, "inner"):
            raise ValueError(
                "A server state, message or local state must have a field 'variables', or a field"
                f" 'inner' that leads to one; got {type(state).__name__}."
            )
        state = state.inner
    return state.variables


def set_variables(state: Tree, variables: Variables) -> Tree:
    """The same state with another model inside."""
    if hasattr(state, "with_variables"):
        return state.with_variables(variables)
    if hasattr(state, "variables"):
        return state._replace(variables=variables)
    inner = set_variables(state.inner, variables)
    return state.changed(inner) if isinstance(state, Coded) else state._replace(inner=inner)


def difference(new: Tree, old: Tree) -> Tree:
    """new - old, in floating point also for counters, so that it can be averaged."""

    def minus(a, b):
        if jnp.issubdtype(a.dtype, jnp.floating):
            return a - b
        return a.astype(jnp.result_type(float)) - b.astype(jnp.result_type(float))

    return jax.tree.map(minus, new, old)


def move(variables: Variables, delta: Variables, learning_rate: Number = 1.0) -> Variables:
    """variables + learning_rate * delta; the step size is for parameters, state moves all the way."""
    return Variables(
        trees.add_scaled(variables.params, learning_rate, delta.params),
        move_state(variables.state, delta.state),
    )


def move_state(state: ModelState, delta: ModelState) -> ModelState:
    """state + delta; a counter or a flag is rounded to the nearest value that it can hold."""

    def plus(leaf, change):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf + change.astype(leaf.dtype)
        return jnp.round(leaf.astype(change.dtype) + change).astype(leaf.dtype)

    return jax.tree.map(plus, state, delta)


def no_client_state(variables: Variables) -> tuple:
    """The persistent state of a client that keeps none."""
    del variables
    return ()
