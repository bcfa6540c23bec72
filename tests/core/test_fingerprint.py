"""What runs consist of: told apart where it matters, and the same in every process."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.storage import durable
from fedjax_opt.training import fingerprint
from tests.core import problems
from tests.core.test_simulate import BASE, DATA, OPTIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SGD = fo.optimizers.sgd(0.1)

# Runs of many kinds, made anew by each process that runs this text.
KINDS = """
import json, pathlib, sys, tempfile
import flax.linen as nn
import jax
import numpy as np
import optax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import fedjax_opt as fo

class Net(nn.Module):
    width: int = 3
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(10)(nn.Dropout(0.1, deterministic=not train)(nn.relu(nn.Dense(3)(x))))

sgd, TABLE = fo.optimizers.sgd(0.1), np.linspace(0, 1, 40)
rows = np.random.default_rng(0).normal(size=(6, 8, 40)).astype(np.float32)
clients = fo.ClientData.from_list([{"x": x * TABLE, "y": np.arange(8) % 10} for x in rows])
chain = optax.chain(optax.clip(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 9)))
kinds = {
    "compressed": (fo.compressed(fo.scaffold(sgd), fo.compression.ce_fedavg(0.9)), 3),
    "robust": (fo.aggregated(fo.fedavg(chain), fo.aggregators.trimmed_mean(0.2)), 4),
    "controlled": (fo.fedprox(sgd, 0.1), fo.controllers.steps_by_error(50, window=10)),
}
found = {}
for name, (algorithm, steps) in kinds.items():
    with tempfile.TemporaryDirectory() as home, fo.Checkpoints(home) as checkpoints:
        federation = fo.Federation(
            fo.models.from_linen(Net()), clients, cohort=4, batch_size=4, local_steps=steps
        )
        fo.simulate(algorithm, federation, 1, checkpoints=checkpoints, progress=False)
        about = json.loads((pathlib.Path(home) / "1" / "about.json").read_text())
    parts = ("functions", "program", "hyperparameters", "data", "recorded", "seed")
    found[name] = {part: about[part] for part in parts}
