"""What algorithms learn on: model, clients' data, who takes part, how much each works."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt, as_partial
from fedjax_opt.core.aliases import Examples, Params
from fedjax_opt.core.calls import Word
from fedjax_opt.core.client_data import ClientData, StoredClients
from fedjax_opt.core.cohorts import Sampler, uniform
from fedjax_opt.core.controller import Controller, Controls, first_algorithm, started
from fedjax_opt.core.guard import Guard, check_guard
from fedjax_opt.core.model import Model, Variables, what_raised
from fedjax_opt.core.state import FederatedState, as_key, first_state
from fedjax_opt.core.struct import put, struct

BATCHINGS = ("shuffled", "replacement")
REMAINDERS = ("exact", "drop")
WEIGHTINGS = ("samples", "uniform", "weights")


@struct()
class Epochs:
    """Local work in passes over a client's own examples; see `epochs`.

    Attributes:
      count: E: each client takes `E ceil(n_i / B)` steps; `E floor(n_i / B)` with `remainder="drop"`.
    """

    count: Any


def epochs(count: "Work") -> Epochs:
    """Local work in passes over a client's own examples: `Federation(..., local_steps=fo.epochs(2))`.

    Args:
      count: E, a whole number, one per client `[N]`, a function of the round or a `Controller`. Each
        client takes `E ceil(n_i / B)` steps.

    Example:
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> fo.Federation(model, clients, cohort=5, local_steps=fo.epochs(2), batch_size=1)
      Federation(model, 10 clients, 10 examples, cohort 5, 2 epochs of 1)
    """
    return Epochs(_settled(count))


Work = int | chex.Array | Callable[[jax.Array], chex.Numeric] | Controller | Epochs


@struct("batch_size", "batching", "remainder")
class Federation:
    """What algorithms learn on: model, clients' data, who takes part, how much each works.

    It is a pytree. Numbers may be traced, and a cohort, a number of local steps or a guard that differs
    in numbers alone compiles nothing anew; functions, the batch size and what is said by a word are
    compiled in. A field does nothing by being there: a verb reads what it needs.

    Attributes:
      model: the model.
      clients: their examples, a `ClientData`; or in files (`fo.data.open_stored`), of which `simulate`
        reads what each chunk of rounds needs. Or N, where the examples are somewhere else.
      cohort: S, drawn uniformly in every round, or a `Sampler` of `fedjax_opt.cohorts`.
      local_steps: K. A Python int is compiled into `run_rounds`, which can then be differentiated in
        reverse mode; an array, one value per client `[N]`, a function of the round or a `Controller` is
        traced, and so is `fo.epochs(E)`.
      batch_size: B.
      batching: 'shuffled' epochs that honour each client's size, or with 'replacement'.
      remainder: what becomes of the last examples of an epoch that are too few for a minibatch: 'exact'
        makes one of them that is partly filled, whose mean needs each example's loss (`Aux.losses`);
        'drop' leaves them out, as `drop_last` of other loaders does, so that any mean will do.
      weighting: what each client counts in the mean of the uploads: 'samples' (n_i), 'uniform',
        'weights' (the sum of `Aux.weights` over the examples that it used in the round), or one number
        per client `[N]`.
      guard: the rules by which clients are left out, a `Guard`; see `Info.faults`.
      initial: the first model, as `model.init` returns it; None for `model.init`.
      test: a test set, a pytree of arrays `[n, ...]`.
      client_test: a `ClientData` of the same clients, for each client's own model.
      validation: examples `[n, ...]` for controllers that watch them.

    Example:
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> federation = fo.Federation(model, clients, cohort=5, local_steps=4, batch_size=1)
      >>> federation
      Federation(model, 10 clients, 10 examples, cohort 5, 4 steps of 1)
      >>> result = fo.simulate(fo.fedavg(fo.optimizers.sgd(0.1)), federation, 20, progress=False)
      >>> federation.replace(cohort=2).cohort.size
      2
    """

    model: Model
    clients: Any  # ClientData | StoredClients | int
    cohort: Any = None  # int | Sampler; the constructor makes it a Sampler
    local_steps: Work | None = None
    batch_size: int = 32
    batching: Literal["shuffled", "replacement"] = "shuffled"
    remainder: Literal["exact", "drop"] = "exact"
    weighting: Literal["samples", "uniform", "weights"] | chex.Array = "samples"
    guard: Guard | None = None
    initial: Variables | Params | None = None
    test: Examples = None
    client_test: ClientData | None = None
    validation: Examples = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            got = "an Algorithm" if isinstance(self.model, (Algorithm, Scheduled)) else self.model
            raise ValueError(
                f"model must be a Model, got {got}. An algorithm is no part of a federation:"
                " fo.simulate(algorithm, federation, rounds)."
            )
        put(self, clients=_checked_clients(self.clients))
        count = self.num_clients
        put(
            self,
            cohort=_checked_cohort(self.cohort, count),
            local_steps=_checked_steps(self.local_steps, count),
            batch_size=checks.integer("batch_size", self.batch_size, low=1),
        )
        checks.choice("batching", self.batching, BATCHINGS)
        checks.choice("remainder", self.remainder, REMAINDERS)
        put(self, weighting=_checked_weighting(self.weighting, count))
        if self.remainder == "drop":
            _check_fills(self.clients, self.batch_size)
        size = None if self.cohort is None else self.cohort.size
        put(self, guard=check_guard(self.guard, size))
        if self.initial is not None:
            given = self.initial
            put(self, initial=given if isinstance(given, Variables) else Variables(given))
            checks.trainable(self.initial.params)
        for name in ("test", "validation"):
            examples = getattr(self, name)
            if examples is not None and not checks.leading_axes(name, examples, (None,), "n")[0]:
                raise ValueError(f"{name} must hold at least one example, got none.")
        if self.client_test is not None:
            sizes = getattr(self.client_test, "sizes", None)
            if sizes is None or sizes.shape != (count,):
                got = type(self.client_test).__name__ if sizes is None else f"{len(sizes)} clients"
                raise ValueError(
                    f"client_test must be a ClientData of the same {count} clients, got {got}."
                )

    def replace(self, **changes: Any) -> "Federation":
        """The same federation with other fields, checked as by its constructor.

        Args:
          **changes: fields by name.
        """
        return dataclasses.replace(self, **changes)

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return self.clients if isinstance(self.clients, int) else self.clients.sizes.shape[0]

    @property
    def full_batches(self) -> bool:
        """Whether it is known that no minibatch is ever partly filled."""
        known = getattr(self.clients, "known", None)
        divided = known is not None and known.gcd % self.batch_size == 0
        return divided or self.remainder == "drop"

    @property
    def steps_per_epoch(self) -> int | None:
        """How many minibatches hold a client's examples, if that is known to be the same for all."""
        known = getattr(self.clients, "known", None)
        if known is None:
            return None
        extra = 0 if self.remainder == "drop" else self.batch_size - 1
        most = (known.largest + extra) // self.batch_size
        return most if (known.smallest + extra) // self.batch_size == most else None

    def __repr__(self) -> str:
        parts = [_name_of(self.model)]
        if isinstance(self.clients, int):
            parts.append(f"{self.clients} clients")
        else:
            sizes = getattr(self.clients, "sizes", None)
            parts += [f"{_rows(sizes)} clients", f"{_rows(self.clients)} examples"]
        if self.cohort is not None:
            parts.append(f"cohort {getattr(self.cohort, 'size', '?')}")
        if self.local_steps is not None:
            parts.append(f"{_work_of(self.local_steps)} of {self.batch_size}")
        for name in ("test", "validation"):
            if jax.tree.leaves(getattr(self, name)):
                parts.append(f"{name} {_rows(getattr(self, name))}")
        return f"Federation({', '.join(parts)})"


