"""Patterns on the paths of leaves."""

import re
from collections.abc import Callable, Sequence

from fedjax_opt.core.aliases import Tree

Matcher = Callable[[str, Tree], bool]


def matcher(where: str | Sequence[str] | Matcher) -> Matcher:
    """A function of (path, leaf) from patterns, or the function itself.

    In 'params/**/BatchNorm_*/{scale,bias}' `*` stands for anything within a name, `**` for any number of
    names, `{a,b}` for a or b.
    """
    if callable(where):
        return where
    patterns = (where,) if isinstance(where, str) else where
    patterns = tuple(patterns) if isinstance(patterns, Sequence) else ()
    if not patterns or not all(isinstance(p, str) and p for p in patterns):
        raise ValueError(f"where must be a pattern, several, or a function, got {where!r}.")
    return _Matcher("|".join(f"(?:{_regex(pattern)})" for pattern in patterns))


class _Matcher:
    """Compared by its pattern, so that two algorithms with the same pattern share a program."""

    def __init__(self, expression: str):
        self.expression = re.compile(expression)

    def __call__(self, path: str, leaf: object) -> bool:
        del leaf
        return self.expression.fullmatch(path) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Matcher) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)


def _regex(pattern: str) -> str:
    translated = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
    depth, result = 0, []
    for token in re.findall(r"\*\*/|\*\*|.", pattern):
        depth += (token == "{") - (token == "}")
        if depth < 0:
            break
        result.append("|" if token == "," and depth else translated.get(token, re.escape(token)))
    if depth != 0:
        raise ValueError(f"where has braces that do not match: {pattern!r}.")
    return "".join(result)
