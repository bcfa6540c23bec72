"""The progress bar: its estimate is that of rounds, not of compilation."""

import io

import jax
import jax.numpy as jnp
import pytest

from fedjax_opt.training import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still, and spans of compilation of the test's own."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

        def compile(self, seconds):
            self.now += seconds
            progress._note("/jax/core/compile/backend_compile_duration", seconds)

    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    monkeypatch.setattr(progress, "_spans", [])
    return found


def test_the_first_estimate_leaves_compilation_out(clock):
    shown = io.StringIO()
    with progress.RoundBar(total=100, file=shown) as bar:
        assert bar.seconds_left is None and "[00:00<?, ?round/s]" in str(bar)
        clock.compile(60.0)
        clock.now += 5.0
        bar.update(10)  # 65 seconds, of which 5 are of rounds
        assert bar.rate == pytest.approx(2.0) and bar.seconds_left == pytest.approx(45.0)
        assert "<00:45" in str(bar)
        clock.now += 5.0
        bar.update(10)
        assert bar.seconds_left == pytest.approx(40.0)


def test_programs_to_come_are_compiled_too(clock):
    with progress.RoundBar(total=30, programs=3, file=io.StringIO()) as bar:
        for left in (2 * 6.0 + 20.0, 6.0 + 10.0, 0.0):
            bar.begin_program()
            clock.compile(6.0)
            clock.now += 10.0
            bar.update(10)
            assert bar.seconds_left == pytest.approx(left)


def test_what_was_done_before_is_not_part_of_the_rate(clock):
    with progress.RoundBar(total=100, initial=80, file=io.StringIO()) as bar:
        clock.now += 10.0
        bar.update(10)
        assert bar.rate == pytest.approx(1.0) and bar.seconds_left == pytest.approx(10.0)


def test_no_second_of_compilation_counts_twice(clock):
    """What is traced holds what was traced on the way, and is reported after it."""
    clock.compile(1.0)
    clock.now += 3.0
    progress._note("/jax/core/compile/jaxpr_trace_duration", 5.0)
    progress._note("/jax/some/other/event", 50.0)
    clock.compile(2.0)
    assert progress.compiling_seconds() == pytest.approx(7.0)


def test_jax_says_when_it_compiles():
    with progress.RoundBar(total=1, disable=True) as bar:
        before = progress.compiling_seconds()
        jax.jit(lambda x: jnp.sin(x) + 12345.0)(jnp.ones(3)).block_until_ready()
        assert progress.compiling_seconds() > before
        bar.update(1)
