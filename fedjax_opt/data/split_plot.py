"""A split of a data set as a picture: one column a client, its classes stacked in colours."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData, StoredClients

# Ten colours that stay apart for colour-blind readers, on light and on dark paper.
_COLOURS = (
    *("#4477AA", "#88CCEE", "#44AA99", "#228833", "#999933"),
    *("#DDCC77", "#CC6677", "#993366", "#BB66BB", "#AAAAAA"),
)
_ORDERS = {
    "size": "clients, the largest first",
    "label": "clients, by their most frequent class",
    "client": "clients",
}
_SPACED = 60  # up to so many columns stand apart


def plot_split(
    data: ClientData | StoredClients | Sequence | chex.ArrayNumpy,
    client_ids: Sequence[int] | chex.ArrayNumpy | None = None,
    path: str | pathlib.Path | None = None,
    *,
    label: Any = "y",
    order: str = "auto",
    shares: bool = False,
    class_names: Sequence[str] | None = None,
    title: str = "",
    dark: bool = False,
    axis: Any = None,
) -> Any:
    """Draws who holds how much of what: a column for each client, as high as it has examples.

    Up to ten classes have a legend, more have a scale of colours. The line above the columns says how
    many clients there are, their sizes and the label skew (see `Summary`). It needs matplotlib (the
    extra 'report').

    Args:
      data: The federated data, or the class of each example, `[n]`, integers or strings.
      client_ids: The client of each example, int `[n]`; None if `data` is a `ClientData`.
      path: The file to write, whose ending says the format: .png, .svg or .pdf. None writes none.
      label: The key of the labels in the examples of a `ClientData`.
      order: Of the columns: 'size', the largest first; 'label', by their most frequent class; 'client',
        by number; 'auto', by class if all clients are about equally large, else by size.
      shares: Whether columns show the shares of the classes, all equally high, instead of numbers.
      class_names: A name for each class that occurs, in sorted order; by default the labels.
      title: A heading.
      dark: Light on dark instead of dark on light.
      axis: A matplotlib axis to draw on, for several splits in one figure: it gets no legend, and the
        figure keeps its colours. None makes a new figure.

    Returns:
      The matplotlib `Figure`.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> labels = np.arange(1000) % 10
      >>> ids = fo.data.dirichlet(labels, num_clients=20, alpha=0.3)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     figure = plot_split(labels, ids, pathlib.Path(folder) / "split.png")
    """
    checks.choice("order", order, ("auto", *_ORDERS))
    classes, coded = _coded(data, client_ids, label)
    names = [str(name) for name in (classes if class_names is None else class_names)]
    if len(names) != len(classes):
        raise ValueError(
            f"class_names must name each of the {len(classes)} classes, got {len(names)} names."
        )
    # Examples of each class at each client, [N, classes].
    owners = np.repeat(np.arange(coded.num_clients), coded.sizes)
    cells = np.bincount(
        owners * len(classes) + coded.examples["y"], minlength=len(coded) * len(classes)
    )
    counts = cells.reshape(len(coded), len(classes))
    sizes = counts.sum(1)
    if order == "auto":
        order = "label" if sizes.max() <= 1.05 * sizes.min() + 1 else "size"
    places = {
        "client": np.arange(len(counts)),
        "size": np.argsort(-sizes, kind="stable"),
        # Within a class, from the purest client to the one that has most of others.
        "label": np.lexsort((-counts.max(1) / np.maximum(sizes, 1), counts.argmax(1))),
    }
    try:
        import matplotlib
        import matplotlib.figure
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ImportError(
            "plot_split needs matplotlib: pip install 'fedjax_opt[report]'."
        ) from error
    few = len(names) <= len(_COLOURS)
    if few:  # The first and sixth differ in lightness as well: enough for two classes in print.
        colours = list(_COLOURS if len(names) > 2 else _COLOURS[::5])[: len(names)]
    else:
        colours = list(matplotlib.colormaps["turbo"](np.linspace(0.04, 0.96, len(names))))
    new = axis is None
    if new:
        figure = matplotlib.figure.Figure(figsize=(9.0, 4.0), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.subplots()
    else:
        figure = axis.get_figure()
    _draw_columns(axis, counts[places[order]], names, colours, shares)
    caption = _caption(coded) if new or not title else f"{title}\n{_caption(coded)}"
    axis.set_title(caption, fontsize=9, loc="left")
    if new:
        axis.set(xlabel=_ORDERS[order], ylabel="share of its examples" if shares else "examples")
        if title:
            figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        _dress(figure, axis, names, colours, dark)
    if path is not None:
        undated = {"Date": None} if pathlib.Path(path).suffix.lower() == ".svg" else None
        with matplotlib.rc_context({"svg.hashsalt": "split"}):
            figure.savefig(path, dpi=150, metadata=undated, facecolor=figure.get_facecolor())
    return figure


def _coded(data: Any, client_ids: Any, label: Any) -> tuple[chex.ArrayNumpy, ClientData]:
    """The classes, and the data with nothing but their numbers."""
    if isinstance(data, (ClientData, StoredClients)):
        if client_ids is not None:
            raise ValueError("client_ids must be None if data is a ClientData: it has its own.")
        if not isinstance(data.examples, Mapping) or label not in data.examples:
            raise ValueError(f"data must have labels under the key {label!r}, but it has none.")
        labels = np.asarray(data.examples[label])
        client_ids = np.repeat(np.arange(data.num_clients), data.sizes)
        num_clients = data.num_clients
    else:
        if client_ids is None:
            raise ValueError("client_ids must say the client of each label, got None.")
        labels, num_clients = np.asarray(data), None
    if labels.ndim != 1 or labels.dtype.kind not in "biuUS":
        raise ValueError(
            "data must have one label per example, an integer or a string, got"
            f" {labels.dtype}{list(labels.shape)}."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    return classes, ClientData.from_arrays({"y": codes}, client_ids, num_clients, allow_empty=True)


def _caption(coded: ClientData) -> str:
    summary = coded.summary()
    if summary.smallest == summary.largest:
        sizes = f"{summary.smallest:,} examples each"
    else:
        sizes = f"{summary.smallest:,} to {summary.largest:,} examples, median {summary.median:,g}"
    return f"{summary.num_clients:,} clients, {sizes}; label skew {summary.label_skew:.2f}"


def _draw_columns(axis, counts: chex.ArrayNumpy, names, colours, shares: bool) -> None:
    heights = counts / np.maximum(counts.sum(1, keepdims=True), 1) if shares else counts
    tops = np.cumsum(heights, axis=1)
    spaced = len(counts) <= _SPACED
    gap = 0.1 if spaced else 0.0
    left = np.arange(len(counts)) + 0.5 + gap
    x = np.stack([left, left + 1 - 2 * gap], axis=1)
    if spaced:  # A shape ends where there is no number; without space a class is a single shape.
        x = np.pad(x, ((0, 0), (0, 1)), constant_values=np.nan)
    for c, (name, colour) in enumerate(zip(names, colours, strict=True)):
        axis.fill_between(
            x.ravel(),
            np.repeat(tops[:, c] - heights[:, c], x.shape[1]),
            np.repeat(tops[:, c], x.shape[1]),
            color=colour,
            linewidth=0,
            antialiased=spaced,  # else light seams between columns would show
            label=name,
        )
    axis.set_xlim(0.5, len(counts) + 0.5)
    axis.set_ylim(0, 1 if shares else max(tops.max(), 1))
    if len(counts) <= 20:
        axis.set_xticks(np.arange(1, len(counts) + 1))
    axis.spines[["top", "right"]].set_visible(False)


def _dress(figure, axis, names: list[str], colours, dark: bool) -> None:
    """A legend of the classes, and the colours of paper and ink."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.text import Text

    if len(names) <= len(_COLOURS):  # From the top down, as the classes are stacked.
        handles, _ = axis.get_legend_handles_labels()
        place = {"loc": "outside right center", "frameon": False}
        figure.legend(handles[::-1], names[::-1], title="class", **place)
    else:
        scale = ScalarMappable(
            Normalize(-0.5, len(names) - 0.5),
            ListedColormap(colours),
        )
        bar = figure.colorbar(scale, ax=axis, label="class", pad=0.015, aspect=30)
        ticks = np.unique(np.linspace(0, len(names) - 1, 11).round().astype(int))
        bar.set_ticks(ticks, labels=[names[tick] for tick in ticks])
        bar.outline.set_visible(False)
    paper, ink = ("#15171c", "#d8dade") if dark else ("#ffffff", "#222222")
    figure.set_facecolor(paper)
    for each in figure.axes:
        each.set_facecolor(paper)
        each.tick_params(colors=ink)
        each.spines[:].set_edgecolor(ink)
    for text in figure.findobj(Text):
        text.set_color(ink)
