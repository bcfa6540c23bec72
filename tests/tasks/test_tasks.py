"""Tasks: every one of them is ready to train, and what the papers tuned is what the algorithms hold."""

import csv
import functools
import json
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import DataSet

GENERATOR = np.random.default_rng(0)
LOAD = fo.data.load
SHAPES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3)}


def images(shape, count, classes):
    return {
        "x": GENERATOR.integers(0, 256, (count, *shape), np.uint8),
        "y": (np.arange(count) % classes).astype(np.int32),
    }


def tiny_load(name, directory=None):
    """Data sets that would be fetched, in small."""
    if name in ("play", "digits"):
        return LOAD(name)
    if name == "activity":
        part = {
            "x": GENERATOR.normal(3.0, 2.0, (90, 128, 6)).astype(np.float32),
            "y": (np.arange(90) % 6).astype(np.int32),
            "client": np.repeat(np.arange(30, dtype=np.int32), 3),
        }
        return DataSet(part, part, tuple(map(str, range(30))))
    return DataSet(images(SHAPES[name], 400, 10), images(SHAPES[name], 40, 10))


def tiny_cifar100(name, split, directory=None):
    assert name == "cifar100"
    found = images((32, 32, 3), 1000 if split == "train" else 100, 100)
    return {**found, "coarse": found["y"] // 5}


@pytest.fixture(scope="module")
def leaf(tmp_path_factory):
    """LEAF's directories for three sets, two users each."""
    home = tmp_path_factory.mktemp("leaf")
    text = "To be, or not to be: that is the question: whether 'tis nobler in the mind to suffer"
    inputs = {
        "femnist": lambda i: [round(0.001 * (i + p), 3) for p in range(784)],
        "shakespeare": lambda i: text[i % 3 :][:80],
        "sent140": lambda i: [
            str(i), "Mon Apr 06", "NO_QUERY", "ann", f"good day {i}", "training",
        ],
    }  # fmt: skip
    labels = {"femnist": lambda i: i % 62, "shakespeare": lambda i: "a", "sent140": lambda i: i % 2}
    for name, make in inputs.items():
        for split, count in (("train", 12), ("test", 3)):
            users = {
                user: {
                    "x": [make(i) for i in range(count)],
                    "y": [labels[name](i) for i in range(count)],
                }
                for user in ("ann", "bob")
            }
            content = {"users": list(users), "num_samples": [count] * 2, "user_data": users}
            folder = home / name / split
            folder.mkdir(parents=True)
            (folder / "all_data.json").write_text(json.dumps(content))
    return home


@pytest.fixture
def task(request, monkeypatch, leaf):
    name = request.param
    monkeypatch.setattr(fo.data, "load", tiny_load)
    monkeypatch.setattr(fo.data, "read_tfds", tiny_cifar100, raising=False)
    if name in ("femnist", "femnist_cnn", "shakespeare", "sent140"):
        pytest.importorskip("ijson")
    if name in ("femnist", "femnist_cnn"):
        return fo.tasks.load(name, folder=leaf / "femnist")
    if name in ("shakespeare", "sent140"):
        return fo.tasks.load(name, folder=leaf / name)
    options = {"plays": {"which": "play"}, "mnist_users": {"num_clients": 10}}
    return fo.tasks.load(name, **options.get(name, {}))


@pytest.mark.parametrize("task", fo.tasks.NAMES, indirect=True)
def test_every_task_is_ready_to_train(task, request):
    assert task.cohort.size <= task.num_clients and task.local_steps is not None
    model, clients = task.model, task.clients
    # The model takes a minibatch of the data, in training and in evaluation.
    batch = jax.tree.map(lambda x: jnp.asarray(x[:4]), clients.examples)
    key = jax.random.key(0)
    variables = jax.eval_shape(model.init, key, batch)
    loss, aux = jax.eval_shape(model.loss, variables, batch, key)
    assert loss.shape == () and aux.losses.shape == (4,)
    tested = jax.tree.map(lambda x: jnp.asarray(x[:2]), task.test)
    assert jax.tree.structure(tested) == jax.tree.structure(batch)
    loss, aux = jax.eval_shape(lambda v, b: model.loss(v, b, None), variables, tested)
    suggested = fo.tasks.suggested(request.node.callspec.params["task"])
    assert aux.metrics[suggested.metric].shape[0] == 2
    assert suggested.rounds > 0 and "fedavg" in suggested.algorithms
    for algorithm in suggested.algorithms.values():
        jax.eval_shape(algorithm.init, variables)


def test_users_are_tested_on_digits_like_those_they_have():
    task = fo.tasks.digits_users()
    assert task.client_test is not None and len(task.test["y"]) == 360
    assert len(task.test["y"]) + int(np.sum(task.clients.sizes)) == 1797
    for client in range(20):
        own, tested = (np.unique(part[client]["y"]) for part in (task.clients, task.client_test))
        assert set(tested) <= set(own) and len(own) <= 4


def test_few_clients_are_a_cohort():
    assert fo.tasks.digits(num_clients=3).cohort.size == 3


def test_cifar_s_suggestions_are_regularised():
    """Weight decay 0.001 and clipping at 10 are around each, and are numbers of it."""
    found = fo.tasks.suggested("cifar10_dirichlet")
    assert sorted(found.algorithms) == ["fedacg", "fedavg", "scaffold"]
    for name in found.algorithms:
        assert {0.001, 10.0} <= set(map(float, jax.tree.leaves(found.algorithm(name))))


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("femnist", "femnist", {"num_clients": 1}),
        ("femnist_cnn", "femnist", {}),
        ("shakespeare", "shakespeare", {}),
        ("sent140", "sent140", {"min_examples": 5}),
    ],
)
def test_clients_are_kept_in_a_directory(leaf, tmp_path, name, data, options):
    """The same as in memory; the second time LEAF's files are not there any more."""
    pytest.importorskip("ijson")
    make = functools.partial(fo.tasks.load, name, **options)
    here = make(folder=leaf / data)
    make(folder=leaf / data, stored=tmp_path / "kept")
    there = make(folder=tmp_path, stored=tmp_path / "kept")
    assert isinstance(there.clients, fo.StoredClients) and repr(there) == repr(here)
    kept = [(task.clients[:].examples, task.clients.sizes, task.test) for task in (here, there)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *kept))
    if options:
        with pytest.raises(ValueError, match=rf"stored must be .*{data}.*; .*kept is by .*{data}"):
            fo.tasks.load(name, folder=leaf / data, stored=tmp_path / "kept")


