"""Winograd's minimal filtering: a 3x3 convolution with 16 products for every 36.

Tiles of 4x4 inputs that overlap by two give 2x2 outputs each. With d a tile and g the kernel,

    y = A^T [(G g G^T) * (B^T d B)] A

where * goes entry by entry: entry (i, j) of all tiles and channels is one matrix product, of which there
are 16. Entries of A and B are 0, 1 and -1, those of G also 1/2: the rounding errors are those of a few
more additions. Only slices, sums and products are used, so every derivative, `vmap` and `scan` are XLA's
own.

Winograd, Arithmetic complexity of computations, 1980; Lavin and Gray, Fast algorithms for convolutional
neural networks, CVPR 2016.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def winograd_conv(x: jax.Array, kernel: jax.Array, precision: Any = None) -> jax.Array:
    """Padded images `[B, H + 2, W + 2, C]` and a kernel `[3, 3, C, D]` -> `[B, H, W, D]`."""
    height, width = (size - 2 for size in x.shape[1:-1])
    # The last tile of an odd number of outputs has one too many, which is cut.
    x = lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, height % 2, 0), (0, width % 2, 0), (0, 0, 0)]
    )
    tiles = [part for rows in _transformed(x, 1) for part in _transformed(rows, 2)]
    kernels = [part for rows in _filters(kernel) for part in _filters(rows)]
    # One product of two matrices after the other: on CPUs a batch of them runs at half the speed.
    products = [
        jnp.matmul(tile.reshape(-1, tile.shape[-1]), matrix, precision=precision).reshape(
            *tile.shape[:-1], -1
        )
        for tile, matrix in zip(tiles, kernels, strict=True)
    ]
    rows = [_outputs(products[4 * i : 4 * i + 4], axis=2) for i in range(4)]
    return _outputs(rows, axis=1)[:, :height, :width]


def _transformed(x: jax.Array, axis: int) -> list[jax.Array]:
    """B^T d along an axis, for tiles of four that begin at every second entry."""
    count = x.shape[axis] // 2
    pairs = x.reshape(*x.shape[:axis], count, 2, *x.shape[axis + 1 :])
    even, odd = (lax.index_in_dim(pairs, i, axis + 1, keepdims=False) for i in range(2))

    def tile(entries, first):
        return lax.slice_in_dim(entries, first, first + count - 1, axis=axis)

    d0, d1, d2, d3 = tile(even, 0), tile(odd, 0), tile(even, 1), tile(odd, 1)
    return [d0 - d2, d1 + d2, d2 - d1, d1 - d3]


def _filters(g: jax.Array) -> list[jax.Array]:
    """G g along the first axis."""
    outer, middle = 0.5 * (g[0] + g[2]), 0.5 * g[1]
    return [g[0], outer + middle, outer - middle, g[2]]


def _outputs(m: list[jax.Array], axis: int) -> jax.Array:
    """A^T m along an axis: two outputs of each tile, side by side."""
    pairs = jnp.stack([m[0] + m[1] + m[2], m[1] - m[2] - m[3]], axis=axis + 1)
    return pairs.reshape(*pairs.shape[:axis], -1, *pairs.shape[axis + 2 :])