def init_state(
    algorithm: Algorithm | Scheduled, federation: Federation, key: chex.PRNGKey | int = 0
) -> FederatedState:
    """The state before the first round: the one that `simulate` begins with when `key` is its seed.

    Args:
      algorithm: the algorithm, or one with a `scheduled` learning rate.
      federation: the federation.
      key: a seed, or a key of jax.random. Either may be traced.

    Returns:
      A `FederatedState` whose round is 0, with a place for what controllers remember.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=5, dimension=3)
      >>> federation = fo.Federation(model, clients, cohort=2, local_steps=4, batch_size=1)
      >>> state = fo.init_state(fo.scaffold(fo.optimizers.sgd(0.1)), federation)
      >>> state.clients.control["x"].shape
      (5, 3)
    """
    first = check_nouns(algorithm, federation, "init_state(algorithm, federation)")
    key = as_key(key)
    variables = initial_variables(federation, key)
    state = first_state(first, variables, federation.num_clients, jax.random.fold_in(key, 1))
    return with_controllers(algorithm, federation, state)


def with_controllers(
    algorithm: Algorithm | Scheduled, federation: Federation, state: FederatedState
) -> FederatedState:
    """The state with a place for what controllers remember, if there are any."""
    controls = controls_of(algorithm, federation)
    return started(controls, state) if Controller in map(type, controls) else state


