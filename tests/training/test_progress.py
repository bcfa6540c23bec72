"""The progress bar: its rate is that of rounds, not of compilation."""

import io
import sys

import tqdm.std

import fedjax_opt as fo
from fedjax_opt.training import progress
from tests.core.test_simulate import Terminal


def test_the_rate_is_that_of_the_last_rounds(monkeypatch):
    """The first ones waited for the compiler."""
    now = [100.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    with progress.round_bar(total=100, initial=10, file=io.StringIO()) as bar:
        now[0] += 65.0
        bar.update(10)
        now[0] += 5.0
        bar.update(10)
        assert "30/100" in str(bar) and "00:35,  2.00round/s]" in str(bar)


def test_the_bar_of_a_run_goes_back_with_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    shown = progress.Progress("my run")
    facts = fo.RunFacts(round=0, rounds=30)
    shown.begin(facts, None)
    bar = shown._bar
    assert bar is not None
    bar.update(20)
    shown.begin(facts._replace(round=10), ())
    assert shown._bar is bar and bar.n == 10
    shown.end((), "done")
    assert shown._bar is None
