"""A store of client states against plain dictionaries: any order of events, any moment of death."""

import errno
import gc
import pathlib
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.storage import client_states, durable, row_file
from tests.core import problems

N = 23
SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1))
FILE = "part-00000-of-00001.sqlite"


def beginning(algorithm=SCAFFOLD, num_clients=N, seed=0, params=None):
    params = {"w": jnp.array([0.3, -0.2, 0.1])} if params is None else params
    state = fo.first_state(algorithm, params, 1, seed)
    return state._replace(clients=(), num_clients=jnp.int32(num_clients))


START = beginning()


def opened(directory=None):
    store = fo.ClientStore(directory)
    store.open(SCAFFOLD, START)
    return store


def everything(store):
    """All states by client, as numbers."""
    (states,) = jax.tree.leaves(store.read(np.arange(N)))
    return dict(enumerate(states.tolist()))


INITIAL = {client: [0.0] * problems.DIMENSION for client in range(N)}


def some_rows(generator, count):
    ids = np.sort(generator.choice(N, count, replace=False))
    return ids, generator.normal(size=(count, problems.DIMENSION))


def apply(store, known, round_number, ids, values, oldest=0):
    """Writes to the store, and to what is known of it."""
    store.write(round_number, ids, {"w": values}, oldest)
    return known | dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["memory", "disk", "rows in pieces"])
def test_any_order_of_events(tmp_path, monkeypatch, kind):
    """Chunks are written, taken back and written again, and the folder is opened anew in between."""
    monkeypatch.setattr(row_file, "_PIECE_BYTES", 7 if kind == "rows in pieces" else 2**20)
    folder = None if kind == "memory" else tmp_path / "store"
    store, generator = opened(folder), np.random.default_rng(0)
    versions, reachable = {0: INITIAL}, [0]
    for _ in range(80):
        choice = generator.integers(4)
        if choice < 2:
            ids, values = some_rows(generator, generator.integers(0, 7))
            done, oldest = store.round + int(generator.integers(1, 4)), max(store.round - 5, 0)
            versions[done] = apply(store, versions[store.round], done, ids, values, oldest)
            # The newest state up to the oldest round, and all after it.
            base = max(r for r in reachable if r <= max(oldest, reachable[0]))
            reachable = [r for r in reachable if r >= base] + [done]
        elif choice == 2:
            reachable = reachable[: generator.integers(len(reachable)) + 1]
            store.roll_back(reachable[-1])
        elif folder is not None:
            store.close()
            store = opened(folder)
        assert everything(store) == versions[store.round]
        assert store.rounds == reachable
    assert len(versions) > 10


def test_only_what_can_be_gone_back_to_takes_room(tmp_path):
    """Of each client the newest row up to the oldest round, whether or not it takes part again."""
    store, generator = opened(tmp_path), np.random.default_rng(7)
    ids = [some_rows(generator, 5)[0] for _ in range(12)]
    for done, some in enumerate(ids, start=1):
        apply(store, {}, done, some, np.ones((5, problems.DIMENSION)), done - 3)
    kept = {(-1, 0)} | {
        (client, done) for client in range(N) for done in range(10, 13) if client in ids[done - 1]
    }
    for client in range(N):
        older = [done for done in range(1, 10) if client in ids[done - 1]]
        kept |= {(client, done) for done in older[-1:]}
    (file,) = store._files.values()
    assert set(file._db.execute("SELECT client, round FROM rows").fetchall()) == kept


@pytest.mark.parametrize("folder", [None, "store"])
def test_what_cannot_be_taken_back_is_refused(tmp_path, folder):
    store, generator = opened(folder and tmp_path / folder), np.random.default_rng(1)
    for done in (5, 10, 15):
        apply(store, {}, done, *some_rows(generator, 3), oldest=5)
    before = everything(store)
    for target in (0, 7):
        with pytest.raises(ValueError, match=rf"round 15, .*back.*\[5, 10\].*at round {target}\."):
            store.roll_back(target)
    with pytest.raises(ValueError, match=r"round 15, .* but the run is at round 20\."):
        store.roll_back(20)
    with pytest.raises(ValueError, match=r"round_number must be at least 15, .* got 10"):
        apply(store, {}, 10, *some_rows(generator, 3))
    apply(store, {}, 15, *some_rows(generator, 3))  # nothing is to be done
    assert store.round == 15 and everything(store) == before


