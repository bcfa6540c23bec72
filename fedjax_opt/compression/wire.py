"""The bytes of a message: exactly those that a codec's size counts, and the way back.

    envelope   "fo", a byte for the version, the CRC-32 of all other bytes (4 bytes, little-endian)
    seed       8 bytes, where a seed stands for positions
    leaf       as it is: its numbers, little-endian
               coded:    how many entries are kept (4 bytes), Golomb parameter (1 byte)
                         the quantiser's header, little-endian
                         positions, codes: one stream of bits, padded to a byte

The first of a stream's bits is the lowest of its first byte. A leaf all of whose entries travel has
neither count nor parameter, nor has a companion, whose positions are its leader's; with a seed there is
only the count, as a check.

What both ends know is not sent: the codec, and the leaves' paths, shapes and dtypes. The checksum starts
from a text about these, so that bytes of another codec or model do not pass. Numbers such as a sparsity
are not in it: they may change from round to round.
"""

import io
import zlib
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.compression import golomb
from fedjax_opt.compression.codec import (
    COUNT_BYTES,
    SEED_BYTES,
    Codec,
    Payload,
    Slot,
    Tensor,
    compress,
    decompress,
    kept_by_seed,
    layout,
)
from fedjax_opt.core import Coded

MAGIC = b"fo"
VERSION = 3


def encode(codec: Codec, tree: Any, key: chex.PRNGKey | None = None) -> bytes:
    """A message as bytes.

    Args:
      codec: a `Codec`.
      tree: the message, a pytree of arrays.
      key: for codecs that draw random numbers.

    Returns:
      The bytes. A leaf that holds NaN or infinity, or no numbers, is refused, by its path.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> tree = {"w": jnp.arange(1000, dtype=jnp.float32)}
      >>> len(compression.encode(compression.top_k(sparsity=0.99), tree))
      63
    """
    _check(codec, "tree", tree)
    tree = jax.tree.map(jnp.asarray, tree)
    for path, leaf in zip(_paths(tree), jax.tree.leaves(tree), strict=True):
        _check_finite(path, leaf)
    return bytes_of(codec, _compressed(codec, tree, key), tree)


def decode(codec: Codec, data: bytes, like: Any) -> Any:
    """The message that some bytes hold: what `lossy` gives for the same.

    Bytes that `encode` did not make with the same kind of codec for leaves of the same paths, shapes and
    dtypes raise a ValueError.

    Args:
      codec: the codec that made the bytes. With a seed its sparsity, too, must be the sender's, and
        JAX's setting jax_threefry_partitionable.
      data: the bytes.
      like: a tree of the message's structure, shapes and dtypes; `jax.ShapeDtypeStruct`s will do.

    Returns:
      A tree like `like`.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> codec, tree = compression.top_k(sparsity=0.5), {"w": jnp.array([0.1, -3.0, 2.0, 0.2])}
      >>> compression.decode(codec, compression.encode(codec, tree), tree)["w"].tolist()
      [0.0, -3.0, 2.0, 0.0]
    """
    return _decompressed(codec, payload_of(codec, data, like), _static(like))


def bytes_of(codec: Codec, payload: Payload, like: Any) -> bytes:
    """The bytes of a payload that was computed before; nothing in it may be traced."""
    tensors = jax.device_get(payload.tensors)
    # JAX runs on little-endian machines alone, so no number is turned around.
    body = [] if payload.seed is None else [np.asarray(payload.seed).tobytes()]
    places: dict[int | None, np.ndarray] = {}
    both = zip(_paths(like), layout(codec, like), tensors, strict=True)
    for i, (path, slot, tensor) in enumerate(both):
        codes, bits = tensor.codes, []
        if tensor.kept is not None:
            if slot.counted:
                places[i] = np.flatnonzero(tensor.kept)
            codes = codes[places[slot.leader]]
        _check_finite(path, tensor.header)
        _check_finite(path, codes)  # rescaling may have made infinity of a large number
        if slot.counted:
            body.append(codes.size.to_bytes(COUNT_BYTES, "little"))
        if slot.placed:
            body.append(int(tensor.parameter).to_bytes(1, "little"))
            bits.append(golomb.encode(places[i], int(tensor.parameter)))
        body.append(tensor.header.tobytes())
        if slot.leader is None:
            body.append(codes.tobytes())
        else:
            raw = slot.quantiser is None
            bits.append(_unpacked(codes.tobytes()) if raw else golomb.as_bits(codes, slot.width))
            body.append(np.packbits(np.concatenate(bits), bitorder="little").tobytes())
    content = b"".join(body)
    return MAGIC + bytes([VERSION]) + _checksum(codec, like, content) + content


