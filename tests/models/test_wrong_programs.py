"""Programs that do not fit, each answered before the first round: what was found, and what to change."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_opt as fo

R = np.random.default_rng(0)
X = R.normal(size=(12, 3)).astype(np.float32)
DATA = {"x": X, "y": (np.arange(12) % 4).astype(np.int32)}
W = {"w": jnp.zeros((3, 4), jnp.float32)}
STATE = {"n": jnp.zeros((), jnp.float32)}


def ce(params, batch):
    logits = batch["x"] @ params["w"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]))


def task(model, data=DATA, test=None, **options):
    owners = np.arange(len(jax.tree.leaves(data)[0])) % 3
    clients = fo.ClientData.from_arrays(data, owners)
    options = {"cohort": 2, "local_steps": 1, "batch_size": 4} | options
    return fo.Federation(model, clients, test=test, **options)


def own(loss, init=W, data=DATA, test=None, fed=None, **options):
    """A loss of somebody's."""
    return lambda: task(fo.models.from_loss(init, loss, **options), data, test, **fed or {})


def applied(apply, data=DATA, test=None, **options):
    """A function of theirs."""
    return lambda: task(fo.models.classifier(lambda key, batch: W, apply, **options), data, test)


def module(make):
    """A module of theirs."""
    return lambda: task(make())


def raising(error):
    def loss(params, batch):
        raise error

    return loss


def lin(p, x):
    return x @ p["w"]