def test_death_at_any_moment(tmp_path, monkeypatch):
    """The files as they are before each statement of a change: opened, they are of a whole round."""
    monkeypatch.setitem(vars(row_file), "_SETTINGS", ("cache_size = 1", *row_file._SETTINGS))
    generator, width = np.random.default_rng(2), 20_000  # so that pages are written on the way
    start = beginning(params={"w": jnp.zeros(width)})

    def opened(folder):
        store = fo.ClientStore(folder)
        store.open(SCAFFOLD, start)
        return store

    def contents(store):
        return np.asarray(jax.tree.leaves(store.read(np.arange(N)))[0]).tobytes()

    store = opened(tmp_path / "store")
    copies, versions = [], {0: contents(store)}
    (file,) = store._files.values()

    def copy(_):
        copies.append(shutil.copytree(tmp_path / "store", tmp_path / str(len(copies))))

    file._db.set_trace_callback(copy)
    for done in (1, 2, 3):
        ids = np.sort(generator.choice(N, 6, replace=False))
        store.write(done, ids, {"w": generator.normal(size=(6, width))}, done - 1)
        versions[done] = contents(store)
    store.roll_back(2)
    reached = set()
    for folder in copies:
        with opened(folder) as store:
            reached.add(store.round)
            assert contents(store) == versions[store.round]
    journals = sum(len(list(folder.glob("*-journal"))) for folder in copies)
    assert len(copies) > 40 and reached == {0, 1, 2, 3} and journals > 10


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def blank(path):
    path.write_bytes(bytes(path.stat().st_size))


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [flip, cut, blank, empty])
@pytest.mark.parametrize("large", [False, True])
def test_damage_is_named(tmp_path, spoil, large, monkeypatch):
    """Whether or not the file is read as a whole when it is opened."""
    monkeypatch.setattr(row_file, "_CHECKED_BYTES", 0 if large else 2**32)
    start = beginning(params={"w": jnp.zeros(10_000)})
    store = fo.ClientStore(tmp_path)
    store.open(SCAFFOLD, start)
    store.write(1, np.arange(N), {"w": np.random.default_rng(3).normal(size=(N, 10_000))}, 0)
    store.close()
    spoil(tmp_path / FILE)
    with pytest.raises(ValueError, match=rf"{tmp_path}/{FILE} (is damaged|cannot be read)"):
        store.open(SCAFFOLD, start)
        store.read(np.arange(N))


def test_rows_that_are_lost_or_of_others_are_noticed(tmp_path):
    """SQLite's own check finds nothing wrong with such a file."""
    generator = np.random.default_rng(3)
    for case, statement, message in (
        ("lost", "DELETE FROM rows WHERE client = 3", "some rows are missing"),
        ("moved", "UPDATE rows SET client = 40 WHERE client = 3", "some rows are missing"),
        ("exchanged", "UPDATE rows SET bytes = (SELECT bytes FROM rows WHERE client = 4),"
         " crc = (SELECT crc FROM rows WHERE client = 4) WHERE client = 3", "row of client 3 does"),
        ("shorter", "UPDATE rows SET bytes = x'00' WHERE client = 3", "row of client 3 does"),
        ("a number", "UPDATE rows SET bytes = 7 WHERE client = 3", "row of client 3 does"),
        ("the initial row", "UPDATE rows SET bytes = x'00' WHERE client = -1", "initial row does"),
        ("another part", "UPDATE about SET content = replace(content, '0, 1', '1, 2')", "checksum"),
        ("a trigger", "CREATE TRIGGER t AFTER INSERT ON rows BEGIN SELECT 1; END", "other tables"),
    ):  # fmt: skip
        store = opened(tmp_path / case)
        apply(store, {}, 1, np.arange(N - 1), generator.normal(size=(N - 1, 3)))
        (file,) = store._files.values()
        file._db.execute(statement)
        store.close()
        with pytest.raises(ValueError, match=rf"{tmp_path}/{case}/{FILE} is damaged: .*{message}"):
            everything(opened(tmp_path / case))


