"""A federation of one's own data: a table, a split, a model; each has a default, which is said."""

import ast
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Aux, Federation, Model, checks, epochs

#: Ways to split examples that name no clients, by their names in `fedjax_opt.data`.
SPLITS = ("iid", "dirichlet", "label_shards", "quantity_skew", "balanced_dirichlet")
#: Where data suggest nothing else.
NUM_CLIENTS, COHORT, BATCH_SIZE, ROUNDS = 100, 10, 32, 100


class Loaded(NamedTuple):
    """A federation of files, and what is said of it.

    Attributes:
      federation: the federation.
      said: sentences: what each column was taken for, the split, the model.
      sha256: of the data.
    """

    federation: Federation
    said: list[str]
    sha256: str = ""


def from_files(
    path: str | Mapping[str, Any],
    client: str | None = None,
    label: str | None = None,
    model: str | Model | Callable[..., Model] | None = None,
    split: str | None = None,
    num_clients: int | None = None,
    predicts: str = "classes",
    columns: Sequence[str] | None = None,
    test: float = 0.2,
    own_tests: bool = False,
    image_size: int | None = None,
    seed: int = 0,
) -> Federation:
    """A federation of a table in a file, or in memory: `fo.data.read_table`, a split and a model.

    Numbers are standardised by the means and deviations of the training examples. A round has 10
    clients (or all), each of which takes one epoch in minibatches of 32: `.replace(...)` changes it.

    Args:
      path: CSV, Parquet, `.npz`, a folder of images by class, a Hugging Face data set saved on disk; or
        a DataFrame, or a mapping of names to arrays; see `fo.data.read_table`.
      client: the column that says whose each example is.
      label: the column to predict. None for the classes of a folder of images.
      model: a name of `fedjax_opt.models`, with arguments or without, such as "mlp" or
        "mlp(hidden=[64, 32])", of the size that the data ask for; "linear"; "package.module:function"
        or a function, called with those of num_classes, num_features, vocabulary and table that it
        takes; or a `Model`. None for one that suits the data.
      split: without `client`: "iid", "dirichlet(0.3)", "label_shards(2)", "quantity_skew(alpha=1)";
        None for iid.
      num_clients: of a split; None for 100, or fewer if the examples are few.
      predicts: 'classes', or 'numbers' for a regression.
      columns: the columns of inputs; None for all others.
      test: the share of each client's examples that is tested on.
      own_tests: whether each client is tested on its own examples (`client_test`) as well.
      image_size: the side that images are brought to.
      seed: of the splits.

    Returns:
      A `Federation`.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> x = np.random.default_rng(0).normal(size=(60, 2))
      >>> table = {"a": x[:, 0], "b": x[:, 1], "who": np.arange(60) % 6, "big": x.sum(axis=1) > 0}
      >>> fo.tasks.from_files(table, client="who", label="big")
      Federation(mlp, 6 clients, 48 examples, cohort 6, 1 epochs of 32, test 12)
    """
    return load_files(
        path, client, label, model, split, num_clients, predicts, columns, test, own_tests,
        image_size, seed,
    ).federation  # fmt: skip


def load_files(
    path: Any,
    client: str | None = None,
    label: str | None = None,
    model: Any = None,
    split: str | None = None,
    num_clients: int | None = None,
    predicts: str = "classes",
    columns: Sequence[str] | None = None,
    test: float = 0.2,
    own_tests: bool = False,
    image_size: int | None = None,
    seed: int = 0,
) -> Loaded:
    """As `from_files`, with what is said of it."""
    checks.number("test", test, low=0.0, high=1.0, open_low=True, open_high=True)
    if isinstance(columns, str):
        columns = [columns]
    table = fed.read_table(
        path, client, label, columns=columns, target=predicts, image_size=image_size
    )
    if "y" not in table.examples:
        known = ", ".join(column.name for column in table.columns)
        raise ValueError(
            f"label must name the column to predict, of {table.source}: {known}; got None."
        )
    said = str(table).splitlines()
    if client is not None:
        for name, value in (("split", split), ("num_clients", num_clients)):
            if value is not None:
                raise ValueError(
                    f"{name} must be left out where client names the clients, got {value!r}."
                )
        clients = table.client_data()
    else:
        owners, words = _split(table, split, num_clients, seed)
        clients = fed.ClientData.from_arrays(table.examples, owners, int(owners.max()) + 1)
        said.append(f"Split: {words}.")
    train, tested = clients.split(test, seed)
    if not tested.num_examples:
        raise ValueError(
            f"test must leave some examples to test on, got {test}: no client has two."
        )
    said.append(
        f"Tested on {tested.num_examples} examples, {test:.0%} of each client's"
        f"{', and on its own' if own_tests else ''}."
    )
    train, tested, scaled = _standardised(table, train, tested)
    if scaled:
        said.append("Numbers are standardised by the training examples.")
    made, words = _model(model, table, train.examples)
    said.append(f"Model: {words}.")
    federation = Federation(
        made,
        train,
        cohort=min(COHORT, train.num_clients),
        local_steps=epochs(1),
        batch_size=BATCH_SIZE,
        test=tested.examples,
        client_test=tested if own_tests else None,
    )
    return Loaded(federation, said, table.sha256)


