"""A random permutation of 0..n-1 that is computed only where it is looked at.

Shuffling an epoch or drawing a cohort needs a few entries of a permutation of n things, where n may
be large and is known only inside the program. The swap-or-not shuffle gives entry j from j, n and a
key alone, with no table: each of its rounds pairs every position x with (k - x) mod n and lets a
random bit, shared by the pair, decide whether the two change places.

Reference:
  Hoang, Morris, Rogaway. An enciphering scheme based on a card shuffle. CRYPTO 2012.
"""

import jax
import jax.numpy as jnp

# A pair meets with probability 1/n and is then mixed with probability 1/2, so the distance from
# uniform falls geometrically with the rounds: (3/4)^(rounds/2) bounds what any one pair reveals.
_ROUNDS = 48


def permuted(key: jax.Array, positions: jax.Array, size: jax.Array) -> jax.Array:
    """The entries at `positions` of a random permutation of 0..size-1."""
    size = jnp.asarray(size, jnp.uint32)
    salts = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)

    def one_round(x, salt):
        # (k - x) mod n without leaving the unsigned integers.
        partner = (salt[0] % size) + size - x
        partner = jnp.where(partner >= size, partner - size, partner)
        swap = _mix(jnp.maximum(x, partner) ^ salt[1]) >> 31
        return jnp.where(swap == 1, partner, x), None

    start = jnp.asarray(positions).astype(jnp.uint32)
    return jax.lax.scan(one_round, start, salts)[0].astype(jnp.int32)


def _mix(x: jax.Array) -> jax.Array:
    """A 32-bit integer hash: every input bit changes every output bit about half of the time."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
