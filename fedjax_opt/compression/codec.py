"""What a codec does to a message, inside the program: which entries travel, and as which codes.

A message is a pytree. Its first `Variables` (the change of the model), or the whole of it if there are
none, is what sparsifiers look at. Parts of the same structure and shapes as the parameters (Adam's
moments, a control variate) are companions: they travel at the entries that the model's change keeps.
Everything else, and what is excluded, travels as it is.

    compress(codec, tree, key)         -> Payload: codes, and what the server needs to read them
    decompress(codec, payload, like)   -> the tree that the server sees; 0 where nothing was sent
    size_in_bytes(codec, payload, like) -> exactly the bytes that `encode` of the same would make
    lossy, size                        -> both from the message itself
    expected_bytes(codec, like)        -> the size on average, from shapes alone

All but the last can be jitted; sparsities are leaves, so that a sweep over them is one `vmap`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.compression import golomb
from fedjax_opt.compression.largest import count_true
from fedjax_opt.core import Variables, calls, checks, trees
from fedjax_opt.core.algorithm import StaticInt

# magic, version, checksum
ENVELOPE_BYTES = 7
SEED_BYTES = 8
COUNT_BYTES = 4
PARAMETER_BYTES = 1


@jax.tree_util.register_static
class Name(str):
    """The name of a part of a codec: structure, not a leaf. Bytes depend on it, so it never changes."""


class Sparsifier(NamedTuple):
    """Which entries travel.

    Attributes:
      name: what both ends call it.
      select: (values, a tuple of vectors; kept, marks of each or None for all; key) -> (kept, factors):
        new marks, and what the kept entries of each vector are multiplied by.
      sparsity: the share of the entries that do not travel.
      by_seed: 1 where the marks follow from a key alone, which is sent in place of positions.
      rescales: 1 where factors may be other than 1.
    """

    name: Name
    select: Callable
    sparsity: chex.Numeric
    by_seed: StaticInt
    rescales: StaticInt

    def __repr__(self) -> str:
        name, *scope = self.name.split()
        options = [f"scope={word!r}" for word in scope] + ["rescale=True"] * bool(self.rescales)
        return f"{name}({', '.join([f'sparsity={calls.text(self.sparsity)}', *options])})"


class Quantiser(NamedTuple):
    """How the kept entries of a tensor become codes.

    Attributes:
      name: what both ends call it.
      quantise: (values `[n]`, count=, zeros=, key=) -> (codes `[n]`, header `[h]`). Entries that do not
        travel are 0; `count` do travel; `zeros` says whether some of those may be 0, too. Codes are
        whole numbers in floating point. The header is NaN if an entry is not finite.
      restore: (codes, header) -> values.
      radix: the number of codes.
      header_size: how many numbers the header has.
      random: 1 where `quantise` needs a key.
    """

    name: Name
    quantise: Callable
    restore: Callable
    radix: StaticInt
    header_size: StaticInt
    random: StaticInt

    def __repr__(self) -> str:
        name, _, option = self.name.partition(" ")
        given = [] if self.radix < 4 else [f"bits={self.radix.bit_length() - 1}"]
        if option:
            given.append(f"{option.replace(' ', '_')}=True")
        if bool(self.random) != (self.radix == 3):  # ternary codes are random unless told otherwise
            given.append(f"stochastic={bool(self.random)}")
        return f"{name}({', '.join(given)})"


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
    excluded: tuple[Callable, ...] = ()
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

    def __repr__(self) -> str:
        parts = [repr(part) for part in (*self.sparsifiers, self.quantiser) if part is not None]
        companion = [] if self.companion is None else [f"companions={self.companion!r}"]
        together = len(parts) + len(companion) != 1
        shown = f"chain({', '.join(parts + companion)})" if together else parts[0]
        where = [] if not self.excluded else ["..."]
        least = [f"min_size={self.min_size}"] if self.min_size else []
        return f"excluding({', '.join([shown, *where, *least])})" if where or least else shown


class Slot(NamedTuple):
    """One leaf of a message, and how it travels.

    Attributes:
      path: its path in the model, or in the message.
      shape: its shape.
      dtype: its dtype.
      leader: the index of the leaf whose kept entries are its own: its own index where it chooses
        itself, another's for a companion, None for a leaf that travels as it is.
      quantiser: its codes; None for the numbers themselves.
      counted: whether the number of its entries is sent.
      placed: whether their positions are.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    leader: int | None
    quantiser: Quantiser | None
    counted: bool
    placed: bool

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.shape)

    @property
    def wide(self) -> Any:
        """The dtype in which it is computed."""
        return np.dtype(trees.sum_dtype(self.dtype))

    @property
    def header_size(self) -> int:
        """How many numbers its header has."""
        return 0 if self.quantiser is None else int(self.quantiser.header_size)

    @property
    def width(self) -> int:
        """The bits of an entry that travels."""
        if self.quantiser is None:
            return 8 * self.dtype.itemsize
        return (int(self.quantiser.radix) - 1).bit_length()


