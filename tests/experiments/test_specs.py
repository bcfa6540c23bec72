"""Specs: what is written is what is read, and what cannot be read says where."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.experiments.specs import (
    Spec,
    format_value,
    nearest,
    parse,
    parse_sum,
    parse_value,
    unknown,
)

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]*", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["true", "false", "1", "1e5", "inf", "-inf", "nan", ".5", "a b", "", "x'\"", "="])
)  # fmt: skip


def specs_of(values):
    return st.builds(Spec, NAMES, st.dictionaries(KEYS, values, max_size=4))


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | specs_of(inner),
    max_leaves=10,
)
SPECS = specs_of(VALUES)


# Compared by what they look like: 1, 1.0 and True are equal, 0.0 and -0.0 too.
@given(SPECS)
def test_specs_round_trip(spec):
    assert repr(parse(str(spec))) == repr(spec)


@settings(max_examples=30)
@given(VALUES)
def test_values_round_trip(value):
    assert repr(parse_value(format_value(value))) == repr(value)


@settings(max_examples=20)
@given(st.lists(SPECS, min_size=1, max_size=4).map(tuple))
def test_sums_round_trip(specs):
    assert repr(parse_sum(" + ".join(map(str, specs)))) == repr(specs)


@given(st.text("ab1.-+ (),=[]\"'\\e\n\t", max_size=20))
def test_any_text_is_read_or_refused(text):
    """What is read is written in one form alone, however it was typed."""
    try:
        spec = parse(text)
    except ValueError:
        return
    assert repr(parse(str(spec))) == repr(spec)


@pytest.mark.parametrize(
    "text, value",
    [
        ("10", 10),
        ("+10", 10),
        ("-3", -3),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("5.", 5.0),
        ("inf", float("inf")),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("nan", "nan"),
        ("first_order", "first_order"),
        ("params/**/BatchNorm_*/scale", "params/**/BatchNorm_*/scale"),
        ("'{scale,bias}'", "{scale,bias}"),
        (r"'C:\data'", r"C:\data"),
        (r'"a \"b\"\n"', 'a "b"\n'),
        ("[]", ()),
        ("[1, [2, x]]", (1, (2, "x"))),
        ("sign()", Spec("sign", {})),
        ("sign", "sign"),
        ("top_k (sparsity = 0.9)", Spec("top_k", {"sparsity": 0.9})),
    ],
)
def test_values(text, value):
    assert repr(parse_value(f"  {text}  ")) == repr(value)


def test_specs_with_and_without_arguments():
    assert parse("fedavg") == parse("fedavg()") == Spec("fedavg")
    assert str(parse(" fedgbo-adam ( learning_rate=1e-2 ,b1=0.9 ) ")) == (
        "fedgbo-adam(learning_rate=0.01, b1=0.9)"
    )


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "invalid syntax"),
        ("1fedavg", "expected a name"),
        ("10", "expected a name"),
        ("[fedavg]", "expected a name"),
        ("fedavg(", "'(' was never closed"),
        ("fedavg(0.1)", "the arguments of fedavg need names, key=value"),
        ("fedavg(a 0.1)", "the arguments of fedavg need names, key=value"),
        ("fedavg(1a=2)", "'1a' is no name of an argument"),
        ("fedavg(a=1 b=2)", "Perhaps you forgot a comma"),
        ("fedavg(a=b c)", "expected a value"),
        ("fedavg(a='b' 'c')", "expected a value"),
        ("fedavg(a=1, a=2)", "a is given twice"),
        ("fedavg(a=[1 2])", "expected a value"),
        ("fedavg(a=(1, 2))", "expected a value"),
        ("fedavg(a='x)", "unterminated string"),
        ('fedavg(a="x)', "unterminated string"),
        (r'fedavg(a="\x")', "Invalid"),
        ("fedavg) + x", "unmatched ')'"),
        ("fedavg + x", "expected a"),
        ("fedavg(a=b(c))", "the arguments of b need names"),
        ("f(a=__import__('os').system('true'))", "invalid syntax"),
    ],
)
def test_a_text_that_is_no_spec_says_why(text, why):
    with pytest.raises(ValueError, match="Cannot read") as caught:
        parse(text)
    assert str(caught.value).startswith(f"Cannot read {text!r}: ")
    assert why in str(caught.value) and "Write name or name(key=value, ...)" in str(caught.value)


def test_sums_need_something_between():
    for text in ("fedavg clipped", "fedavg +", "+ fedavg", "fedavg ++ clipped"):
        with pytest.raises(ValueError, match="Cannot read"):
            parse_sum(text)
    assert parse_sum("fedavg+clipped(max_norm=1e+5)\n + private") == (
        Spec("fedavg"), Spec("clipped", {"max_norm": 1e5}), Spec("private"),
    )  # fmt: skip


def test_numbers_of_numpy_are_written_as_numbers():
    values = (np.float32(0.5), np.float64(0.1), np.int64(3), np.bool_(True), [1, 2])
    assert format_value(values) == "[0.5, 0.1, 3, true, [1, 2]]"


@pytest.mark.parametrize("value", [None, float("nan"), {"a": 1}, object(), np.ones(2)])
def test_what_no_text_can_say_is_refused(value):
    with pytest.raises(ValueError, match="A spec holds numbers"):
        format_value(value)


def test_nearest():
    known = ("fedavg", "fedavgm", "fedprox", "K-rounds", "clipped.max_norm")
    assert nearest("FedAvg", known) == "fedavg"
    assert nearest("fed_prx", known) == "fedprox"
    assert nearest("k_round", known) == "K-rounds"
    assert nearest("max_norm", known) == "clipped.max_norm"
    assert nearest("zzz", known) == ""


def test_unknown_names_are_told_apart():
    assert str(unknown("key", "sead", ["seeds"], "See all.")) == (
        "key 'sead' is not known. Did you mean 'seeds'? See all."
    )
    assert str(unknown("key", "xyz", ["seeds"], "See all.")) == "key 'xyz' is not known. See all."
