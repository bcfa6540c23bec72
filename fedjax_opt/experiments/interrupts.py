"""Ctrl-C and SIGTERM, after which a run may write down how far it is; also where Python loses them.

A signal is handled between two instructions. If those are of a callback of the garbage collector (JAX
has one, and compiling keeps the collector busy), the exception is printed and ignored, and the run goes
on.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import fedjax_opt as fo

_STOPPING = "Stopping after these rounds, to go on from there later. Once more: at once."


@contextlib.contextmanager
def remembered(patient: bool = True) -> Iterator[Callable[[], None]]:
    """Remembers Ctrl-C and SIGTERM while it lasts."""
    pressed: list[int] = []
    begun = False

    def press(number: int, frame: FrameType | None) -> None:
        del frame
        pressed.append(number)
        if not (patient and begun) or len(pressed) > 1:
            raise KeyboardInterrupt
        print(f"\n{_STOPPING}", file=sys.stderr, flush=True)

    def check() -> None:
        nonlocal begun
        begun = True
        if pressed:
            raise KeyboardInterrupt

    # Where one is ignored, as in the background of a shell, or not this thread's, it stays so.
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    if patient:
        usual[signal.SIGTERM] = signal.SIG_DFL
    taken = []
    try:
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                with contextlib.suppress(ValueError):  # another thread than the main one
                    signal.signal(number, press)
                    taken.append(number)
        yield check
    except KeyboardInterrupt as error:
        if signal.SIGTERM in pressed:
            raise fo.Interrupted("SIGTERM", None, signal.SIGTERM) from error
        raise
    finally:
        for number in taken:
            signal.signal(number, usual[number])
