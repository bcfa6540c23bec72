"""Quantities with units, and those that are refused."""

import pytest

from fedjax_opt.cli.units import parse

# In Mbit, Mbit/s and s.
RIGHT = [
    ("6.71Mbit", "size", 6.71),
    ("6.71 mbit", "size", 6.71),
    ("1e3 kbit", "size", 1.0),
    ("2GB", "size", 16_000.0),
    ("850kB", "size", 6.8),
    ("1.5MiB", "size", 1.5 * 2**20 * 8e-6),
    ("209662params", "size", 6.709184),
    ("4 bytes", "size", 32e-6),
    ("20Mbit/s", "rate", 20.0),
    ("20Mbps", "rate", 20.0),
    ("20mbps", "rate", 20.0),
    ("2.5MB/s", "rate", 20.0),
    ("2.5MBps", "rate", 20.0),
    ("1GiB/s", "rate", 2**30 * 8e-6),
    ("17ms", "time", 0.017),
    ("30 min", "time", 1800.0),
    ("2days", "time", 172_800.0),
    (".5h", "time", 1800.0),
]


@pytest.mark.parametrize(("text", "kind", "value"), RIGHT)
def test_units(text, kind, value):
    assert parse("--x", text, kind) == pytest.approx(value, rel=1e-12)


# What the message must say.
WRONG = [
    ("5", "size", "--x needs a unit"),
    ("6.71Mb", "size", "may be bits or bytes. Write 6.71Mbit for bits or 6.71MB"),
    ("8b", "size", "may be bits or bytes. Write 8bit"),
    ("3KB", "size", "1000 or 1024"),
    ("3KB", "size", "KiB"),
    ("20Mb/s", "rate", "Write 20Mbit/s for bits or 20MB/s"),
    ("20MBPS", "rate", "may be bits or bytes"),
    ("20Mbit", "rate", "is a size. Did you mean 20Mbit/s?"),
    ("20Mbit/s", "size", "is a bandwidth"),
    ("20Mbps", "size", "is a bandwidth"),
    ("3s", "size", "is a time"),
    ("5MB", "time", "is a size"),
    ("-5Mbit/s", "rate", "must be above 0, got '-5Mbit/s'"),
    ("0MB", "size", "must be above 0"),
    ("1e400MB", "size", "must be above 0"),
    ("6,71Mbit", "size", "must be a size, such as"),
    ("MB", "size", "must be a size, such as"),
    ("", "size", "must be a size, such as"),
    ("3furlongs", "size", "the unit 'furlongs' is not known"),
    ("3m", "time", "the unit 'm' is not known"),
]


@pytest.mark.parametrize(("text", "kind", "message"), WRONG)
def test_what_may_mean_two_things_is_refused(text, kind, message):
    with pytest.raises(ValueError) as error:
        parse("--x", text, kind)
    assert str(error.value).startswith("--x")
    assert all(word in str(error.value) for word in message.split(" or "))


def test_a_bare_number_where_the_name_has_the_unit():
    assert parse("--step-seconds", "0.017", "time", bare=True) == 0.017
    assert parse("--step-seconds", "17ms", "time", bare=True) == pytest.approx(0.017)