def initial_variables(federation: Federation, key: chex.PRNGKey) -> Variables:
    """The first model of a run with a key: the federation's, or what `model.init` makes."""
    if federation.initial is not None:
        return federation.initial
    if isinstance(federation.clients, int):
        raise ValueError(
            f"initial must be given, as federation.clients is the number {federation.clients}:"
            " model.init needs examples."
        )
    sample = jax.tree.map(
        lambda x: jnp.asarray(x[: federation.batch_size]), federation.clients.examples
    )
    try:
        return federation.model.init(jax.random.fold_in(key, 0), sample)
    except Exception as error:
        raise what_raised("model.init", error, sample) from error


def controls_of(algorithm: Algorithm | Scheduled, federation: Federation) -> Controls:
    """What controllers may set: a controller, or anything else that has nothing to remember."""
    steps = federation.local_steps
    steps = steps.count if isinstance(steps, Epochs) else steps
    return Controls(steps, algorithm.setting if isinstance(algorithm, Scheduled) else ())


def check_nouns(algorithm: object, federation: object, call: str) -> Algorithm:
    """The algorithm of the first round; refuses what is not an algorithm and a federation."""
    if isinstance(algorithm, Federation):
        raise ValueError(f"The algorithm comes first: fo.{call}.")
    if isinstance(federation, Model):
        raise ValueError(
            "federation must be a Federation, got a Model. Model, clients and what else is learned on"
            " are one value: federation = fo.Federation(model, clients, cohort=10, local_steps=10,"
            f" batch_size=8); fo.{call}."
        )
    if not isinstance(federation, Federation):
        raise ValueError(
            "federation must be a Federation, such as fo.Federation(model, clients, cohort=10,"
            f" local_steps=10), got {type(federation).__name__}: fo.{call}."
        )
    return algorithm if isinstance(algorithm, Algorithm) else first_algorithm(algorithm)


