"""How large messages are: the thesis's formulas, and what our own encoder makes on average.

With |W| tensors of sum |w| entries, sparsity s, and g_s bits for a Golomb-coded index:

    b*  = 1 + floor(log2(ln(phi - 1) / ln(s))),   phi the golden ratio                          (3.4)
    g_s = b* + 1 / (1 - s^(2^b*))                                                               (3.3)
    FedAvg      160 |W| + (1 - s) ( 8 + g_s) sum |w|   bits per client and round                (3.1)
    CE-FedAvg   224 |W| + (1 - s) (24 + g_s) sum |w|                                            (3.2)

Print has (phi - 1) / s inside the logarithm of (3.4); its own compression ratios follow from the above.

Reference:
  Mills. Federated machine learning in edge computing. PhD thesis, University of Exeter, chapter 3.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.compression import bits, golomb
from fedjax_opt.compression.codec import ENVELOPE_BYTES, SEED_BYTES, Codec, quantiser_of
from fedjax_opt.compression.layout import layout
from fedjax_opt.core import Variables, checks, trees


def formula_bits(variables: Any, sparsity: float, moments: bool = False) -> float:
    """The bits that one client uploads in one round, by (3.1), or with Adam's moments by (3.2).

    Args:
      variables: the model's `Variables` or parameters, or shapes of them.
      sparsity: s in (0, 1).
      moments: whether both of Adam's moments travel, too.

    Returns:
      Bits.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> round(compression.formula_bits({"w": jnp.zeros(100_000)}, 0.9))
      127718
    """
    sparsity = checks.number("sparsity", sparsity, low=0, high=1, open_low=True, open_high=True)
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(_params(variables))]
    per_tensor, per_entry = (224, 24) if moments else (160, 8)
    sent = (1 - sparsity) * (per_entry + golomb.expected_bits(sparsity))
    return per_tensor * len(sizes) + sent * sum(sizes)


def formula_ratio(sparsity: float, moments: bool = False) -> float:
    """How many times smaller an upload becomes, without the terms of its tensors' headers.

    Args:
      sparsity: s in (0, 1).
      moments: whether both of Adam's moments travel, too; uncompressed they triple the upload.

    Returns:
      `32 / ((1 - s)(8 + g_s))`, or with moments `96 / ((1 - s)(24 + g_s))`.

    Example:
      >>> from fedjax_opt import compression
      >>> [round(compression.formula_ratio(s), 1) for s in (0.6, 0.9, 0.95)]
      [7.6, 25.1, 46.4]
    """
    sparsity = checks.number("sparsity", sparsity, low=0, high=1, open_low=True, open_high=True)
    plain, coded = (96, 24) if moments else (32, 8)
    return plain / ((1 - sparsity) * (coded + golomb.expected_bits(sparsity)))


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
      15974
    """
    if checks.is_traced(*(sparsifier.sparsity for sparsifier in codec.sparsifiers)):
        return None
    total = float(ENVELOPE_BYTES + (SEED_BYTES if codec.by_seed else 0))
    for index, slot in enumerate(layout(codec, like)):
        size = math.prod(slot.shape)
        if slot.leader is None:
            total += size * slot.dtype.itemsize
        else:
            total += _expected_leaf(codec, index, slot, size)
    return total


def _expected_leaf(codec, index, slot, size):
    count = size
    for sparsifier in codec.sparsifiers:
        exact = (1 - float(sparsifier.sparsity)) * count
        count = max(math.ceil(exact - 1e-6), 1)
    positions, head = 0.0, 0
    if codec.sparsifiers and slot.leader == index:
        head += _varint_bytes(count)
        if not codec.by_seed:
            # The last gap has no code, but a sample without replacement has shorter ones: both vanish.
            positions = count * golomb.expected_bits(1 - count / size) if count < size else count
            head += _varint_bytes(positions) + 1
    quantiser = quantiser_of(codec, index, slot)
    if quantiser is None:
        return head + (positions + count * slot.dtype.itemsize * 8) / 8
    wide = trees.sum_dtype(slot.dtype)
    header = jax.eval_shape(
        partial(quantiser.quantise, zeros=True),
        jax.ShapeDtypeStruct((size,), wide),
        count=jax.ShapeDtypeStruct((), jnp.int32),
        key=_any_key(),
    )[1]
    head += header.size * jnp.dtype(header.dtype).itemsize
    if quantiser.radix == 3:
        return head + positions / 8 + -(-count // 5)
    width = quantiser.width
    # Half a byte of padding, on average.
    return head + (positions + count * width + (3.5 if positions else 0)) / 8


def _varint_bytes(number):
    return len(bits.varint(int(number)))


def _any_key():
    return jax.eval_shape(lambda: jax.random.key(0))


def _params(variables):
    return variables.params if isinstance(variables, Variables) else variables
