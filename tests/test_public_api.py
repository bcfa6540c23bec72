"""Every public name is exported on purpose, documented, and shown at work."""

import ast
import inspect
import pathlib
import re
import types

import pytest

import fedjax_opt as fo
from fedjax_opt import algorithms, wrappers

NAMESPACES = {
    "fedjax_opt": fo,
    "optimizers": fo.optimizers,
    "data": fo.data,
    "models": fo.models,
    "cohorts": fo.cohorts,
    "distributed": fo.distributed,
    "metrics": fo.metrics,
    "bounds": fo.bounds,
    "costs": fo.costs,
    "experiments": fo.experiments,
    "controllers": fo.controllers,
    "planning": fo.planning,
    "wrappers": wrappers,
    "attacks": fo.attacks,
}


def own_names(namespace):
    """Public names: what a package exports, and what a module defines."""
    for name, value in vars(namespace).items():
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        is_package = hasattr(namespace, "__path__")
        if is_package or getattr(value, "__module__", None) == namespace.__name__:
            yield name, value


PUBLIC = {
    f"{where}.{name}": value
    for where, namespace in NAMESPACES.items()
    for name, value in own_names(namespace)
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def methods(cls):
    """The public methods and constructors that a class itself defines."""
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def undocumented_arguments(function, skip=("self", "cls")):
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    body = section.group(1) if section else ""
    together = re.findall(
        r"^  \*{0,2}(\w+(?:`?, `?\w+)*):", body, re.M
    )  # 'eps, initial_v: as for ...'
    documented = {name for names in together for name in re.findall(r"\w+", names)}
    return [
        name for name in inspect.signature(function).parameters if name not in (*skip, *documented)
    ]


def test_everything_is_a_function_a_class_or_a_module():
    assert set(PUBLIC) == set(FUNCTIONS) | set(CLASSES)
    assert len(FUNCTIONS) > 20 and len(CLASSES) > 10


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_line_is_a_sentence(name):
    # Of the object itself: getdoc would show a parent's, and a NamedTuple has a generated one.
    text = PUBLIC[name].__doc__
    assert text, "no docstring"
    first = text.split("\n")[0]
    assert re.match(r"[A-Z0-9`]", first) and first.endswith("."), first


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_document_their_arguments_and_show_an_example(name):
    assert undocumented_arguments(FUNCTIONS[name]) == []
    text = inspect.getdoc(FUNCTIONS[name])
    assert "Example:" in text and ">>>" in text.split("Example:")[1]


@pytest.mark.parametrize("name", CLASSES)
def test_classes_document_their_fields(name):
    cls = CLASSES[name]
    fields = getattr(cls, "_fields", None) or getattr(cls, "__dataclass_fields__", ())
    text = inspect.getdoc(cls)
    if "Attributes:" in text:
        assert [field for field in fields if not re.search(rf"^  {field}:", text, re.M)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_methods_are_documented(name):
    for method, function in methods(CLASSES[name]):
        text = inspect.getdoc(function)
        assert text and text.split("\n")[0].endswith("."), method
        if "Args:" in text:
            assert undocumented_arguments(function) == [], method


@pytest.mark.parametrize(
    "where", sorted({*NAMESPACES, "core", "algorithms"} - {"cohorts", "attacks", "distributed"})
)
def test_exports_are_explicit(where):
    """`import x as x` says that a name is meant to be found here; nothing else is at the top.

    Algorithms are listed once, in their room; the package takes them all from there.
    """
    package = pathlib.Path(fo.__file__).parent
    path = (package if where == "fedjax_opt" else package / where) / "__init__.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if node.names[0].name == "*":  # the room's own list, which is explicit
                assert node.module == "fedjax_opt.algorithms"
                continue
            for alias in node.names:
                assert alias.asname in (name := alias.name.split(".")[-1], f"_{name}")


def test_algorithms_are_reached_from_the_top():
    for room in (algorithms, wrappers):
        for name, value in own_names(room):
            assert getattr(fo, name) is value
