"""The codecs: what a message may be put through, one by one or in a chain.

    top_k         the (1 - s) n entries of largest magnitude, per tensor or of all tensors together
    random_k      (1 - s) n entries at random, the same at both ends from one seed
    uniform       codes of any width, evenly spaced between the extremes of each sign
    exponential   codes of any width for numbers of very different magnitudes
    sign          one bit
    ternary       -1, 0 or 1
    chain         sparsifiers, then a quantiser
    excluding     a codec that leaves some tensors as they are
    ce_fedavg     top_k, uniform for the model's change and exponential for Adam's moments

Each is a `Codec`, a value that can be jitted over, vmapped over its sparsity, and encoded to bytes.

References:
  Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT. IEEE
  Internet of Things Journal, 2020.
  Konecny et al. Federated learning: strategies for improving communication efficiency. 2016 (random
  masks from a seed).
  Sattler, Wiedemann, Mueller, Samek. Robust and communication-efficient federated learning from
  non-i.i.d. data. IEEE TNNLS 2020 (its sparse ternary compression is a chain of `top_k` and `sign`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.compression.codec import Codec, Name, Sparsifier
from fedjax_opt.compression.largest import count_true, largest
from fedjax_opt.compression.quantisers import exponential, uniform
from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import StaticInt
from fedjax_opt.core.paths import matcher
from fedjax_opt.core.permutation import permuted

SCOPES = ("tensor", "global")


def top_k(*, sparsity: chex.Numeric, scope: str = "tensor") -> Codec:
    """Keeps the `ceil((1 - s) n)` entries of largest magnitude, and sends where they are.

    Args:
      sparsity: s in [0, 1), the share that is left out; may be traced.
      scope: 'tensor', each tensor on its own; or 'global', all tensors of the model together.

    Returns:
      A `Codec`. Of entries that are equal the first are kept; at least one entry is. s is taken to be
      right to twice its eps: in float32 a tensor may keep n / 2^21 entries fewer, one of a million.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> change = {"w": jnp.array([1.0, -4.0, 2.0, 3.0])}
      >>> compression.lossy(compression.top_k(sparsity=0.75), change)["w"].tolist()
      [0.0, -4.0, 0.0, 0.0]
    """
    checks.choice("scope", scope, SCOPES)
    sparsity, together = _sparsity(sparsity), StaticInt(scope == "global")
    name = Name("top_k global" if together else "top_k")
    select = Partial(_largest, sparsity, together)
    return Codec((Sparsifier(name, select, sparsity, by_seed=StaticInt(0), rescales=StaticInt(0)),))


def random_k(*, sparsity: chex.Numeric, rescale: bool = False) -> Codec:
    """Keeps `ceil((1 - s) n)` entries of each tensor at random; a seed is sent in place of positions.

    Args:
      sparsity: s in [0, 1); may be traced.
      rescale: whether kept entries are multiplied by n / k, so that the expected value of the message is
        the message.

    Returns:
      A `Codec` that draws random numbers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> codec = compression.random_k(sparsity=0.9)
      >>> seen = compression.lossy(codec, {"w": jnp.ones(100)}, jax.random.key(0))
      >>> float(seen["w"].sum())
      10.0
    """
    sparsity, rescales = _sparsity(sparsity), StaticInt(bool(rescale))
    select = Partial(_some, sparsity, rescales)
    return Codec((Sparsifier(Name("random_k"), select, sparsity, StaticInt(1), rescales),))


def chain(*codecs: Codec, companions: Codec | None = None) -> Codec:
    """Sparsifiers one after the other, then a quantiser for what they keep.

    Args:
      *codecs: sparsifiers first, at most one quantiser, last. One of them may be a chain itself.
      companions: another quantiser for what travels beside the model's change (Adam's moments).

    Returns:
      A `Codec`. `excluding` goes around a chain, not into it: what it names travels as it is.

    Example:
      >>> from fedjax_opt import compression
      >>> quantiser = compression.uniform(4, stochastic=True)
      >>> codec = compression.chain(compression.top_k(sparsity=0.9), quantiser)
    """
    if not codecs:
        raise ValueError("codecs must hold at least one codec, got none.")
    for name, codec in [
        *((f"codecs[{i}]", c) for i, c in enumerate(codecs)),
        ("companions", companions),
    ]:
        if codec is not None and not isinstance(codec, Codec):
            raise ValueError(f"{name} must be a Codec, got {codec!r}.")
    *earlier, last = codecs
    for i, codec in enumerate(earlier):
        if codec.quantiser is not None:
            raise ValueError(
                f"codecs[{i}] is a quantiser, and codes cannot be put through another codec: a quantiser"
                " must come last."
            )
    if earlier and any(codec.excluded or codec.min_size for codec in codecs):
        raise ValueError(
            "excluding goes around a chain, not into it: what it names travels as it is. Use"
            " excluding(chain(...), where, min_size)."
        )
    alone = companions is not None and companions == Codec(quantiser=companions.quantiser)
    if companions is not None and not (alone and companions.quantiser):
        raise ValueError(
            "companions must be a quantiser alone: what travels beside the model's change travels at the"
            f" same entries. Got {companions!r}."
        )
    given = [codec.companion for codec in codecs if codec.companion is not None]
    given += [] if companions is None else [companions.quantiser]
    if len(given) > 1:
        raise ValueError("companions must be given once, got it again in a chain within the chain.")
    return Codec(
        sparsifiers=sum((codec.sparsifiers for codec in codecs), ()),
        quantiser=last.quantiser,
        companion=given[0] if given else None,
        excluded=last.excluded,
        min_size=last.min_size,
    )


def excluding(
    codec: Codec, where: str | Sequence[str] | Callable[[str, Any], bool] = (), min_size: int = 0
) -> Codec:
    """A codec that leaves some tensors as they are.

    Args:
      codec: a `Codec`.
      where: which tensors, by path in the model: a pattern such as 'state/**' (batch statistics) or
        '**/bias', several, or a function of (path, leaf); see `private`. None by default.
      min_size: tensors with fewer entries are left, too: their headers would outweigh what is saved.

    Returns:
      A `Codec`. What it left as it is before stays so. A `where` that names no tensor of a message is
      refused when it meets that message.

    Example:
      >>> from fedjax_opt import compression
      >>> codec = compression.excluding(compression.ce_fedavg(0.9), "state/**", min_size=1000)
    """
    if not isinstance(codec, Codec):
        raise ValueError(f"codec must be a Codec, got {codec!r}.")
    nothing = isinstance(where, Sequence) and not isinstance(where, str) and not where
    min_size = max(checks.integer("min_size", min_size, low=0), int(codec.min_size))
    return codec._replace(
        excluded=codec.excluded if nothing else (*codec.excluded, Partial(matcher(where))),
        min_size=StaticInt(min_size),
    )


def ce_fedavg(sparsity: chex.Numeric = 0.9, bits: int = 8) -> Codec:
    """The codec of CE-FedAvg: the largest changes, evenly quantised; moments there, by their exponents.

    On a message without moments it is the codec of compressed FedAvg.

    Args:
      sparsity: s in [0, 1); may be traced.
      bits: the width of the codes, 3 to 16.

    Returns:
      A `Codec`.

    Example:
      >>> from fedjax_opt import compression
      >>> codec = compression.ce_fedavg(sparsity=0.95)
    """
    return chain(top_k(sparsity=sparsity), uniform(bits), companions=exponential(bits))


def kept_count(sparsity: chex.Numeric, size: chex.Numeric) -> jax.Array:
    """k = ceil((1 - s) n), at least 1 if there is any entry; s is what it is to twice its eps."""
    size, sparsity = jnp.asarray(size, jnp.int32), jnp.asarray(sparsity)
    dtype = jnp.result_type(float)
    known_as = sparsity.dtype if jnp.issubdtype(sparsity.dtype, jnp.floating) else dtype
    entries = size.astype(dtype)
    # 0.9 is a little less in float32, and 0.1 n must not become one more than it is.
    doubt = 2 * float(jnp.finfo(known_as).eps) * entries
    count = jnp.ceil((1 - sparsity.astype(dtype)) * entries - doubt).astype(jnp.int32)
    return jnp.clip(count, jnp.minimum(size, 1), size)


def _largest(sparsity, together, vectors, marks, key):
    """The largest entries of each vector, or of all together, among those that are marked already."""
    del key
    kept: list = [None] * len(vectors)
    every = range(len(vectors))
    for group in [every] if together else [[i] for i in every]:
        sizes = [vectors[i].size if marks[i] is None else count_true(marks[i]) for i in group]
        candidates = (
            vectors[i] if marks[i] is None else jnp.where(marks[i], vectors[i], 0) for i in group
        )
        found = largest(tuple(candidates), kept_count(sparsity, sum(sizes)))
        for i, marked in zip(group, found, strict=True):
            kept[i] = _also(marked, marks[i])
    return kept, [1.0] * len(vectors)


def _some(sparsity, rescale, vectors, marks, key):
    kept, factors = [], []
    for index, (vector, mark) in enumerate(zip(vectors, marks, strict=True)):
        count = kept_count(sparsity, vector.size)
        places = jnp.arange(vector.size, dtype=jnp.int32)
        order = permuted(jax.random.fold_in(key, index), places, jnp.int32(max(vector.size, 1)))
        kept.append(_also(order < count, mark))
        factor = vector.size / jnp.maximum(count, 1).astype(vector.dtype)
        factors.append(factor if rescale else 1.0)
    return kept, factors


def _also(kept, mark):
    return kept if mark is None else kept & mark


def _sparsity(sparsity):
    return checks.number("sparsity", sparsity, low=0.0, high=1.0, open_high=True)
