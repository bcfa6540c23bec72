"""A run driven from the host, in chunks: progress, evaluation, callbacks, checkpoints between them."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt
from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.controller import Controller, first_algorithm
from fedjax_opt.core.federation import Federation, check_nouns, initial_variables
from fedjax_opt.core.state import FederatedState, as_key
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.preparation import Prepared, prepare
from fedjax_opt.engine.run import one_round, seats
from fedjax_opt.execution import distributed, meshes
from fedjax_opt.execution.strategies import Strategy, place, resolve
from fedjax_opt.storage.client_states import ClientStore
from fedjax_opt.training import chunks
from fedjax_opt.training.callbacks import Callback, Event
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.debugging import Debugger
from fedjax_opt.training.good_states import Copies
from fedjax_opt.training.keeping import Keeper, OnDisk
from fedjax_opt.training.log import Log, in_short
from fedjax_opt.training.memory import settle_run
from fedjax_opt.training.progress import RoundBar
from fedjax_opt.training.result import NonFiniteLossError, Result
from fedjax_opt.training.rollback import Fallback, Rollback, check_rollback

_CALL = "simulate(algorithm, federation, rounds)"
_DEFAULT_CHUNK = 10


def simulate(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    rounds: int,
    *,
    seed: int = 0,
    state: FederatedState | None = None,
    client_state: ClientStore | None = None,
    evaluate_every: int = _DEFAULT_CHUNK,
    callbacks: Iterable[Callback] = (),
    checkpoints: Checkpoints | None = None,
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
    on_nonfinite: str = "raise",
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
      algorithm: the algorithm, or one with a `scheduled` learning rate.
      federation: what it learns on; see `Federation`. If its clients are in files
        (`fo.data.open_stored`), the examples stay on the host: each chunk is sent those of its cohorts,
        read while the last one computes. Every `evaluate_every` rounds the global model is evaluated on
        `federation.test`, and each client's own (the global one, unless the algorithm personalises) on
        its own examples in `federation.client_test`.
      rounds: the number of rounds that the state should have when it is done.
      seed: of the model's initial variables and of everything drawn later.
      state: where to start instead; the seed is then not used.
      client_state: where the clients' states are kept instead of on the device; `state.clients` is then
        `()`. Each chunk is sent the rows of its cohorts, and the results are the same bit for bit.
      evaluate_every: the rounds between evaluations, and the length of a chunk.
      callbacks: functions of an `Event` that may return a reason to stop.
      checkpoints: where to save, after each chunk. If it holds a checkpoint of this run, the run
        resumes from there; one of another run is refused. SIGTERM and SIGINT then end the run after the
        chunk that is being played, with `Interrupted`.
      strategy: how the client axis is executed; see `Strategy`.
      diagnostics: what to measure of the clients' drift, as for `run_rounds`; in the history by
        name, as are the learning rate of a `scheduled` algorithm and what controllers
        watch, `validation_<name>`.
      on_nonfinite: 'raise' a `NonFiniteLossError` that names round, client and step and holds the last
        good state, or 'stop' and return it.
      rollback: what to do if the run diverges, a `Rollback`; `step_scale` in the history says when. It
        goes back to a checkpoint where there are `checkpoints`, else to a copy of the state.
      memory_limit: the strategy's own, as `Strategy(memory_limit=...)`.
      debug: a folder, for a run without compilation, one client at a time: the inputs of the first that
        fails are saved there for `replay`, and a `DebugError` names it.
      progress: whether to show a progress bar (never where the output is not a terminal).
      description: the progress bar's title.

    Returns:
      A `Result`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=5, local_steps=5, batch_size=1)
      >>> algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
      >>> result = fo.simulate(algorithm, federation, 50, progress=False)
      >>> result.history["loss"].shape
      (50,)
    """
    check_nouns(algorithm, federation, _CALL)
    rounds = checks.integer("rounds", rounds, low=1)
    chunk = checks.integer("evaluate_every", evaluate_every, low=1)
    checks.choice("on_nonfinite", on_nonfinite, ("raise", "stop"))
    check_rollback(rollback)
    strategy = resolve(strategy if memory_limit is None else _limited(strategy, memory_limit))
    if isinstance(federation.local_steps, StaticInt):  # traced: another K compiles nothing
        federation = federation.replace(local_steps=jnp.asarray(int(federation.local_steps)))
    test, client_test = federation.test, federation.client_test
    first = first_algorithm(algorithm)
    clients = chunks.states_of(client_state, chunk, 1 if checkpoints is None else checkpoints.keep)
    make = partial(_first_state, first, federation, seed, clients)
    start = meshes.made(make, strategy.mesh) if state is None else state
    clients, start = clients.open(first, start)
    prepared, start = prepare(algorithm, federation, start, strategy, diagnostics, "simulate")
    start, seen = clients.part(start, federation.cohort)
    copies = 2 if rollback is None or checkpoints is not None else 4
    tests = [examples for examples in (test, client_test) if examples is not None]
    prepared = settle_run(prepared, seen, tests, chunk, copies, partial(_compiled, chunk))
    log = Log()
    watched = {"test": test is not None, "client_test": client_test is not None}
    keeper = Keeper(checkpoints, prepared, start, first, rollback, **watched)
    start = keeper.resume(start, log)
    clients.begin(start, prepared.strategy)
    # The state is copied, since its buffers are given up to the program: the caller keeps theirs.
    current = jax.tree.map(jnp.copy, start)
    source = _source(prepared, start.cohort_key, chunk)
    prepared, current, test, client_test = place(
        (prepared.with_clients(federation.num_clients), current, test, client_test),
        prepared.strategy,
    )
    model = prepared.federation.model
    fallback = None
    if rollback is not None:
        saved = None if checkpoints is None else OnDisk(keeper, start, prepared.strategy)
        fallback = Fallback(rollback, prepared, saved or Copies(), np.inf)
        fallback.begin(current, keeper.remembered)
        prepared = fallback.prepared()
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
            now = prepared.with_clients(source.take(done, count))
            current = clients.put_in(current, done, count)
            for ahead in (source, clients):
                ahead.prefetch(done + count, min(chunk, rounds - done - count))
            current, infos, played = play(now, current, jnp.int32(count), chunk)
            good = done if fallback is None else fallback.record.good[0]
            current = clients.take_out(current, good)
            log.add_rounds(infos, int(played))
            if fallback is not None and (why := fallback.judge(log, current, done)) is not None:
                current, ended = fallback.go_back(log, why)
                clients.begin(current, prepared.strategy)
                done = int(current.round)
                bar.update(done - bar.n)
                if ended is None and (ending := keeper.ending()):
                    ended = f"{ending} after round {done} of {rounds}"
                if ended is not None:
                    stopped = ended
                    break
                prepared = fallback.prepared()
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


