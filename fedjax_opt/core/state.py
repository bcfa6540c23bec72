"""The whole state of a federation, between two rounds."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Aggregator, Algorithm, check_algorithm, get_variables
from fedjax_opt.core.aliases import ClientState, Memory, Params, ServerState
from fedjax_opt.core.calls import shapes, text
from fedjax_opt.core.messages import contribution_shape
from fedjax_opt.core.model import Variables

# Rounds are below 2^31 - 1, so this one never names a round's stream of random numbers.
_COHORTS = 2**31 - 1


class FederatedState(NamedTuple):
    """All that must be kept to go on: save it, load it, and the run continues bit for bit.

    Attributes:
      server: the algorithm's server state.
      clients: every client's persistent state, stacked `[N, ...]`; empty for stateless algorithms.
      round: the number of rounds done, int32.
      key: the run's key. It never changes: every random number is derived from it, the round and
        the client, so results do not depend on the order of execution.
      num_clients: N, int32.
      controllers: what the run's controllers remember; `()` before the first round with any.
      aggregator: what the algorithm's `Aggregator` remembers; `()` without one.
    """

    server: ServerState
    clients: ClientState
    round: jax.Array
    key: chex.PRNGKey
    num_clients: jax.Array
    controllers: Memory = ()
    aggregator: Memory = ()

    @property
    def variables(self) -> Variables:
        """The global model."""
        return get_variables(self.server)

    @property
    def cohort_key(self) -> chex.PRNGKey:
        """The key that the cohorts of all rounds are drawn with."""
        return jax.random.fold_in(self.key, _COHORTS)

    def __repr__(self) -> str:
        numbers = f"round={text(self.round)}, num_clients={text(self.num_clients)}"
        names = "server", "clients", "controllers", "aggregator"
        trees = {name: tree for name in names if jax.tree.leaves(tree := getattr(self, name))}
        return f"FederatedState({', '.join([numbers, *(f'{k}={shapes(x)}' for k, x in trees.items())])})"


def check_state(algorithm: Algorithm, state: FederatedState) -> None:
    """Refuses a state that another algorithm, or another model, has made."""
    leaves = jax.tree.leaves(state.clients)
    size = max(leaves[0].shape[0], 1) if leaves else 1
    make = partial(first_state, algorithm, num_clients=size)
    expected = jax.eval_shape(make, get_variables(state.server))
    why = "what this algorithm keeps; the state is of another one"
    for name in ("server", "clients", "aggregator"):
        checks.same_structure(f"state.{name}", getattr(state, name), getattr(expected, name), why)


def first_state(
    algorithm: Algorithm,
    variables: Variables | Params,
    num_clients: int,
    key: chex.PRNGKey | int = 0,
) -> FederatedState:
    """The state before the first round, from what it is made of; `init_state` calls it.

    It is for a round function of your own (`make_round`), or a server: whoever has no federation.

    Args:
      algorithm: the algorithm.
      variables: the initial model, as `model.init` returns it; bare params are taken as a model
        without non-trainable state.
      num_clients: N, the size of the population.
      key: the run's key, or a seed for one, which may be traced.

    Returns:
      A `FederatedState` whose round is 0.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
      >>> state = fo.first_state(algorithm, {"w": jnp.ones(3)}, num_clients=5)
      >>> state.clients.control["w"].shape
      (5, 3)
    """
    check_algorithm(algorithm)
    num_clients = checks.integer("num_clients", num_clients, low=1)
    if not isinstance(variables, Variables):
        variables = Variables(params=variables)
    checks.trainable(variables.params)
    variables = jax.tree.map(jnp.asarray, variables)
    memory: Memory = ()
    if isinstance(algorithm.aggregate, Aggregator):
        memory = algorithm.aggregate.init(contribution_shape(algorithm, variables))
    return FederatedState(
        server=algorithm.init(variables),
        clients=jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (num_clients, *jnp.shape(leaf))),
            algorithm.init_client(variables),
        ),
        round=jnp.zeros((), jnp.int32),
        key=as_key(key),
        num_clients=jnp.asarray(num_clients, jnp.int32),
        aggregator=memory,
    )


def as_key(key: chex.PRNGKey | int) -> chex.PRNGKey:
    """A key of jax.random, from itself or from a seed."""
    if checks.is_whole(key):
        return jax.random.key(int(key))
    if isinstance(key, jax.Array):
        kind = key.dtype
        if jnp.issubdtype(kind, jax.dtypes.prng_key) and not key.shape:
            return key
        if jnp.issubdtype(kind, jnp.integer) and not key.shape:
            return jax.random.key(key)
        if kind == jnp.uint32 and key.shape == (2,):  # as jax.random.PRNGKey makes them
            return jax.random.wrap_key_data(key)
    raise ValueError(f"key must be a key of jax.random or a whole number, got {key!r}.")
