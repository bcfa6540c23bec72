"""What a codec does to a message, inside the program: which entries travel, and as which codes.

A message is a pytree. Its first `Variables` (the change of the model), or the whole of it if there are
none, is what sparsifiers look at. Parts of the same structure and shapes as the parameters (Adam's
moments, a control variate) are companions: they travel at the entries that the model's change keeps.
Everything else, and what is excluded, travels as it is.

    compress(codec, tree, key)         -> Payload: codes, and what the server needs to read them
    decompress(codec, payload, like)   -> the tree that the server sees; 0 where nothing was sent
    size_in_bytes(codec, payload, like) -> exactly what `encode` of the same would make, as int32
    lossy, size                        -> both from the message itself

All are pure and can be jitted; sparsities are leaves, so that a sweep over them is one `vmap`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.compression import golomb
from fedjax_opt.compression.folding import count_true
from fedjax_opt.compression.layout import Slot, layout
from fedjax_opt.compression.quantisers import Quantiser, code_dtype
from fedjax_opt.compression.sparsifiers import Sparsifier
from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import StaticInt

# magic, version, checksum
ENVELOPE_BYTES = 7
SEED_BYTES = 8


class Codec(NamedTuple):
    """How a message is made small: sparsifiers one after the other, then codes for what is kept.

    Attributes:
      sparsifiers: what is kept; none for everything.
      quantiser: the codes of the model's change; None for the numbers themselves.
      companion: the codes of what travels beside it; None for the same `quantiser`.
      excluded: functions (path, leaf) -> whether a leaf travels as it is; one is enough.
      min_size: leaves with fewer entries travel as they are.
    """

    sparsifiers: tuple[Sparsifier, ...] = ()
    quantiser: Quantiser | None = None
    companion: Quantiser | None = None
    excluded: tuple[Any, ...] = ()
    min_size: StaticInt = StaticInt(0)

    @property
    def by_seed(self) -> bool:
        """Whether a seed is sent in place of positions."""
        return bool(self.sparsifiers) and all(s.by_seed for s in self.sparsifiers)

    @property
    def rescales(self) -> bool:
        """Whether what is kept is multiplied by more than 1."""
        return any(s.rescales for s in self.sparsifiers)

    @property
    def random(self) -> bool:
        """Whether a key is needed."""
        quantisers = [q for q in (self.quantiser, self.companion) if q is not None]
        return any(s.by_seed for s in self.sparsifiers) or any(q.random for q in quantisers)


class Tensor(NamedTuple):
    """One leaf as it travels, still as vectors over all of its entries.

    Attributes:
      kept: bool `[n]`; None where all are.
      codes: `[n]`, of which those that are kept travel; the numbers themselves without a quantiser.
      header: `[h]`, the quantiser's numbers.
      parameter: of the Golomb code of the positions, int32; None where no positions are sent.
    """

    kept: jax.Array | None
    codes: jax.Array
    header: jax.Array
    parameter: jax.Array | None


class Payload(NamedTuple):
    """A message as it travels: its leaves in order, and the seed if there is one, uint32 `[2]`."""

    tensors: tuple[Tensor, ...]
    seed: jax.Array | None


def compress(
    codec: Codec, tree: Any, key: jax.Array | None = None, integers: bool = True
) -> Payload:
    """The codes of a message.

    Args:
      codec: a `Codec`.
      tree: the message.
      key: for codecs that draw random numbers.
      integers: whether codes are made unsigned integers, as they travel. Where nobody packs them that
        would be two conversions for nothing, which cost as much as the rest of a quantiser.

    Returns:
      A `Payload`.
    """
    if codec.random and key is None:
        raise ValueError("key must be given: this codec draws random numbers. Got None.")
    slots, leaves = layout(codec, tree), jax.tree.leaves(tree)
    own = [i for i, slot in enumerate(slots) if slot.leader == i]
    values = {i: _as_vector(leaves[i]) for i, slot in enumerate(slots) if slot.leader is not None}
    seed, select_key = None, key
    if codec.by_seed and key is not None:
        seed = jax.random.bits(key, (2,), jnp.uint32)
        select_key = _key_of(seed)
    marks, factors = _select(codec, tuple(values[i] for i in own), select_key)
    kept, factor = dict(zip(own, marks, strict=True)), dict(zip(own, factors, strict=True))
    tensors = []
    for i, (slot, leaf) in enumerate(zip(slots, leaves, strict=True)):
        if slot.leader is None:
            tensors.append(Tensor(None, leaf.reshape(-1), jnp.zeros(0, jnp.float32), None))
            continue
        leads, marked = slot.leader == i, kept[slot.leader]
        mine, count, parameter = values[i], jnp.int32(values[i].size), None
        if marked is not None:
            mine = jnp.where(marked, mine * jnp.asarray(factor[slot.leader], mine.dtype), 0)
            # Made once: every pass of a quantiser would otherwise ask again who is kept.
            mine = jax.lax.optimization_barrier(mine)
            if leads and not codec.by_seed:
                marked = kept[i] = mine != 0  # the receiver knows zeros without being told
            count = count_true(marked)
            if leads and not codec.by_seed:
                parameter = golomb.parameter_of(count, marked.size)
        quantiser = quantiser_of(codec, i, slot)
        if quantiser is None:
            codes, header = mine.astype(slot.dtype), jnp.zeros(0, jnp.float32)
        else:
            leaf_key = None if key is None else jax.random.fold_in(key, 2**16 + i)
            zeros = marked is None or codec.by_seed or not leads
            codes, header = quantiser.quantise(mine, count, zeros, leaf_key)
            codes = codes.astype(code_dtype(quantiser.radix)) if integers else codes
        tensors.append(Tensor(marked, codes, header, parameter))
    return Payload(tuple(tensors), seed)


def decompress(codec: Codec, payload: Payload, like: Any) -> Any:
    """What the receiver makes of a payload.

    Args:
      codec: the codec that made it.
      payload: a `Payload`.
      like: a tree of the message's structure, shapes and dtypes.

    Returns:
      The message as the receiver sees it.
    """
    leaves = []
    for i, (slot, tensor) in enumerate(zip(layout(codec, like), payload.tensors, strict=True)):
        quantiser = None if slot.leader is None else quantiser_of(codec, i, slot)
        values = tensor.codes
        if quantiser is not None:
            values = quantiser.restore(tensor.codes.astype(tensor.header.dtype), tensor.header)
        if tensor.kept is not None:
            values = jnp.where(tensor.kept, values, 0)
        leaves.append(values.astype(slot.dtype).reshape(slot.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def lossy(codec: Codec, tree: Any, key: jax.Array | None = None) -> Any:
    """The message as the receiver sees it: `decompress` after `compress`.

    Args:
      codec: a `Codec`.
      tree: the message.
      key: for codecs that draw random numbers.

    Returns:
      A tree like the message.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> change = {"w": jnp.array([0.1, -3.0, 2.0, 0.2])}
      >>> compression.lossy(compression.top_k(0.5), change)["w"].tolist()
      [0.0, -3.0, 2.0, 0.0]
    """
    return decompress(codec, compress(codec, tree, key, integers=False), tree)


def size(codec: Codec, tree: Any, key: jax.Array | None = None) -> jax.Array:
    """The bytes that `encode` makes of a message, exactly, inside a program and without making them.

    Args:
      codec: a `Codec`.
      tree: the message.
      key: for codecs that draw random numbers.

    Returns:
      A scalar, int32.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> codec, tree = compression.ce_fedavg(0.9), {"w": jnp.sin(jnp.arange(1000.0))}
      >>> int(jax.jit(compression.size)(codec, tree)), len(compression.encode(codec, tree))
      (188, 188)
    """
    return size_in_bytes(codec, compress(codec, tree, key, integers=False), tree)


def size_in_bytes(codec: Codec, payload: Payload, like: Any) -> jax.Array:
    """The bytes that `encode` makes of the same message, exactly, as int32.

    Args:
      codec: the codec that made the payload.
      payload: a `Payload`.
      like: a tree of the message's structure, shapes and dtypes.

    Returns:
      A scalar.
    """
    total = jnp.int32(ENVELOPE_BYTES + (SEED_BYTES if codec.by_seed else 0))
    for i, (slot, tensor) in enumerate(zip(layout(codec, like), payload.tensors, strict=True)):
        total += _leaf_bytes(codec, i, slot, tensor)
    return total


def kept_by_seed(codec: Codec, seed: jax.Array, like: Any) -> dict[int, jax.Array]:
    """The entries that a seed stands for, by the index of the leaf, as the receiver finds them."""
    own = {i: slot for i, slot in enumerate(layout(codec, like)) if slot.leader == i}
    vectors = tuple(jnp.zeros(math.prod(slot.shape), jnp.float32) for slot in own.values())
    return dict(zip(own, _select(codec, vectors, _key_of(seed))[0], strict=True))


def _key_of(seed: jax.Array) -> jax.Array:
    # Of one kind whatever kind the user's keys are: both ends must draw the same numbers.
    return jax.random.wrap_key_data(seed, impl="threefry2x32")


def _select(codec, vectors, key):
    """The marks of all vectors after all sparsifiers, and what the kept entries are multiplied by."""
    marks: Any = [None] * len(vectors)
    factors: Any = [1.0] * len(vectors)
    for number, sparsifier in enumerate(codec.sparsifiers):
        this_key = None if key is None else jax.random.fold_in(key, number)
        marks, scales = sparsifier.select(vectors, marks, this_key)
        factors = [f * scale for f, scale in zip(factors, scales, strict=True)]
    return marks, factors


def quantiser_of(codec: Codec, index: int, slot: Slot) -> Quantiser | None:
    """The codes of a leaf: a companion may have its own."""
    if slot.leader != index and codec.companion is not None:
        return codec.companion
    return codec.quantiser


def _leaf_bytes(codec, index, slot, tensor):
    size = tensor.codes.size
    if slot.leader is None:
        return size * slot.dtype.itemsize
    head = tensor.header.size * jnp.dtype(tensor.header.dtype).itemsize
    count, positions = jnp.int32(size), jnp.int32(0)
    if tensor.kept is not None:
        count = count_true(tensor.kept)
        if slot.leader == index:
            head += varint_bytes(count)
        if tensor.parameter is not None:
            unary = golomb.size_in_bits(tensor.kept, tensor.parameter)
            head += varint_bytes(unary) + 1
            positions = unary + count * tensor.parameter
    quantiser = quantiser_of(codec, index, slot)
    if quantiser is not None and quantiser.radix == 3:
        return head + (positions + 7) // 8 + (count + 4) // 5
    width = slot.dtype.itemsize * 8 if quantiser is None else quantiser.width
    # Whole bytes first: the bits of a large tensor would not fit into int32.
    bits = positions % 8 + (count % 8) * width
    return head + positions // 8 + (count // 8) * width + (bits + 7) // 8


def varint_bytes(number: jax.Array) -> jax.Array:
    """The length of an unsigned int32 in seven bits to a byte."""
    limits = 2 ** jnp.array([7, 14, 21, 28], jnp.int32)
    return 1 + jnp.sum(number >= limits, dtype=jnp.int32)


def _as_vector(leaf):
    return leaf.reshape(-1).astype(trees.sum_dtype(leaf.dtype))
