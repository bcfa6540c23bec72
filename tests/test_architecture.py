"""The arrows between the rooms of the house, read from the sources."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "fedjax_opt"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each room may import of the house. A room that is not listed may import anything.
ALLOWED = {
    "kernels": {"kernels"},
    "core": {"core", "kernels"},
    "execution": {"core", "execution"},
    "engine": {"core", "engine", "execution"},
    "storage": {"core", "execution", "storage"},
    "training": {"core", "engine", "execution", "storage", "training"},
    "optimizers": {"core", "optimizers"},
    "compression": {"core", "engine", "compression"},
    "algorithms": {"core", "optimizers", "compression", "algorithms", "wrappers"},
    "wrappers": {"core", "engine", "optimizers", "compression", "algorithms", "wrappers"},
    "data": {"core", "data"},
    "models": {"core", "kernels", "models"},
    "metrics": {"core", "engine", "algorithms", "metrics"},
    "bounds": {"core", "bounds"},
    "costs": {"core", "engine", "metrics", "costs"},
    "controllers": {"core", "engine", "bounds", "controllers"},
    "tasks": {
        "core",
        "optimizers",
        "algorithms",
        "wrappers",
        "data",
        "models",
        "tasks",
    },
    "planning": {"core", "algorithms", "bounds", "costs", "optimizers", "planning"},
}
ANYTHING = {"cli", "experiments"}


def name_of(path):
    return str(path.relative_to(PACKAGE))


def imported_modules(tree):
    """Absolute names of everything that a module imports, at its top or inside its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_of(tree):
    parts = (name.split(".") for name in imported_modules(tree))
    return {p[1] for p in parts if p[0] == "fedjax_opt" and len(p) > 1}


def test_every_room_has_its_arrows():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= ALLOWED.keys() | ANYTHING
    assert rooms >= ALLOWED.keys()


@pytest.mark.parametrize("room", ALLOWED)
def test_arrows(room):
    files = [path for path in FILES if path.is_relative_to(PACKAGE / room)]
    assert files
    wrong = {
        name_of(path): sorted(extra)
        for path in files
        if (extra := rooms_of(ast.parse(path.read_text(encoding="utf-8"))) - ALLOWED[room])
    }
    assert not wrong


def test_the_reader_of_imports_sees_all_kinds():
    source = (
        "import fedjax_opt.data.bundled\n"
        "from fedjax_opt import models\n"
        "def f():\n"
        "    from fedjax_opt.costs.traffic import of\n"
    )
    assert rooms_of(ast.parse(source)) == {"data", "models", "costs"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_pickles(path):
    """A pickle runs code when it is read. One file reads one, and allows it three names."""
    if path == PACKAGE / "data" / "pickled.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = {name.split(".")[0] for name in imported_modules(tree)}
    assert not first & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    for keyword in keywords:
        if keyword.arg == "allow_pickle":
            assert ast.literal_eval(keyword.value) is False
