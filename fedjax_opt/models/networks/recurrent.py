"""Language models of stacked recurrent layers.

A layer multiplies all time steps by its input matrix at once, before the loop over time; the loop is
left with the products that need the last state. There is one product for each gate, before the loop and
in it: XLA's CPU code is several times slower for a sigmoid of a slice than for one of a whole array, and
gradients of slices are put together by copying. Sequences are time-major inside.

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

        # What does not meet the reset gate can be added before the loop.
        before = input_bias + bias.at[2 * size :].set(0)
        parts = zip(jnp.split(input_kernel, 3, axis=-1), jnp.split(before, 3), strict=True)
        given = tuple(_times(x, kernel) + bias[None, None] for kernel, bias in parts)
        return _gru(given, tuple(jnp.split(kernel, 3, axis=-1)), bias[2 * size :])


@jax.custom_jvp
def _gru(given, kernels, bias):
    """All states `[L, B, features]`, from what the gates r, z, n are given in each step.

    Its derivative is written out: the loop over time is left with what that of h needs, and all else is
    computed for all steps at once, U's above all, where a derivative of the loop would add up one
    product for each. With a = (given_r + U_r h, given_z + U_z h) and q = U_n h + c:

        dh <- (1 - z) (1 - n^2) (dgiven_n + r dq + q r (1 - r) da_r) + (h - n) z (1 - z) da_z + z dh
    """
    return _gru_states(given, kernels, bias)[0]


def _gru_states(given, kernels, bias):
    """The states, and what the derivative needs: r, z, n and q."""

    def step(h, given):
        a_r, a_z, q = (h @ kernel for kernel in kernels)
        q = q + bias[None]
        r, z = nn.sigmoid(given[0] + a_r), nn.sigmoid(given[1] + a_z)
        n = jnp.tanh(given[2] + r * q)
        h = n + z * (h - n)
        return h, (h, r, z, n, q)

    return jax.lax.scan(step, jnp.zeros_like(given[0][0]), given)[1]


@_gru.defjvp
def _gru_derivative(primals, tangents):
    _, kernels, _ = primals
    d_given, d_kernels, d_bias = tangents
    states, r, z, n, q = _gru_states(*primals)
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    of_n, of_z = (1 - z) * (1 - n * n), (before - n) * (z * (1 - z))
    of_q = of_n * r
    of_r = of_q * (q * (1 - r))
    d_ar, d_az, d_q = (_times(before, kernel) for kernel in d_kernels)
    d_given = of_r * (d_given[0] + d_ar) + of_z * (d_given[1] + d_az) + of_n * d_given[2]
    d_given = d_given + of_q * (d_q + d_bias[None, None])
    # The way back multiplies by U^T, which XLA would make again in every step.
    transposed = jax.lax.optimization_barrier(jnp.concatenate([k.T for k in kernels]))
    factors = jnp.stack([of_r, of_z, of_q], axis=2)

    def step(d_h, inputs):
        d_given, z, factors = inputs
        changes = jax.lax.dot_general(d_h, transposed, (((1,), (1,)), ((), ())))
        d_h = d_given + z * d_h + jnp.sum(factors * changes.reshape(factors.shape), axis=1)
        return d_h, d_h

    def all_steps(d_given):
        inputs = (d_given, z, factors)
        return jax.lax.scan(step, jnp.zeros_like(states[0]), inputs)[1]

    # It is linear, so that its derivative is itself; older versions of JAX transpose no other scan.
    return states, jax.jvp(all_steps, (jnp.zeros_like(d_given),), (d_given,))[1]


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

        parts = zip(jnp.split(input_kernel, 4, axis=-1), jnp.split(bias, 4), strict=True)
        given = [_times(x, kernel) + bias[None, None] for kernel, bias in parts]
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
        length, batch, _ = x.shape
        x = x.reshape(length * batch, -1)
        if self.projection is not None:
            x = nn.Dense(self.projection)(x)
        logits = nn.Dense(self.vocabulary)(x).reshape(length, batch, -1)
        return logits.swapaxes(0, 1), x[-batch:]


def _times(x, kernel):
    """x @ kernel with all steps and sequences as rows: XLA's CPU code is slower for three axes."""
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)


def _uniform(size):
    """Uniform within +-1 / sqrt(size), for every weight and bias of a recurrent layer."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -(size**-0.5), size**-0.5)

    return init
