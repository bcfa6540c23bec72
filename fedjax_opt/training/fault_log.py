"""What a guard did, on the host: columns of the history, and the names of who was left out."""

import logging

import numpy as np

from fedjax_opt.core.guard import Fault
from fedjax_opt.core.info import Info

LOGGER = logging.getLogger("fedjax_opt")

# A fleet may lose thousands of clients in a round; all of them are in the history.
_NAMED = 20


def excluded(infos: Info) -> dict[str, np.ndarray]:
    """The history's columns about the rounds of a chunk, whose excluded clients it also logs."""
    if not infos.faults:
        return {}
    client, code, skipped = (np.asarray(x) for x in infos.faults)
    for t, clients, codes, was_skipped in zip(infos.round, client, code, skipped, strict=True):
        if codes.any():
            LOGGER.warning("Round %d: left out %s.", t, describe(clients, codes))
        if was_skipped:
            left = int(np.sum((clients >= 0) & (codes == 0)))
            LOGGER.warning(
                "Round %d: skipped, with %d clients left; the model is unchanged.", t, left
            )
    count = np.asarray(np.sum(code > 0, axis=1, dtype=np.int32))
    return {"asked": client, "fault": code, "excluded": count, "skipped": skipped}


def describe(clients: np.ndarray, codes: np.ndarray) -> str:
    """Names by reason: 'client 3 (upload not finite); clients 5, 9 (dropped out)'."""
    found = []
    for fault in Fault:
        ids = clients[(codes == fault) & (fault > 0)]
        if len(ids):
            names = ", ".join(map(str, ids[:_NAMED])) + (", ..." if len(ids) > _NAMED else "")
            why = fault.name.lower().replace("_", " ")
            found.append(f"client{'s' * (len(ids) > 1)} {names} ({why})")
    return "; ".join(found)
