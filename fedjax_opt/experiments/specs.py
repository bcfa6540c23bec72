"""One syntax for a named thing with arguments: `fedprox(learning_rate=0.1, mu=0.01)`.

    spec      name  or  name(key=value, ...), where a name may be package.module:function
    value     a number (10, 1e-3, inf), true, false, a word, a "quoted" or 'quoted' text,
              a list [value, ...], or a spec with its parentheses: top_k(sparsity=0.9)

Algorithms, wrappers, controllers and tasks are named in this way on the command line and in files. A
word needs quotes if it has spaces, commas, quotes, `=`, `+`, brackets or parentheses in it, or looks
like a number. Python's `ast` reads it, after words that Python would not read, such as `../leaf/data` or
`fedgbo-adam`, are put in quotes. What is read is data alone: nothing is evaluated.
"""

import ast
import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

# Also where a function is, package.module:function.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*|[A-Za-z][A-Za-z0-9_-]*")
# A plus sign belongs to a word in 1e+5 alone.
_WORD = re.compile(r"""(?:[^\s,=()\[\]"'+]|(?<=[0-9.][eE])\+(?=[0-9]))+""")
_TOKEN = re.compile(rf"""("(?:[^"\\]|\\.)*")|('[^']*')|({_WORD.pattern})|\s+""", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")


class Spec(NamedTuple):
    """A name and its arguments; `str` gives the text that `parse` reads.

    Attributes:
      name: what is meant.
      arguments: values by key: numbers, True or False, words, tuples of values, or other specs.

    Example:
      >>> from fedjax_opt.experiments.specs import Spec
      >>> str(Spec("fedprox", {"learning_rate": 0.1, "mu": 1e-5}))
      'fedprox(learning_rate=0.1, mu=1e-05)'
    """

    name: str
    arguments: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        return _called(self) if self.arguments else self.name


def parse(text: str) -> Spec:
    """Reads one spec.

    Args:
      text: `name` or `name(key=value, ...)`.

    Returns:
      The `Spec`. A text that is none is refused.

    Example:
      >>> from fedjax_opt.experiments.specs import parse
      >>> parse("ghbm(tau=10, nesterov=true)").arguments
      {'tau': 10, 'nesterov': True}
    """
    return _spec(text, _tree(text))


def parse_sum(text: str) -> tuple[Spec, ...]:
    """Reads specs with `+` between them: an algorithm and what is wrapped around it."""
    tree, specs = _tree(text), []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        specs.append(_spec(text, tree.right))
        tree = tree.left
    return (_spec(text, tree), *reversed(specs))


def parse_value(text: str) -> Any:
    """Reads one value."""
    return _value(text, _tree(text))


def format_value(value: Any) -> str:
    """The text of a value, as `parse_value` reads it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Spec):
        return _called(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and not math.isnan(value)):
        return repr(value)
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and isinstance(_meaning(value), str)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(format_value, value))}]"
    raise ValueError(
        f"A spec holds numbers, true, false, words, lists of them and other specs; got {value!r}."
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like another one; empty if none is."""
    form, by_form = _loose(name), {_loose(other): other for other in known}
    found = [other for other in by_form if sorted(other) == sorted(form)]
    found += sorted((other for other in by_form if len(form) > 2 and form in other), key=len)
    found += difflib.get_close_matches(form, by_form, n=1, cutoff=0.5)
    return by_form[found[0]] if found else ""


def unknown(what: str, name: str, known: Iterable[str], advice: str) -> ValueError:
    """The error for a name that is not known, with the nearest one that is."""
    near = nearest(name, known)
    hint = f" Did you mean {near!r}?" if near else ""
    return ValueError(f"{what} {name!r} is not known.{hint} {advice}")


def _loose(name: str) -> str:
    return name.lower().replace("-", "_")


def _called(spec: Spec) -> str:
    inside = ", ".join(f"{key}={format_value(value)}" for key, value in spec.arguments.items())
    return f"{spec.name}({inside})"


def _meaning(word: str) -> Any:
    """What an unquoted word stands for."""
    if word in ("true", "false"):
        return word == "true"
    if _INTEGER.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(_TOKEN.sub(_as_python, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, getattr(error, "msg", str(error))) from None


def _as_python(token: re.Match[str]) -> str:
    """A quoted text or a word as a literal of Python; `name(` as `_['name'](` and `key=` as `k_key=`."""
    escaped, quoted, word = token.groups()
    if not token.group().strip():
        return " "
    if word is None:
        # In parentheses: Python joins texts that stand side by side.
        return f"({(json.loads(escaped) if escaped else quoted[1:-1])!r})"
    after = token.string[token.end() :].lstrip()[:1]
    if after == "(":
        return f"_[{word!r}]"
    if after == "=":
        if not word.isidentifier():
            raise ValueError(f"{word!r} is no name of an argument")
        return f"k_{word}"
    shown = repr(_meaning(word))
    return f"({shown})" if shown[0] in "'\"" else f"({shown.replace('inf', '1e999')})"


def _spec(text: str, node: ast.AST) -> Spec:
    """A call, or a name alone."""
    found = _value(text, node)
    spec = Spec(found, {}) if isinstance(found, str) else found
    if not isinstance(spec, Spec) or not _NAME.fullmatch(spec.name):
        raise _unreadable(text, "expected a name")
    return spec


def _value(text: str, node: ast.AST) -> Any:
    match node:
        case ast.Call(ast.Subscript(_, ast.Constant(str(name))), positional, keywords):
            if positional:
                raise _unreadable(text, f"the arguments of {name} need names, key=value")
            keys = [str(each.arg)[2:] for each in keywords]
            for key in keys:
                if keys.count(key) > 1:
                    raise _unreadable(text, f"{key} is given twice")
            values = [_value(text, each.value) for each in keywords]
            named = _spec(text, ast.Constant(name))
            return named._replace(arguments=dict(zip(keys, values, strict=True)))
        case ast.List(items):
            return tuple(_value(text, item) for item in items)
        case ast.Constant(value):
            return value
        case ast.UnaryOp(sign, ast.Constant(int() | float() as value)):
            return -value if isinstance(sign, ast.USub) else value
    raise _unreadable(text, "expected a value")


def _unreadable(text: str, why: str) -> ValueError:
    return ValueError(
        f"Cannot read {text!r}: {why.rstrip('.')}. Write name or name(key=value, ...)."
    )
