"""Wrong arguments of this room: a ValueError that names the argument, its value and what is allowed."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_opt as fo
from tests.core import problems
from tests.core.test_simulate import SCAFFOLD, TEST, N, simulate


class Wrong(fo.Extension):
    """Remembers and answers what it is given."""

    def __init__(self, memory=(), answer=None):
        self._given = memory, answer

    def after(self, memory, chunk):
        return self._given


def sampled(*ids):
    """A run whose cohorts are of these clients from round 3 on."""

    def draw(size, key, round_number, num_clients):
        cohorts = jnp.array([[0, 1, 2], ids], jnp.int32)
        return cohorts[jnp.int32(round_number >= 3)], jnp.ones(3, bool)

    return simulate(cohort=fo.Sampler(jax.tree_util.Partial(draw), 3))


def saved(directory, extension):
    with fo.Checkpoints(directory) as checkpoints:
        simulate(5, checkpoints=checkpoints, extensions=[extension])


def begun(extension, **facts):
    return extension.begin(fo.RunFacts(0, 10, **facts), None)


REFUSED = [
    (lambda _: simulate(0), "rounds must be .*at least 1, got 0"),
    (lambda _: simulate(evaluate_every=0), "evaluate_every must be .*at least 1, got 0"),
    (lambda _: simulate(on_nonfinite="go on"), "on_nonfinite must be one of .* got 'go on'"),
    (lambda _: simulate(client_states="here"), "client_states must be a ClientStore .* got 'here'"),
    (lambda _: simulate(measurements=["size"]), "measurements must hold functions .* got 'size'"),
    (
        lambda _: simulate(test=TEST, measurements=[lambda *_: {"loss": jnp.zeros(())}]),
        "names that are not used yet, but 'loss' is",
    ),
    (lambda _: sampled(0, 1, 100), r"from 0 to 5, but that of round 3 is \[0, 1, 100\]"),
    (lambda _: sampled(4, 2, 4), r"different clients.* round 3 is \[4, 2, 4\]"),
    (
        lambda _: simulate(extensions=[lambda c: True]),
        "'<lambda>' must return a reason .* got True",
    ),
    (lambda _: simulate(extensions=[Wrong((), "no")]), "must return a Stop, a GoBack .* got 'no'"),
    (lambda _: simulate(extensions=[fo.early_stopping()]), r"evaluated \[\], got 'loss'. Nothing"),
    (lambda home: saved(home, Wrong({"run": simulate})), "None and arrays, got <function"),
    (lambda _: fo.early_stopping(patience=0), "patience must be .*at least 1, got 0"),
    (lambda _: fo.Rollback(factor=1.0), r"factor must lie in \(1.0, inf\], got 1.0"),
    (lambda _: fo.Rollback(shrink=1.0), r"shrink must lie in \(0.0, 1.0\), got 1.0"),
    (lambda _: fo.Rollback(limit=0), "limit must be a whole number of at least 1, got 0"),
    (lambda _: begun(fo.Rollback(), can_go_back=False), "cannot go back in a sweep"),
    (lambda home: fo.Checkpoints(home, keep=0), "keep must be .*at least 1, got 0"),
    (lambda home: fo.Checkpoints(home, keep_every=0), "keep_every must be .*at least 1, got 0"),
    (lambda home: fo.Checkpoints(home, allow=["model"]), "allow must be one of .* got 'model'"),
    (
        lambda home: fo.Checkpoints(home).restore(problems.start(SCAFFOLD, N)),
        "holds no checkpoint to restore",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_it_is_refused(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


NEVER = [
    ([fo.early_stopping("accuracy")], r"evaluated \['distance', 'loss'\], got 'accuracy'"),
    ([fo.stop_at("nonsense", 1)], r"evaluated \['distance', 'loss'\], got 'nonsense'"),
    (["stop"], "extensions must hold Extensions, or functions of a Chunk, got 'stop'"),
    ([fo.Rollback], "extensions must hold Extensions, or functions of a Chunk, got <class"),
    ([fo.Rollback(), fo.Rollback(2.0)], "different names, but 'Rollback' comes twice"),
    ([], "best_metric must be one of the evaluated .*'loss'.* got 'accuracy'"),
]


@pytest.mark.parametrize(("extensions", "message"), NEVER, ids=[message for _, message in NEVER])
def test_what_can_never_act_is_refused_before_anything_is_compiled(tmp_path, extensions, message):
    compiled, options = [], {"test": TEST, "extensions": extensions}
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event)
    )
    if not extensions:
        options["checkpoints"] = fo.Checkpoints(tmp_path, best_metric="accuracy")
    for _ in range(2):  # the first time may compile what makes the initial state
        compiled.clear()
        with pytest.raises(ValueError, match=message):
            simulate(model=problems.counted()[0], **options)
    assert not [event for event in compiled if "backend_compile" in event]
