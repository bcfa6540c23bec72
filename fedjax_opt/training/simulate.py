"""A run driven from the host, in chunks: progress, evaluation, callbacks, checkpoints between them."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.cohorts import Sampler
from fedjax_opt.engine.controller import Controller, first_algorithm
from fedjax_opt.engine.guard import Guard
from fedjax_opt.engine.preparation import Fixed, Traced, prepare
from fedjax_opt.engine.run import one_round, seats, settle_strategy
from fedjax_opt.execution import distributed, meshes
from fedjax_opt.execution.strategies import Strategy, place, resolve
from fedjax_opt.storage.client_store import ClientStore
from fedjax_opt.training import client_tables
from fedjax_opt.training.callbacks import Callback, Event
from fedjax_opt.training.checkpoint import Checkpoints
from fedjax_opt.training.debugging import Debugger
from fedjax_opt.training.good_states import Copies
from fedjax_opt.training.keeping import Keeper, OnDisk
from fedjax_opt.training.log import Log, in_short
from fedjax_opt.training.memory import check_memory
from fedjax_opt.training.parted import Parted
from fedjax_opt.training.progress import RoundBar
from fedjax_opt.training.result import NonFiniteLossError, Result
from fedjax_opt.training.rollback import Fallback, Rollback, check_rollback
from fedjax_opt.training.streaming import Resident, Stream, on_host

_DEFAULT_CHUNK = 10


def simulate(
    algorithm: Algorithm | Callable[[Any], Algorithm],
    model: Model,
    data: Any,
    rounds: int,
    *,
    cohort_size: int | None = None,
    sampler: Sampler | None = None,
    batch_size: int = 32,
    local_steps: Any = None,
    local_epochs: Any = None,
    learning_rate: Any = None,
    validation: Any = None,
    validate_every: int = 1,
    batching: str = "shuffled",
    weighting: str = "samples",
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
    seed: int = 0,
    state: FederatedState | None = None,
    client_state: ClientStore | None = None,
    test: Any = None,
    client_test: Any = None,
    evaluate_every: int = _DEFAULT_CHUNK,
    callbacks: Iterable[Callback] = (),
    checkpoints: Checkpoints | None = None,
    on_nonfinite: str = "raise",
    guard: Guard | None = None,
    rollback: Rollback | None = None,
    memory_limit: int | str | None = None,
    debug: Any = None,
    progress: bool = True,
    description: str = "training",
) -> Result:
    """Trains for a number of rounds, with a progress bar, and says how it went.

    Rounds run on the device in chunks of `evaluate_every`; between chunks the host evaluates, calls
    back, saves, and shows progress. Changing the number of local steps, the cohort, a hyperparameter
    or the number of rounds compiles nothing anew.

    Args:
      algorithm: the algorithm; with a `learning_rate`, a function of it that returns the algorithm.
      model: the model.
      data: a `ClientData` to train on. If its examples are memory-mapped (`fo.data.open_stored`), they
        stay on the host: each chunk is sent those of its cohorts, read while the last one computes.
      rounds: the number of rounds that the state should have when it is done.
      cohort_size: S clients in every round, drawn uniformly; or give a `sampler`.
      sampler: how the cohort is drawn; see `fedjax_opt.cohorts`.
      batch_size: B.
      local_steps: K, a number, one per client `[N]`, a function of the round, or a `Controller`.
      local_epochs: E instead of K.
      learning_rate: eta, for an algorithm that is given as a function of it: a number, a function of
        the round or a `Controller`; in the history by name.
      validation: examples that controllers may watch, evaluated inside of the run; in the history as
        `validation_<name>`. Keep the test set apart from it.
      validate_every: the rounds between such evaluations; NaN in the history of the others.
      batching: 'shuffled' epochs, or with 'replacement'.
      weighting: aggregate by 'samples' or 'uniform'.
      strategy: how the client axis is executed; see `Strategy`.
      diagnostics: what to measure of the clients' drift, as for `run_rounds`; in the history by name.
      seed: of the model's initial variables and of everything drawn later.
      state: where to start instead; the seed is then not used.
      client_state: where the clients' states are kept instead of on the device; `state.clients` is then
        `()`. Each chunk is sent the rows of its cohorts, and the results are the same bit for bit.
      test: a test set, a pytree of arrays `[n, ...]`, evaluated every `evaluate_every` rounds.
      client_test: a `ClientData` with the same clients: each client's own model (the global one, unless
        the algorithm personalises) on its own examples, at the same times.
      evaluate_every: the rounds between evaluations, and the length of a chunk.
      callbacks: functions of an `Event` that may return a reason to stop.
      checkpoints: where to save, after each chunk. If it holds a checkpoint of this run, the run
        resumes from there; one of another run is refused. SIGTERM and SIGINT then end the run after the
        chunk that is being played, with `Interrupted`.
      on_nonfinite: 'raise' a `NonFiniteLossError` that names round, client and step and holds the last
        good state, or 'stop' and return it.
      guard: the rules by which clients are left out, a `Guard`. Those are named in the log (`logging`,
        'fedjax_opt') and counted in the history.
      rollback: what to do if the run diverges, a `Rollback`; `step_scale` in the history says when. It
        goes back to a checkpoint where there are `checkpoints`, else to a copy of the state.
      memory_limit: the bytes that the run may take, or 'device' for what there is: it is compiled once
        more to know, and refused with the largest cohort or chunk that fits.
      debug: a folder, for a run without compilation, one client at a time: the inputs of the first that
        fails are saved there for `replay`, and a `DebugError` names it.
      progress: whether to show a progress bar (never where the output is not a terminal).
      description: the progress bar's title.

    Returns:
      A `Result`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> result = fo.simulate(
      ...     fo.scaffold(fo.optimizers.sgd(0.1)), model, data, rounds=50, cohort_size=5,
      ...     batch_size=1, local_steps=5, weighting="uniform", progress=False,
      ... )
      >>> result.history["loss"].shape
      (50,)
    """
    rounds = checks.integer("rounds", rounds, low=1)
    checks.integer("batch_size", batch_size, low=1)
    chunk = checks.integer("evaluate_every", evaluate_every, low=1)
    checks.choice("on_nonfinite", on_nonfinite, ("raise", "stop"))
    check_rollback(rollback)
    first = first_algorithm(algorithm, learning_rate)
    clients = client_tables.of(client_state, chunk)
    make = partial(_first_state, first, model, data, batch_size, seed, clients)
    start = meshes.made(make, resolve(strategy).mesh) if state is None else state
    clients, start = clients.open(first, start)
    if isinstance(local_steps, (int, np.integer)):
        checks.integer("local_steps", local_steps, low=1)
        local_steps = jnp.asarray(local_steps, jnp.int32)  # traced: another K compiles nothing
    traced, fixed, start = prepare(
        algorithm, model, data, start, cohort_size=cohort_size, sampler=sampler,
        batch_size=batch_size, local_steps=local_steps, local_epochs=local_epochs,
        learning_rate=learning_rate, validation=validation, validate_every=validate_every,
        batching=batching, weighting=weighting, strategy=strategy, diagnostics=diagnostics,
        guard=guard,
    )  # fmt: skip
    start, seen = clients.part(start, traced.sampler)
    fixed = settle_strategy(traced, fixed, seen)
    copies = 2 if rollback is None or checkpoints is not None else 4
    check_memory(traced, seen, fixed, chunk, copies, memory_limit, partial(_compiled, chunk))
    log = Log()
    watched = {"test": test is not None, "client_test": client_test is not None}
    keeper = Keeper(checkpoints, traced, fixed, start, first, rollback, **watched)
    start = keeper.resume(start, log)
    clients.begin(start, fixed.strategy)
    # The state is copied, since its buffers are given up to the program: the caller keeps theirs.
    current = jax.tree.map(jnp.copy, start)
    source = _source(traced, fixed, start.cohort_key, chunk)
    traced, current, test, client_test = place(
        (traced._replace(data=None), current, test, client_test), fixed.strategy
    )
    fallback = None
    if rollback is not None:
        saved = None if checkpoints is None else OnDisk(keeper, start, fixed.strategy)
        fallback = Fallback(rollback, traced, fixed.strategy, saved or Copies(), clients.reach)
        fallback.begin(current, keeper.remembered)
        traced = fallback.traced()
    play = _play if debug is None else Debugger(debug)
    callbacks = tuple(callbacks)
    started = time.perf_counter() - log.seconds
    stopped = f"{rounds} rounds done"
    done = int(start.round)
    bar = RoundBar(
        total=rounds, initial=done, desc=description,
        disable=None if progress and distributed.is_first() else True,
    )  # fmt: skip
    with bar, contextlib.closing(source), contextlib.closing(clients), keeper:
        if fallback is not None and not keeper.remembered:
            keeper.save(current, log, None, fallback.record)  # there is always one to go back to
        while done < rounds:
            count = min(chunk, rounds - done)
            now = traced._replace(data=source.take(done, count))
            current = clients.put_in(current, done, count)
            for ahead in (source, clients):
                ahead.prefetch(done + count, min(chunk, rounds - done - count))
            current, infos, played = play(now, current, jnp.int32(count), fixed, chunk)
            current = clients.take_out(current)
            log.add_rounds(infos, int(played))
            if fallback is not None and (why := fallback.judge(log, current, done)) is not None:
                current, ended = fallback.go_back(log, why)
                clients.begin(current, fixed.strategy)
                done = int(current.round)
                bar.update(done - bar.n)
                if ended is None and (ending := keeper.ending()):
                    ended = f"{ending} after round {done} of {rounds}"
                if ended is not None:
                    stopped = ended
                    break
                traced = fallback.traced()
                continue
            if not log.finite:
                stopped = log.describe_failure()
                break
            done += int(played)
            bar.update(int(played))
            evaluation = log.add_evaluation(
                first, model, current, test, client_test, started, clients.evaluate
            )
            history = log.history()
            bar.set_postfix(in_short(history, evaluation))
            if checkpoints is not None:
                clients.flush_all()  # never behind a checkpoint: what is ahead can be taken back
            keeper.save(current, log, evaluation, fallback and fallback.record)
            event = Event(done, current, history, evaluation)
            reasons = [reason for reason in (callback(event) for callback in callbacks) if reason]
            if callbacks:
                reasons = distributed.from_first(reasons)  # or a clock might stop one process alone
            if reasons:
                stopped = "; ".join(reasons)
                break
            if ending := keeper.ending():
                stopped = f"{ending} after round {done} of {rounds}"
                break
    seconds = time.perf_counter() - started
    result = Result(current, log.history(), log.evaluations(), seconds, stopped)
    if not log.finite and on_nonfinite == "raise":
        raise NonFiniteLossError(stopped, result)
    keeper.interrupt(result)
    return result


def _first_state(algorithm, model, data, batch_size, seed, clients) -> FederatedState:
    sample = jax.tree.map(lambda x: jnp.asarray(x[:batch_size]), data.examples)
    key = jax.random.key(seed)
    variables = model.init(jax.random.fold_in(key, 0), sample)
    return clients.init_state(algorithm, variables, len(data.sizes), jax.random.fold_in(key, 1))


def _source(traced: Traced, fixed: Fixed, key: jax.Array, chunk: int) -> Any:
    if not on_host(traced.data):
        return Resident(traced.data, fixed.strategy)
    if "momentum_deviation" in fixed.diagnostics:
        raise ValueError(
            "diagnostics: 'momentum_deviation' needs all examples in every round, but those of data"
            " are memory-mapped, and only the cohorts' are read. Leave it out, or use data in memory."
        )
    mesh = fixed.strategy.mesh
    if (
        mesh is not None
        and mesh.is_multi_process
        and not isinstance(traced.local_steps, Controller)
    ):
        who = dataclasses.replace(traced.data, examples=(), offsets=())
        known = traced._replace(algorithm=(), validation=(), client_test=None, data=who)

        def places(first_round: int) -> np.ndarray:
            return np.asarray(seats(known, key, np.int32(first_round), fixed, chunk))

        return Parted(traced.data, mesh, places)
    return Stream(traced.data, fixed.strategy, traced.sampler, key, chunk)


@partial(jax.jit, static_argnames=("fixed", "length"), donate_argnames="state")
def _play(traced: Traced, state: FederatedState, count: jax.Array, fixed: Fixed, length: int):
    """Up to `count` rounds, fewer if one is not finite; history arrays have room for `length`."""
    info = jax.eval_shape(lambda s: one_round(traced, fixed, s)[1], state)
    room = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), info)

    def go_on(carry):
        _, _, played, finite = carry
        return (played < count) & finite

    def one(carry):
        state, infos, played, _ = carry
        state, info = one_round(traced, fixed, state)
        infos = jax.tree.map(lambda rows, row: rows.at[played].set(row), infos, info)
        return state, infos, played + 1, info.finite

    start = state, room, jnp.int32(0), jnp.asarray(True)
    state, infos, played, _ = jax.lax.while_loop(go_on, one, start)
    return state, infos, played


def _compiled(chunk: int, traced: Traced, state: FederatedState, fixed: Fixed) -> Any:
    """The program of a chunk of rounds, for shapes."""
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return _play.lower(traced, state, count, fixed, chunk).compile()
