"""A run driven from the host, in chunks of rounds, and what goes on between them.

play      a chunk of rounds, one compiled program
measure   the test sets and what measurements ask for, unless a round was not finite
write     the rows of the rounds and of the evaluation
act       every extension, in the order of the list; of several processes, what they agree on
go back   if one asks for it: state, history and memories of an earlier round; or else
save      state, history and memories; then the run ends, if anyone wants it to
"""

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm, Scheduled
from fedjax_opt.core.federation import Federation, check_nouns
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.execution.strategies import Strategy
from fedjax_opt.storage.client_states import ClientStore
from fedjax_opt.training import chunks, fingerprint
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.extensions import (
    Chunk,
    Extension,
    Extensions,
    GoBack,
    Memory,
    RunFacts,
    agreed,
)
from fedjax_opt.training.history import (
    LOGGER,
    NonFiniteLossError,
    Result,
    describe_failure,
)
from fedjax_opt.training.interruption import Interrupted, Signals
from fedjax_opt.training.measuring import Evaluation, Evaluator, Measurement
from fedjax_opt.training.player import Plan, Player, fitting, no_rounds, planned
from fedjax_opt.training.progress import Progress
from fedjax_opt.training.saves import Copies, Course, OnDisk

_CALL = "simulate(algorithm, federation, rounds)"
_DEFAULT_CHUNK = 10


