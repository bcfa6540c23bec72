"""Models in files: what is written is read again, and what does not fit is named."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo

VARIABLES = fo.Variables(
    {"dense": [{"w": jnp.arange(6.0).reshape(3, 2)}, {"w": jnp.ones((2, 2), jnp.bfloat16)}]},
    {"count": jnp.int32(7), "mean": jnp.array([0.5, -0.5])},
)
ENDINGS = (".safetensors", ".npz", ".msgpack", "")


def written(folder, ending, variables=VARIABLES, **options):
    pytest.importorskip(
        {".safetensors": "safetensors", ".npz": "numpy", ".msgpack": "flax"}.get(ending, "orbax")
    )
    return fo.save_model(variables, folder / f"model{ending}", **options)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_model_is_read_as_it_was_written(tmp_path, ending):
    path = written(tmp_path, ending, about={"accuracy": 0.9})
    shapes = jax.eval_shape(lambda: VARIABLES)
    for like in (VARIABLES, shapes):
        found = fo.load_model(path, like=like)
        assert jax.tree.structure(found) == jax.tree.structure(VARIABLES)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(VARIABLES), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    alone = fo.load_model(path)
    np.testing.assert_array_equal(alone.params["dense"]["1"]["w"], np.ones((2, 2)))
    assert int(alone.state["count"]) == 7
    told = json.loads((tmp_path / "model.json").read_text())
    assert told["parameters"] == 10 and told["about"] == {"accuracy": 0.9}
    assert told["arrays"]["params/dense/1/w"] == "bfloat16[2, 2]"


def test_weights_of_another_program_start_a_run(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    model, clients, _ = fo.data.quadratics(num_clients=4, dimension=3)
    numpy.save_file({"x": np.array([1.0, 2.0, 3.0])}, tmp_path / "given.safetensors")
    initial = fo.load_model(tmp_path / "given.safetensors")
    federation = fo.Federation(
        model, clients, cohort=2, local_steps=1, batch_size=1, initial=initial
    )
    state = fo.init_state(fo.fedavg(fo.optimizers.sgd(0.1)), federation)
    np.testing.assert_array_equal(state.variables.params["x"], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("like", "message"),
    [
        (VARIABLES._replace(state=()), "also holds 'state/count'"),
        (VARIABLES._replace(state={"var": jnp.ones(2), **VARIABLES.state}), "lacks 'state/var'"),
        (
            VARIABLES._replace(state=VARIABLES.state | {"mean": jnp.ones(3)}),
            r"'state/mean' must be float64\[3\], as in `like`, got float64\[2\]",
        ),
        (
            VARIABLES._replace(state=VARIABLES.state | {"count": jnp.float32(7)}),
            r"'state/count' must be float32\[\], as in `like`, got int32\[\]",
        ),
    ],
)
def test_another_model_is_refused(tmp_path, ending, like, message):
    with pytest.raises(ValueError, match=message):
        fo.load_model(written(tmp_path, ending), like=like)


@pytest.mark.parametrize("ending", (".safetensors", ".npz", ".msgpack"))
@pytest.mark.parametrize("described", (True, False))
def test_a_damaged_file_is_refused(tmp_path, ending, described):
    path = written(tmp_path, ending)
    whole = path.read_bytes()
    if not described:
        (tmp_path / "model.json").unlink()
    for damaged in (whole[: len(whole) // 2], b"", b"\xff" * 100):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            fo.load_model(path)


def test_links_in_a_folder_are_not_followed(tmp_path):
    path = written(tmp_path, "")
    os.symlink("/etc/hostname", path / "more")
    with pytest.raises(ValueError, match="more is a link"):
        fo.load_model(path)
    with pytest.raises(ValueError, match="path must be new for a folder"):
        fo.save_model(VARIABLES, path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: fo.load_model(folder / "none.safetensors"), "none.safetensors cannot be read"),
        (lambda folder: fo.load_model(__file__), "path must end in .safetensors, .npz or"),
        (lambda folder: fo.save_model({}, folder / "m.msgpack"), "at least one array"),
        (
            lambda folder: fo.save_model({"a/b": 1.0, "a": {"b": 2.0}}, folder / "m.msgpack"),
            "Two arrays have the path 'params/a/b'",
        ),
        (
            lambda folder: fo.save_model({"w": 1.0}, folder / "m.msgpack", about={"f": len}),
            "about must hold JSON values",
        ),
    ],
)  # fmt: skip
def test_bad_calls_are_refused(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path)
