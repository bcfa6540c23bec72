"""What runs consist of: told apart where it matters, and the same in every process."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt.training import checkpoint_files
from fedjax_opt.training.identity import identify
from tests.core import problems
from tests.core.test_simulate import DATA, OPTIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SGD = fo.optimizers.sgd(0.1)

# Values of many kinds, made anew by each process that runs this text.
KINDS = """
import json, sys
import flax.linen as nn
import jax.numpy as jnp
import optax
import fedjax_opt as fo
from flax import nnx
from fedjax_opt.training.identity import identify

class Net(nn.Module):
    width: int = 3
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(self.width)(x)

class Wide:
    def __init__(self):
        self.wide = 5
    def __call__(self, x):
        return x

def countdown(n):
    def again(k):
        return {"a", "b", "c"} if k == 0 else again(k - n)
    return again

opt = fo.optimizers
found = identify(
    compressed=fo.compressed(
        fo.private(fo.fedgbo(opt.adam(0.1)), where="state/**"),
        upload=fo.compression.ce_fedavg(sparsity=0.9),
    ),
    robust=fo.aggregated(fo.scaffold(opt.sgd(0.1)), fo.aggregators.trimmed_mean(0.2)),
    optax=fo.fedavg(optax.chain(optax.clip(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 9)))),
    momentum=fo.ghbm(opt.sgd(0.1), tau=3),
    mlp=fo.models.mlp([8], num_classes=10),
    linen=fo.models.from_linen(Net()),
    sampler=fo.cohorts.unreliable(fo.cohorts.dynamic_pool(3, 5, 2), dropout=0.2),
    controller=fo.controllers.steps_by_error(50, window=10),
    by_rate=lambda eta: fo.fedavg(opt.sgd(eta)),
    itself=countdown(2),
    called=Wide(),
    nnx=fo.models.from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs)),
    builtin=jnp.exp,
    words=frozenset({"x", "y", "z"}),
    array=jnp.arange(100.0),
)
json.dump(found, sys.stdout)
"""


def test_it_is_the_same_in_every_process():
    found = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", KINDS],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    functions, code, values = found[0]
    text = json.dumps(found[0])
    assert " at 0x" not in text
    assert {values[path] for path in values if path.endswith(".width")} == {"3"}
    assert {values[path] for path in values if path.endswith(".wide")} == {"5"}
    assert len(functions) > 100 and len(values) > 100 and functions["by_rate"].endswith("<lambda>")


def closure(factor):
    def scaled(x):
        return factor * x

    return scaled


def same_name(number):
    """Two functions of one name that do different things."""
    if number == 0:

        def f(x):
            return x + 1
    else:

        def f(x):
            return x - 1

    return f


def documented(text):
    def f(x):
        return x

    f.__doc__ = text
    return f


def test_what_differs_is_found_where_it_is():
    one, two = identify(f=closure(2.0)), identify(f=closure(3.0))
    assert one.functions == two.functions and one.code == two.code
    assert one.values == {"f.factor": "2.0"} and two.values == {"f.factor": "3.0"}
    one, two = identify(f=same_name(0)), identify(f=same_name(1))
    assert one.functions == two.functions and one.code != two.code
    one, two = identify(a=fo.fedavg(SGD)), identify(a=fo.fedprox(SGD, 0.1))
    assert one.functions != two.functions
    bound = [identify(f=functools.partial(closure(1.0), x=x)).values for x in (1, 2)]
    assert [values["f[x]"] for values in bound] == ["1", "2"]
    jitted = [identify(f=jax.jit(closure(x))) for x in (1.0, 2.0)]
    assert jitted[0].code == jitted[1].code and jitted[0].values != jitted[1].values
    for functions in ((np.exp, np.tanh), (jnp.exp, jnp.tanh), (jnp.add, jnp.multiply), (len, abs)):
        assert identify(f=functions[0]).functions != identify(f=functions[1]).functions
    rates = [identify(a=fo.fedavg(optax.adam(rate))).values for rate in (0.1, 0.2)]
    assert rates[0] != rates[1] and rates[0].keys() == rates[1].keys()


def net(power):
    """A class of one name, with methods that do different things."""
    if power == 2:

        @dataclasses.dataclass
        class Net:
            def __call__(self, x):
                return x**2
    else:

        @dataclasses.dataclass
        class Net:
            def __call__(self, x):
                return x**3

    return Net


def test_methods_are_looked_into():
    for make in (lambda power: net(power), lambda power: net(power)()):
        one, two, again = (identify(f=make(power)) for power in (2, 3, 2))
        assert one == again and one.functions == two.functions and one.code != two.code


def test_what_does_not_matter_is_not_seen():
    assert identify(f=documented("a")) == identify(f=documented("b"))
    number, array, device = 0.5, np.array(0.5), jnp.array(0.5)
    assert identify(x=number) == identify(x=array) == identify(x=device)
    assert identify(x={"b": 1, "a": 2}) == identify(x={"a": 2, "b": 1})
    assert identify(x=None) == identify()


@pytest.mark.parametrize("size", [3, 1000])
def test_arrays_are_told_apart(size):
    values = np.zeros(size)
    other = values.copy()
    other[-1] = 1
    assert identify(x=values) != identify(x=other) == identify(x=jnp.asarray(other))
    assert identify(x=values) != identify(x=values.astype(np.float32))
    keys = [identify(x=jax.random.key(seed)).values["x"] for seed in (0, 1)]
    assert keys[0] != keys[1] and "key" in keys[0]


def played(directory, rounds, algorithm, allow=(), **options):
    with fo.Checkpoints(directory, allow=allow) as checkpoints:
        settings = OPTIONS | {"evaluate_every": 5} | options
        data = settings.pop("data", DATA)
        model = settings.pop("model", problems.MODEL)
        return fo.simulate(algorithm, model, data, rounds, checkpoints=checkpoints, **settings)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    """Checkpoints of FedAvg after 5 rounds."""
    directory = tmp_path_factory.mktemp("fedavg")
    played(directory, 5, fo.fedavg(SGD))
    return directory


def other_loss(variables, batch, key):
    loss, aux = problems.MODEL.loss(variables, batch, key)
    return loss + 0.0, aux


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"algorithm": fo.fedprox(SGD, 0.1)}, r"algorithm.*proximal"),
        ({"algorithm": fo.fedavg(fo.optimizers.sgd(0.2))}, r"0\.1 there and 0\.2 here"),
        ({"model": fo.Model(problems.MODEL.init, other_loss)}, r"model\.loss is .*_loss there"),
        ({"local_steps": 3}, "local_steps is 2 there and 3 here"),
        ({"local_steps": None, "local_epochs": 2}, "local_epochs is missing there and 2 here"),
        ({"batch_size": 5}, "batch_size is 4 there and 5 here"),
        ({"weighting": "uniform"}, "weighting is 'samples' there and 'uniform' here"),
        ({"cohort_size": 2}, "sampler.size is 3 there and 2 here"),
        ({"seed": 1}, "another seed: key is"),
        ({"diagnostics": ["client_update_norm"]}, r"history.*diagnostics is \[\] there"),
        ({"test": DATA.examples}, "test is False there and True here"),
        ({"data": problems.ragged(DATA.sizes, seed=1)}, r"Other data: data\['x'\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_run_is_refused_with_what_differs(fedavg, changed, named):
    with pytest.raises(ValueError, match=named) as caught:
        played(fedavg, 10, **{"algorithm": fo.fedavg(SGD)} | changed)
    assert str(fedavg) in str(caught.value) and "round 5" in str(caught.value)


def test_what_changes_no_number_may_change(fedavg, tmp_path):
    options = {"evaluate_every": 3, "strategy": "vmap", "description": "again"}
    shutil.copytree(fedavg, tmp_path / "copy")
    result = played(tmp_path / "copy", 8, fo.fedavg(SGD), **options)
    assert result.history["loss"].shape == (8,)


def test_changes_that_are_asked_for_are_told(fedavg, tmp_path):
    shutil.copytree(fedavg, tmp_path / "copy")
    faster = fo.fedavg(fo.optimizers.sgd(0.2))
    with pytest.warns(UserWarning, match=r"other hyperparameters: .*0\.1 there and 0\.2 here"):
        result = played(tmp_path / "copy", 10, faster, allow="hyperparameters")
    first = fo.simulate(fo.fedavg(SGD), problems.MODEL, DATA, 5, **OPTIONS)
    expected = fo.simulate(faster, problems.MODEL, DATA, 10, state=first.state, **OPTIONS)
    problems.assert_identical(result.state, expected.state)
    with pytest.raises(ValueError, match="algorithm"):  # still another algorithm
        played(tmp_path / "copy", 15, fo.fedprox(SGD, 0.1), allow=("hyperparameters", "code"))


def rewritten(directory, number, change):
    """A checkpoint with another `about.json` and the checksums to it, as another program may write."""
    folder = directory / str(number)
    about = json.loads((folder / "about.json").read_text())
    change(about)
    (folder / "about.json").write_text(json.dumps(about))
    content = json.loads((folder / "manifest.json").read_text())
    content["files"]["about.json"] = checkpoint_files._measure(folder / "about.json")
    del content["sha256"]
    content["sha256"] = checkpoint_files._checksum(content)
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda about: about["versions"].update(jax="0.0.1"), "versions: jax is 0.0.1 there and"),
        (lambda about: about["versions"].update(python="3.9.1"), "python is 3.9.1 there and"),
        (lambda about: about["code"].update(model=""), "code: model is  there and missing here"),
        (lambda about: about.update(round=4), "written as that of round 4"),
        (lambda about: about.pop("leaves"), "missing there"),
        (lambda about: about.pop("versions"), "jax is unknown there"),
    ],
)
def test_other_versions_and_code_are_refused(fedavg, tmp_path, change, named):
    directory = pathlib.Path(shutil.copytree(fedavg, tmp_path / "copy"))
    rewritten(directory, 5, change)
    with pytest.raises(ValueError, match=named):
        played(directory, 5, fo.fedavg(SGD))


def test_other_versions_are_resumed_if_asked_for(fedavg, tmp_path):
    directory = pathlib.Path(shutil.copytree(fedavg, tmp_path / "copy"))
    rewritten(directory, 5, lambda about: about["versions"].update(jax="0.0.1"))
    with pytest.warns(UserWarning, match=r"other versions: jax is 0\.0\.1 there"):
        played(directory, 5, fo.fedavg(SGD), allow=["versions"])


def test_allow_must_name_what_may_change(tmp_path):
    with pytest.raises(ValueError, match=r"allow must be one of 'hyperparameters'.*got 'model'"):
        fo.Checkpoints(tmp_path, allow=["model"])


def test_a_function_of_the_learning_rate_is_looked_into(tmp_path):
    def play(algorithm, rate, rounds=5):
        return played(tmp_path, rounds, algorithm, learning_rate=rate)

    play(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 0.1)
    with pytest.raises(ValueError, match="algorithm"):
        play(lambda eta: fo.fedprox(fo.optimizers.sgd(eta), 0.1), 0.1)
    with pytest.raises(ValueError, match=r"learning_rate is 0\.1 there and 0\.2 here"):
        play(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 0.2)