def _split(
    table: fed.Table, split: str | None, num_clients: int | None, seed: int
) -> tuple[chex.ArrayNumpy, str]:
    """Whose each example is, and how that was decided."""
    name, given, named = read_call("split", split or "iid")
    if name not in SPLITS:
        raise ValueError(
            f"split must be one of {', '.join(SPLITS)}, such as 'dirichlet(0.3)', got {split!r}."
        )
    labels = table.examples["y"]
    number = len(labels)
    if num_clients is None:
        num_clients = min(NUM_CLIENTS, max(number // 10, 1))
    checks.integer("num_clients", num_clients, low=1, high=number)
    if name not in ("iid", "quantity_skew") and not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"split {name!r} goes by classes, and the label has numbers: use 'iid'.")
    try:
        owners = getattr(fed, name)(labels, num_clients, *given, seed=seed, **named)
    except TypeError as error:
        raise ValueError(f"split {split!r}: {error}.") from error
    return owners, f"{split or 'iid'} over {num_clients} clients"


def _standardised(
    table: fed.Table, train: fed.ClientData, tested: fed.ClientData
) -> tuple[fed.ClientData, fed.ClientData, bool]:
    x = train.examples.get("x")
    numbers = {c.name for c in table.columns if c.kind == "numeric"}
    if x is None or not numbers or x.ndim != 2 or x.dtype != np.float32:
        return train, tested, False
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1).astype(np.float32)

    def scaled(data: fed.ClientData) -> fed.ClientData:
        examples = {**data.examples, "x": (data.examples["x"] - mean) / deviation}
        return fed.ClientData.from_sizes(examples, data.sizes, allow_empty=True)

    return scaled(train), scaled(tested), True


def _model(model: Any, table: fed.Table, examples: Mapping[str, Any]) -> tuple[Model, str]:
    """The model, and the words for it."""
    if isinstance(model, Model):
        return model, "as given"
    labels, x = examples["y"], examples.get("x")
    kinds = {c.kind for c in table.columns} - {"client", "label"}
    regression = np.issubdtype(labels.dtype, np.floating)
    facts: dict[str, Any] = {"table": table, "num_features": None if x is None else x.shape[-1]}
    if not regression:
        facts["num_classes"] = max(len(table.classes), int(labels.max()) + 1, 2)
    facts["vocabulary"] = next((len(c.classes) for c in table.columns if c.kind == "text"), None)
    if callable(model):
        return _called("model", model, facts), getattr(model, "__name__", "as given")
    if model is not None and ":" in model:
        return _called("model", imported("model", model), facts), model
    if model is None:
        model = "bag_of_words" if kinds == {"text"} else "mlp"
    name, given, named = read_call("model", model)
    if given:
        raise ValueError(f"model must name its arguments, key=value, got {model!r}.")
    if name == "linear":
        name, named = "mlp", {"hidden": [], **named}
    if regression:
        if name != "mlp":
            raise ValueError(
                f"model must be 'mlp', 'linear' or your own for numbers, got {model!r}."
            )
        hidden = named.get("hidden", [64])
        return _regression(hidden, labels), f"{model} that predicts a number"
    made = getattr(models, name, None)
    known = [
        k
        for k, v in vars(models).items()
        if getattr(v, "__annotations__", {}).get("return") is Model
    ]
    if name not in known or name.startswith("from_"):
        raise ValueError(
            f"model must be 'linear', a name of fedjax_opt.models ({', '.join(sorted(known))}) or"
            f" 'package.module:function', got {model!r}."
        )
    if name == "mlp":
        named = {"hidden": [64], **named}
    found = _called("model", made, facts | named)
    if name == "mlp" and x is not None and x.ndim > 2:
        steps = [fed.scale()] if x.dtype == np.uint8 else []
        found = models.preprocessed(found, *steps, fed.flatten())
    sized = "" if regression else f", {facts['num_classes']} classes"
    return found, f"{name}({', '.join(f'{k}={v}' for k, v in named.items())}){sized}"


def _called(what: str, function: Any, facts: Mapping[str, Any]) -> Model:
    """A function of whichever facts it takes."""
    known = inspect.signature(function).parameters
    given = {name: value for name, value in facts.items() if name in known and value is not None}
    missing = [
        name
        for name, p in known.items()
        if p.default is p.empty
        and name not in given
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing:
        raise ValueError(
            f"{what} {getattr(function, '__name__', function)!r} needs {missing[0]}, which the data do"
            " not tell: give it in the call."
        )
    made = function(**given)
    if not isinstance(made, Model):
        raise ValueError(f"{what} must return a Model, got {type(made).__name__}.")
    return made


def _regression(hidden: Sequence[int], labels: chex.ArrayNumpy) -> Model:
    """A network that predicts a number, in the numbers' own unit: its loss is in standard deviations."""
    center, unit = float(labels.mean()), float(labels.std()) or 1.0
    network = models.mlp(hidden, num_classes=2)

    def init(key, batch):
        params = network.init(key, {"x": batch["x"], "y": jnp.zeros(1, int)}).params
        last = max(params)
        return {**params, last: jax.tree.map(lambda leaf: leaf[..., :1], params[last])}

    def predict(params, x):
        for i in range(len(hidden)):
            layer = params[f"layer_{i}"]
            x = jax.nn.relu(x @ layer["w"] + layer["b"][None])
        last = params[f"layer_{len(hidden)}"]
        return (x @ last["w"] + last["b"][None])[:, 0]

    def loss(params, batch):
        error = predict(params, batch["x"]) - (batch["y"] - center) / unit
        squares = error**2
        metrics = {"mse": unit**2 * squares, "mae": unit * jnp.abs(error)}
        return jnp.mean(squares), Aux(losses=squares, metrics=metrics)

    return models.from_loss(init, loss)


def read_call(what: str, text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """A name, and what it is called with: numbers, words and lists."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            named = {key.arg: ast.literal_eval(key.value) for key in tree.keywords if key.arg}
            return tree.func.id, [ast.literal_eval(value) for value in tree.args], named
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"{what} must be a name or a call such as 'dirichlet(0.3)', got {text!r}.")


def imported(what: str, path: str) -> Any:
    """A function by its import path, package.module:function."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {path!r} cannot be imported: {error}.") from error
