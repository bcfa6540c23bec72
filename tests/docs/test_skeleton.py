"""The skeleton of a new algorithm is itself an algorithm, and what the guide says of it is true."""

import ast
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "your_own_algorithm.py"
GUIDE = ROOT / "docs" / "new_algorithm.md"


@pytest.fixture(scope="module")
def skeleton():
    """The example as a module."""
    specification = importlib.util.spec_from_file_location("your_own_algorithm", FILE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _batches(dtype=np.float64):
    generator = np.random.default_rng(3)
    return {
        "x": generator.normal(size=(2, 3, 4, 3)).astype(dtype),
        "y": generator.normal(size=(2, 3, 4)).astype(dtype),
    }


def _one_round(algorithm, model, params, batches):
    state = fo.first_state(algorithm, params, num_clients=5)
    return fo.make_round(algorithm, model, strategy="scan")(state, np.array([4, 1]), batches)


def test_one_round(skeleton):
    """It moves the model, counts the round and keeps the shapes of its state."""
    algorithm = skeleton.fedavg_nesterov(0.1)
    before = fo.first_state(algorithm, jnp.ones(3), num_clients=5)
    after, info = _one_round(algorithm, skeleton.MODEL, jnp.ones(3), _batches())
    assert int(after.round) == 1
    assert bool(info.finite)
    assert float(info.update_norm) > 0
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, before)


def test_oracle(skeleton):
    """In float64 the oracle and the algorithm differ by rounding."""
    assert skeleton.largest_difference() < 1e-12


def test_without_momentum_it_is_fedavg(skeleton):
    """Its stated limit, bit for bit."""
    ours = skeleton.fedavg_nesterov(0.1, server_learning_rate=0.5, momentum=0.0)
    fedavg = fo.fedavg(fo.optimizers.sgd(0.1), server_learning_rate=0.5)
    states = [_one_round(a, skeleton.MODEL, jnp.ones(3), _batches())[0] for a in (ours, fedavg)]
    np.testing.assert_array_equal(*(np.asarray(state.variables.params) for state in states))


def test_the_state_keeps_its_dtypes(skeleton):
    """Also in half precision, where the mean of the uploads arrives in float32."""
    algorithm = skeleton.fedavg_nesterov(0.1)
    params = jnp.ones(3, jnp.bfloat16)
    before = fo.first_state(algorithm, params, num_clients=5)
    after, _ = _one_round(algorithm, skeleton.MODEL, params, _batches(jnp.bfloat16))
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, before)


def test_hyperparameters_are_leaves(skeleton):
    """Two of them are the same program with other numbers."""
    one = skeleton.fedavg_nesterov(0.1, 1.0, 0.9)
    other = skeleton.fedavg_nesterov(0.2, 0.5, 0.8)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert set(jax.tree.leaves(other)) == {0.2, 0.5, 0.8}


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": 0.0}, {"server_learning_rate": -1.0}, {"momentum": 1.0}]
)
def test_wrong_hyperparameters_are_named(skeleton, wrong):
    """The error names the argument and its value."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must lie in .* got"):
        skeleton.fedavg_nesterov(**{"learning_rate": 0.1} | wrong)


def _definitions(source):
    """Functions and classes by name, without docstrings and comments."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            found[node.name] = ast.dump(node)
    return found


def test_the_guide_shows_this_file():
    """Whatever the guide defines under a name of the skeleton is what the skeleton has there."""
    page = GUIDE.read_text(encoding="utf-8")
    blocks = "\n".join(part.split("```")[0] for part in page.split("```python\n")[1:])
    guide, file = _definitions(blocks), _definitions(FILE.read_text(encoding="utf-8"))
    shared = guide.keys() & file.keys()
    assert {"Server", "fedavg_nesterov", "_init", "_server_step", "oracle"} <= shared
    for name in shared:
        assert guide[name] == file[name], name
