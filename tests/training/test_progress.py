"""The progress bar: its rate is that of rounds, not of compilation."""

import io
import sys

import pytest

import fedjax_opt as fo
from fedjax_opt.training import progress
from tests.core.test_simulate import Terminal


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when the test says so."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_the_rate_leaves_the_first_update_out(clock):
    with progress.RoundBar(total=100, file=io.StringIO()) as bar:
        assert "[00:00<?, ?round/s]" in str(bar)
        clock.now += 65.0
        bar.update(10)  # most of it was the compiler
        assert "[01:05<?, ?round/s]" in str(bar)
        clock.now += 5.0
        bar.update(10)
        assert "20/100 [01:10<00:40,  2.00round/s]" in str(bar)
        clock.now += 15.0
        bar.update(10)
        assert "30/100 [01:25<01:10,  1.00round/s]" in str(bar)


def test_what_was_done_before_is_not_part_of_the_rate_but_of_the_time(clock):
    with progress.RoundBar(total=100, initial=70, seconds=3600.0, file=io.StringIO()) as bar:
        bar.update(10)
        clock.now += 5.0
        bar.update(10)
        assert "90/100 [1:00:05<00:05,  2.00round/s]" in str(bar)


def test_the_bar_of_a_run_goes_back_with_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    shown = progress.Progress("my run")
    facts = fo.RunFacts(round=0, rounds=30)
    shown.begin(facts, None)
    bar = shown._bar
    bar.update(20)
    shown.begin(facts._replace(round=10), ())
    assert shown._bar is bar and bar.n == 10
    shown.end((), "done")
    assert shown._bar is None
