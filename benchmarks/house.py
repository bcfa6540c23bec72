"""Measure the sources of a package: its size, its longest function, its cycles, what one run enters.

    python benchmarks/house.py                       # this package and optax
    python benchmarks/house.py ../before/fedjax_opt  # another checkout's package
    python benchmarks/house.py --rooms               # by folder

How it is counted:
  code       lines that hold a token other than a comment; docstrings are left out.
  longest    the lines of a function from `def` to its end, without its docstring.
  Any        uses of the name in annotations and aliases of types, not its imports.
  comments   comments per 100 lines, without licences at the head of a file and directives to tools.
  cycles     sets of modules that import each other: at their tops, and with imports inside functions.
  entered    what `simulate(fedavg, quadratics, strategy="scan")` calls when nothing is compiled yet:
             files and functions of the package, in any thread. Of optax, one step of SGD.
"""

import argparse
import ast
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "fedjax_opt"
# The rooms that one run goes through; before they were parted, all of it was `core`.
OF_A_RUN = ("core", "engine", "execution", "storage", "training")

_DIRECTIVE = re.compile(r"#\s*(noqa|type:|pyright:|pylint:|fmt:|ruff:|pragma|pytype:|doctest:)")
_WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(NamedTuple):
    """What one file has.

    Attributes:
      room: the folder it is in, below the package; '' for the package's own.
      name: the module's name, with the package's.
      is_init: whether it is a folder's `__init__.py`.
      lines, code, comments, any_uses: counts.
      longest, longest_name: the lines of its longest function, and which that is.
      at_top, anywhere: modules that it imports, at its top and wherever.
    """

    room: str
    name: str
    is_init: bool
    lines: int
    code: int
    comments: int
    any_uses: int
    longest: int
    longest_name: str
    at_top: frozenset[str]
    anywhere: frozenset[str]


def read_package(package: Path) -> list[Source]:
    """All files of a package, in order; optax has its tests among them, which are left out."""
    files = [path for path in sorted(package.rglob("*.py")) if not path.stem.endswith("_test")]
    names = {module_name(path, package) for path in files}
    return [read_source(path, package, names) for path in files]


def module_name(path: Path, package: Path) -> str:
    """The dotted name of a file; a folder's for its `__init__.py`."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_source(path: Path, package: Path, names: set[str]) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = docstring_lines(tree)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    with_code: set[int] = set()
    for token in tokens:
        if token.type not in _WITHOUT_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    first_code = min(with_code, default=0)
    comments = [t for t in tokens if t.type == tokenize.COMMENT and t.start[0] > first_code]
    longest, longest_name = max(function_lengths(tree), default=(0, ""))
    folders = path.relative_to(package).parts[:-1]
    name = module_name(path, package)
    return Source(
        room=folders[0] if folders else "",
        name=name,
        is_init=path.name == "__init__.py",
        lines=len(text.splitlines()),
        code=len(with_code - docstrings),
        comments=sum(not _DIRECTIVE.match(token.string) for token in comments),
        any_uses=any_uses(tree),
        longest=longest,
        longest_name=f"{name}.{longest_name}" if longest else "",
        at_top=frozenset(imports(tree, name, path, names, inside_functions=False)),
        anywhere=frozenset(imports(tree, name, path, names, inside_functions=True)),
    )


def docstring_of(node: ast.AST) -> ast.Expr | None:
    """The statement that is the docstring of a module, class or function."""
    if not isinstance(node, _SCOPES) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first if isinstance(first.value.value, str) else None
    return None


def docstring_lines(tree: ast.AST) -> set[int]:
    found = filter(None, map(docstring_of, ast.walk(tree)))
    return {line for d in found for line in range(d.lineno, end_of(d) + 1)}


def end_of(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def function_lengths(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(lines without the docstring, name) of every function."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = docstring_of(node)
            without = end_of(docstring) - docstring.lineno + 1 if docstring else 0
            yield end_of(node) - node.lineno + 1 - without, node.name


def any_uses(tree: ast.AST) -> int:
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def imports(
    tree: ast.Module, name: str, path: Path, names: set[str], *, inside_functions: bool
) -> Iterator[str]:
    """The package's modules that a module imports; `from package import module` is the module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    nodes = ast.walk(tree) if inside_functions else at_import(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names - {name})
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                found = f"{base}.{alias.name}"
                found = found if found in names else base
                if found in names and found != name:
                    yield found


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from at_import(child)


