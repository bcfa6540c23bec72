"""What both ends of a message must agree on: a text that they never send, but check."""

from typing import Any

import jax

from fedjax_opt.compression.layout import layout


@jax.tree_util.register_static
class Name(str):
    """The name of a part of a codec: structure, not a leaf. Bytes depend on it, so it never changes."""


def description(codec: Any, like: Any) -> str:
    """The names of what a codec is made of, and each leaf's path, shape, dtype and leader.

    Args:
      codec: a `Codec`.
      like: the message, or shapes of it.

    Returns:
      A text that is the same in every process. Numbers such as a sparsity are not in it.
    """
    quantisers = (codec.quantiser, codec.companion)
    lines = [sparsifier.name for sparsifier in codec.sparsifiers]
    lines += ["none" if q is None else f"{q.name} {int(q.radix)}" for q in quantisers]
    if codec.by_seed:
        # A seed stands for other positions under the other setting.
        setting: Any = jax.config
        lines.append(f"threefry_partitionable {bool(setting.jax_threefry_partitionable)}")
    for path, slot in zip(paths(like), layout(codec, like), strict=True):
        lines.append(f"{path} {list(slot.shape)} {slot.dtype.name} {slot.leader}")
    return "\n".join(lines)


def paths(tree: Any) -> list[str]:
    """The path of each leaf of a message, as Python would write it."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
