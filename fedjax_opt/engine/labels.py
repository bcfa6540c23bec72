"""Whether labels are ones that a model can learn: the first that is none is named."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import Federation, Variables
from fedjax_opt.core.federation import initial_variables

_MOST = 64  # labels that are looked at: a large model takes one example of each at once
_PIECE = 2**20  # labels that are looked at at once: those of data on disk are not read whole


def wrong_label(federation: Federation) -> str:
    """A sentence that names the client and the row of a label which is none of the model's classes.

    One example of each label is looked at; of many labels the least, the greatest and some between. A
    model's loss is not finite for one that is no class, and it refuses labels of another type or shape.
    Empty where all is well, or there are no labels `y`.
    """
    clients: Any = federation.clients
    parts = {"test": federation.test, "validation": federation.validation}
    owners: dict[str, Any] = {}
    client_test: Any = federation.client_test
    for name, data in (("clients", clients), ("client_test", client_test)):
        if hasattr(data, "examples"):
            parts[name], owners[name] = data.examples, data
    variables: Variables | None = None
    for name in sorted(parts):
        examples: Any = parts[name]
        labels = examples.get("y") if isinstance(examples, Mapping) else None
        if labels is None or not len(labels) or federation.model.indexed:
            continue
        if labels.dtype.kind not in "iufb" and labels.dtype.name != "bfloat16":
            return _named(name, owners.get(name), labels, 0, "which is no number")
        rows = _first_of_each(labels)
        batch = jax.tree.map(lambda x, rows=rows: np.asarray(x[rows]), examples)
        if variables is None:
            if isinstance(clients, int) and federation.initial is None:
                return ""
            variables = initial_variables(federation, jax.random.key(0))
        for row, why in _refused(federation, variables, batch, labels):
            return _named(name, owners.get(name), labels, int(rows[row]), why)
    return ""


def check_labels(federation: Federation) -> None:
    """Refuses labels that are none of the model's classes."""
    if why := wrong_label(federation):
        raise ValueError(why)


def _first_of_each(labels: Any) -> np.ndarray:
    """A row of each label, or of some; the first row where labels are no whole numbers."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return np.zeros(1, int)
    found: dict[int, int] = {}
    for start in range(0, len(labels), _PIECE):
        values, rows = np.unique(np.asarray(labels[start : start + _PIECE]), return_index=True)
        for value, row in zip(values.tolist(), rows.tolist(), strict=True):
            found.setdefault(value, start + row)
    rows = [found[value] for value in sorted(found)]
    return np.array(rows)[np.unique(np.linspace(0, len(rows) - 1, _MOST).astype(int))]


def _refused(
    federation: Federation, variables: Variables, batch: Any, labels: Any
) -> Iterator[tuple[int, str]]:
    """Rows of a batch whose label the model refuses, and why."""
    model = federation.model
    frozen = (model.frozen,) if jax.tree.leaves(model.frozen) else ()
    try:
        # As in a local step: a loss that draws something needs a key, and may not evaluate at all.
        _, aux = model.loss(variables, batch, jax.random.key(0), *frozen)
    except Exception as error:  # whatever the user's program raises
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            yield 0, f"which the model refuses: {str(error).rstrip('.')}"
        return  # else it is not the label, and whoever runs the model will hear of it
    if aux.losses is None or np.ndim(aux.losses) != 1:
        return
    sound = np.ones(len(batch["y"]), bool)  # a loss may not be finite for the inputs' sake
    for leaf in jax.tree.leaves(batch):
        if np.issubdtype(leaf.dtype, np.floating):
            sound &= np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)
    for row in np.flatnonzero(sound & ~np.isfinite(np.asarray(aux.losses))):
        yield int(row), "of which the first model has no finite loss"


def _named(name: str, owner: Any, labels: Any, row: int, why: str) -> str:
    where = f"row {row}"
    if owner is not None:
        client = int(np.searchsorted(np.asarray(owner.offsets), row, side="right")) - 1
        where = f"row {row - int(owner.offsets[client])} of client {client}"
    value = np.asarray(labels[row]).tolist()
    return (
        f"{name} must have labels that the model takes, such as its classes from 0 on, but y is"
        f" {value!r:.60} in {where}, {why}."
    )
