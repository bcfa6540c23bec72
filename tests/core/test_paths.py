"""Patterns on paths: what they match, what they do not, and what is refused."""

import jax
import pytest

import fedjax_opt as fo
from fedjax_opt.core.paths import matcher

MATCHES = [
    ("params/w", "params/w"),
    ("params/*", "params/w"),
    ("params/layer_*/b", "params/layer_12/b"),
    ("params/*_norm", "params/_norm"),
    ("params/?", "params/w"),
    ("**", "params/a/b/c"),
    ("state/**", "state/batch_stats/BatchNorm_0/mean"),
    ("params/**/scale", "params/scale"),
    ("params/**/scale", "params/a/b/scale"),
    ("**/bias", "params/dense/bias"),
    ("params/**/BatchNorm_*/{scale,bias}", "params/block/BatchNorm_3/bias"),
    ("{params,state}/**/mean", "state/norm/mean"),
    ("params/{a/b,c}/w", "params/a/b/w"),
    ("params/{a,b{1,2}}", "params/b2"),
    ("params/{*_norm,head}/w", "params/last_norm/w"),
    ("params/a.b", "params/a.b"),
    ("params/a,b", "params/a,b"),
    ("params/[0]", "params/[0]"),
]
MISSES = [
    ("params/w", "params/w2"),
    ("params/w", "state/params/w"),
    ("params/*", "params/a/b"),
    ("*", "params/w"),
    ("params/?", "params/"),
    ("params/?", "params/ww"),
    ("params/**/scale", "params/rescale"),
    ("params/**/scale", "params/scale/w"),
    ("state/**", "params/state/w"),
    ("params/{scale,bias}", "params/scale,bias"),
    ("params/{scale,bias}", "params/scal"),
    ("params/a.b", "params/axb"),
    ("params/[0]", "params/0"),
]


@pytest.mark.parametrize(("pattern", "path"), MATCHES)
def test_pattern_matches(pattern, path):
    """`*` and `?` within a name, `**` across names, `{a,b}` for either, all else as it is."""
    assert matcher(pattern)(path, None)


@pytest.mark.parametrize(("pattern", "path"), MISSES)
def test_pattern_does_not_match(pattern, path):
    """A pattern is for the whole path."""
    assert not matcher(pattern)(path, None)


def test_several_patterns_match_what_any_of_them_matches():
    """As a list or a tuple."""
    chosen = matcher(["params/a|b", "params/{c,d}"])
    assert [chosen(f"params/{name}", None) for name in ("a|b", "a", "b", "c", "d", "e")] == [
        True, False, False, True, True, False,
    ]  # fmt: skip
    assert matcher(("a", "b"))("b", None)


def test_a_function_sees_path_and_leaf():
    """And is used as it is."""
    assert matcher(lambda path, leaf: (path, leaf) == ("params/w", 3))("params/w", 3)


@pytest.mark.parametrize("pattern", ["params/{a,b", "params/a}", "}{", "{{a}"])
def test_braces_that_do_not_match_are_refused(pattern):
    """With the pattern in the message."""
    with pytest.raises(ValueError, match="where has braces that do not match") as error:
        matcher(pattern)
    assert repr(pattern) in str(error.value)


@pytest.mark.parametrize("where", ["", [], [""], [3], ["a", None], 7])
def test_what_is_no_pattern_is_refused(where):
    """With what was given."""
    with pytest.raises(
        ValueError, match="where must be a pattern, several, or a function"
    ) as error:
        matcher(where)
    assert repr(where) in str(error.value)


def test_equal_patterns_make_equal_algorithms():
    """So that two of them share a compiled round; other patterns do not."""

    def structure(where):
        return jax.tree.structure(fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where))

    assert structure("params/{a,b}") == structure("params/{a,b}")
    assert hash(matcher("params/*")) == hash(matcher("params/*"))
    assert structure("params/a") != structure("params/b")
