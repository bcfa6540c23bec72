"""The bytes of a message: exactly those that a codec's size counts, and the way back.

    envelope   "fo", a byte for the version, the CRC-32 of all other bytes (4 bytes, little-endian)
    seed       8 bytes, where a seed stands for positions
    leaf       as it is: its numbers, little-endian
               coded:    count, length of the unary stream (varints), Golomb parameter (1 byte)
                         the quantiser's header, little-endian
                         unary stream, remainders, codes: one stream of bits, padded to a byte

A leaf all of whose entries travel has none of the first three, nor has a companion, whose positions are
its leader's; with a seed there is only the count, as a check. Codes in base 3 begin at a byte.

What both ends know is not sent: the codec, and the leaves' paths, shapes and dtypes. The checksum starts
from a text about these (agreement.py), so that bytes of another codec or model do not pass. Numbers such
as a sparsity are not in it: they may change from round to round.
"""

import sys
import zlib
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.compression import bits, golomb
from fedjax_opt.compression.agreement import description, paths
from fedjax_opt.compression.codec import (
    SEED_BYTES,
    Codec,
    Payload,
    Tensor,
    compress,
    decompress,
    kept_by_seed,
    quantiser_of,
)
from fedjax_opt.compression.layout import Slot, layout
from fedjax_opt.compression.quantisers import code_dtype
from fedjax_opt.core import Coded

MAGIC = b"fo"
VERSION = 1


def encode(codec: Codec, tree: Any, key: jax.Array | None = None) -> bytes:
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
      >>> len(compression.encode(compression.top_k(0.99), tree))
      61
    """
    _check(codec, "tree", tree)
    tree = jax.tree.map(jnp.asarray, tree)
    payload, finite = _compressed(codec, tree, key)
    for path, good in zip(paths(tree), np.asarray(finite), strict=True):
        if not good:
            raise ValueError(f"tree{path} and its codes must be finite, got NaN or infinity.")
    return bytes_of(codec, payload, tree)


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
      >>> codec, tree = compression.top_k(0.5), {"w": jnp.array([0.1, -3.0, 2.0, 0.2])}
      >>> compression.decode(codec, compression.encode(codec, tree), tree)["w"].tolist()
      [0.0, -3.0, 2.0, 0.0]
    """
    return _decompressed(codec, payload_of(codec, data, like), _static(like))


def bytes_of(codec: Codec, payload: Payload, like: Any) -> bytes:
    """The bytes of a payload that was computed before; nothing in it may be traced."""
    payload = jax.device_get(payload)
    body = [] if payload.seed is None else [_to_bytes(payload.seed)]
    places: dict[int, np.ndarray] = {}
    for i, (slot, tensor) in enumerate(zip(layout(codec, like), payload.tensors, strict=True)):
        body += _leaf(codec, i, slot, tensor, places)
    content = b"".join(body)
    return b"".join([MAGIC, bytes([VERSION]), _checksum(codec, like, content), content])


def bytes_of_coded(coded: Coded) -> bytes:
    """The very bytes that a coded upload or message stands for; nothing in it may be traced.

    Args:
      coded: what a client of a `compressed` algorithm uploads, or its server broadcasts.

    Returns:
      The bytes, `coded.num_bytes` of them: `decode(coded.codec, ..., coded.inner)` reads them.

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
    codec, slots = coded.codec, layout(coded.codec, coded.inner)
    tensors = []
    for i, (slot, tensor) in enumerate(zip(slots, coded.payload.tensors, strict=True)):
        quantiser = None if slot.leader is None else quantiser_of(codec, i, slot)
        codes = np.asarray(tensor.codes)
        if quantiser is not None:
            codes = codes.astype(code_dtype(quantiser.radix))
        tensors.append(tensor._replace(codes=codes))
    return bytes_of(codec, coded.payload._replace(tensors=tuple(tensors)), coded.inner)


def payload_of(codec: Codec, data: bytes, like: Any) -> Payload:
    """The payload that some bytes hold, after all checks; codes of what is not kept are 0."""
    _check(codec, "like", like)
    like = jax.tree.unflatten(*_static(like))
    reader = bits.Reader(data)
    if (magic := bytes(reader.take(2))) != MAGIC:
        raise ValueError(f"data must begin with {MAGIC!r}, got {magic!r}.")
    if (version := reader.take(1)[0]) != VERSION:
        raise ValueError(f"the version of data must be {VERSION}, got {version}.")
    checksum, content = bytes(reader.take(4)), reader.take(reader.remaining)
    if checksum == _checksum(codec, like, content):
        return _read(codec, bits.Reader(content), like)
    # The lengths that the bytes speak of say more than the checksum alone.
    try:
        _read(codec, bits.Reader(content), like)
        why = "they are damaged, or of another codec or other shapes"
        if codec.by_seed:
            why += ", or drawn under another setting of jax_threefry_partitionable"
    except ValueError as error:
        why = f"they are truncated, damaged, or of another codec or other shapes: {error}"
    raise ValueError(f"the checksum of data is not that of its {len(data)} bytes; {why}")


@jax.jit
def _compressed(codec, tree, key):
    """The payload, and for each leaf whether all is finite, before and after."""
    payload = compress(codec, tree, key)
    finite = [*map(_is_finite, jax.tree.leaves(tree), payload.tensors)]
    return payload, jnp.array(finite, bool)


def _is_finite(leaf, tensor):
    finite = jnp.all(jnp.isfinite(tensor.header))
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        finite &= jnp.all(jnp.isfinite(leaf))
    if jnp.issubdtype(tensor.codes.dtype, jnp.inexact):
        # Rescaling may have made infinity of a large number.
        sent = True if tensor.kept is None else tensor.kept
        finite &= jnp.all(jnp.isfinite(tensor.codes), where=sent)
    return finite


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


@lru_cache(maxsize=64)
def _template(structure, static) -> Payload:
    """The shapes and dtypes of a payload, and what is in it at all, by the codec's own word."""
    codec = jax.tree.unflatten(structure, [0.5] * structure.num_leaves)

    def trace(codec, tree):
        return compress(codec, tree, jax.random.key(0) if codec.random else None)

    return jax.eval_shape(trace, codec, jax.tree.unflatten(*static))


