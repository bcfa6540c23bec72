"""The debug mode: the same numbers without compilation, and the first client that fails in a file."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.training import replaying
from tests.core import problems

SIZES = (2, 2)
DATA = problems.ragged(SIZES)
SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.25))
OPTIONS = {
    "cohort_size": 2, "batch_size": 2, "local_steps": 2, "progress": False, "strategy": "scan",
    "batching": "replacement", "evaluate_every": 2,
}  # fmt: skip


def _simulate(folder, algorithm=SCAFFOLD, model=problems.MODEL, data=DATA, rounds=1, **options):
    options = OPTIONS | {"state": problems.start(SCAFFOLD, len(SIZES))} | options
    return fo.simulate(algorithm, model, data, rounds, debug=folder, **options)


Y = DATA.examples["y"].copy()
Y[2:] = np.nan
BROKEN = fo.ClientData(DATA.examples | {"y": Y}, DATA.offsets, DATA.sizes)  # client 1 has no labels


def _fails(folder, *arguments, message="client 1", **options):
    with pytest.raises(fo.DebugError, match=message) as error:
        _simulate(folder, *arguments, **options)
    return error.value.path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a client without labels; a guard does not hide it."""
    folder = tmp_path_factory.mktemp("debug") / "made" / "here"
    path = _fails(
        folder, data=BROKEN, guard=fo.Guard(), message=r"Round 0, client 1: .*not finite.*fo.replay"
    )
    assert path == folder / "round_0_client_1.npz"
    return path


def test_numbers_are_those_of_a_compiled_run(tmp_path):
    found, expected = _simulate(tmp_path / "debug", rounds=2), _simulate(None, rounds=2)
    problems.assert_close(found.state, expected.state)
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-12, atol=1e-12)
    assert not (tmp_path / "debug").exists()


def test_a_file_says_what_failed_and_a_person_can_load_it(saved):
    with np.load(saved, allow_pickle=False) as file:
        assert file["batches['x']"].shape == (2, 2, 3)
        assert np.isnan(file["batches['y']"]).all()
        np.testing.assert_allclose(file["message.variables.params['w']"], [0.3, -0.2, 0.1])
        about = json.loads(str(file["about"]))
    assert about["stage"] == "local work" and "jax" in about["versions"]
    assert "nan" in about["failed"] and "Traceback" in about["traceback"]


def test_a_replay_gives_the_same_nan(saved):
    again = fo.replay(saved, SCAFFOLD, problems.MODEL)
    assert np.isnan(again.losses).all() and len(again.losses) == 2
    assert np.isnan(again.upload.delta.params["w"]).all()
    with pytest.raises(FloatingPointError, match="nan"):
        fo.replay(saved, SCAFFOLD, problems.MODEL, stop_at_nan=True)


def test_an_error_in_the_model_is_raised_again_by_a_replay(tmp_path):
    """It sees numbers, where a compiled program would see none."""

    def loss(variables, batch, key):
        if not isinstance(batch["y"], jax.core.Tracer) and bool(jnp.isnan(batch["y"]).any()):
            raise RuntimeError("a label is missing")
        return problems.MODEL.loss(variables, batch, key)

    strict = fo.Model(problems.MODEL.init, loss)
    message = "client 1: RuntimeError: a label is missing"
    path = _fails(tmp_path, model=strict, data=BROKEN, message=message)
    with pytest.raises(RuntimeError, match="a label is missing"):
        fo.replay(path, SCAFFOLD, strict)


def test_a_probe_that_fails_is_replayed(tmp_path):
    mime = fo.mime(fo.optimizers.sgdm(0.1))
    path = _fails(tmp_path, mime, data=BROKEN, state=problems.start(mime, len(SIZES)))
    again = fo.replay(path, mime, problems.MODEL)
    assert again.about["stage"] == "probe" and again.about["client"] == 1
    assert np.isnan(again.upload["w"]).any() and again.losses.size == 0


