"""Why a run diverged, where that is in the data: a label that is no class of the model."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import ClientData, Federation
from fedjax_opt.core.federation import initial_variables

_MOST = 4096  # different labels


def check_labels(federation: Federation) -> None:
    """Refuses labels with which the first model has no finite loss, and names the client and the row.

    One example of each label is looked at. A model says by a loss that is not finite that a label is
    none of its classes.
    """
    clients: Any = federation.clients
    if not isinstance(clients, ClientData):
        return
    variables = None
    for name, examples in (("clients", clients.examples), ("test", federation.test)):
        labels = examples.get("y") if isinstance(examples, Mapping) else None
        if labels is None or np.ndim(labels) != 1 or np.asarray(labels).dtype.kind not in "iu":
            continue
        values, rows = np.unique(np.asarray(labels), return_index=True)
        rows = rows[:_MOST]
        if variables is None:
            variables = initial_variables(federation, jax.random.key(0))
        batch = jax.tree.map(lambda x, rows=rows: np.asarray(x)[rows], examples)
        _, aux = federation.model.loss(variables, batch, None)
        if aux.losses is None:
            return
        wrong = np.flatnonzero(~np.isfinite(np.asarray(aux.losses)))
        if not len(wrong):
            continue
        row = int(rows[wrong[0]])
        where = f"row {row}"
        if name == "clients":
            client = int(np.searchsorted(np.asarray(clients.offsets), row, side="right")) - 1
            where = f"row {row - int(clients.offsets[client])} of client {client}"
        raise ValueError(
            f"{name} must have labels that are classes of the model, from 0 on, but y is"
            f" {values[wrong[0]]} in {where}, of which the first model has no finite loss."
        )
