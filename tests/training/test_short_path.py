"""A run that nobody watches, saves or tests enters only what plays rounds and writes them down."""

import inspect
import pathlib
import sys

import fedjax_opt as fo
from tests.core.test_simulate import BASE, SCAFFOLD, simulate

ROOM = pathlib.Path(inspect.getfile(fo.simulate)).parent


def test_a_plain_run_enters_three_files_of_training():
    simulate(3)  # another program, so that all of this one is traced
    entered = set()

    def note(frame, event, _):
        if event == "call" and pathlib.Path(frame.f_code.co_filename).parent == ROOM:
            entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        fo.simulate(SCAFFOLD, BASE.replace(batch_size=2), 3, strategy="scan")
    finally:
        sys.setprofile(None)
    files = {pathlib.Path(name).name for name, _ in entered}
    assert files == {"simulate.py", "player.py", "history.py"}
    assert len(entered) <= 21


def test_simulate_has_few_parameters():
    parameters = inspect.signature(fo.simulate).parameters.values()
    assert len(parameters) <= 14
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