def test_a_replay_is_the_work_that_was_done(tmp_path):
    """Upload and state, against a round of this client alone; with a learning rate by function."""
    factory = lambda eta: fo.attacks.nan_upload(fo.scaffold(fo.optimizers.sgd(eta)), [1])  # noqa: E731
    path = _fails(tmp_path, factory, learning_rate=0.25)
    again = fo.replay(path, SCAFFOLD, problems.MODEL)
    attacked = fo.replay(path, factory, problems.MODEL)
    assert attacked.about["learning_rate"] == 0.25
    np.testing.assert_array_equal(attacked.losses, again.losses)
    state = problems.start(SCAFFOLD, len(SIZES))
    with np.load(path) as file:
        batches = {name: file[f"batches['{name}']"][None] for name in ("x", "y")}
    after, info = fo.make_round(SCAFFOLD, problems.MODEL, strategy="scan")(state, [1], batches)
    moved = after.variables.params["w"] - state.variables.params["w"]
    np.testing.assert_allclose(again.upload.delta.params["w"], moved, rtol=1e-10)
    control = after.clients.control["w"][1]
    np.testing.assert_allclose(again.client_state.control["w"], control, rtol=1e-10)
    np.testing.assert_allclose(again.losses.mean(), info.loss, rtol=1e-10)


def test_a_file_keeps_every_structure_and_dtype(tmp_path):
    tree = {
        "b": (jnp.ones(2, jnp.bfloat16), [jnp.zeros((), jnp.int8)]),
        "a": jnp.ones((1, 2), bool),
    }
    replaying.save(tmp_path / "x.npz", {"batches": tree}, {"batches": replaying.skeleton(tree)})
    arrays, known = replaying._load(tmp_path / "x.npz")
    leaves = iter([arrays[name] for name in known["arrays"]["batches"]])
    problems.assert_identical(replaying._rebuilt(known["batches"], leaves), tree)
    with pytest.raises(ValueError, match=r"must be dicts, lists and tuples .* got a Variables"):
        replaying._rebuilt(replaying.skeleton(fo.Variables(jnp.ones(2))), iter([]))


def test_other_files_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*nothing.npz"):
        fo.replay(tmp_path / "nothing.npz", SCAFFOLD, problems.MODEL)
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ValueError, match=r"text.npz is not a file of a debug run, or is damaged"):
        fo.replay(tmp_path / "text.npz", SCAFFOLD, problems.MODEL)
    whole = saved.read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"half.npz is not a file of a debug run, or is damaged"):
        fo.replay(tmp_path / "half.npz", SCAFFOLD, problems.MODEL)
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ValueError, match=r"other.npz is not a file of a debug run"):
        fo.replay(tmp_path / "other.npz", SCAFFOLD, problems.MODEL)
    with pytest.raises(
        ValueError, match=r"The file's message has the shapes .* not those of the run"
    ):
        fo.replay(saved, fo.fedavg(fo.optimizers.sgd(0.1)), problems.MODEL)


def test_the_state_of_a_client_is_found_in_a_store(tmp_path):
    """The device holds the rows of a few clients alone, and the one that fails is not the first."""
    state = problems.start(SCAFFOLD, 6)
    controls = np.random.default_rng(0).normal(size=(6, problems.DIMENSION))
    state = state._replace(clients=state.clients._replace(control={"w": controls}))
    path = _fails(
        tmp_path, fo.attacks.nan_upload(SCAFFOLD, [4]), data=problems.ragged([2] * 6), rounds=6,
        state=state, client_state=fo.ClientStore(), cohort_size=None, evaluate_every=1,
        sampler=fo.cohorts.cyclic(1), message="Round 4, client 4",
    )  # fmt: skip
    with np.load(path) as file:
        (name,) = [name for name in file.files if name.startswith("client_state")]
        np.testing.assert_array_equal(file[name], controls[4])
