"""Own data by the door of tasks: what columns are taken for, splits, models, and what is refused."""

import csv

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.tasks.own import load_files


def columns(rows=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return {
        "user": [f"u{i}" for i in rng.integers(0, 12, rows)],
        "age": 40 + 10 * x[:, 0],
        "income": 1e4 * x[:, 1],
        "city": [["Rome", "Oslo"][i % 2] for i in range(rows)],
        "buys": np.where(x.sum(axis=1) > 0, "yes", "no"),
        "spends": 100 + 20 * x[:, 0] - 10 * x[:, 1],
    }


TABLE = columns()


@pytest.fixture
def letters(tmp_path):
    with open(tmp_path / "letters.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(TABLE)
        rows.writerows(zip(*TABLE.values(), strict=True))
    return tmp_path / "letters.csv"


def test_natural_clients_from_a_file(letters):
    pytest.importorskip("pyarrow")
    found = load_files(str(letters), client="user", label="buys", columns=["age", "income", "city"])
    federation = found.federation
    assert repr(federation) == (
        "Federation(mlp, 12 clients, 241 examples, cohort 10, 1 epochs of 32, test 59)"
    )
    x = federation.clients.examples["x"]
    np.testing.assert_allclose([x.mean(axis=0), x.std(axis=0)], [[0] * 4, [1] * 4], atol=1e-5)
    said = "\n".join(found.said)
    for text in (
        "income  numeric",
        "city    categorical",
        "12 clients",
        "standardised",
        "2 classes",
    ):
        assert text in said
    again = fo.tasks.from_files(
        letters, client="user", label="buys", columns=["age", "income", "city"]
    )
    np.testing.assert_array_equal(again.clients.examples["y"], federation.clients.examples["y"])
    result = fo.simulate(fo.fedavg(fo.optimizers.sgd(0.3)), federation, 20, progress=False)
    assert result.evaluations["accuracy"][-1] > 0.9


@pytest.mark.parametrize(
    ("split", "number"),
    [
        (None, 30),
        ("iid", 7),
        ("dirichlet(0.3)", 7),
        ("label_shards(2)", 7),
        ("quantity_skew(alpha=1)", 7),
    ],
)
def test_splits(split, number):
    given = None if split is None else number
    inputs = ["age", "income"]
    found = fo.tasks.from_files(TABLE, label="buys", columns=inputs, split=split, num_clients=given)
    assert found.num_clients == number
    assert found.clients.num_examples + len(found.test["y"]) == 300


def test_a_regression_is_told_in_its_own_unit():
    found = fo.tasks.from_files(
        TABLE, client="user", label="spends", columns=["age", "income"], predicts="numbers",
        model="linear", own_tests=True,
    )  # fmt: skip
    result = fo.simulate(fo.fedavg(fo.optimizers.sgd(0.3)), found, 60, progress=False)
    assert result.evaluations["mae"][-1] < 0.5, "of numbers whose deviation is 22"
    np.testing.assert_allclose(
        result.evaluations["loss"][-1] * np.var(TABLE["spends"]),
        result.evaluations["mse"][-1],
        rtol=0.1,
    )
    assert found.client_test.num_clients == 12
    compared = fo.compare(
        {"linear": lambda rate: fo.fedavg(fo.optimizers.sgd(rate))}, found, 4,
        grid={"rate": [0.01, 0.1]}, metric="min mae", seeds=1, evaluate_every=2, progress=False,
    )  # fmt: skip
    assert compared.best()[0].hyperparameters == {"rate": 0.1}


def own_model(num_features, num_classes):
    return fo.models.mlp([num_features], num_classes)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (None, (2, 64)),
        ("mlp(hidden=[5, 3])", (2, 5)),
        ("linear", (2, 2)),
        (f"{__name__}:own_model", (2, 2)),
        (own_model, (2, 2)),
        (fo.models.mlp([7], 2), (2, 7)),
    ],
)
def test_models_of_the_size_of_the_data(model, shape):
    found = fo.tasks.from_files(TABLE, label="buys", columns=["age", "income"], model=model)
    params = fo.init_state(fo.fedavg(fo.optimizers.sgd(0.1)), found).variables.params
    assert params["layer_0"]["w"].shape == shape


def test_texts_and_images():
    words = [f"{'good' if i % 2 else 'bad'} day number {i}" for i in range(120)]
    texts = {"text": words, "y": [i % 2 for i in range(120)]}
    found = load_files(texts, label="y", columns=["text"], num_clients=4)
    assert "bag_of_words" in found.said[-1] and found.federation.clients.examples["x"].ndim == 2
    images = {"x": np.zeros((40, 6, 6), np.uint8), "y": np.arange(40) % 4}
    found = fo.tasks.from_files(images, label="y", num_clients=4)
    params = fo.init_state(fo.fedavg(fo.optimizers.sgd(0.1)), found).variables.params
    assert params["layer_0"]["w"].shape == (36, 64) and params["layer_1"]["b"].shape == (4,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, "label must name the column to predict.*age"),
        ({"label": "price"}, "price"),
        ({"client": "nobody"}, "nobody"),
        ({"client": "user", "split": "iid"}, "split must be left out where client names the clients"),
        ({"client": "user", "num_clients": 3}, "num_clients must be left out"),
        ({"split": "sorted"}, "split must be one of iid, dirichlet.*got 'sorted'"),
        ({"split": "dirichlet(0.3"}, "split must be a name or a call such as"),
        ({"split": "dirichlet"}, "split 'dirichlet'.*alpha"),
        ({"num_clients": 0}, "num_clients must be"),
        ({"num_clients": 301}, "num_clients must be"),
        ({"label": "spends", "predicts": "numbers", "split": "dirichlet(1)"}, "goes by classes"),
        ({"label": "spends", "predicts": "numbers", "model": "cnn"}, "model must be 'mlp', 'linear'"),
        ({"predicts": "words"}, "target must be one of|predicts"),
        ({"test": 0.0}, "test must lie in"),
        ({"model": "mpl"}, "model must be 'linear', a name of fedjax_opt.models"),
        ({"model": "mlp(5)"}, "model must name its arguments"),
        ({"model": "nowhere:model"}, "model 'nowhere:model' cannot be imported"),
        ({"model": f"{__name__}:nothing"}, "cannot be imported"),
        ({"model": lambda width: None}, "needs width, which the data do not tell"),
        ({"model": lambda: 3}, "model must return a Model, got int"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, message):
    given = {"label": "buys", "columns": ["age", "income"]} | changes
    with pytest.raises(ValueError, match=message):
        fo.tasks.from_files(TABLE, **given)