@pytest.mark.parametrize(
    ("algorithm", "state", "named"),
    [
        (SCAFFOLD, beginning(num_clients=N + 1), r"num_clients is 23 there and 24 here"),
        (SCAFFOLD, beginning(seed=1), r"key is \[0, 0\] there and \[0, 1\] here"),
        (SCAFFOLD, beginning(params={"w": jnp.zeros(4)}), r"float64\[3\] there and float64\[4\]"),
        (fo.feddyn(fo.optimizers.sgd(0.1), 0.1), None, r"control.* there and missing here"),
    ],
    ids=["population", "run", "model", "algorithm"],
)
@pytest.mark.parametrize("folder", [None, "store"])
def test_the_states_of_others_are_refused(tmp_path, algorithm, state, named, folder):
    store = opened(folder and tmp_path / folder)
    state = beginning(algorithm) if state is None else state
    store.close()
    with pytest.raises(ValueError, match=rf"another run, model or algorithm:.*{named}"):
        store.open(algorithm, state)
    store.open(SCAFFOLD, START)
    store.close()


@pytest.mark.parametrize("name", ["notes.txt", "part-00000-of-00002"])
def test_a_folder_of_something_else_is_refused_and_stays(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=f"must be empty, .* something else in {tmp_path}"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("take", [opened, lambda folder: durable.Lock(folder / "inner" / "lock")])
def test_a_folder_has_one_user_at_a_time(tmp_path, take):
    """Who closes it, or is forgotten, lets go of it."""
    held = take(tmp_path)
    with pytest.raises(ValueError, match=rf"{tmp_path}.* is in use by another run"):
        take(tmp_path)
    held.close()
    held.close()
    held = take(tmp_path)
    del held
    gc.collect()
    take(tmp_path).close()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, "not here")

    monkeypatch.setattr(durable.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=rf"The disk of {tmp_path} has no locks"):
        store = opened(tmp_path)
    known = apply(store, INITIAL, 1, *some_rows(np.random.default_rng(8), 4))
    store.close()
    with pytest.warns(UserWarning, match="no locks"), opened(tmp_path) as store:
        assert everything(store) == known


def test_any_other_error_of_a_lock_is_one(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable.fcntl, "flock", flock)
    with pytest.raises(ValueError, match=rf"{tmp_path}/lock cannot be locked: Input/output error"):
        durable.Lock(tmp_path / "lock")


def test_a_folder_that_is_sealed_is_what_it_was(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"")
    sealed = durable.seal(tmp_path)
    assert list(sealed) == ["b", "inner/a"] and len(sealed["b"]) == 64
    durable.verify(tmp_path, sealed)
    (tmp_path / "b").write_bytes(b"x")
    with pytest.raises(ValueError, match=rf"{tmp_path}/b is damaged"):
        durable.verify(tmp_path, sealed)
    (tmp_path / "b").unlink()
    with pytest.raises(ValueError, match=rf"{tmp_path}/b is missing"):
        durable.verify(tmp_path, sealed)
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{tmp_path}/c does not belong"):
        durable.verify(tmp_path, {"inner/a": sealed["inner/a"]})


