"""Everything that can be reproduced, by name."""

from benchmarks.papers import ce_fedavg, decaying_k, fedacg, fedgbo, ghbm, mtfl
from benchmarks.papers.entry import Entry
from fedjax_opt.experiments.specs import unknown

#: The entries by name.
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for module in (fedgbo, decaying_k, ghbm, fedacg, ce_fedavg, mtfl)
    for entry in module.ENTRIES
}


def find(name: str) -> Entry:
    """The entry of a name.

    Args:
      name: of `ENTRIES`; any other is refused with the nearest.

    Example:
      >>> from benchmarks.papers.catalogue import find
      >>> find("fedgbo-table4").where
      'Table 4'
    """
    if name not in ENTRIES:
        raise unknown("reproduction", name, ENTRIES, "--list shows all.")
    return ENTRIES[name]