def cycles(imported: dict[str, frozenset[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(imported[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in imported:
        if name not in order:
            visit(name)
    return found


def summary(sources: list[Source]) -> dict[str, object]:
    """The numbers of some files together."""
    lines = sum(source.lines for source in sources)
    longest = max(sources, key=lambda source: source.longest)
    return {
        "modules": len(sources),
        "lines": lines,
        "code": sum(source.code for source in sources),
        "comments": round(100 * sum(source.comments for source in sources) / max(lines, 1), 1),
        "Any": sum(source.any_uses for source in sources),
        "longest": longest.longest,
        "function": longest.longest_name.partition(".")[2],
    }


def of_package(package: Path) -> dict[str, object]:
    """Everything that is printed of a package."""
    sources = read_package(package)
    # An `__init__` gathers its folder's names for users: it is no part of a cycle.
    modules = [source for source in sources if not source.is_init]
    inside = {source.name for source in modules}
    at_top = cycles({s.name: s.at_top & inside for s in modules})
    anywhere = cycles({s.name: s.anywhere & inside for s in modules})
    rooms = {room: [s for s in sources if s.room == room] for room in {s.room for s in sources}}
    run = [s for s in sources if s.room in OF_A_RUN]
    entered = entered_files(package)
    return {
        "package": str(package),
        **summary(sources),
        "largest room": max(map(len, rooms.values())),
        "cycles": at_top,
        "cycles with imports in functions": anywhere,
        "entered": entered,
        "files entered": len(entered),
        "functions entered": sum(map(len, entered.values())),
        "rooms": {room or "(top)": summary(rooms[room]) for room in sorted(rooms)}
        | ({"of a run": summary(run)} if run else {}),
    }


# What one run enters --------------------------------------------------------------------------


def entered_files(package: Path) -> dict[str, list[str]]:
    """{file: its functions} that the package's program calls, asked of a fresh process."""
    if package.name not in PROGRAMS:
        return {}
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).resolve()), "--enter", str(package)]
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    # From another folder: the one that this runs in may hold a package of the same name.
    answer = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=package.parent
    )
    if answer.returncode:
        sys.exit(answer.stderr)
    return json.loads(answer.stdout.splitlines()[-1])


def trace(package: Path) -> dict[str, list[str]]:
    """In a process of its own: the functions of a package that its program calls, by file."""
    import threading

    import jax

    run = PROGRAMS[package.name]()
    jax.clear_caches()
    codes = set()

    def note(frame, event, _):
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    run()
    sys.setprofile(None)
    threading.setprofile(None)
    found: dict[str, set[str]] = {}
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(package) and code.co_name != "<module>":
            name = f"{code.co_qualname}:{code.co_firstlineno}"
            found.setdefault(str(path.relative_to(package)), set()).add(name)
    return {name: sorted(functions) for name, functions in sorted(found.items())}


def _simulate():
    import fedjax_opt as fo

    model, clients, _ = fo.data.quadratics(num_clients=10, dimension=3)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    options = {"local_steps": 5, "batch_size": 1}
    if hasattr(fo, "Federation"):
        federation = fo.Federation(model, clients, cohort=5, **options)
        return lambda: fo.simulate(algorithm, federation, 20, strategy="scan")
    return lambda: fo.simulate(
        algorithm, model, clients, rounds=20, cohort_size=5, strategy="scan", **options
    )


def _optax_step():
    import jax.numpy as jnp
    import optax

    optimizer, params = optax.sgd(0.1), {"w": jnp.ones(3)}

    def step():
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    return step


PROGRAMS = {"fedjax_opt": _simulate, "optax": _optax_step}


# Printing -------------------------------------------------------------------------------------


def show_packages(found: list[dict]) -> None:
    names = [Path(one["package"]).name for one in found]
    rows = [
        "lines", "code", "modules", "largest room", "longest", "function", "Any", "comments",
        "files entered", "functions entered",
    ]  # fmt: skip
    table = [["", *names]] + [[row, *(str(one[row]) for one in found)] for row in rows]
    for row in ("cycles", "cycles with imports in functions"):
        counts = [f"{len(one[row])} ({sum(map(len, one[row]))} modules)" for one in found]
        table.append([row, *counts])
    show(table)


def show_rooms(rooms: dict[str, dict]) -> None:
    columns = ["modules", "lines", "code", "comments", "Any", "longest", "function"]
    show(
        [["", *columns], *([room, *(str(row[c]) for c in columns)] for room, row in rooms.items())]
    )


def show(table: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", type=Path, help="folders of packages")
    parser.add_argument("--rooms", action="store_true", help="a table by folder, too")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--enter", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.enter:
        print(json.dumps(trace(args.enter.resolve())))
        return
    packages = args.packages
    if not packages:
        optax = importlib.util.find_spec("optax")
        packages = [PACKAGE] + ([Path(optax.origin).parent] if optax and optax.origin else [])
    found = [of_package(package.resolve()) for package in packages]
    if args.json:
        print(json.dumps(found, indent=1))
        return
    show_packages(found)
    if args.rooms:
        for one in found:
            print(f"\n{one['package']}")
            show_rooms(one["rooms"])


if __name__ == "__main__":
    main()