def bytes_of_coded(coded: Coded) -> bytes:
    """The very bytes that a coded upload or message stands for; nothing in it may be traced.

    Args:
      coded: what a client of a `compressed` algorithm uploads, or its server broadcasts.

    Returns:
      The bytes, `coded.num_bytes` of them: `decode(coded.codec, ..., coded.inner)` reads them. What is
      not finite is refused, by its path.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> from fedjax_opt.wrappers.compressed import coded
      >>> sent = coded(compression.uniform(8), {"w": jnp.arange(100.0)}, jax.random.key(0))
      >>> len(compression.bytes_of_coded(sent)) == int(sent.num_bytes)
      True
    """
    if coded.payload is None:
        raise ValueError(
            "coded must hold its payload, got None: its value was changed after it was coded (by an"
            " attack, or a new model inside of a message)."
        )
    return bytes_of(coded.codec, coded.payload, coded.inner)


def payload_of(codec: Codec, data: bytes, like: Any) -> Payload:
    """The payload that some bytes hold, after all checks; codes of what is not kept are 0."""
    _check(codec, "like", like)
    like = jax.tree.unflatten(*_static(like))
    stream = io.BytesIO(data)
    if (magic := _take(stream, len(MAGIC))) != MAGIC:
        raise ValueError(f"data must begin with {MAGIC!r}, got {magic!r}.")
    if (version := _take(stream, 1)[0]) != VERSION:
        raise ValueError(f"the version of data must be {VERSION}, got {version}.")
    checksum, content = _take(stream, 4), stream.read()
    if checksum != _checksum(codec, like, content):
        setting = ", or drawn under another setting of jax_threefry_partitionable"
        raise ValueError(
            f"the checksum of data is not that of its {len(data)} bytes; they are truncated, damaged, or"
            f" of another codec or other shapes{setting if codec.by_seed else ''}."
        )
    return _read(codec, io.BytesIO(content), like)


def _read(codec: Codec, stream: io.BytesIO, like: Any) -> Payload:
    """All leaves, which must be all that there is to read."""
    seed, places = None, {}
    if codec.by_seed:
        seed: Any = np.frombuffer(_take(stream, SEED_BYTES), np.uint32)
        marks = jax.device_get(_marks(codec, seed, _static(like)))
        places = {i: np.flatnonzero(kept) for i, kept in marks.items()}
    tensors = []
    for i, slot in enumerate(layout(codec, like)):
        try:
            tensors.append(_read_leaf(codec, stream, i, slot, places))
        except ValueError as error:
            raise ValueError(f"leaf {i}, {slot.path!r}: {error}") from error
    if rest := len(stream.read()):
        raise ValueError(f"{rest} bytes too many.")
    return Payload(tuple(tensors), seed)