class Tensor(NamedTuple):
    """One leaf as it travels, still as vectors over all of its entries.

    Attributes:
      kept: bool `[n]`; None where all are.
      codes: `[n]`, of which those that are kept travel; the numbers themselves without a quantiser.
      header: `[h]`, the quantiser's numbers.
      parameter: of the Golomb code of the positions, int32; None where no positions are sent.
    """

    kept: Any
    codes: chex.Array
    header: chex.Array
    parameter: Any


class Payload(NamedTuple):
    """A message as it travels: its leaves in order, and the seed if there is one, uint32 `[2]`."""

    tensors: tuple[Tensor, ...]
    seed: jax.Array | None


def layout(codec: Codec, tree: Any) -> tuple[Slot, ...]:
    """How each leaf of a message travels, in the order of its leaves; it depends on shapes alone."""
    leaves = [(path, _text(path or ()), leaf) for path, leaf in _paths_in_the_model(tree)]
    excluded = _excluded(codec, leaves)
    slots: list[Slot] = []
    leaders: dict[Any, int] = {}
    for index, (path, text, leaf) in enumerate(leaves):
        leader = quantiser = None
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        enough = math.prod(leaf.shape) >= max(int(codec.min_size), 1)
        if path is not None and index not in excluded and floating and enough:
            leader = leaders.setdefault(path, index)
            quantiser = codec.quantiser
            if leader != index and codec.companion is not None:
                quantiser = codec.companion
        counted = leader == index and bool(codec.sparsifiers)
        how = leader, quantiser, counted, counted and not codec.by_seed
        slots.append(Slot(text, tuple(leaf.shape), jnp.dtype(leaf.dtype), *how))
    return tuple(slots)


def compress(codec: Codec, tree: Any, key: chex.PRNGKey | None = None) -> Payload:
    """The codes of a message; `key` is for codecs that draw random numbers."""
    if codec.random and key is None:
        raise ValueError("key must be given: this codec draws random numbers. Got None.")
    slots, seed, select_key = layout(codec, tree), None, key
    values = [
        leaf.reshape(-1).astype(leaf.dtype if slot.leader is None else slot.wide)
        for slot, leaf in zip(slots, jax.tree.leaves(tree), strict=True)
    ]
    if codec.by_seed and key is not None:
        seed = jax.random.bits(key, (2,), jnp.uint32)
        select_key = _key_of(seed)
    selected = _select(codec, slots, values, select_key)
    tensors = []
    for i, (slot, mine) in enumerate(zip(slots, values, strict=True)):
        count, parameter, header = slot.size, None, jnp.zeros(0, jnp.float32)
        kept, factor = (None, 1.0) if slot.leader is None else selected[slot.leader]
        if kept is not None:
            mine = jnp.where(kept, mine * jnp.asarray(factor, mine.dtype), 0)
            # Made once: every pass of a quantiser would otherwise ask again who is kept.
            mine = jax.lax.optimization_barrier(mine)
            if slot.placed:
                kept = mine != 0  # the receiver knows zeros without being told
                selected[i] = kept, factor
            count = count_true(kept)
            if slot.placed:
                parameter = golomb.parameter_of(count, slot.size)
        codes = mine.astype(slot.dtype)
        if slot.quantiser is not None:
            zeros = kept is None or not slot.placed
            leaf_key = None if key is None else jax.random.fold_in(key, 2**16 + i)
            codes, header = slot.quantiser.quantise(mine, count=count, zeros=zeros, key=leaf_key)
        tensors.append(Tensor(kept, codes, header, parameter))
    return Payload(tuple(tensors), seed)


