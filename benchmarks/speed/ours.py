"""The tasks' models in fedjax_opt, on the parameters that all contestants share."""

import common
import jax
import jax.numpy as jnp

import fedjax_opt as fo
from fedjax_opt.models.networks.images import CNN


def forward(params, x):
    h = x
    for i, (w, b) in enumerate(params):
        h = (jax.nn.relu(h) if i else h) @ w + b
    return h


def model_of(task: common.Task, ids: bool = False) -> fo.Model:
    """The library's own model of a task; with `ids`, of texts given as token ids."""
    if task.model == "gru":
        return fo.models.gru(task.classes, common.EMBEDDING, (common.HIDDEN, common.HIDDEN))
    if task.model == "cnn":
        return fo.models.from_linen(CNN(task.classes, padding="SAME"), "train", features=1)
    if ids:
        return fo.models.bag_of_words(task.shape[0], task.classes, normalise=False)
    return fo.models.classifier(lambda key, batch: to_ours(common.first_params(task)), forward)


def to_ours(params: common.Params, ids: bool = False):
    """Parameters named as in `common.first_params`, as the library's models have them."""
    params = {name: jnp.asarray(value) for name, value in params.items()}
    layers = [(params[f"w{i}"], params[f"b{i}"]) for i in range(len(params) // 2) if "w0" in params]
    if "embedding" in params:
        names = ("input_kernel", "input_bias", "recurrent_kernel", "recurrent_bias")
        return {
            "Embed_0": {"embedding": params["embedding"]},
            **{f"layers_{i}": {name: params[f"{name}{i}"] for name in names} for i in range(2)},
            "Dense_0": {"kernel": params["w"], "bias": params["b"]},
        }
    if layers[0][0].ndim == 4:
        places = ["Conv_0", "Conv_1", "Dense_0", "Dense_1"]
        return {
            p: {"kernel": w, "bias": b} for p, (w, b) in zip(places, layers, strict=True)
        }  # fmt: skip
    return {"w": layers[0][0], "b": layers[0][1]} if ids else layers


def from_ours(params) -> common.Params:
    """The way back."""
    if isinstance(params, list):
        layers = params
    elif "w" in params:
        layers = [(params["w"], params["b"])]
    elif "Embed_0" in params:
        found = {"embedding": params["Embed_0"]["embedding"]}
        found |= {f"{name}{i}": v for i in range(2) for name, v in params[f"layers_{i}"].items()}
        return found | {"w": params["Dense_0"]["kernel"], "b": params["Dense_0"]["bias"]}
    else:
        places = ["Conv_0", "Conv_1", "Dense_0", "Dense_1"]
        layers = [(params[place]["kernel"], params[place]["bias"]) for place in places]
    return {
        f"{n}{i}": v for i, layer in enumerate(layers) for n, v in zip("wb", layer, strict=True)
    }


def first_variables(task: common.Task, ids: bool = False):
    """The model, and the variables before the first round, of the shapes that it would make itself."""
    model = model_of(task, ids)
    example = {
        name: value[: task.batch] for name, value in common.client_data(task, ids)[0].items()
    }
    params = to_ours(common.first_params(task), ids)
    wanted = jax.eval_shape(model.init, jax.random.key(0), example)
    variables = wanted._replace(params=params)
    if jax.tree.map(jnp.shape, wanted.params) != jax.tree.map(jnp.shape, params):
        raise ValueError("the shared parameters do not fit the library's model")
    return model, variables


def start(
    task: common.Task, algorithm: fo.Algorithm, model: fo.Model, data: fo.ClientData, first,
    strategy: str = "sharded",
):  # fmt: skip
    """The first state, and a function (state, rounds) -> Run.

    The only place that knows the library's API from the one before, for `before_after.py`.
    """
    settings = {"batch_size": task.batch, "local_steps": task.local_steps}
    if hasattr(fo, "Federation"):
        state = fo.first_state(algorithm, first, data.num_clients, 1)
        federation = fo.Federation(model, data, cohort=task.clients, **settings)
        return fo.place(state, strategy), lambda state, rounds: fo.run_rounds(
            algorithm, federation, state, rounds, strategy=strategy
        )
    state = fo.init_state(algorithm, first, data.num_clients, 1)
    return fo.place(state, strategy), lambda state, rounds: fo.run_rounds(
        algorithm, model, data, state, rounds, cohort_size=task.clients, strategy=strategy,
        **settings,
    )  # fmt: skip
