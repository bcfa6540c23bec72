"""Units, ticks, and names that do not overlap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_opt.experiments.report.scales import (
    in_unit,
    linear,
    logarithmic,
    tick_text,
    unit_of,
)
from fedjax_opt.experiments.report.svg import spread

positive = st.floats(1e-6, 1e9)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e9), st.integers(4, 9))
def test_ticks_are_few_even_and_inside(low, width, count):
    scale = linear(low, low + width, count)
    ticks = np.array(scale.ticks)
    room = 1e-6 * (scale.high - scale.low)
    assert 2 <= len(ticks) <= count + 1
    assert np.all((ticks >= scale.low - room) & (ticks <= scale.high + room))
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-6)
    assert np.all((scale.place(ticks) > -1e-6) & (scale.place(ticks) < 1 + 1e-6))


@given(positive, st.floats(1.0, 1e12))
def test_ticks_of_factors(low, factor):
    scale = logarithmic(low, low * factor)
    assert len(scale.ticks) <= 9
    places = scale.place(np.array(scale.ticks))
    assert np.all(np.diff(places) > 0) and np.all((places > -1e-6) & (places < 1 + 1e-6))


def test_an_axis_of_one_value():
    assert linear(3.0, 3.0).place(3.0) == 0.5
    assert linear(0.0, 0.0).place(0.0) == 0.5
    assert logarithmic(2.0, 2.0).place(2.0) == 0.5
    assert np.isnan(logarithmic(1.0, 2.0).place(0.0))


def test_round_ticks():
    assert linear(0.0, 1000.0).ticks == (0, 200, 400, 600, 800, 1000)
    assert linear(0.0, 0.7).ticks == pytest.approx((0, 0.2, 0.4, 0.6))
    assert logarithmic(1.0, 100.0).ticks == (1, 2, 5, 10, 20, 50, 100)
    assert [tick_text(x) for x in (0.1 + 0.2, 1000, 25_000, 1e8, 2e-7)] == [
        *("0.3", "1000", "25,000", "1e8", "2e-7")
    ]


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        ("bytes", 999.0, "999 B"),
        ("bytes", 1000.0, "1.00 kB"),
        ("bytes", 34.7e9, "34.7 GB"),
        ("flops", 8.1e15, "8.10 PFLOP"),
        ("seconds", 0.002, "2.00 ms"),
        ("seconds", 59.0, "59.0 s"),
        ("seconds", 3600.0, "1.00 h"),
        ("seconds", 2 * 86_400.0, "2.00 days"),
        ("bytes", 1e-3, "0.00100 B"),
        ("rounds", 50.0, "50 "),
        ("rounds", 12_000.0, "12,000 "),
    ],
)
def test_numbers_with_units(quantity, value, text):
    unit = unit_of(quantity, [value])
    assert f"{in_unit(value, unit)} {unit.name}" == text


def test_a_unit_fits_the_middle_of_many_values():
    assert unit_of("bytes", [2e6, 3e9, 4e9]).name == "GB"
    assert unit_of("bytes", []).name == unit_of("bytes", [0.0]).name == "B"


@given(st.lists(st.floats(0, 300), max_size=20))
def test_names_are_spread_apart_in_their_order(heights):
    heights = sorted(heights)
    places = spread(heights, 12.0, 0.0, 300.0)
    assert np.all(np.diff(places) > 12.0 - 1e-6)
    assert all(-1e-6 <= place <= 300 + 1e-6 for place in places)
    if np.all(np.diff(heights) >= 12.0):
        np.testing.assert_allclose(places, heights, atol=1e-9)