def _leaf(codec, index, slot: Slot, tensor: Tensor, places) -> list[bytes]:
    """The bytes of a leaf, in parts; `places` holds the indices that leaders keep."""
    if slot.leader is None:
        return [_to_bytes(tensor.codes)]
    head, streams, codes = [], [], tensor.codes
    if tensor.kept is not None:
        if slot.leader == index:
            places[index] = np.flatnonzero(tensor.kept)
            head.append(bits.varint(places[index].size))
        codes = codes[places[slot.leader]]
    if tensor.parameter is not None:
        streams += golomb.encode(places[index], int(tensor.parameter))
        head += [bits.varint(streams[0].length), bytes([int(tensor.parameter)])]
    head.append(_to_bytes(tensor.header))
    quantiser = quantiser_of(codec, index, slot)
    if quantiser is None:
        streams.append(bits.Stream(np.frombuffer(_to_bytes(codes), np.uint8), 8 * codes.nbytes))
    elif quantiser.radix == 3:
        head.append(bits.join(streams).data.tobytes())
        streams = [bits.pack_ternary(codes)]
    else:
        streams.append(bits.pack(codes, quantiser.width))
    return [*head, bits.join(streams).data.tobytes()]


def _read(codec, reader: bits.Reader, like) -> Payload:
    """All leaves, which must be all that there is to read."""
    static = _static(like)
    seed, marks = None, {}
    if codec.by_seed:
        seed = _from_bytes(reader.take(SEED_BYTES), np.uint32)
        marks = jax.device_get(_marks(codec, seed, static))
    template = _template(jax.tree.structure(codec), static)
    tensors, places = [], {}
    for i, (slot, tensor) in enumerate(zip(layout(codec, like), template.tensors, strict=True)):
        try:
            tensors.append(_read_leaf(codec, reader, i, slot, tensor, marks.get(i), places))
        except ValueError as error:
            raise ValueError(f"leaf {i}, {slot.path!r}: {error}") from error
    reader.end()
    return Payload(tuple(tensors), seed)


def _read_leaf(codec, reader, index, slot: Slot, template: Tensor, mark, places) -> Tensor:
    """One leaf; `places` holds the indices that leaders keep, and the marks of them."""
    size, dtype, wide = template.codes.size, template.codes.dtype, template.header.dtype
    if slot.leader is None:
        codes = _from_bytes(reader.take(size * dtype.itemsize), dtype)
        return Tensor(None, codes, _from_bytes(b"", wide), None)
    codes: Any
    parameter: Any = None
    count, unary, b = size, 0, 0
    if template.kept is not None:
        count = reader.varint() if slot.leader == index else places[slot.leader][0].size
    if template.parameter is not None:
        unary, b = reader.varint(), reader.take(1)[0]
        parameter = np.int32(b)
    header = _from_bytes(reader.take(template.header.size * wide.itemsize), wide)
    quantiser, positions = quantiser_of(codec, index, slot), unary + count * b
    if quantiser is not None and quantiser.radix == 3:
        stream = reader.stream(positions)
        codes = bits.unpack_ternary(reader.stream(bits.ternary_bits(count)), count)
    else:
        width = 8 * dtype.itemsize if quantiser is None else quantiser.width
        stream = reader.stream(positions + count * width)
        last = bits.part(stream, positions, count * width)
        codes = _from_bytes(last.data, dtype) if quantiser is None else bits.unpack(last, width)
    if template.kept is None:
        return Tensor(None, codes.astype(dtype), header, None)
    if template.parameter is not None:
        streams = bits.part(stream, 0, unary), bits.part(stream, unary, count * b)
        indices = golomb.decode(*streams, b, count, size)
        mark = np.zeros(size, np.bool_)
        mark[indices] = True
        places[index] = indices, mark
    elif slot.leader == index:
        places[index] = np.flatnonzero(mark), mark
    indices, mark = places[slot.leader]
    if indices.size != count:
        raise ValueError(f"the seed marks {indices.size} entries at this sparsity, not {count}.")
    spread: Any = np.zeros(size, dtype)
    spread[indices] = codes
    return Tensor(mark, spread, header, parameter)


def _check(codec, name, tree):
    if not isinstance(codec, Codec):
        raise ValueError(f"codec must be a Codec, got {codec!r}.")
    for path, leaf in zip(paths(tree), jax.tree.leaves(tree), strict=True):
        kind = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)):
            raise ValueError(f"{name}{path} must be an array of numbers, got {kind}.")


def _to_bytes(array) -> bytes:
    return array.tobytes() if sys.byteorder == "little" else array.byteswap().tobytes()


def _from_bytes(data, dtype) -> Any:
    array = np.frombuffer(data, dtype)
    return array.copy() if sys.byteorder == "little" else array.byteswap()


def _checksum(codec, like, content) -> bytes:
    """Of the text that describes both ends, then of all bytes but the checksum's own."""
    start = zlib.crc32(MAGIC + bytes([VERSION]), zlib.crc32(description(codec, like).encode()))
    return zlib.crc32(content, start).to_bytes(4, "little")