def simulate(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    rounds: int,
    *,
    seed: int = 0,
    state: FederatedState | None = None,
    client_states: ClientStore | None = None,
    evaluate_every: int = _DEFAULT_CHUNK,
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
    check_nouns(algorithm, federation, _CALL)
    rounds = checks.integer("rounds", rounds, low=1)
    chunk = checks.integer("evaluate_every", evaluate_every, low=1)
    checks.choice("on_nonfinite", on_nonfinite, ("raise", "stop"))
    acting = Extensions([*extensions, *([Progress()] if progress else [])])
    keep = 1 if checkpoints is None else checkpoints.keep
    clients = chunks.states_of(client_states, chunk, keep)
    plan = planned(algorithm, federation, chunk, seed, state, clients, strategy, diagnostics)
    evaluator = Evaluator(plan.algorithm, federation, measurements, plan.clients.evaluate)
    course, ended = _play(plan, acting, evaluator, checkpoints, rounds)
    return _result(course, ended, checkpoints, on_nonfinite)


def _play(
    plan: Plan,
    acting: Extensions,
    evaluator: Evaluator,
    checkpoints: Checkpoints | None,
    rounds: int,
) -> tuple[Course, "_Ended"]:
    """Takes the run up where it is, and plays it to its end."""
    course, signals = Course(plan.start), Signals()
    with contextlib.closing(plan.clients), contextlib.ExitStack() as stack:
        names = evaluator.names(plan.start)
        saves = _saves(checkpoints, plan, names)
        saves.resume(course)
        begin = partial(_begin, acting, course, names, rounds)
        begin()
        if checkpoints is not None:
            stack.enter_context(signals)
        stack.enter_context(saves)
        try:
            keeps = len(acting.keeps(course.memories))
            plan = fitting(plan, evaluator.examples, keeps if checkpoints is None else 0)
            evaluator.place(plan.prepared.strategy)
            player = stack.enter_context(contextlib.closing(Player(plan, course, bool(keeps))))
            ended = _Loop(course, player, evaluator, acting, saves, signals, rounds, begin).play()
        except BaseException as error:
            acting.end(course.memories, f"failed: {type(error).__name__}: {error}")
            raise
        acting.end(course.memories, ended.status)
    if not course.history.rounds:  # there was nothing to do
        course.history.add_rounds(no_rounds(plan))
    return course, ended


def _result(
    course: Course,
    ended: "_Ended",
    checkpoints: Checkpoints | None,
    on_nonfinite: str,
) -> Result:
    """What the run gave, or the error that holds it."""
    history = course.history
    result = Result(course.state, history.rounds, history.evaluations, course.seconds, ended.why)
    if ended.status.startswith("failed") and on_nonfinite == "raise":
        raise NonFiniteLossError(ended.why, result)
    if ended.signal is not None and checkpoints is not None:
        raise Interrupted(
            f"{ended.why}. The checkpoint is in {checkpoints.directory}; the same call goes on from"
            " there.",
            result,
            signal.Signals[ended.signal],
        )
    return result


def _saves(checkpoints: Checkpoints | None, plan: Plan, names: tuple[str, ...]) -> Copies | OnDisk:
    if checkpoints is None:
        return Copies()
    checkpoints.check_metrics(names)
    identity = fingerprint.of_run(
        plan.prepared, plan.start, plan.algorithm, measured=", ".join(names)
    )
    return OnDisk(checkpoints, plan.start, identity, plan.clients.flush_all)


def _begin(acting: Extensions, course: Course, names: tuple[str, ...], rounds: int) -> None:
    """Lets the extensions begin where the run is: in a new one, a resumed one, or after it went back."""
    facts = RunFacts(course.round, rounds, names, course.seconds, distributed.is_first())
    known = course.memories
    course.memories = acting.begin(facts, known)
    course.stops = {name: why for name, why in course.stops.items() if name in acting.names}
    new = [name for name, memory in course.memories.items() if name not in known and memory]
    if course.resumed and new:
        warnings.warn(
            f"The checkpoint holds no memory of the extension {new[0]!r}: it begins anew at round"
            f" {course.round}.",
            stacklevel=3,
        )


class _Ended(NamedTuple):
    """How a run ended: for extensions, for people, and by which signal."""

    status: str
    why: str
    signal: str | None = None


class _Loop(NamedTuple):
    """All that takes part in a run."""

    course: Course
    player: Player
    evaluator: Evaluator
    acting: Extensions
    saves: Copies | OnDisk
    signals: Signals
    rounds: int
    begin: Callable[[], None]

    def play(self) -> _Ended:
        """Plays chunk after chunk until the run ends."""
        course = self.course
        keeps = self.acting.keeps(course.memories)
        if keeps and not course.resumed:
            self.saves.save(course, None, keeps)  # there is always one to go back to
        while course.round < self.rounds and not course.stops:
            chunk, evaluation = self._play_chunk()
            memories, answers = self.acting.after(course.memories, chunk)
            answers, signal = agreed(answers, self.signals.taken)
            if answers.back is not None:
                asked = {name: memories[name] for name in answers.askers}
                self._go_back(answers.back, asked)
            else:
                course.memories, course.stops = memories, answers.stops
                if not chunk.finite:
                    why = describe_failure(chunk.infos)
                    return _Ended(f"failed: {why}", why)
                keeps = self.acting.keeps(memories)
                self.saves.save(course, evaluation.scalars, keeps)
            if signal is not None and not course.stops:
                why = f"{signal} after round {course.round} of {self.rounds}"
                return _Ended(f"interrupted: {signal}", why, signal)
        if course.stops:
            why = "; ".join(course.stops.values())
            return _Ended(f"stopped: {why}", why)
        return _Ended("done", f"{self.rounds} rounds done")

    def _play_chunk(self) -> tuple[Chunk, Evaluation]:
        """Plays, measures and writes down."""
        course, first = self.course, self.course.round
        oldest = min(self.acting.keeps(course.memories), default=first)
        infos = self.player.play(course, self.rounds, oldest)
        finite = bool(infos.finite.all())
        evaluation = self.evaluator(course.state) if finite else Evaluation({}, {})
        course.history.add_rounds(infos, **self.player.columns(course))
        course.history.add_evaluation(course.round, course.seconds, evaluation.found)
        chunk = Chunk(
            first, course.round, infos, evaluation.scalars, finite, course.seconds,
            course.step_scale, lambda: jax.tree.map(jnp.copy, course.state),
        )  # fmt: skip
        return chunk, evaluation

    def _go_back(self, back: GoBack, asked: dict[str, Memory]) -> None:
        """One step: a run that is killed was either here before it, or is after it."""
        self.saves.go_back(self.course, back, asked)
        if not back.stop:
            LOGGER.warning(
                "%s Back to round %d, with the step times %g.",
                back.reason,
                back.round,
                back.step_scale,
            )
        self.player.begin(self.course)
        self.begin()
