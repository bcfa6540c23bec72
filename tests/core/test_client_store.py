"""A store of client states against plain dictionaries: any order of events, any moment of death."""

import contextlib
import pathlib
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.storage import disk_shelf, durable
from tests.core import problems

N = 23
SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1))
ROW_BYTES = 8 * problems.DIMENSION


def beginning(algorithm=SCAFFOLD, num_clients=N, seed=0, params=None):
    params = {"w": jnp.array([0.3, -0.2, 0.1])} if params is None else params
    state = fo.first_state(algorithm, params, 1, seed)
    return state._replace(clients=(), num_clients=jnp.int32(num_clients))


START = beginning()


def opened(directory=None, **options):
    store = fo.ClientStore(directory, **options)
    store.open(SCAFFOLD, START)
    return store


def everything(store):
    """All rows by client, as numbers."""
    rows = store.read(np.arange(N))
    return dict(enumerate(rows.view(np.float64).tolist()))


INITIAL = {client: [0.0] * problems.DIMENSION for client in range(N)}


def some_rows(generator, count):
    ids = np.sort(generator.choice(N, count, replace=False))
    return ids, generator.normal(size=(count, problems.DIMENSION))


def apply(store, known, round_number, ids, values):
    """Writes to the store, and to what is known of it."""
    store.write(round_number, ids, values.view(np.uint8))
    return known | dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["memory", "disk", "small shards, nothing hot"])
def test_any_order_of_events(tmp_path, monkeypatch, kind):
    """Chunks are written, taken back and written again, and the folder is opened anew in between."""
    small = kind.startswith("small")
    monkeypatch.setattr(disk_shelf, "_SHARD_BYTES", 4 * ROW_BYTES if small else 2**20)
    folder = None if kind == "memory" else tmp_path / "store"
    options = {"hot": 0 if small else 5, "undo": 3}
    store, generator = opened(folder, **options), np.random.default_rng(0)
    versions, behind = {0: INITIAL}, []
    for _ in range(60):
        choice = generator.integers(4)
        if choice < 2:
            ids, values = some_rows(generator, generator.integers(0, 7))
            done = store.round + int(generator.integers(1, 4))
            behind = [*behind, store.round][-3:]
            versions[done] = apply(store, versions[store.round], done, ids, values)
        elif choice == 2:
            steps = generator.integers(len(behind) + 1)
            target = [*behind, store.round][steps]
            store.roll_back(target)
            behind = behind[:steps]
        elif folder is not None:
            store.close()
            store = opened(folder, **options)
        assert everything(store) == versions[store.round]
    assert len(versions) > 5
    if small:
        assert len(list(folder.glob("rows-*.bin"))) == 6


@pytest.mark.parametrize("folder", [None, "store"])
def test_what_cannot_be_taken_back_is_refused(tmp_path, folder):
    store, generator = opened(folder and tmp_path / folder, undo=2), np.random.default_rng(1)
    for done in (5, 10, 15):
        apply(store, {}, done, *some_rows(generator, 3))
    before = everything(store)
    for target in (0, 7):
        with pytest.raises(ValueError, match=rf"round 15, .*back.*\[10, 5\].*at round {target}\."):
            store.roll_back(target)
    with pytest.raises(ValueError, match=r"round 15, but the run is at round 20: .* elsewhere"):
        store.roll_back(20)
    assert store.round == 15 and everything(store) == before


def test_rows_that_did_not_change_cost_nothing(tmp_path):
    store = opened(tmp_path / "store")
    store.write(3, np.arange(4), np.zeros((4, ROW_BYTES), np.uint8))
    assert store.round == 3 and not list((tmp_path / "store").glob("rows-*.bin"))


class Killed(BaseException):
    """The end of the process."""


def dying(monkeypatch, moment, written):
    """Lets the process die at a write, or at a rename, with so much of the write done; see below."""
    left, dead = [moment], []

    def count():
        if dead or left[0] == 0:
            dead.append(True)
            raise Killed
        left[0] -= 1

    whole, rename, unlink = durable.write_all, durable.os.replace, pathlib.Path.unlink

    def write_all(file, content):
        try:
            count()
        except Killed:
            whole(file, bytes(content)[: int(written * len(bytes(content)))])
            raise
        whole(file, content)

    def replace(source, target):
        count()
        rename(source, target)

    def remove(path, missing_ok=False):
        count()  # after its death a process tidies nothing up
        unlink(path, missing_ok)

    monkeypatch.setattr(durable, "write_all", write_all)
    monkeypatch.setattr(durable.os, "replace", replace)
    monkeypatch.setattr(pathlib.Path, "unlink", remove)