@pytest.mark.parametrize(
    ("seen", "processes", "expected"),
    [
        ([[], []], 2, ([0, 1], [])),  # a new store
        ([[[0, 1]], [[0, 1]]], 2, ([0], [0])),  # one part, which both see
        ([[[0, 2], [1, 2]]], 1, ([0, 0], [0, 1])),
        ([[[1, 2]], [[0, 2]]], 2, ([1, 0], [0, 1])),  # each machine's own, and they were exchanged
        ([[[0, 2]], []], 2, ([0, 1], [0])),  # a run that was killed when it made them
    ],
)
def test_parts_are_dealt_to_processes_that_see_them(seen, processes, expected):
    holders, present = client_states._dealt(pathlib.Path("here"), seen, processes)
    assert (holders.tolist(), present) == expected


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([[[0, 2]], [[1, 2]], []], r"2 processes must go on with it, got 3"),
        ([[[0, 3]], [[1, 3], [2, 3]]], r"3 processes must go on with it, got 2"),
        ([[[0, 3]], [[1, 2]]], r"some of 2 and of 3 parts"),
    ],
)
def test_parts_that_processes_cannot_deal_are_refused(seen, message):
    with pytest.raises(ValueError, match=message):
        client_states._dealt(pathlib.Path("here"), seen, len(seen))


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    store = opened(tmp_path / "store")
    generator = np.random.default_rng(4)
    known = apply(store, INITIAL, 2, *some_rows(generator, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(
            ValueError, match=rf"{tmp_path}/store/{FILE} cannot be read or written: disk I/O error"
        ):
            apply(store, {}, 4, *some_rows(generator, N))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.round == 2 and everything(store) == known
    store.close()
    with pytest.raises(ValueError, match="is not open"):
        store.read(np.arange(2))
    store.open(SCAFFOLD, START)
    assert store.round == 2 and everything(store) == known


def test_a_million_clients_take_the_room_of_those_who_took_part(tmp_path):
    state = beginning(num_clients=1_000_000, params={"w": jnp.zeros(5_000)})
    store = fo.ClientStore(tmp_path / "store")
    store.open(SCAFFOLD, state)
    ids = np.array([3, 500_000, 999_999])
    store.write(1, ids, {"w": np.ones((3, 5_000))}, 0)
    store.close()
    files = list((tmp_path / "store").iterdir())
    assert sum(path.stat().st_blocks * 512 for path in files) < 10**6
    assert len(files) == 2  # the rows, and a lock
    store.open(SCAFFOLD, state)
    (found,) = jax.tree.leaves(store.read(np.array([2, 999_999])))
    assert not found[0].any() and (found[1] == 1).all()


def test_rows_are_found_by_client(tmp_path):
    store = opened(tmp_path)
    values = np.random.default_rng(6).normal(size=(2, problems.DIMENSION))
    apply(store, {}, 1, np.array([4, 9]), values)
    some = store.rows([9, 4, 5])
    np.testing.assert_array_equal(some.ids, [4, 5, 9])
    np.testing.assert_array_equal(some[9].control["w"], values[1])
    np.testing.assert_array_equal(some[5].control["w"], np.zeros(3))
    with pytest.raises(
        ValueError, match="client must be one of those that are here, 4, 5, 9; got 3"
    ):
        some[3]
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 22\], got 2 to 23"):
        store.rows([2, 23])


def test_states_of_every_type_are_kept_bit_for_bit(tmp_path):
    leaves = {
        "half": jnp.array([[1.5, -0.25]], jnp.bfloat16), "count": jnp.int32(7),
        "flag": jnp.array([True, False, True]), "nothing": jnp.zeros((0, 2)), "wide": jnp.float64(0.1),
    }  # fmt: skip
    algorithm = SCAFFOLD._replace(init_client=jax.tree_util.Partial(lambda variables: leaves))
    store = fo.ClientStore(tmp_path / "store")
    store.open(algorithm, START)
    problems.assert_identical(store.rows([5])[5], leaves)
    store.write(1, np.array([2]), jax.tree.map(lambda x: np.asarray(x * x)[None], leaves), 0)
    assert float(store.rows([2])[2]["count"]) == 49


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"states must have leaves .*float64.* got .*float32"):
        opened().write(1, np.arange(2), {"w": np.zeros((2, 3), np.float32)}, 0)
    with pytest.raises(ValueError, match="is not open: no run has used it yet"):
        fo.ClientStore(tmp_path / "store").rows([0])
    keys = SCAFFOLD._replace(init_client=jax.tree_util.Partial(lambda v: jax.random.key(0)))
    with pytest.raises(ValueError, match=r"must hold arrays of numbers.*key<fry>"):
        fo.ClientStore().open(keys, START)
