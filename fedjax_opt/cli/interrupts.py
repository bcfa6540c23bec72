"""Ctrl-C, also where Python loses it.

A signal is handled between two instructions. If those are of a callback of the garbage collector (JAX
has one, and compiling keeps the collector busy), the exception is printed and ignored, and the run goes
on.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def remembered() -> Iterator[Callable[[], None]]:
    """Remembers Ctrl-C while it lasts.

    Yields:
      A function to call now and then: it raises the `KeyboardInterrupt` that was lost, if one was.
    """
    pressed = []

    def press(*arguments: Any) -> None:
        pressed.append(arguments)
        signal.default_int_handler(*arguments)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    # Where it is ignored, as in the background of a shell, or not this thread's, it stays so.
    listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if listening:
            signal.signal(signal.SIGINT, press)
    except ValueError:  # another thread than the main one
        listening = False
    try:
        yield check
    finally:
        if listening:
            signal.signal(signal.SIGINT, signal.default_int_handler)
