"""Runs whose client states are on the host or on disk are the runs with everything on the device."""

import shutil
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.storage.row_file import RowFile
from fedjax_opt.training import chunks
from tests.core import problems, test_model_axis

N = 30
DATA = problems.ragged(np.random.default_rng(3).integers(1, 12, N))
EVERYBODY = np.arange(N)
SCAFFOLD = fo.scaffold(opt.sgd(0.02))
SETTING = {"evaluate_every": 3, "strategy": "scan", "progress": False}


def _init(key, batch):
    return fo.Variables({"w": jax.random.normal(key, batch["x"].shape[1:]), "b": jnp.float64(0.5)})


def _loss(variables, batch, key):
    del key
    w, b = variables.params["w"], variables.params["b"]
    losses = (batch["x"] @ w + b - batch["y"]) ** 2 / 2
    return losses.mean(), fo.Aux(losses=losses, features=batch["x"] * w[None])


# A model with a part to keep at home, and with features.
MODEL = fo.Model(_init, _loss)
BASE = fo.Federation(MODEL, DATA, cohort=4, local_steps=fo.epochs(1), batch_size=4)
ALGORITHMS = {
    "scaffold, option 1": fo.scaffold(opt.sgd(0.02), 1),
    "feddyn": fo.feddyn(opt.sgd(0.02), 0.1),
    "feddc": fo.feddc(opt.sgd(0.02), 0.1),
    "moon": fo.moon(opt.sgd(0.02), 0.05),
    "private scaffold": fo.private(SCAFFOLD, where="params/b"),
}


def play(rounds=11, algorithm=SCAFFOLD, **options):
    federation, options = problems.changed(BASE, options)
    return fo.simulate(algorithm, federation, rounds, **SETTING | options)


def assert_same_run(device, result, store):
    problems.assert_identical(device.history, result.history)
    assert result.state.clients == () and store.round == int(device.state.round)
    problems.assert_identical(device.state._replace(clients=()), result.state)
    problems.assert_identical(device.state.clients, store.rows(EVERYBODY).states)


@pytest.fixture(scope="module")
def whole():
    """SCAFFOLD for 11 rounds, all on the device."""
    return play()


