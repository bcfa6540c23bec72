"""A message or an upload that travels in another form than its arrays."""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Coded:
    """A message or an upload that travels in another form than its arrays.

    It is what was sent, so it is not to be computed with: the arithmetic of `trees` refuses it. Take its
    `inner`, or change what is sent before it is coded.

    Attributes:
      inner: its value, as the receiver reads it.
      num_bytes: what travels, int32.
      expected_bytes: what travels on average, where it is known before any value is; else None.
      codec: what coded it.
      payload: the codes themselves, of which `compression.bytes_of_coded` makes the bytes; None
        where the value is no longer the one that was coded.
    """

    inner: Any
    num_bytes: Any
    expected_bytes: float | None = dataclasses.field(default=None, metadata={"static": True})
    codec: Any = None
    payload: Any = None

    def changed(self, inner: Any) -> "Coded":
        """The same with another value, which has the size of this one and no codes."""
        return dataclasses.replace(self, inner=inner, payload=None)


def is_coded(node: Any) -> bool:
    """Whether a node of a tree is a `Coded`."""
    return isinstance(node, Coded)


def decoded(tree: Any) -> Any:
    """The tree with the values in place of what travels."""
    return jax.tree.map(lambda n: n.inner if is_coded(n) else n, tree, is_leaf=is_coded)