print(json.dumps(found))
"""


def test_it_is_the_same_in_every_process_and_on_other_devices():
    found = []
    for hash_seed, devices in (("1", "1"), ("2", "2")):
        done = subprocess.run(
            [sys.executable, "-c", KINDS, devices],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
    assert " at 0x" not in json.dumps(found[0])
    assert len({kind["program"]["round"] for kind in found[0].values()}) == 3
    assert (
        "fedjax_opt.algorithms.scaffold._direction" in found[0]["compressed"]["functions"].values()
    )


ARRAY = np.arange(20.0)


def in_a_scan(table):
    return lambda x: jax.lax.scan(lambda c, _: (c * table, None), x, length=2)[0]


def in_a_branch(table):
    return lambda x: jax.lax.cond(x[0] > 0, lambda: x + table, lambda: x)


def in_a_jitted_derivative(table):
    @jax.custom_jvp
    def f(x):
        return x

    f.defjvp(lambda primals, tangents: (primals[0], tangents[0] * jnp.asarray(table)))
    return lambda x: jax.grad(lambda x: jnp.sum(jax.jit(f)(x)))(x)


@pytest.mark.parametrize("make", [in_a_scan, in_a_branch, in_a_jitted_derivative])
def test_constants_are_seen_however_deep_they_are(make):
    other = ARRAY.copy()
    other[10] += 1e-9  # which a printed array does not show
    one, two, again = (
        fingerprint.of_jaxpr(jax.make_jaxpr(make(table))(ARRAY))
        for table in (ARRAY, other, ARRAY.copy())
    )
    assert one == again != two


def test_functions_and_numbers_are_found_where_they_are():
    functions, numbers = fingerprint.describe(
        algorithm=fo.fedavg(SGD, server_learning_rate=0.5), sampler=fo.cohorts.uniform(3), none=None
    )
    assert functions["algorithm.finish"] == "fedjax_opt.algorithms.local_training._finish"
    assert numbers["algorithm.server_step[0]"] == "0.5" and numbers["sampler.size"] == "3"
    one, two = (fingerprint.describe(x=x) for x in (0.5, jnp.array(0.5)))
    assert one == two == ({}, {"x": "0.5"})


@pytest.mark.parametrize("size", [3, 1000])
def test_arrays_are_told_apart(size):
    values = np.zeros(size)
    other = values.copy()
    other[-1] = 1
    of = fingerprint.of_array
    assert of(values) != of(other) == of(jnp.asarray(other))
    assert of(values) != of(values.astype(np.float32))
    assert of(jax.random.key(0)) != of(jax.random.key(1)) and "key" in of(jax.random.key(0))


def test_of_large_data_blocks_are_looked_at(monkeypatch):
    monkeypatch.setattr(fingerprint, "_WHOLE_BYTES", 64 * 8 * 3)
    rows = np.arange(6400.0).reshape(3200, 2)
    seen = []
    for changed in range(0, 3200, 7):
        other = rows.copy()
        other[changed, 1] += 1
        seen.append(fingerprint.of_data(x=other) != fingerprint.of_data(x=rows))
    assert 0 < sum(seen) < len(seen) / 10 and seen[0]
    assert fingerprint.of_data(x=rows) != fingerprint.of_data(x=rows[:-1])


def played(directory, rounds, algorithm, allow=(), **options):
    federation, options = problems.changed(BASE, options)
    with fo.Checkpoints(directory, allow=allow) as checkpoints:
        settings = OPTIONS | {"evaluate_every": 5, "checkpoints": checkpoints} | options
        return fo.simulate(algorithm, federation, rounds, **settings)


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
        ({"algorithm": fo.fedprox(SGD, 0.1)}, r"algorithm.*local_terms"),
        ({"algorithm": fo.fedavg(fo.optimizers.sgd(0.2))}, r"0\.1 there and 0\.2 here"),
        ({"model": fo.Model(problems.MODEL.init, other_loss)}, r"model\.loss is .*_loss there"),
        ({"local_steps": 3}, "local_steps is 2 there and 3 here"),
        ({"local_steps": fo.epochs(2)}, r"local_steps is missing there and .*Epochs here"),
        ({"batch_size": 5}, "batch_size is 4 there and 5 here"),
        ({"weighting": "uniform"}, "weighting is 'samples' there and 'uniform' here"),
        ({"cohort": 2}, "cohort.size is 3 there and 2 here"),
        ({"seed": 1}, "another seed: key is"),
        ({"diagnostics": ["client_update_norm"]}, r"history.*diagnostics is \[\] there"),
        ({"test": DATA.examples}, "measured is  there and distance, loss here"),
        ({"clients": problems.ragged(DATA.sizes, seed=1)}, r"Other data: data.examples\['x'\]"),
        ({"local_steps": lambda t: 2 + t}, "local_steps is missing there and .*<lambda> here"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_run_is_refused_with_what_differs(fedavg, changed, named):
    with pytest.raises(ValueError, match=named) as caught:
        played(fedavg, 10, **{"algorithm": fo.fedavg(SGD)} | changed)
    assert str(fedavg) in str(caught.value) and "round 5" in str(caught.value)


def test_what_changes_no_number_may_change(fedavg, tmp_path):
    options = {"evaluate_every": 3, "strategy": "vmap"}
    shutil.copytree(fedavg, tmp_path / "copy")
    result = played(tmp_path / "copy", 8, fo.fedavg(SGD), **options)
    assert result.history["loss"].shape == (8,)


def test_changes_that_are_asked_for_are_told(fedavg, tmp_path):
    shutil.copytree(fedavg, tmp_path / "copy")
    faster = fo.fedavg(fo.optimizers.sgd(0.2))
    with pytest.warns(UserWarning, match=r"other hyperparameters: .*0\.1 there and 0\.2 here"):
        result = played(tmp_path / "copy", 10, faster, allow="hyperparameters")
    first = fo.simulate(fo.fedavg(SGD), BASE, 5, **OPTIONS)
    expected = fo.simulate(faster, BASE, 10, state=first.state, **OPTIONS)
    problems.assert_identical(result.state, expected.state)
    with pytest.raises(ValueError, match="algorithm"):  # still another algorithm
        played(tmp_path / "copy", 15, fo.fedprox(SGD, 0.1), allow=("hyperparameters", "program"))


DECAY = 0.1


def penalty(params):
    return DECAY * jnp.sum(params["w"] ** 2)


def penalised(variables, batch, key):
    loss, aux = problems.MODEL.loss(variables, batch, key)
    return loss + penalty(variables.params), aux


def other_penalty(params):
    return DECAY * jnp.sum(jnp.abs(params["w"]))


@pytest.mark.parametrize(
    ("name", "value"), [("DECAY", 0.2), ("penalty", other_penalty)], ids=["global", "helper"]
)
def test_what_a_loss_reads_and_calls_is_seen(tmp_path, monkeypatch, name, value):
    model = fo.Model(problems.MODEL.init, penalised)
    played(tmp_path, 5, fo.fedavg(SGD), model=model)
    played(tmp_path, 10, fo.fedavg(SGD), model=model)
    monkeypatch.setitem(globals(), name, value)
    with pytest.raises(ValueError, match=r"Other program: the round computes something else"):
        played(tmp_path, 15, fo.fedavg(SGD), model=model)
    with pytest.warns(UserWarning, match=r"resumed with other program: the round computes"):
        played(tmp_path, 15, fo.fedavg(SGD), model=model, allow="program")


@pytest.mark.parametrize(
    "options",
    [{"strategy": "vmap"}, {"strategy": fo.Strategy("chunked", 2)}, {"local_steps": 7}, {"seed": 3},
     {"algorithm": fo.fedavg(fo.optimizers.sgd(0.7))}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_the_program_is_of_no_number_and_no_strategy(fedavg, tmp_path, options):
    played(tmp_path, 5, **{"algorithm": fo.fedavg(SGD)} | options)
    one, two = (
        durable.read_json(directory / "5" / "about.json")["program"]
        for directory in (fedavg, tmp_path)
    )
    assert one == two


def test_the_program_is_the_same_wherever_clients_are_kept(tmp_path):
    found = []
    for store in (None, fo.ClientStore()):
        home = tmp_path / str(store is None)
        played(home, 5, fo.scaffold(SGD), client_states=store)
        found.append(durable.read_json(home / "5" / "about.json")["program"])
    assert found[0] == found[1]


def with_another_example():
    examples = {name: np.array(values) for name, values in DATA.examples.items()}
    examples["x"][17, 0] += 1e-9
    return fo.ClientData(examples, DATA.offsets, DATA.sizes, DATA.known)


def test_every_example_is_looked_at(fedavg):
    with pytest.raises(ValueError, match=r"Other data: data.examples\['x'\]"):
        played(fedavg, 10, fo.fedavg(SGD), clients=with_another_example())


def rewritten(directory, number, change):
    """A checkpoint with another `about.json` and the checksum to it, as another program may write."""
    path = directory / str(number) / "about.json"
    about = durable.read_json(path)
    change(about)
    durable.write_json(path, about)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda about: about["versions"].update(jax="0.0.1"), "versions: jax is 0.0.1 there and"),
        (lambda about: about["program"].update(round=""), "program: the round computes someth"),
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
    rewritten(directory, 5, lambda about: about["program"].update(round=""))
    with pytest.warns(UserWarning, match=r"jax is 0\.0\.1 there .*; so the programs were not comp"):
        played(directory, 5, fo.fedavg(SGD), allow=["versions"])


def test_a_function_of_the_learning_rate_is_looked_into(tmp_path):
    def play(family, rate, rounds=5):
        return played(tmp_path, rounds, fo.scheduled(family, rate))

    play(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 0.1)
    with pytest.raises(ValueError, match="algorithm"):
        play(lambda eta: fo.fedprox(fo.optimizers.sgd(eta), 0.1), 0.1)
    with pytest.raises(ValueError, match=r"hyperparameters: .* is 0\.1 there and 0\.2 here"):
        play(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 0.2)


def test_data_in_files_are_known_by_the_checksums_of_the_files(tmp_path):
    stored, moved = (fo.data.store(DATA, tmp_path / name) for name in "ab")
    played(tmp_path / "run", 5, fo.fedavg(SGD), clients=stored)
    played(tmp_path / "run", 10, fo.fedavg(SGD), clients=moved)
    other = fo.data.store(with_another_example(), tmp_path / "c")
    with pytest.raises(ValueError, match=r"Other data: data\.files is files with checksum"):
        played(tmp_path / "run", 15, fo.fedavg(SGD), clients=other)