def decompress(codec: Codec, payload: Payload, like: Any) -> Any:
    """The message as its receiver sees it; `like` has its structure, shapes and dtypes."""
    leaves = []
    for slot, tensor in zip(layout(codec, like), payload.tensors, strict=True):
        values = tensor.codes
        if slot.quantiser is not None:
            values = slot.quantiser.restore(values, tensor.header)
        if tensor.kept is not None:
            values = jnp.where(tensor.kept, values, 0)
        leaves.append(values.astype(slot.dtype).reshape(slot.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def lossy(codec: Codec, tree: Any, key: chex.PRNGKey | None = None) -> Any:
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
      >>> compression.lossy(compression.top_k(sparsity=0.5), change)["w"].tolist()
      [0.0, -3.0, 2.0, 0.0]
    """
    return decompress(codec, compress(codec, tree, key), tree)


def size(codec: Codec, tree: Any, key: chex.PRNGKey | None = None) -> jax.Array:
    """The bytes that `encode` makes of a message, exactly, inside a program and without making them.

    Args:
      codec: a `Codec`.
      tree: the message.
      key: for codecs that draw random numbers.

    Returns:
      A scalar, int32; in floating point for messages that might have more than 2^31 bytes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> codec, tree = compression.ce_fedavg(0.9), {"w": jnp.sin(jnp.arange(1000.0))}
      >>> int(jax.jit(compression.size)(codec, tree)), len(compression.encode(codec, tree))
      (189, 189)
    """
    return size_in_bytes(codec, compress(codec, tree, key), tree)


def size_in_bytes(codec: Codec, payload: Payload, like: Any) -> jax.Array:
    """`size` of a message whose payload is known; `like` has its structure, shapes and dtypes."""
    slots = layout(codec, like)
    fixed = _fixed_bytes(codec, slots)
    # A sum in int32 would overflow in silence, so it is one only where no values could make it.
    # Codes of short types may be wider than those; positions take less than two bits an entry.
    most = fixed + sum(slot.size * (max(slot.dtype.itemsize, 2) + 1) for slot in _coded(slots))
    dtype = jnp.int32 if most < 2**31 else jnp.result_type(float)
    total = jnp.asarray(fixed, dtype)
    for slot, tensor in zip(slots, payload.tensors, strict=True):
        if slot.leader is None:
            continue
        count, positions = slot.size, 0
        if tensor.kept is not None:
            count = count_true(tensor.kept).astype(dtype)
        if slot.placed:
            quotients = golomb.unary_bits(tensor.kept, tensor.parameter).astype(dtype)
            positions = quotients + count * tensor.parameter.astype(dtype)
        total += _stream_bytes(slot, positions, count)
    return total


def expected_bytes(codec: Codec, like: Any) -> float | None:
    """What `encode` makes of a message on average, from its shapes alone.

    Positions are taken to be anywhere with the same probability; everything else is exact. With
    `top_k(scope="global")` each tensor is taken to keep the same share, which values would decide.

    Args:
      codec: a `Codec`.
      like: the message, or shapes of it.

    Returns:
      Bytes; None where a sparsity is traced.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> round(compression.expected_bytes(compression.ce_fedavg(0.9), {"w": jnp.zeros(100_000)}))
      15973
    """
    if checks.is_traced(*(sparsifier.sparsity for sparsifier in codec.sparsifiers)):
        return None
    slots = layout(codec, like)
    total = float(_fixed_bytes(codec, slots))
    for slot in _coded(slots):
        count = slot.size
        for sparsifier in codec.sparsifiers:
            count = max(math.ceil((1 - float(sparsifier.sparsity)) * count - 1e-6), 1)
        if not slot.placed:
            total += _stream_bytes(slot, 0, count)
            continue
        # The last gap has no code, but a sample without replacement has shorter ones: both vanish.
        position = golomb.expected_bits(1 - count / slot.size) if count < slot.size else 1
        total += (count * (position + slot.width) + 3.5) / 8  # half a byte of padding, on average
    return total


def kept_by_seed(codec: Codec, seed: jax.Array, like: Any) -> dict[int, jax.Array | None]:
    """The entries that a seed stands for, by the index of the leaf, as the receiver finds them."""
    slots = layout(codec, like)
    values = [jnp.zeros(slot.size, jnp.float32) for slot in slots]
    selected = _select(codec, slots, values, _key_of(seed))
    return {index: kept for index, (kept, _) in selected.items()}


def _key_of(seed: jax.Array) -> chex.PRNGKey:
    # Of one kind whatever kind the user's keys are: both ends must draw the same numbers.
    return jax.random.wrap_key_data(seed, impl="threefry2x32")


def _select(codec, slots, values, key) -> dict[int, tuple[Any, Any]]:
    """Of each leader the marks after all sparsifiers, and what kept entries are multiplied by."""
    own = [i for i, slot in enumerate(slots) if slot.leader == i]
    vectors = tuple(values[i] for i in own)
    marks: Any = [None] * len(own)
    factors: Any = [1.0] * len(own)
    for number, sparsifier in enumerate(codec.sparsifiers):
        this_key = None if key is None else jax.random.fold_in(key, number)
        marks, scales = sparsifier.select(vectors, marks, this_key)
        factors = [f * scale for f, scale in zip(factors, scales, strict=True)]
    return dict(zip(own, zip(marks, factors, strict=True), strict=True))


def _coded(slots: tuple[Slot, ...]) -> list[Slot]:
    return [slot for slot in slots if slot.leader is not None]


def _fixed_bytes(codec: Codec, slots: tuple[Slot, ...]) -> int:
    """All that does not depend on which entries travel."""
    total = ENVELOPE_BYTES + SEED_BYTES * codec.by_seed
    for slot in slots:
        if slot.leader is None:
            total += slot.size * slot.dtype.itemsize
        total += COUNT_BYTES * slot.counted + PARAMETER_BYTES * slot.placed
        total += slot.header_size * slot.wide.itemsize
    return total


def _stream_bytes(slot: Slot, positions: Any, count: Any) -> Any:
    """The bytes of so many bits of positions and of the codes of so many entries, in one stream."""
    # Whole bytes first: the bits of a large tensor would not fit into int32.
    rest = positions % 8 + count % 8 * slot.width
    return positions // 8 + count // 8 * slot.width + (rest + 7) // 8


def _excluded(codec: Codec, leaves: list[tuple[Any, str, Any]]) -> set[int]:
    """The leaves that `excluding` names; a `where` that names none of them is refused."""
    of_model = [(i, text, leaf) for i, (path, text, leaf) in enumerate(leaves) if path is not None]
    excluded: set[int] = set()
    for chosen in codec.excluded:
        named = {i for i, text, leaf in of_model if chosen(text, leaf)}
        if of_model and not named:
            paths = ", ".join(dict.fromkeys(text for _, text, _ in of_model))
            raise ValueError(
                f"where of excluding matches no leaf of the message; its leaves are {paths}."
            )
        excluded |= named
    return excluded


def _paths_in_the_model(tree: Any) -> list[tuple[Any, Any]]:
    """(path in the model, leaf) of each leaf of a message, in order; None for what is not of a model."""
    models = [n for n in jax.tree.leaves(tree, is_leaf=_is_variables) if _is_variables(n)]
    if not models:
        return jax.tree_util.tree_leaves_with_path(tree)
    params = models[0].params

    def is_part(node):
        return _is_variables(node) or _is_like(node, params)

    found: list[tuple[Any, Any]] = []
    for node in jax.tree.leaves(tree, is_leaf=is_part):
        if _is_variables(node):
            found += jax.tree_util.tree_leaves_with_path(node)
        elif _is_like(node, params):
            found += jax.tree_util.tree_leaves_with_path(Variables(node, None))
        else:
            found.append((None, node))
    return found


def _is_variables(node: Any) -> bool:
    return isinstance(node, Variables)


def _is_like(node: Any, params: Any) -> bool:
    """Whether a node has the structure and the shapes of the parameters."""
    if jax.tree.structure(node) != jax.tree.structure(params):
        return False
    pairs = zip(jax.tree.leaves(node), jax.tree.leaves(params), strict=True)
    return all(a.shape == b.shape for a, b in pairs)


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
