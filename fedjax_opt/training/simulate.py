"""A run driven from the host, in chunks of rounds.

play      a chunk of rounds, one compiled program, and write down what each was like
measure   the test sets and what measurements ask for, unless a round was not finite
act       what extensions, checkpoints and signals ask for, where there are any; see `acting.py`
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Sequence

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, Scheduled
from fedjax_opt.core.federation import Federation, check_nouns
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.labels import wrong_label
from fedjax_opt.execution.strategies import Strategy
from fedjax_opt.storage.client_states import ClientStore
from fedjax_opt.training.acting import Acting, Ended
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.extensions import Chunk, Extension
from fedjax_opt.training.history import NonFiniteLossError, Result, describe_failure, rows_of
from fedjax_opt.training.interruption import Interrupted
from fedjax_opt.training.measuring import measure, measured
from fedjax_opt.training.player import Measurement, Player
from fedjax_opt.training.progress import Progress


def simulate(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    rounds: int,
    *,
    seed: int = 0,
    state: FederatedState | None = None,
    client_states: ClientStore | None = None,
    evaluate_every: int = 10,
    measurements: Iterable[Measurement] = (),
    extensions: Iterable[Extension | Callable[[Chunk], str | None]] = (),
    checkpoints: Checkpoints | None = None,
    strategy: str | Strategy = "auto",
    diagnostics: Sequence[str] = (),
    on_nonfinite: str = "raise",
    progress: bool = True,
) -> Result:
    """Trains for a number of rounds, with a progress bar, and says how it went.

    Rounds run on the device in chunks of `evaluate_every`; between chunks the host evaluates, lets
    extensions act, saves, and shows progress. Changing the number of local steps, the cohort, a
    hyperparameter or the number of rounds compiles nothing anew.

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
      client_states: where the clients' states are kept instead of on the device; `state.clients` is then
        `()`. Each chunk is sent the rows of its cohorts, and the results are the same bit for bit.
      evaluate_every: the rounds between evaluations, and the length of a chunk.
      measurements: what else to evaluate at the same times: pure functions of (algorithm, federation,
        state) that return arrays by name; in the evaluations under these names.
      extensions: what acts after each chunk, in this order: `Extension`s such as `early_stopping` and
        `Rollback`, or functions of a `Chunk` that return a reason to stop, or None.
      checkpoints: where to save, after each chunk. If it holds a checkpoint of this run, the run
        resumes from there; one of another run is refused. SIGTERM and SIGINT then end the run after the
        chunk that is being played, with `Interrupted`.
      strategy: how the client axis is executed; see `Strategy`.
      diagnostics: what to measure of the clients' drift, as for `run_rounds`; in the history by
        name, as are the learning rate of a `scheduled` algorithm and what controllers
        watch, `validation_<name>`.
      on_nonfinite: 'raise' a `NonFiniteLossError` that names round, client and step and holds the last
        good state, or 'stop' and return it.
      progress: whether to show a progress bar (never where the output is not a terminal).

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
    check_nouns(algorithm, federation, "simulate(algorithm, federation, rounds)")
    rounds = checks.integer("rounds", rounds, low=1)
    chunk = checks.integer("evaluate_every", evaluate_every, low=1)
    checks.choice("on_nonfinite", on_nonfinite, ("raise", "stop"))
    extensions, measurements = [*extensions], [*measurements]
    if progress and sys.stderr.isatty():
        extensions.append(Progress())
    keep = 1 if checkpoints is None else checkpoints.keep
    player = Player(
        algorithm, federation, chunk, seed, state, client_states, keep, measurements, strategy,
        diagnostics,
    )  # fmt: skip
    names, acting = (), None
    with contextlib.ExitStack() as stack:
        stack.callback(player.close)
        if measurements or federation.test is not None or federation.client_test is not None:
            names = measured(player)
        if extensions or checkpoints is not None:
            acting = Acting(player, extensions, checkpoints, names, rounds)
            stack.enter_context(acting)
        ended = _play(player, names, acting, rounds)
        if acting is not None:
            acting.status = ended.status
    history = player.rounds.views or rows_of(player.no_rounds())
    result = Result(player.state, history, player.evaluations.views, player.seconds, ended.why)
    if ended.status.startswith("failed") and on_nonfinite == "raise":
        raise NonFiniteLossError(f"{ended.why} {wrong_label(federation)}".strip(), result)
    if ended.signal is not None and checkpoints is not None:
        raise Interrupted(
            f"{ended.why}. The checkpoint is in {checkpoints.directory}; the same call goes on from"
            " there.",
            result,
            signal.Signals[ended.signal],
        )
    return result


def _play(player: Player, names: Sequence[str], acting: Acting | None, rounds: int) -> Ended:
    """Plays chunk after chunk until the run ends."""
    player.open()
    while player.round < rounds and not player.stops:
        chunk = player.play(rounds)
        if names and chunk.finite:
            chunk = chunk._replace(metrics=measure(player))
        if acting is not None:
            if (ended := acting.after(chunk)) is not None:
                return ended
        elif not chunk.finite:
            why = describe_failure(chunk.infos)
            return Ended(f"failed: {why}", why)
    if player.stops:
        why = "; ".join(player.stops.values())
        return Ended(f"stopped: {why}", why)
    return Ended("done", f"{rounds} rounds done")
