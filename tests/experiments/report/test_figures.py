"""Plots as files."""

import builtins
import struct

import pytest

from fedjax_opt.experiments.report import save_plots
from tests.experiments.report.samples import ABOUT, comparison, curves


def test_a_file_for_each_plot(tmp_path):
    paths = save_plots(tmp_path / "plots", ABOUT, comparison(), formats=("png",))
    names = [path.name for path in paths]
    panels = ("accuracy_rounds", "accuracy_bytes", "accuracy_flops", "accuracy_seconds")
    assert names == [f"{name}.png" for name in (*panels, "loss", "client_distance")]
    for path in paths:
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 10_000
        assert struct.unpack(">II", content[16:24]) == (1280, 760)


def test_labels_are_not_mathematics_and_the_same_curves_make_the_same_file(tmp_path):
    few = [curves("_$x_$ 100%"), curves("a$b", 0.7)]
    few = [curve._replace(costs=None) for curve in few]
    first, second = (
        save_plots(tmp_path / name, ABOUT, few, formats=("pdf",))[0].read_bytes() for name in "ab"
    )
    assert first.startswith(b"%PDF") and first == second


def test_without_matplotlib(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_opt\[bench\]'"):
        save_plots(tmp_path, ABOUT, comparison())
