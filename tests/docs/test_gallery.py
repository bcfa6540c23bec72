"""The gallery shows every algorithm, and what it says of them is what the code says now."""

import importlib
import pathlib
import re
import sys
import types

import jax
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import algorithms, wrappers
from fedjax_opt import optimizers as opt

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
IMAGES = ROOT / "docs" / "images" / "gallery"
SCRIPTS = ROOT / "benchmarks" / "gallery"


def _import(name):
    """A module of the script, whose folder is on the path only when it runs."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))


catalogue, page_writer, script = map(_import, ("catalogue", "page", "run"))
TEXT = PAGE.read_text(encoding="utf-8")
RESULTS = script.load_results()
SHOWN = {**catalogue.ENTRIES, **catalogue.WRAPPERS}
SAVED = {**RESULTS["algorithms"], **RESULTS["references"]}


def _public(module):
    return sorted(
        name
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, types.ModuleType) and not name.startswith("_")
    )


def _section(name):
    """What stands under a heading, up to the next one."""
    found = re.findall(rf"^### `{name}`\n(.*?)(?=^##|\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{name} has {len(found)} sections"
    return found[0]


def _part(name):
    """What the script wrote about one algorithm or wrapper."""
    section = _section(page_writer.anchor(name))
    found = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", section, flags=re.DOTALL)
    assert len(found) == 1, f"the section of {name} holds {len(found)} parts of that name"
    return found[0]


def test_public_names_are_found():
    """Functions, and none of the modules that they live in."""
    assert {"fedavg", "scaffold_m", "ghbm_theory"} <= set(_public(algorithms))
    assert "local_training" not in _public(algorithms)
    assert "aggregated" in _public(wrappers) and "aggregators" not in _public(wrappers)


@pytest.mark.parametrize("name", _public(algorithms) + _public(wrappers))
def test_every_public_algorithm_and_wrapper_has_a_section(name):
    """With its equations, when to use it, and a line that makes it by its own name."""
    section = _section(name)
    assert "```text\n" in section
    assert "**When:**" in section
    assert re.search(rf"^algorithm = fo\.{name}\(", section, flags=re.MULTILINE)


def test_every_part_is_about_a_public_name():
    """No section of an algorithm that is gone."""
    headings = re.findall(r"^### `(\w+)`$", TEXT, flags=re.MULTILINE)
    assert sorted(headings) == sorted(_public(algorithms) + _public(wrappers))
    assert {page_writer.anchor(name) for name in SHOWN} == set(headings)


@pytest.mark.parametrize("name", SHOWN)
def test_constructor_line_runs(name):
    """The line as it stands makes an algorithm that costs what its section says."""
    (code,) = re.findall(r"```python\n(.*?)```", _part(name), flags=re.DOTALL)
    namespace = {"fo": fo, "opt": opt, "optax": optax}
    exec(code, namespace)
    algorithm = namespace["algorithm"]
    assert isinstance(algorithm, fo.Algorithm)
    if name not in catalogue.ENTRIES:
        return
    with jax.numpy_dtype_promotion("standard"):  # optax.adam mixes dtypes in its own code
        now = page_writer.costs(algorithm)
    assert RESULTS["algorithms"][name]["costs"] == now
    _, _, row = re.findall(r"^\|(.*)\|$", _part(name), flags=re.MULTILINE)
    printed = [float(cell) for cell in row.split("|")]
    assert printed == [now[column] for column in page_writer.COST_COLUMNS]


def test_page_is_what_the_script_would_write_now():
    """Tables of costs are derived anew here; measurements are those that were saved."""
    with jax.numpy_dtype_promotion("standard"):  # optax.adam mixes dtypes in its own code
        parts = page_writer.generated_parts(RESULTS)
    assert page_writer.fill_page(TEXT, parts) == TEXT


def test_costs_are_in_units_of_the_model():
    """FedAvg is one model down and one up; SCAFFOLD two; Adam's statistics make it three."""
    columns = ("bytes_down", "bytes_up", "client_state", "server_state")

    def found(algorithm):
        costs = page_writer.costs(algorithm)
        return [costs[column] for column in columns]

    assert found(fo.fedavg(opt.sgd(0.1))) == [1, 1, 0, 1]
    assert found(fo.scaffold(opt.sgd(0.1))) == [2, 2, 1, 2]
    assert found(fo.fedgbo(opt.adam(0.1))) == [3, 1, 0, 3]
    assert found(fo.ghbm(opt.sgd(0.1), tau=4)) == [2, 1, 0, 5]  # 1 + tau, as its section says
    assert found(fo.ghbm_theory(opt.sgd(0.1), tau=4)) == [2, 1, 0, 6]  # 2 + tau