CASES = {name: {"algorithm": algorithm} for name, algorithm in ALGORITHMS.items()} | {
    # Of four slots one is filled on average, so that slots without a client read one as well.
    "empty slots": {"cohort": fo.cohorts.available(4, np.full(N, 0.03))},
    "dropout": {
        "cohort": fo.cohorts.unreliable(fo.cohorts.uniform(4), dropout=0.3, stragglers=0.5)
    },
    "everybody": {"cohort": fo.cohorts.uniform(N)},
    "sharded": {"strategy": "sharded", "rounds": 8},
    "chunked": {"strategy": fo.Strategy("chunked", size=3), "rounds": 8},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_run_with_a_store_is_the_run(tmp_path, options):
    store = fo.ClientStore(tmp_path / "store")
    device, result = (play(client_states=s, **options) for s in (None, store))
    assert_same_run(device, result, store)


def test_clients_of_a_model_that_devices_share(tmp_path):
    """Rows are put on the devices that need them, and each comes back from where it was put."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("clients", "model"))
    store = fo.ClientStore(tmp_path / "store")
    options = {"model": test_model_axis.MODEL, "clients": test_model_axis.data(), "cohort": 2}
    options |= {"strategy": fo.Strategy("sharded", mesh=mesh)}
    device, result = (play(8, client_states=s, **options) for s in (None, store))
    problems.assert_identical(device.state._replace(clients=()), result.state)
    problems.assert_identical(device.state.clients, store.rows(np.arange(7)).states)


def test_clients_that_never_took_part_have_no_row(tmp_path, whole):
    store = fo.ClientStore(tmp_path / "store")
    assert_same_run(whole, play(client_states=store), store)
    took_part = np.unique(whole.history["cohort"])
    store.close()
    np.testing.assert_array_equal(problems.stored_clients(tmp_path / "store"), took_part)
    assert 0 < len(took_part) < N


def test_a_run_goes_on_in_another_process_with_other_chunks(tmp_path, whole):
    """The folder is opened anew, as another process would."""
    with fo.ClientStore(tmp_path / "store") as store:
        half = play(4, client_states=store)
    with fo.ClientStore(tmp_path / "store") as store:
        rest = play(state=half.state, client_states=store, evaluate_every=4)
        problems.assert_identical(rest.state, whole.state._replace(clients=()))
        problems.assert_identical(whole.state.clients, store.rows(EVERYBODY).states)


def test_a_store_takes_over_what_was_on_the_device(whole):
    half, store = play(6), fo.ClientStore()
    rest = play(state=half.state, client_states=store)
    problems.assert_identical(rest.state, whole.state._replace(clients=()))
    problems.assert_identical(whole.state.clients, store.rows(EVERYBODY).states)
    with pytest.raises(ValueError, match=r"state.clients must be \(\)"):
        play(state=half.state, client_states=store)


def test_examples_may_be_elsewhere_too(tmp_path, whole):
    store, stored = fo.ClientStore(tmp_path / "store"), fo.data.store(DATA, tmp_path / "data")
    assert_same_run(whole, play(clients=stored, client_states=store), store)


def interrupted(tmp_path, **options):
    """A run of 11 rounds that was stopped after 6, its checkpoints and its store."""
    with (
        fo.ClientStore(tmp_path / "store") as store,
        fo.Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        play(client_states=store, checkpoints=checkpoints, **options)


def resumed(tmp_path):
    with (
        fo.ClientStore(tmp_path / "store") as store,
        fo.Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        return play(client_states=store, checkpoints=checkpoints), store.rows(EVERYBODY).states


def after_6(chunk):
    return "interrupted" if chunk.last >= 6 else None


def test_a_store_that_was_ahead_of_its_checkpoint(tmp_path, whole):
    """The process ended between the rows of rounds 6 to 9 and the checkpoint of round 9."""
    interrupted(tmp_path, extensions=[after_6])
    with fo.ClientStore(tmp_path / "store") as store:
        store.open(SCAFFOLD, whole.state._replace(clients=()))
        other = jax.tree.map(lambda x: np.full_like(x, 7), store.read(np.arange(4)))
        store.write(9, np.arange(4), other, oldest=6)
    result, rows = resumed(tmp_path)
    problems.assert_identical(result.history, whole.history)
    problems.assert_identical(
        (result.state.server, rows), (whole.state.server, whole.state.clients)
    )


def test_a_run_that_ends_while_rows_are_written(tmp_path, whole, monkeypatch):
    """The disk refuses the third chunk; with room again, the run goes on and is the same."""
    written, insert = [], RowFile._insert

    def full(self, round_number, ids, rows):
        written.append(round_number)
        insert(self, round_number, ids, rows)
        if round_number == 9:
            raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "_insert", full)
        with pytest.raises(ValueError, match=r"part-0.*cannot be read or written: .* disk is full"):
            interrupted(tmp_path)
    assert written == [0, 3, 6, 9]
    with fo.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest_round == 6
    result, rows = resumed(tmp_path)
    problems.assert_identical(result.history, whole.history)
    problems.assert_identical(
        (result.state.server, rows), (whole.state.server, whole.state.clients)
    )


def test_the_store_goes_back_to_every_checkpoint_that_is_kept(tmp_path):
    """The newest are moved away, as those are that are damaged."""
    expected = play(20, evaluate_every=2)

    def played(moved):
        with (
            fo.ClientStore(tmp_path / "store") as store,
            fo.Checkpoints(tmp_path / "checkpoints", keep=3, keep_every=2) as checkpoints,
        ):
            for newest in checkpoints.rounds[len(checkpoints.rounds) - moved :]:
                shutil.rmtree(tmp_path / "checkpoints" / str(newest))
            play(20, client_states=store, checkpoints=checkpoints, evaluate_every=2)
            problems.assert_identical(store.rows(EVERYBODY).states, expected.state.clients)

    for moved in (0, 1, 2):
        played(moved)
    with pytest.raises(ValueError, match=r"can go back to .* \[12, 14, 16, 18\], but .* round 8\."):
        played(6)


def test_a_store_that_does_not_have_the_round_is_refused(tmp_path):
    interrupted(tmp_path, extensions=[after_6])
    with fo.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        with pytest.raises(ValueError, match=r"in memory holds .* round 0, .* but .* at round 6"):
            play(client_states=fo.ClientStore(), checkpoints=checkpoints)
        with pytest.raises(ValueError, match="another model, algorithm or population"):
            play(checkpoints=checkpoints)
    with pytest.raises(ValueError, match="is empty, but the run is at round 6"):
        play(state=play(6).state._replace(clients=()), client_states=fo.ClientStore())


def test_each_client_has_its_own_model(monkeypatch):
    """Everybody is evaluated in blocks of clients, with the numbers of one block."""
    algorithm, test = ALGORITHMS["private scaffold"], problems.ragged([2, 70, 3] * 10, seed=1)
    device = play(6, algorithm, client_test=test)
    monkeypatch.setattr(chunks, "_EVALUATED_BYTES", 500)  # the rows of about ten clients
    store = fo.ClientStore()
    result = play(6, algorithm, client_test=test, client_states=store)
    name = "client_loss"
    np.testing.assert_array_equal(result.evaluations[name], device.evaluations[name], strict=True)
    some = result.state._replace(clients=store.rows([3, 8]))
    own, everyone = (fo.personal_variables(algorithm, s) for s in (some, device.state))
    problems.assert_identical(own(8), everyone(8))
    with pytest.raises(ValueError, match="one of those that are here, 3, 8; got 4"):
        own(4)


def test_nothing_is_compiled_twice():
    model, traces = problems.counted()
    play(4, model=model, client_states=fo.ClientStore())
    compiled = len(traces)
    play(20, model=model, client_states=fo.ClientStore())
    assert len(traces) == compiled


def test_rows_that_chunks_share_are_read_once(whole, monkeypatch):
    read, store = [], fo.ClientStore()
    read_rows = store.read
    monkeypatch.setattr(store, "read", lambda ids: read.append(set(ids.tolist())) or read_rows(ids))
    play(client_states=store)
    cohorts = [set(whole.history["cohort"][i : i + 3].ravel().tolist()) for i in (0, 3, 6, 9)]
    before = [set(), *cohorts]
    assert read[:4] == [now - last for now, last in zip(cohorts, before, strict=False)]
    assert any(now & last for now, last in zip(cohorts, before, strict=False))


def test_a_round_that_is_not_finite_leaves_the_last_good_states():
    algorithm, store = fo.scaffold(opt.sgd(1e60)), fo.ClientStore()
    device, result = (
        play(algorithm=algorithm, client_states=s, on_nonfinite="stop") for s in (None, store)
    )
    assert device.stopped == result.stopped and 0 < store.round < 11
    assert_same_run(device, result, store)


def test_stateless_algorithms_leave_the_store_alone(tmp_path):
    result = play(2, fo.fedavg(opt.sgd(0.02)), client_states=fo.ClientStore(tmp_path / "store"))
    assert result.state.clients == () and not (tmp_path / "store").exists()


def test_a_state_that_lost_its_clients_is_refused():
    lost = play(2).state._replace(clients=())
    with pytest.raises(ValueError, match=r"state\.clients must have the tree structure"):
        fo.run_rounds(SCAFFOLD, BASE, lost, 2, strategy="scan")