@pytest.mark.parametrize("written", [0.5, 1.0])
def test_death_at_any_moment(tmp_path, monkeypatch, written):
    """Writing a chunk, taking one back, recovering: whenever it ends, the rows are of a whole round."""
    monkeypatch.setattr(disk_shelf, "_SHARD_BYTES", 8 * ROW_BYTES)
    generator = np.random.default_rng(2)
    store = opened(tmp_path / "store", undo=2)
    versions = {0: INITIAL}
    for done in (2, 4):
        versions[done] = apply(store, versions[done - 2], done, *some_rows(generator, 5))
    store.close()
    ids, values = some_rows(generator, 4)
    versions[6] = versions[4] | dict(zip(ids.tolist(), values.tolist(), strict=True))
    reached = set()
    for moment in range(100):
        folder = shutil.copytree(tmp_path / "store", tmp_path / str(moment))
        with monkeypatch.context() as patch:
            store = opened(folder, undo=2)
            dying(patch, moment, written)
            try:
                store.write(6, ids, values.view(np.uint8))
                store.roll_back(2)
                finished = True
            except Killed:
                finished = False
            store.close()
        with monkeypatch.context() as patch:
            dying(patch, moment % 7, written)
            with contextlib.suppress(Killed):  # recovery may be interrupted as well
                opened(folder, undo=2).close()
        store = opened(folder, undo=2)
        reached.add(store.round)
        assert everything(store) == versions[store.round]
        if store.round > 2:
            store.roll_back(2)
            assert everything(store) == versions[2]
        store.close()
        if finished:
            break
    assert finished and moment > 20 and reached == {2, 4, 6}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def blank(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("spoil", [flip, cut, blank, pathlib.Path.unlink])
def test_damage_is_named_and_never_goes_unnoticed(tmp_path, spoil):
    """Each file in turn: what is read and taken back is right, or the file is named."""
    generator = np.random.default_rng(3)
    store = opened(tmp_path / "store")
    versions = {0: INITIAL}
    for done in (1, 2):
        versions[done] = apply(
            store, versions[done - 1], done, np.arange(N), some_rows(generator, N)[1]
        )
    store.close()
    refused = set()
    names = {path.name for path in (tmp_path / "store").iterdir()} - {"lock"}
    for name in sorted(names):
        folder = shutil.copytree(tmp_path / "store", tmp_path / name)
        spoil(folder / name)
        store = fo.ClientStore(folder, hot=0)
        try:
            for target in (2, 1, 0):
                store.open(SCAFFOLD, START)
                store.roll_back(target)
                assert everything(store) == versions[target]
        except ValueError as error:
            assert str(folder / name) in str(error) or str(folder) in str(error), error
            refused.add(name)
        store.close()
    everywhere = {"client_state.json", "rows-00000.bin", "checksums.bin", "initial.bin"}
    # A file of zeros is what initial.bin is: SCAFFOLD begins with them.
    everywhere -= {"initial.bin"} if spoil is blank else set()
    assert refused == everywhere | {"undo-0-1.bin", "undo-1-2.bin"}


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


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=rf"{tmp_path}/client_state.json is missing"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_has_one_user_at_a_time(tmp_path):
    with opened(tmp_path), pytest.raises(ValueError, match=rf"{tmp_path} is in use"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    store = opened(tmp_path / "store")
    generator = np.random.default_rng(4)
    known = apply(store, INITIAL, 2, *some_rows(generator, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(
            ValueError, match=rf"{tmp_path}/store/.* cannot be written: File too large"
        ):
            apply(store, {}, 4, *some_rows(generator, N))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(ValueError, match="is not open"):
        store.read(np.arange(2))
    store.open(SCAFFOLD, START)
    assert store.round == 2 and everything(store) == known


def test_hot_clients_are_read_from_memory(tmp_path):
    store = opened(tmp_path / "store", hot=2)
    values = np.random.default_rng(5).normal(size=(4, problems.DIMENSION))
    for client in range(4):
        apply(store, {}, client + 1, np.array([client]), values[client : client + 1])
    store.read(np.array([2]))  # of 2 and 3, which are hot, this one was met last
    apply(store, {}, 5, np.array([0]), 2 * values[:1])
    (tmp_path / "store" / "rows-00000.bin").unlink()
    found = store.read(np.array([0, 2])).view(np.float64)
    np.testing.assert_array_equal(found, [2 * values[0], values[2]])
    for client in (1, 3):
        with pytest.raises(ValueError, match=rf"rows-00000.bin is damaged: .* client {client} "):
            store.read(np.array([client]))


def test_a_million_clients_take_the_room_of_those_who_took_part(tmp_path):
    state = beginning(num_clients=1_000_000, params={"w": jnp.zeros(5_000)})
    store = fo.ClientStore(tmp_path / "store")
    store.open(SCAFFOLD, state)
    ids = np.array([3, 500_000, 999_999])
    store.write(1, ids, np.ones((3, 40_000), np.uint8))
    files = list((tmp_path / "store").iterdir())
    assert sum(path.stat().st_blocks * 512 for path in files) < 3 * 40_000 + 200_000
    assert len(files) < 10
    found = store.read(np.array([2, 999_999]))
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
    store.write(
        1, np.array([2]), store.row_format.pack(jax.tree.map(lambda x: (x * x)[None], leaves))
    )
    assert float(store.rows([2])[2]["count"]) == 49


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"hot must be .*at least 0, got -1"):
        fo.ClientStore(hot=-1)
    with pytest.raises(ValueError, match=r"undo must be .*at least 2, got 1"):
        fo.ClientStore(undo=1)
    with pytest.raises(ValueError, match="is not open: no run has used it yet"):
        fo.ClientStore(tmp_path / "store").rows([0])
    keys = SCAFFOLD._replace(init_client=jax.tree_util.Partial(lambda v: jax.random.key(0)))
    with pytest.raises(ValueError, match=r"must hold arrays of numbers.*key<fry>"):
        fo.ClientStore().open(keys, START)