def test_keeping_may_fail_and_be_repeated(leaf, tmp_path):
    pytest.importorskip("ijson")
    with pytest.raises(FileNotFoundError):
        fo.tasks.femnist(tmp_path / "nothing", stored=tmp_path / "kept")
    task = fo.tasks.femnist(leaf / "femnist", num_clients=1, stored=tmp_path / "kept")
    assert task.num_clients == 1


def test_what_a_task_does_not_take_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of fedavg, .* got 'fedavgg'"):
        fo.tasks.suggested("digits").algorithm("fedavgg")
    with pytest.raises(ValueError, match=r"name must be one of .*digits.*, got 'digit'"):
        fo.tasks.suggested("digit")
    with pytest.raises(ValueError, match="local_steps must be left out for digits, got 50"):
        fo.tasks.suggested("digits", 50)
    with pytest.raises(ValueError, match="name must be one of"):
        fo.tasks.load("cifar")
    with pytest.raises(ValueError, match=r"digits takes num_clients, .* got 'clients'"):
        fo.tasks.load("digits", clients=3)
    with pytest.raises(ValueError, match="sent140 needs folder"):
        fo.tasks.load("sent140")
    with pytest.raises(ValueError, match=r"10 or 50.*got 20"):
        fo.tasks.suggested("sent140", 20)


def test_every_number_of_the_table_reaches_its_algorithm():
    file = resources.files("fedjax_opt.tasks").joinpath("fedgbo_hyperparameters.csv")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    built = {
        (task, steps): fo.tasks.suggested(task, steps).algorithms
        for task in {row["task"] for row in rows}
        for steps in (10, 50)
    }
    assert sum(len(algorithms) for algorithms in built.values()) == len(rows) == 124
    for row in rows:
        optimiser = row["optimiser"]
        name = row["algorithm"] + ("" if optimiser == "sgd" else f"-{optimiser}")
        leaves = {
            float(x) for x in jax.tree.leaves(built[row["task"], int(row["local_steps"])][name])
        }
        numbers = [row[column] for column in list(row)[4:] if row[column]]
        assert {float(number) for number in numbers} <= leaves


def test_the_step_size_is_the_paper_s():
    """FedAvg on Sent140 with K = 10 has a learning rate of 10."""
    algorithm = fo.tasks.suggested("sent140").algorithm("fedavg")
    model, clients, _ = fo.data.quadratics(num_clients=1, dimension=2)
    one = {"x": jnp.ones(2)}
    federation = fo.Federation(model, clients, cohort=1, local_steps=1, batch_size=1, initial=one)
    run = fo.run_rounds(algorithm, federation, fo.init_state(algorithm, federation), 1)
    gradient = clients.examples["A"][0] @ (np.ones(2) - clients.examples["b"][0])
    np.testing.assert_allclose(run.state.variables.params["x"], 1 - 10 * gradient, rtol=1e-12)