class D(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Drop(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(4)(nn.Dropout(0.5, deterministic=not train)(x))


class BN(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.BatchNorm(use_running_average=False, axis_name="b")(x))


class NX(nnx.Module):
    def __init__(self, rngs):
        self.d = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x):
        return self.d(x)


PROGRAMS = {
    "loss returns none": (own(lambda p, b: None), r"loss must return a scalar .* got a NoneType"),
    "loss returns a list": (
        own(lambda p, b: [ce(p, b)]),
        r"loss must return a scalar .* got a list",
    ),
    "loss returns a dict": (
        own(lambda p, b: {"loss": ce(p, b)}),
        r"loss must return a scalar .* got a dict",
    ),
    "loss per example": (
        own(lambda p, b: optax.softmax_cross_entropy_with_integer_labels(b["x"] @ p["w"], b["y"])),
        r"must return a scalar .* got float32\[4\].*Aux\(losses",
    ),
    "loss is whole": (own(lambda p, b: jnp.int32(3)), r"got int32\[\]"),
    "loss is bool": (own(lambda p, b: ce(p, b) > 0), r"got bool\[\]"),
    "loss float()": (
        own(lambda p, b: float(ce(p, b))),
        r"raised ConcretizationTypeError.*minibatch of",
    ),
    "loss numpy": (
        own(lambda p, b: np.mean(np.asarray(b["x"] @ p["w"]))),
        r"raised TracerArrayConversionError.*minibatch of",
    ),
    "loss branches on value": (
        own(lambda p, b: ce(p, b) if ce(p, b) > 0 else 0.0),
        r"raised TracerBoolConversionError.*minibatch of",
    ),
    "loss three": (
        own(lambda p, b: (ce(p, b), 1, 2)),
        r"a scalar or .scalar, aux., got a tuple of 3",
    ),
    "loss aux first": (own(lambda p, b: ({"a": 1}, ce(p, b))), r"the scalar first, got a dict"),
    "loss complex": (own(lambda p, b: jax.lax.complex(ce(p, b), ce(p, b))), r"got complex64\[\]"),
    "loss wrong key in params": (own(lambda p, b: jnp.sum(p["v"])), r"raised KeyError: 'v'"),
    "loss attribute batch": (own(lambda p, b: jnp.sum(b.x)), r"no attribute 'x'.*minibatch of"),
    "loss unpack": (
        own(lambda p, b: (lambda x, y: jnp.mean(x @ p["w"]))(*b.shape)),
        r"no attribute 'shape'.*minibatch of",
    ),
    "loss item": (own(lambda p, b: ce(p, b).item()), r"minibatch of"),
    "loss bad index": (
        own(lambda p, b: jnp.mean(b["x"][:, 7:8].reshape(4, 2))),
        r"\(4, 0\).*\(4, 2\).*minibatch of",
    ),
    "loss nonzero": (
        own(lambda p, b: jnp.sum(p["w"]) * jnp.nonzero(b["y"])[0].sum()),
        r"nonzero.*minibatch of",
    ),
    "loss bool mask": (
        own(lambda p, b: jnp.mean((b["x"] @ p["w"])[b["y"] > 0])),
        r"NonConcreteBooleanIndexError.*minibatch of",
    ),
    "loss axis name": (
        own(lambda p, b: jax.lax.pmean(ce(p, b), "batch")),
        r"axis_name= of an adapter",
    ),
    "loss global assert": (
        own(raising(AssertionError("shapes"))),
        r"model.loss raised AssertionError: shapes",
    ),
    "loss zero division": (own(lambda p, b: 1 / 0), r"model.loss raised ZeroDivisionError"),
    "loss runtime": (
        own(raising(RuntimeError("my own"))),
        r"model.loss raised RuntimeError: my own",
    ),
    "loss not implemented": (
        own(raising(NotImplementedError("todo"))),
        r"model.loss raised NotImplementedError: todo",
    ),
    "loss losses shape": (
        own(lambda p, b: (ce(p, b), fo.Aux(losses=jnp.zeros(2, jnp.float32)))),
        r"aux.losses must .* \[4\], got .*2",
    ),
    "loss weights shape": (
        own(
            lambda p, b: (ce(p, b), fo.Aux(losses=jnp.zeros(4, jnp.float32), weights=jnp.zeros(3)))
        ),
        r"aux.weights must .* \[4\], got .*3",
    ),
    "weights without losses": (
        own(lambda p, b: (ce(p, b), fo.Aux(weights=jnp.zeros(4, jnp.float32)))),
        r"aux.weights needs aux.losses",
    ),
    "aux metrics list": (
        own(lambda p, b: (ce(p, b), fo.Aux(losses=b["x"][:, 0], metrics=[1.0]))),
        r"aux.metrics must be a mapping",
    ),
    "aux metrics number": (
        own(lambda p, b: (ce(p, b), fo.Aux(losses=b["x"][:, 0], metrics=jnp.float32(1)))),
        r"aux.metrics must be a mapping",
    ),
    "aux metric name": (
        own(
            lambda p, b: (
                ce(p, b),
                fo.Aux(losses=b["x"][:, 0], metrics={1: jnp.float32(1), "a": 2.0}),
            )
        ),
        r"sorting pytree dictionary keys.*minibatch of",
    ),
    "aux metric string": (
        own(lambda p, b: (ce(p, b), fo.Aux(losses=b["x"][:, 0], metrics={"a": "b"}))),
        r"minibatch of",
    ),
    "partly filled": (
        own(ce, fed={"batch_size": 3}),
        r"return Aux\(losses=...\).*remainder='drop'",
    ),
    "state not returned": (
        own(lambda p, s, b: ce(p, b), init=(W, STATE), stateful=True),
        r"must return \(scalar, state\)",
    ),
    "state other shape": (
        own(
            lambda p, s, b: (ce(p, b), {"n": jnp.zeros(2, jnp.float32)}),
            init=(W, STATE),
            stateful=True,
        ),
        r"aux.state\['n'\] must be float32\[\] .* float32\[2\]",
    ),
    "state other dtype": (
        own(
            lambda p, s, b: (ce(p, b), {"n": s["n"].astype(jnp.int32)}),
            init=(W, STATE),
            stateful=True,
        ),
        r"aux.state\['n'\] must be float32\[\] .* int32\[\]",
    ),
    "state other keys": (
        own(lambda p, s, b: (ce(p, b), {"m": s["n"]}), init=(W, STATE), stateful=True),
        r"aux.state must have the tree structure .*'n'.* got .*'m'",
    ),
    "init without state": (
        own(lambda p, s, b: (ce(p, b), s), stateful=True),
        r"init_or_params must give \(params, state\), got dict",
    ),
    "init integer weights": (
        own(ce, init={"w": jnp.zeros((3, 4), jnp.int32)}),
        r"at least one floating-point array, .* got int32",
    ),
    "init empty": (own(ce, init=lambda k: {}), r"at least one floating-point array.* got \{\}"),
    "init none": (own(ce, init=lambda k: None), r"at least one floating-point array.* got None"),
    "init wrong shape": (
        own(ce, init={"w": jnp.zeros((5, 4), jnp.float32)}),
        r"\(3,\) and \(5,\).*minibatch of",
    ),
    "init raises": (
        own(ce, init=lambda k: {"w": jnp.zeros((3, None))}),
        r"model.init raised .*minibatch of",
    ),
    "initial other": (own(ce, fed={"initial": {"v": jnp.zeros(3)}}), r"raised KeyError: 'w'"),
    "initial other shape": (
        own(ce, fed={"initial": {"w": jnp.zeros((4, 4), jnp.float32)}}),
        r"\(3,\) and \(4,\).*minibatch of",
    ),
    "outputs dict": (
        applied(lambda p, x: {"logits": lin(p, x)}),
        r"a dict with the keys \['logits'\].*output= must say",
    ),
    "outputs pair": (applied(lambda p, x: (lin(p, x), x)), r"a tuple of 2, .*output= must say"),
    "outputs list": (applied(lambda p, x: [lin(p, x)]), r"a list, .*output= must say"),
    "outputs none": (applied(lambda p, x: None), r"a NoneType, .*output= must say"),
    "output misses": (
        applied(lambda p, x: {"logits": lin(p, x)}, output="logit"),
        r"output must be .* \['logits'\], got 'logit'",
    ),
    "logits one too few axes": (
        applied(lambda p, x: lin(p, x)[:, 0]),
        r"labels must be .* logits \[4\], got int32\[4\]",
    ),
    "logits of another batch": (
        applied(lambda p, x: lin(p, x)[:2]),
        r"labels must be .* logits \[2, 4\], got int32\[4\]",
    ),
    "logits integers": (
        applied(lambda p, x: jnp.argmax(lin(p, x), -1)),
        r"labels must be .* logits \[4\]",
    ),
    "apply without batch axis": (
        applied(lambda p, x: jnp.dot(p["w"].T, x)),
        r"\(3,\) and \(4,\).*minibatch of",
    ),
    "loss of pair wrong": (applied(lin, loss=lambda o: o), r"takes 1 positional argument but 2"),
    "loss matrix": (
        applied(lin, loss=lambda o, y: o),
        r"the loss of each of the 4 examples, .* got \(4, 4\)",
    ),
    "labels float": (
        applied(lin, data=DATA | {"y": DATA["y"].astype(np.float32)}),
        r"labels must be whole .* got float32\[4\]",
    ),
    "labels one hot": (
        applied(lin, data=DATA | {"y": np.eye(4, dtype=np.int32)[DATA["y"]]}),
        r"labels must be whole .* got int32\[4, 4\]",
    ),
    "labels column": (
        applied(lin, data=DATA | {"y": DATA["y"][:, None]}),
        r"labels must be whole .* got int32\[4, 1\]",
    ),
    "labels missing": (applied(lin, data={"x": X}), r"labels must be keys .* got 'y' .* \['x'\]"),
    "labels strings": (
        applied(lin, data=DATA | {"y": np.array(list("abcd" * 3))}),
        r"clients must hold numbers, but examples\['y'\] are <U1",
    ),
    "labels objects": (
        applied(lin, data=DATA | {"y": np.array([None] * 12)}),
        r"clients must hold numbers, but examples\['y'\] are object",
    ),
    "inputs missing": (applied(lin, inputs="image"), r"inputs must be keys .* got 'image'"),
    "inputs index": (applied(lin, inputs=0), r"inputs must be keys .* got 0"),
    "tuple batch": (
        applied(lin, data=(X, DATA["y"])),
        r"inputs must be keys .* got 'x' for a batch of a tuple",
    ),
    "bare batch": (
        applied(lin, data=X),
        r"inputs must be keys .* got 'x' for a batch of one array",
    ),
    "inputs two for one": (applied(lin, inputs=("x", "y")), r"takes 2 positional arguments but 3"),
    "test other keys": (own(ce, test={"x": X}), r"raised KeyError: 'y'.*In evaluation"),
    "test other width": (
        own(ce, test={"x": R.normal(size=(4, 5)).astype(np.float32), "y": DATA["y"][:4]}),
        r"\(5,\) and \(3,\).*In evaluation",
    ),
    "test other structure": (own(ce, test=(X, DATA["y"])), r"tuple indices.*In evaluation"),
    "test other rank": (
        own(ce, test={"x": X[0], "y": DATA["y"]}),
        r"test\['y'\] must have leading axes",
    ),
    "test ragged": (
        own(ce, test={"x": X[:5], "y": DATA["y"]}),
        r"test\['y'\] must have leading axes",
    ),
    "test labels float": (
        applied(lin, test={"x": X, "y": X[:, 0]}),
        r"labels must be whole.*In evaluation",
    ),
    "client_test": (
        lambda: task(
            fo.models.from_loss(W, ce),
            client_test=fo.ClientData.from_arrays({"x": X}, np.arange(12) % 3),
        ),
        r"raised KeyError: 'y'.*In evaluation",
    ),
    "linen train unsaid": (
        module(lambda: fo.models.from_linen(Drop())),
        r"argument: 'train'.*train_argument= of an adapter names it",
    ),
    "linen train misnamed": (
        module(lambda: fo.models.from_linen(Drop(), "training")),
        r"'training'.*train_argument= of an adapter must be",
    ),
    "linen no rng": (
        module(lambda: fo.models.from_linen(Drop(), "train")),
        r"dropout.*rngs= of from_linen",
    ),
    "linen class": (
        module(lambda: fo.models.from_linen(D)),
        r"module must be an instance .* got the class D",
    ),
    "linen train where none": (
        module(lambda: fo.models.from_linen(D(), "train")),
        r"'train'.*train_argument= of an adapter must be",
    ),
    "linen axis": (module(lambda: fo.models.from_linen(BN())), r"axis_name= of an adapter"),
    "nnx instance": (
        module(lambda: fo.models.from_nnx(NX(nnx.Rngs(0)))),
        r"create must be a function of rngs .* got a NX",
    ),
    "nnx width": (module(lambda: fo.models.from_nnx(NX)), r"\(3,\) and \(5,\).*minibatch of"),
    "nnx in linen": (
        module(lambda: fo.models.from_linen(NX(nnx.Rngs(0)))),
        r"module must be an instance of a flax.linen.Module, got a NX",
    ),
    "equinox instance": (
        module(
            lambda: fo.models.from_equinox(
                eqx.nn.Linear(3, 4, dtype=jnp.float32, key=jax.random.key(0))
            )
        ),
        r"create must be a function of a key .* got a Linear",
    ),
    "equinox width": (
        module(
            lambda: fo.models.from_equinox(
                lambda key: eqx.nn.Linear(5, 4, dtype=jnp.float32, key=key)
            )
        ),
        r"\(5,\) and \(3,\).*minibatch of",
    ),
    "equinox batched": (
        module(
            lambda: fo.models.from_equinox(
                lambda key: eqx.nn.Conv2d(1, 4, 3, dtype=jnp.float32, key=key)
            )
        ),
        r"needs to have rank 3.*minibatch of",
    ),
    "haiku untransformed": (
        module(lambda: fo.models.from_haiku(lambda x: hk.Linear(4)(x))),
        r"transformed must be what hk.transform",
    ),
    "haiku train": (
        module(lambda: fo.models.from_haiku(hk.transform(lambda x, is_training: hk.Linear(4)(x)))),
        r"'is_training'.*train_argument= of an adapter names it",
    ),
    "pytree function": (
        module(lambda: fo.models.from_pytree(lambda key: jnp.zeros(3))),
        r"Expected a callable.*minibatch of",
    ),
    "lora nothing": (
        lambda: task(fo.models.lora(fo.models.from_loss(W, ce), fo.Variables(W), 2, "params/v")),
        r"where must choose .* got 'params/v'; these are \['params/w'\]",
    ),
    "lora of params": (
        lambda: task(fo.models.lora(fo.models.from_loss(W, ce), W, 2)),
        r"variables must be Variables.*fo.Variables\(params\)",
    ),
    "lora other model": (
        lambda: task(
            fo.models.lora(fo.models.from_loss(W, ce), fo.Variables({"v": jnp.zeros(3)}), 2)
        ),
        r"model.init raised KeyError: 'w'",
    ),
    "model is module": (lambda: task(D()), r"model must be a Model, got D"),
    "loss is model": (lambda: task(ce), r"model must be a Model, got <function ce"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_answered_before_the_first_round(name):
    make, message = PROGRAMS[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        fo.simulate(fo.fedavg(fo.optimizers.sgd(0.1)), make(), 1, progress=False)


def fill(graph):
    return {"nodes": np.pad(graph, ((0, 3 - len(graph)), (0, 0)))}


@pytest.mark.parametrize(
    ("clients", "padded", "message"),
    [
        ([[X[:2]], [X[:1], X[:3]]], None, "tree structure of .* give padded="),
        ([[X[:2]], []], fill, r"clients\[1\] must be a list of at least one example, got an empty"),
        ([[X[:2]], {"x": X}], fill, r"clients\[1\] must be a list .* got dict"),
        ([[X[:2], X[:1]]], lambda x: x, r"same shapes for all .* clients\[0\]"),
    ],
)
def test_lists_of_examples_that_are_not_filled_up_are_refused(clients, padded, message):
    with pytest.raises(ValueError, match=message):
        fo.ClientData.from_list(clients, padded=padded)