def _read_leaf(codec: Codec, stream: io.BytesIO, index: int, slot: Slot, places: dict) -> Tensor:
    """One leaf; `places` holds the indices that leaders keep."""
    count, b, positions = slot.size, None, 0
    if slot.leader is None:
        values = np.frombuffer(_take(stream, count * slot.dtype.itemsize), slot.dtype)
        return Tensor(None, values, np.zeros(0, np.float32), None)
    if slot.counted:
        count = int.from_bytes(_take(stream, COUNT_BYTES), "little")
        if count > slot.size:
            raise ValueError(f"{count} of {slot.size} entries cannot be kept.")
    elif codec.sparsifiers:
        count = places[slot.leader].size
    if slot.placed:
        b = _take(stream, 1)[0]
    header = np.frombuffer(_take(stream, slot.header_size * slot.wide.itemsize), slot.wide)
    if b is not None:
        # Where the positions end is seen in them: their quotients take at most a bit an entry.
        end = stream.tell() - (-(slot.size + count * b) // 8)
        longest = stream.getbuffer()[stream.tell() : end]
        places[index], positions = golomb.decode(_unpacked(longest), b, count, slot.size)
    if codec.sparsifiers and places[slot.leader].size != count:
        kept = places[slot.leader].size
        raise ValueError(f"the seed marks {kept} entries at this sparsity, not {count}.")
    length = positions + count * slot.width
    bits = _unpacked(_take(stream, -(-length // 8)))[positions:length]
    if slot.quantiser is None:
        codes = np.packbits(bits, bitorder="little").view(slot.dtype)
    else:
        codes = golomb.as_numbers(bits, slot.width).astype(slot.wide)
    if not codec.sparsifiers:
        return Tensor(None, codes, header, None)
    kept, spread = np.zeros(slot.size, bool), np.zeros(slot.size, codes.dtype)
    kept[places[slot.leader]], spread[places[slot.leader]] = True, codes
    return Tensor(kept, spread, header, None if b is None else np.int32(b))


def _unpacked(data: bytes | memoryview) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")


def _take(stream: io.BytesIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"truncated: {size} bytes wanted, and {len(data)} are left.")
    return data


def _check_finite(path, values):
    if jnp.issubdtype(values.dtype, jnp.inexact) and not np.all(np.isfinite(values)):
        raise ValueError(f"tree{path} and its codes must be finite, got NaN or infinity.")


_compressed = jax.jit(compress)


def _static(like):
    """Shapes as an argument of a program that is not traced; `jax.tree.unflatten` is the way back."""
    leaves, structure = jax.tree.flatten(like)
    shapes = (jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return structure, tuple(shapes)


@partial(jax.jit, static_argnums=2)
def _decompressed(codec, payload, static):
    return decompress(codec, payload, jax.tree.unflatten(*static))


@partial(jax.jit, static_argnums=2)
def _marks(codec, seed, static):
    return kept_by_seed(codec, seed, jax.tree.unflatten(*static))


def description(codec: Codec, like: Any) -> str:
    """What both ends must agree on, the same text in every process."""
    quantisers = (codec.quantiser, codec.companion)
    lines = [str(sparsifier.name) for sparsifier in codec.sparsifiers]
    lines += ["none" if q is None else f"{q.name} {int(q.radix)}" for q in quantisers]
    if codec.by_seed:
        # A seed stands for other positions under the other setting.
        setting: Any = jax.config
        lines.append(f"threefry_partitionable {bool(setting.jax_threefry_partitionable)}")
    for path, slot in zip(_paths(like), layout(codec, like), strict=True):
        lines.append(f"{path} {list(slot.shape)} {slot.dtype.name} {slot.leader}")
    return "\n".join(lines)


def _checksum(codec: Codec, like: Any, content: bytes) -> bytes:
    """Of the text that describes both ends, then of all bytes but the checksum's own."""
    start = zlib.crc32(MAGIC + bytes([VERSION]), zlib.crc32(description(codec, like).encode()))
    return zlib.crc32(content, start).to_bytes(4, "little")


def _check(codec, name, tree):
    if not isinstance(codec, Codec):
        raise ValueError(f"codec must be a Codec, got {codec!r}.")
    for path, leaf in zip(_paths(tree), jax.tree.leaves(tree), strict=True):
        kind = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)):
            raise ValueError(f"{name}{path} must be an array of numbers, got {kind}.")


def _paths(tree: Any) -> list[str]:
    """The path of each leaf of a message, as Python would write it."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