def _checked_clients(clients: Any) -> Any:
    if checks.is_whole(clients):
        return StaticInt(checks.integer("clients", clients, low=1))
    if not isinstance(clients, (ClientData, StoredClients)):
        raise ValueError(
            "clients must be a ClientData, such as fo.ClientData.from_list(...), or the number of"
            f" clients, got {type(clients).__name__}."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(getattr(clients, "examples", ())):
        if getattr(getattr(leaf, "dtype", None), "kind", "f") in "OSU":
            raise ValueError(
                f"clients must hold numbers, but examples{jax.tree_util.keystr(path)} are {leaf.dtype}:"
                " make numbers of texts, such as np.unique(labels, return_inverse=True)[1]."
            )
    is_traced = checks.is_traced(clients.sizes)
    empty = [] if is_traced else np.flatnonzero(np.asarray(clients.sizes) == 0)
    if len(empty) or (is_traced and clients.known is not None and clients.known.smallest == 0):
        some = f": {len(empty)} hold no example, client {empty[0]} among them" if len(empty) else ""
        raise ValueError(
            f"clients must have no empty client to train on{some}. Select the others:"
            " clients[clients.sizes > 0]."
        )
    return clients


def _check_fills(clients: Any, batch_size: int) -> None:
    """Refuses clients that hold less than a minibatch: they could take no step."""
    sizes = None if isinstance(clients, int) else clients.sizes
    if sizes is None or checks.is_traced(sizes):
        return
    few = np.flatnonzero(np.asarray(sizes) < batch_size)
    if len(few):
        raise ValueError(
            f"remainder='drop' needs at least batch_size={batch_size} examples of each client, but"
            f" client {few[0]} holds {int(sizes[few[0]])}; {len(few)} of {len(sizes)} hold fewer. Leave"
            f" them out (clients[clients.sizes >= {batch_size}]), or choose a smaller batch_size."
        )


def _checked_cohort(cohort: Any, num_clients: int) -> Sampler | None:
    if cohort is None:
        return None
    if checks.is_whole(cohort):
        cohort = uniform(checks.integer("cohort", cohort, low=1))
    if not isinstance(cohort, Sampler):
        raise ValueError(
            "cohort must be a whole number or a Sampler of fedjax_opt.cohorts, got"
            f" {type(cohort).__name__}."
        )
    for name, needed in (("cohort", cohort.size), ("pool_size", cohort.least_population or 0)):
        if needed > num_clients:
            raise ValueError(
                f"{name} must not be larger than the population of {num_clients} clients, got"
                f" {needed}."
            )
    if cohort.population not in (None, num_clients):
        raise ValueError(
            f"cohort was made for {cohort.population} clients, but there are {num_clients}."
        )
    return cohort


def _checked_steps(steps: Any, num_clients: int) -> Any:
    if steps is None or isinstance(steps, Controller) or callable(steps):
        return as_partial(steps)
    if isinstance(steps, Epochs):
        return Epochs(_checked_steps(_settled(steps.count), num_clients))
    if checks.is_whole(steps):
        return StaticInt(checks.integer("local_steps", steps, low=1))
    steps = _settled(steps)
    if jnp.shape(steps) not in ((), (num_clients,)):
        raise ValueError(
            f"local_steps must be a whole number, one per client [{num_clients}], a function of the"
            f" round, a Controller or fo.epochs(...), got shape {jnp.shape(steps)}."
        )
    return steps


def _settled(steps: Any) -> Any:
    """Local steps that are traced: a controller, a function of the round, or whole numbers."""
    if isinstance(steps, Controller) or callable(steps):
        return as_partial(steps)
    steps = checks.whole_array("local_steps", steps)
    return jnp.asarray(checks.number("local_steps", steps, low=1), jnp.int32)


def _checked_weighting(weighting: Any, num_clients: int) -> Any:
    if isinstance(weighting, str):
        checks.choice("weighting", weighting, WEIGHTINGS)
        return Word(weighting)  # compiled in, and no leaf
    weights = checks.number("weighting", checks.as_array("weighting", weighting), low=0.0)
    if jnp.shape(weights) != (num_clients,):
        raise ValueError(
            f"weighting must be one of {', '.join(map(repr, WEIGHTINGS))}, or one number per client,"
            f" [{num_clients}], got shape {list(jnp.shape(weights))}."
        )
    return weights


def _rows(tree: Examples) -> int | str:
    """The number of examples, for people to read; of whatever stands where they should."""
    tree = getattr(tree, "examples", tree)
    shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(tree)]
    return next((shape[0] for shape in shapes if shape), "?")


def _work_of(steps: object) -> str:
    if isinstance(steps, Epochs):
        return f"{_work_of(steps.count).partition(' ')[0]} epochs"
    if isinstance(steps, (Controller, Partial)):
        return "controlled steps" if isinstance(steps, Controller) else "scheduled steps"
    shape = getattr(steps, "shape", ())
    if shape:
        return f"{list(shape)} steps"
    known = isinstance(steps, (int, np.ndarray, jax.Array)) and not checks.is_traced(steps)
    return f"{int(steps)} steps" if known else "? steps"  # type: ignore[arg-type]


def _name_of(model: object) -> str:
    """Where the model comes from: the function or the module in which its loss is written."""
    found = [getattr(model, "init", None), getattr(model, "loss", None)]
    while found:
        function = found.pop(0)
        if isinstance(function, Partial):
            found += [*function.args, function.func]
        elif callable(function):
            outer, inside, _ = getattr(function, "__qualname__", "").partition(".<locals>")
            if inside:
                return outer
    return "model"
