"""The plot of a split: what its shapes say, read back from the figure, and what it refuses."""

import runpy
import sys

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import split_plot
from fedjax_opt.data.split_plot import plot_split

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
IDS = np.array([1, 1, 0, 0, 2, 2, 2, 2])


def heights(figure):
    """Height of each class in each column, `[columns, classes]`, read off the filled shapes."""
    axis = figure.axes[0]
    columns = round(axis.get_xlim()[1] - 0.5)
    table = np.zeros((columns, len(axis.collections)))
    for c, shape in enumerate(axis.collections):
        for path in shape.get_paths():
            x, y = path.vertices.T
            for column in range(columns):
                inside = np.abs(x - column - 1) < 0.499
                if inside.any():
                    table[column, c] = max(table[column, c], np.ptp(y[inside]))
    return table


def test_columns_are_the_clients_and_shapes_the_classes():
    by_client = heights(plot_split(LABELS, IDS, order="client"))
    np.testing.assert_allclose(by_client, [[1, 1, 0], [2, 0, 0], [0, 1, 3]])
    np.testing.assert_allclose(heights(plot_split(LABELS, IDS)), by_client[[2, 0, 1]])
    by_label = heights(plot_split(LABELS, IDS, order="label"))
    np.testing.assert_allclose(by_label, by_client[[1, 0, 2]])
    shares = heights(plot_split(LABELS, IDS, order="client", shares=True))
    np.testing.assert_allclose(shares, by_client / by_client.sum(1, keepdims=True))


def test_equal_clients_are_ordered_by_class():
    labels = np.repeat([2, 0, 1, 0], 5)
    ids = np.repeat([0, 1, 2, 3], 5)
    np.testing.assert_allclose(heights(plot_split(labels, ids)), 5 * np.eye(3)[[0, 0, 1, 2]])


def test_client_data_strings_and_empty_clients():
    data = fo.ClientData.from_arrays(
        {"kind": np.array(list("abba"))}, [0, 2, 2, 0], allow_empty=True
    )
    figure = plot_split(data, label="kind", order="client", title="Kinds", class_names=["A", "B"])
    np.testing.assert_allclose(heights(figure), [[2, 0], [0, 0], [0, 2]])
    assert figure.get_suptitle() == "Kinds"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["B", "A"]
    caption = figure.axes[0].get_title(loc="left")
    assert caption == "3 clients, 0 to 2 examples, median 2; label skew 0.50"


@pytest.mark.parametrize(("clients", "classes"), [(100, 11), (3, 10)])
def test_many_classes_have_a_scale_and_few_a_legend(clients, classes):
    labels = np.arange(clients * classes) % classes
    figure = plot_split(labels, np.arange(len(labels)) % clients, dark=True)
    assert len(figure.axes) == (2 if classes > 10 else 1)
    assert len(figure.legends) == (0 if classes > 10 else 1)
    colours = {tuple(shape.get_facecolor()[0]) for shape in figure.axes[0].collections}
    assert len(colours) == classes
    # Without space between columns, a class is one shape: a thousand clients stay fast.
    paths = [len(shape.get_paths()) for shape in figure.axes[0].collections]
    assert max(paths) == (1 if clients > 60 else clients)
    assert (
        sum(figure.get_facecolor()[:3])
        < 1
        < sum(plot_split(labels, np.arange(len(labels)) % clients).get_facecolor()[:3])
    )


def test_files_are_written_and_an_axis_is_drawn_on(tmp_path):
    from matplotlib.figure import Figure

    for dark in (False, True):
        plot_split(LABELS, IDS, tmp_path / f"{dark}.png", dark=dark)
        assert (tmp_path / f"{dark}.png").read_bytes().startswith(b"\x89PNG")
    plot_split(LABELS, IDS, str(tmp_path / "a.svg"))
    plot_split(LABELS, IDS, str(tmp_path / "b.svg"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot_split(LABELS, IDS, axis=right, title="Right") is figure
    assert right.get_title(loc="left").startswith("Right\n3 clients") and not left.collections
    assert not figure.legends and right.get_legend_handles_labels()[1] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((LABELS,), {}, "client_ids must say the client of each label, got None"),
        ((LABELS, IDS[:3]), {}, "client_ids must be 8 integers"),
        ((LABELS, IDS - 1), {}, r"client_ids must lie in \[0, 1\], got -1 to 1"),
        ((LABELS / 2, IDS), {}, r"an integer or a string, got float64\[8\]"),
        ((LABELS[:, None], IDS), {}, r"an integer or a string, got int64\[8, 1\]"),
        (
            (LABELS, IDS),
            {"order": "colour"},
            "order must be one of 'auto', 'size', .* got 'colour'",
        ),
        ((LABELS, IDS), {"class_names": ["a"]}, "each of the 3 classes, got 1 names"),
        ((fo.ClientData.from_arrays({"x": IDS}, IDS),), {}, "labels under the key 'y'"),
        ((fo.ClientData.from_arrays({"y": IDS}, IDS), IDS), {}, "client_ids must be None"),
    ],
)
def test_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        plot_split(*arguments, **options)


def test_matplotlib_is_imported_late_and_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    module = runpy.run_path(split_plot.__file__)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_opt\[report\]'"):
        module["plot_split"](LABELS, IDS)
