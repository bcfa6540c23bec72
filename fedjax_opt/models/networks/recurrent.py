"""Language models of stacked recurrent layers.

A layer multiplies all time steps by its input matrix at once, before the loop over time; the loop is
left with the products that need the last state, one for each gate: inside of a loop, XLA's CPU code is
several times slower for a sigmoid of a slice than for one of a whole array. Sequences are time-major
inside.

Cho et al., Learning phrase representations using RNN encoder-decoder, 2014 (GRU). Hochreiter and
Schmidhuber, Long short-term memory, 1997.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_opt.models.inputs import as_ids


class GRULayer(nn.Module):
    """A GRU whose reset gate acts after the recurrent product; it has two bias vectors.

    r, z = sigmoid(W x + b + U h + c);  n = tanh(W x + b + r (U h + c));  h <- (1 - z) n + z h
    """

    features: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        size = self.features
        init = _uniform(size)
        input_kernel = self.param("input_kernel", init, (x.shape[-1], 3 * size))
        input_bias = self.param("input_bias", init, (3 * size,))
        kernel = self.param("recurrent_kernel", init, (size, 3 * size))
        bias = self.param("recurrent_bias", init, (3 * size,))

        kernels, biases = jnp.split(kernel, 3, axis=-1), jnp.split(bias, 3)

        def step(h, given):
            r, z, n = (h @ w + b[None] for w, b in zip(kernels, biases, strict=True))
            reset, update = nn.sigmoid(given[0] + r), nn.sigmoid(given[1] + z)
            new = jnp.tanh(given[2] + reset * n)
            h = new + update * (h - new)
            return h, h

        given = jnp.split(x @ input_kernel + input_bias[None, None], 3, axis=-1)
        return jax.lax.scan(step, jnp.zeros_like(given[0][0]), given)[1]


class LSTMLayer(nn.Module):
    """An LSTM with one bias vector.

    i, f, o = sigmoid(W x + U h + b);  g = tanh(W x + U h + b);  c <- f c + i g;  h <- o tanh(c)
    """

    features: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        size = self.features
        init = _uniform(size)
        input_kernel = self.param("input_kernel", init, (x.shape[-1], 4 * size))
        kernel = self.param("recurrent_kernel", init, (size, 4 * size))
        bias = self.param("bias", init, (4 * size,))

        kernels = jnp.split(kernel, 4, axis=-1)

        def step(carry, given):
            h, c = carry
            i, f, o, g = (part + h @ w for part, w in zip(given, kernels, strict=True))
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        given = jnp.split(x @ input_kernel + bias[None, None], 4, axis=-1)
        zeros = jnp.zeros_like(given[0][0])
        return jax.lax.scan(step, (zeros, zeros), given)[1]


class LanguageModel(nn.Module):
    """An embedding, recurrent layers, perhaps a linear layer, and logits at every position.

    Returns logits `[B, L, vocabulary]` and the last position's inputs of the last layer.
    """

    vocabulary: int
    embedding: int
    layers: tuple[nn.Module, ...]
    projection: int | None = None

    @nn.compact
    def __call__(self, ids: Any) -> tuple[Any, Any]:
        ids = jnp.maximum(as_ids(ids, "[B, L]"), 0)  # Negative ids are padding: any symbol will do.
        init = nn.initializers.normal(1.0)
        x = nn.Embed(self.vocabulary, self.embedding, embedding_init=init)(ids.T)
        for layer in self.layers:
            x = layer(x)
        if self.projection is not None:
            x = nn.Dense(self.projection)(x)
        return nn.Dense(self.vocabulary)(x).swapaxes(0, 1), x[-1]


def _uniform(size):
    """Uniform within +-1 / sqrt(size), for every weight and bias of a recurrent layer."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -(size**-0.5), size**-0.5)

    return init