def test_images_are_those_of_the_algorithms():
    """Every one is linked, exists, is small, and was drawn of the step that was chosen."""
    linked = re.findall(r"\]\(images/gallery/([\w-]+)\.svg\)", TEXT)
    assert linked == list(catalogue.ENTRIES)
    assert sorted(linked) == sorted(path.stem for path in IMAGES.iterdir())
    for name in linked:
        drawing = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
        assert f"<dc:title>{script.plot_title(name, RESULTS)}</dc:title>" in drawing
        assert len(drawing.encode()) < 40_000


def test_results_are_of_this_task():
    """The saved numbers belong to the task and to the algorithms of the catalogue."""
    task = {name: RESULTS["task"][name] for name in catalogue.TASK}
    assert task == catalogue.TASK
    assert RESULTS["rounds"] == script.evaluated_rounds()
    assert list(RESULTS["algorithms"]) == list(catalogue.ENTRIES)
    assert list(RESULTS["references"]) == list(catalogue.REFERENCES)


@pytest.mark.parametrize("name", script.TRAINED)
def test_saved_numbers_agree_with_each_other(name):
    """The step is the best of its grid, the accuracy is the curve's end, and it did learn."""
    saved, entry = SAVED[name], script.TRAINED[name]
    steps = entry.steps
    by_step = saved["accuracy_by_step"]
    assert list(by_step) == [f"{eta:g}" for eta in steps]
    assert by_step[f"{saved['step']:g}"] == max(a for a in by_step.values() if a is not None)
    assert saved["step"] not in (steps[0], steps[-1]), "the best step may lie outside the grid"
    last = saved["mean"][-catalogue.TASK["last_evaluations"] :]
    assert saved["accuracy"] == pytest.approx(np.mean(last), abs=1e-4)
    if entry.own in (None, catalogue.OWN):
        assert saved["accuracy"] > 0.5 > 2 * saved["mean"][0]
    else:  # an initial model that was fine-tuned knows something of its client's few classes
        assert saved["accuracy"] > saved["mean"][0] + 0.1
    curves = [saved[key] for key in ("min", "mean", "max")]
    assert all(len(curve) == len(RESULTS["rounds"]) for curve in curves)
    assert all(low <= middle <= high for low, middle, high in zip(*curves, strict=True))


def test_personal_models_are_judged_by_their_users():
    """Whatever says which model is a client's own, and Per-FedAvg, whose models are one step away."""
    personal = {name for name, entry in catalogue.ENTRIES.items() if entry.make(0.1).personal}
    judged = {name for name, entry in catalogue.ENTRIES.items() if entry.own}
    assert judged == personal | {"per_fedavg"} and "pfedme" in personal
    assert all(entry.own for entry in catalogue.REFERENCES.values())
    for name in catalogue.ENTRIES:
        kind = "user" if name in judged else "test"
        assert f": {kind} accuracy over the rounds](images/gallery/{name}.svg)" in _part(name)


def test_user_accuracy_counts_digits_as_the_clients_have_them():
    """By hand: every client's model on every test image, each weighted by the client's share of it."""
    _, test = fo.data.load_digits()
    owned = [np.array([3, 3, 5, 3]), np.array([7]), np.arange(10)]
    data = fo.ClientData.from_list(
        [{"x": np.zeros((len(y), 64), np.float32), "y": y.astype(np.int32)} for y in owned]
    )
    keys = jax.random.split(jax.random.key(0), 3)
    models = jax.vmap(lambda key: catalogue.MODEL.init(key, data[0]))(keys)

    def own(client):
        return jax.tree.map(lambda leaf: leaf[client], models)

    expected = []
    for client, labels in enumerate(owned):
        first, last = (jax.tree.map(np.asarray, own(client).params[f"layer_{i}"]) for i in range(2))
        hidden = np.maximum(test["x"] @ first["w"] + first["b"], 0)
        right = np.argmax(hidden @ last["w"] + last["b"], axis=1) == test["y"]
        expected.append(np.mean([right[test["y"] == label].mean() for label in labels]))
    assert len(set(expected)) == 3
    with jax.numpy_dtype_promotion("standard"):  # with x64 on, argmax is int64 and digits are int32
        found = script.user_accuracy(own, data, test)
    assert found == pytest.approx(np.mean(expected), abs=1e-6)


def test_links_within_the_page_lead_to_headings():
    """By GitHub's rule: lower case, spaces to dashes, and only letters, digits, - and _."""
    headings = re.findall(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    for link in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert link in anchors, link


def test_a_part_that_is_missing_is_named():
    """The script does not drop a table in silence."""
    with pytest.raises(ValueError, match="'costs', found 0"):
        page_writer.fill_page("no markers", {"costs": "table"})