def _limited(strategy: str | Strategy, limit: int | str) -> Strategy:
    made = strategy if isinstance(strategy, Strategy) else Strategy(strategy)
    return made._replace(memory_limit=limit)


def _first_state(algorithm, federation, seed, clients) -> FederatedState:
    key = as_key(seed)
    variables = initial_variables(federation, key)
    return clients.first_state(
        algorithm, variables, federation.num_clients, jax.random.fold_in(key, 1)
    )


def _source(prepared: Prepared, key: jax.Array, chunk: int) -> Any:
    federation, strategy = prepared.federation, prepared.strategy
    clients: Any = federation.clients
    if in_memory(clients):
        return chunks.DeviceExamples(clients, strategy)
    if "momentum_deviation" in prepared.diagnostics:
        raise ValueError(
            "diagnostics: 'momentum_deviation' needs all examples in every round, but those of the"
            " clients are in files, and only the cohorts' are read. Leave it out, or use data in memory."
        )
    mesh = strategy.mesh
    if (
        mesh is None
        or not mesh.is_multi_process
        or isinstance(prepared.controls.local_steps, Controller)
    ):
        cohorts = partial(chunks.cohort_ids, federation.cohort, key, chunk, len(clients.sizes))
        return chunks.FileExamples(clients, strategy, lambda first: cohorts(np.int32(first)))
    read = changed(federation, clients=ClientData((), (), clients.sizes), validation=None)
    who = prepared.replace(algorithm=(), federation=read)

    def lineup(first_round: int) -> jax.Array:
        return seats(who, key, np.int32(first_round), chunk)

    return chunks.FileExamples(clients, strategy, lineup, meshes.num_parts(mesh))


@partial(jax.jit, static_argnames="length", donate_argnames="state")
def _play(prepared: Prepared, state: FederatedState, count: jax.Array, length: int):
    """Up to `count` rounds, fewer if one is not finite; history arrays have room for `length`."""
    info = jax.eval_shape(lambda s: one_round(prepared, s)[1], state)
    room = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), info)

    def go_on(carry):
        _, _, played, finite = carry
        return (played < count) & finite

    def one(carry):
        state, infos, played, _ = carry
        state, info = one_round(prepared, state)
        infos = jax.tree.map(lambda rows, row: rows.at[played].set(row), infos, info)
        return state, infos, played + 1, info.finite

    start = state, room, jnp.int32(0), jnp.asarray(True)
    state, infos, played, _ = jax.lax.while_loop(go_on, one, start)
    return state, infos, played


def _compiled(chunk: int, prepared: Prepared, state: FederatedState) -> Any:
    """The program of a chunk of rounds, for shapes."""
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return _play.lower(prepared, state, count, chunk).compile()
