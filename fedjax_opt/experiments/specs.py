"""One syntax for a named thing with arguments: `fedprox(learning_rate=0.1, mu=0.01)`.

    spec      name  or  name(key=value, ...), where a name may be package.module:function
    value     a number (10, 1e-3, inf), true, false, a word, a "quoted" or 'quoted' text,
              a list [value, ...], or a spec with its parentheses: top_k(sparsity=0.9)

Algorithms, wrappers, controllers and tasks are named in this way on the command line and in files. A
word needs quotes if it has spaces, commas, quotes, `=`, brackets or parentheses in it, or looks like a
number. What is read is data alone: nothing is evaluated.
"""

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
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"""[^\s,=()\[\]"']+""")
_SPACE = re.compile(r"\s*")
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
      The `Spec`. A text that is none is refused with where it went wrong.

    Example:
      >>> from fedjax_opt.experiments.specs import parse
      >>> parse("ghbm(tau=10, nesterov=true)").arguments
      {'tau': 10, 'nesterov': True}
    """
    reader = _Reader(text)
    spec = reader.spec()
    reader.end("the end")
    return spec


def parse_sum(text: str) -> tuple[Spec, ...]:
    """Reads specs with `+` between them: an algorithm and what is wrapped around it."""
    reader = _Reader(text)
    specs = [reader.spec()]
    while reader.mark("+"):
        specs.append(reader.spec())
    reader.end("'+' or the end")
    return tuple(specs)


def parse_value(text: str) -> Any:
    """Reads one value."""
    reader = _Reader(text)
    value = reader.value()
    reader.end("the end")
    return value


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


class _Reader:
    """A text, and how far it was read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def spec(self) -> Spec:
        name = self._take(_NAME, "a name")
        return Spec(name, self._arguments()) if self.mark("(") else Spec(name, {})

    def value(self) -> Any:
        if self.mark("["):
            return self._list()
        quote = self._peek()
        if quote == '"':
            return self._escaped()
        if quote == "'":
            return self._take(re.compile("'[^']*'"), "a closing '")[1:-1]
        start = self.at
        word = self._take(_WORD, "a value")
        if self._peek() != "(":
            return _meaning(word)
        self.at = start
        return self.spec()

    def mark(self, mark: str) -> bool:
        """Steps over a mark, if it is what comes next."""
        found = self._peek() == mark
        self.at += found
        return found

    def end(self, expected: str) -> None:
        if self._peek():
            raise self._error(expected)

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        while not self.mark(")"):
            if arguments and not self.mark(","):
                raise self._error("',' or ')'")
            key = self._take(_KEY, "an argument, key=value")
            if key in arguments:
                self.at -= len(key)
                raise self._error(f"another argument, since {key} was given already,")
            if not self.mark("="):
                raise self._error(f"'=' and a value for {key}")
            arguments[key] = self.value()
        return arguments

    def _list(self) -> tuple[Any, ...]:
        values: list[Any] = []
        while not self.mark("]"):
            if values and not self.mark(","):
                raise self._error("',' or ']'")
            values.append(self.value())
        return tuple(values)

    def _escaped(self) -> str:
        try:
            text, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            raise self._error('a text in double quotes, with \\" and \\\\ inside,') from None
        return text

    def _peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        self.at = self._after(_SPACE)
        return self.text[self.at : self.at + 1]

    def _after(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        return match.end() if match else self.at

    def _take(self, pattern: re.Pattern[str], expected: str) -> str:
        self._peek()
        start, end = self.at, self._after(pattern)
        if start == end:
            raise self._error(expected)
        self.at = end
        return self.text[start:end]

    def _error(self, expected: str) -> ValueError:
        shown = _SPACE.sub(lambda spaces: " " * len(spaces.group()), self.text)
        found = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
        return ValueError(
            f"Cannot read {self.text!r}: expected {expected} at character {self.at + 1}, found"
            f" {found}.\n  {shown}\n  {' ' * self.at}^"
        )
