"""A split of a data set as a picture: one column a client, its classes stacked in colours."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import numpy as np

from fedjax_opt.core.client_data import ClientData, StoredClients
from fedjax_opt.data.files import optional

# Ten colours that stay apart for colour-blind readers.
_COLOURS = (
    *("#4477AA", "#88CCEE", "#44AA99", "#228833", "#999933"),
    *("#DDCC77", "#CC6677", "#993366", "#BB66BB", "#AAAAAA"),
)
_SPACED = 60  # up to so many columns stand apart


def plot_split(
    data: ClientData | StoredClients | Sequence | chex.ArrayNumpy,
    client_ids: Sequence[int] | chex.ArrayNumpy | None = None,
    path: str | pathlib.Path | None = None,
    *,
    label: Any = "y",
    title: str = "",
    axis: Any = None,
) -> Any:
    """Draws who holds how much of what: a column for each client, as high as it has examples.

    The largest clients come first; where all are about equally large, those with the same most frequent
    class stand together. Up to ten classes have a legend, more have a scale of colours. The line above
    the columns says how many clients there are, their sizes and the label skew (see `Summary`). It needs
    matplotlib (the extra 'report').

    Args:
      data: The federated data, or the class of each example, `[n]`, integers or strings.
      client_ids: The client of each example, int `[n]`; None if `data` is a `ClientData`.
      path: The file to write, whose ending says the format: .png, .svg or .pdf. None writes none.
      label: The key of the labels in the examples of a `ClientData`.
      title: A heading.
      axis: A matplotlib axis to draw on, for several splits in one figure: it gets no legend. None makes
        a new figure.

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
    classes, coded = _coded(data, client_ids, label)
    names = [str(name) for name in classes]
    # Examples of each class at each client, [N, classes].
    owners = np.repeat(np.arange(coded.num_clients), coded.sizes)
    cells = owners * len(classes) + coded.examples["y"]
    counts = np.bincount(cells, minlength=len(coded) * len(classes)).reshape(len(coded), -1)
    sizes = counts.sum(1)
    if equal := sizes.max() <= 1.05 * sizes.min() + 1:
        # Within a class, from the purest client to the one that has most of others.
        order = np.lexsort((-counts.max(1) / np.maximum(sizes, 1), counts.argmax(1)))
    else:
        order = np.argsort(-sizes, kind="stable")
    matplotlib = optional("matplotlib", "plot_split", "report")
    if len(names) > len(_COLOURS):
        colours = matplotlib.colormaps["turbo"](np.linspace(0.04, 0.96, len(names)))
    else:  # The first and sixth differ in lightness as well: enough for two classes in print.
        colours = (_COLOURS if len(names) > 2 else _COLOURS[::5])[: len(names)]
    new = axis is None
    if new:
        made = optional("matplotlib.figure", "plot_split", "report")
        axis = made.Figure(figsize=(9.0, 4.0), layout="constrained").subplots()
    figure = axis.get_figure()
    _draw_columns(axis, counts[order], names, colours)
    caption = _caption(coded) if new or not title else f"{title}\n{_caption(coded)}"
    axis.set_title(caption, fontsize=9, loc="left")
    if new:
        by = "by their most frequent class" if equal else "the largest first"
        axis.set(xlabel=f"clients, {by}", ylabel="examples")
        if title:
            figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        _explain(figure, axis, names, colours)
    if path is not None:
        undated = {"Date": None} if pathlib.Path(path).suffix.lower() == ".svg" else None
        with matplotlib.rc_context({"svg.hashsalt": "split"}):
            figure.savefig(path, dpi=150, metadata=undated)
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


def _draw_columns(axis: Any, counts: chex.ArrayNumpy, names: list[str], colours: Any) -> None:
    spaced = len(counts) <= _SPACED
    ends = [0.6, 1.4] if spaced else [0.5, 1.5]
    x = (np.arange(len(counts))[:, None] + ends).ravel()
    heights = np.stack([counts, np.zeros_like(counts)], axis=1)  # columns and the gaps after them
    axis.stackplot(
        x,
        heights.reshape(len(x), -1).T,
        step="post",
        labels=names,
        colors=colours,
        linewidth=0,
        antialiased=spaced,  # else light seams between columns would show
    )
    axis.set(xlim=(0.5, len(counts) + 0.5), ylim=(0, max(counts.sum(1).max(), 1)))
    if len(counts) <= 20:
        axis.set_xticks(np.arange(1, len(counts) + 1))
    axis.spines[["top", "right"]].set_visible(False)


def _explain(figure: Any, axis: Any, names: list[str], colours: Any) -> None:
    """A legend of the classes, or a scale of their colours where they are many."""
    if len(names) <= len(_COLOURS):  # From the top down, as the classes are stacked.
        handles, _ = axis.get_legend_handles_labels()
        place = {"loc": "outside right center", "frameon": False}
        figure.legend(handles[::-1], names[::-1], title="class", **place)
        return
    maps = optional("matplotlib.cm", "plot_split", "report")
    kinds = optional("matplotlib.colors", "plot_split", "report")
    limits = kinds.Normalize(-0.5, len(names) - 0.5)
    scale = maps.ScalarMappable(limits, kinds.ListedColormap(colours))
    bar = figure.colorbar(scale, ax=axis, label="class", pad=0.015, aspect=30)
    ticks = np.unique(np.linspace(0, len(names) - 1, 11).round().astype(int))
    bar.set_ticks(ticks, labels=[names[tick] for tick in ticks])
    bar.outline.set_visible(False)
