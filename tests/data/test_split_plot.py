"""The plot of a split: what its shapes say, read back from the figure, and what it refuses."""

import sys

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import plot_split

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
IDS = np.array([1, 1, 0, 0, 2, 2, 2, 2])


def heights(figure):
    """Height of each class in each column, `[columns, classes]`, read off the filled shapes."""
    axis = figure.axes[0]
    columns, top = round(axis.get_xlim()[1] - 0.5), round(axis.get_ylim()[1])
    return [
        [
            sum(shape.get_paths()[0].contains_point((column + 1, y + 0.5)) for y in range(top))
            for shape in axis.collections
        ]
        for column in range(columns)
    ]


def test_columns_are_the_clients_and_shapes_the_classes():
    assert heights(plot_split(LABELS, IDS)) == [[0, 1, 3], [1, 1, 0], [2, 0, 0]]
    equal = plot_split(np.repeat([2, 0, 1, 0], 5), np.repeat([0, 1, 2, 3], 5))
    assert heights(equal) == [[5, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5]]
    # Of one class, the purest client first, whatever its size; one without examples has no share.
    about = plot_split([0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1], [0] * 5 + [1] * 4 + [2] * 4)
    assert heights(about) == [[4, 0], [4, 1], [0, 4]]
    data = fo.ClientData.from_arrays({"y": np.array([1, 0])}, [0, 2], allow_empty=True)
    assert heights(plot_split(data)) == [[1, 0], [0, 0], [0, 1]]


def test_client_data_strings_and_empty_clients():
    data = fo.ClientData.from_arrays(
        {"kind": np.array(list("abbaa"))}, [0, 2, 2, 0, 0], allow_empty=True
    )
    figure = plot_split(data, label="kind", title="Kinds")
    assert heights(figure) == [[3, 0], [0, 2], [0, 0]]
    assert figure.get_suptitle() == "Kinds"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["b", "a"]
    caption = figure.axes[0].get_title(loc="left")
    assert caption == "3 clients, 0 to 3 examples, median 2; label skew 0.50"


@pytest.mark.parametrize(("clients", "classes"), [(100, 11), (3, 10)])
def test_many_classes_have_a_scale_and_few_a_legend(clients, classes):
    labels = np.arange(clients * classes) % classes
    figure = plot_split(labels, np.arange(len(labels)) % clients)
    assert len(figure.axes) == (2 if classes > 10 else 1)
    assert len(figure.legends) == (0 if classes > 10 else 1)
    colours = {tuple(shape.get_facecolor()[0]) for shape in figure.axes[0].collections}
    assert len(colours) == classes


def test_files_are_written_and_an_axis_is_drawn_on(tmp_path):
    from matplotlib.figure import Figure

    plot_split(LABELS, IDS, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plot_split(LABELS, IDS, str(tmp_path / "a.svg"))
    plot_split(LABELS, IDS, str(tmp_path / "b.svg"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot_split(LABELS, IDS, axis=right, title="Right") is figure
    assert right.get_title(loc="left").startswith("Right\n3 clients") and not left.collections
    assert not figure.legends and right.get_legend_handles_labels()[1] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LABELS,), "client_ids must say the client of each label, got None"),
        ((LABELS, IDS[:3]), "client_ids must be 8 integers"),
        ((LABELS, IDS - 1), r"client_ids must lie in \[0, 1\], got -1 to 1"),
        ((LABELS / 2, IDS), r"an integer or a string, got float64\[8\]"),
        ((LABELS[:, None], IDS), r"an integer or a string, got int64\[8, 1\]"),
        ((fo.ClientData.from_arrays({"x": IDS}, IDS),), "labels under the key 'y'"),
        ((fo.ClientData.from_arrays({"y": IDS}, IDS), IDS), "client_ids must be None"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_split(*arguments)


def test_matplotlib_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'fedjax_opt\[report\]'"):
        plot_split(LABELS, IDS)
