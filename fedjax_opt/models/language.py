"""The papers' language models: stacked recurrent layers that predict the next symbol.

Each takes ids `x` of `[B, L]`, of any integer type, and labels `y`: `[B, L]` for all positions, negative
where there is none, or `[B]` for the last one alone. They need flax.
"""

from collections.abc import Sequence

from fedjax_opt.core import Model, checks
from fedjax_opt.models.adapters import from_linen
from fedjax_opt.models.images import network
from fedjax_opt.models.losses import sequence_cross_entropy


def gru(vocabulary: int = 79, embedding: int = 8, hidden: Sequence[int] = (128, 128)) -> Model:
    """Stacked GRU layers on an embedding: the Shakespeare model of FedGBO and of decaying local steps.

    Args:
      vocabulary: the number of symbols.
      embedding: the width of the embedding.
      hidden: the widths of the recurrent layers.

    Returns:
      A `Model`, with the loss `sequence_cross_entropy`. Each GRU has two bias vectors, of which the
      reset gate scales one.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 80), jnp.uint8), "y": jnp.zeros((2, 80), jnp.int8)}
      >>> params = jax.eval_shape(fo.models.gru().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      162887

    Reference:
      Mills et al., Accelerating federated learning with a global biased optimiser, section 5.
    """
    return _language_model("GRULayer", vocabulary, embedding, hidden)


def lstm(vocabulary: int = 80, embedding: int = 8, hidden: Sequence[int] = (100, 100)) -> Model:
    """Stacked LSTM layers on an embedding: the Shakespeare model of GHBM and FedProx.

    Args:
      vocabulary: the number of symbols.
      embedding: the width of the embedding.
      hidden: the widths of the recurrent layers.

    Returns:
      A `Model`, with the loss `sequence_cross_entropy`. Each LSTM has one bias vector; libraries that
      keep two add them.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 80), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.lstm().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      132720

    Reference:
      Li et al., Federated optimization in heterogeneous networks, 2020.
    """
    return _language_model("LSTMLayer", vocabulary, embedding, hidden)


def stack_overflow_lstm(vocabulary: int = 10_004) -> Model:
    """One LSTM layer of 670 units between an embedding and a linear layer of 96: next words.

    Args:
      vocabulary: the number of words; by default 10,000 and four for padding, the beginning and the end
        of a sentence, and unknown words.

    Returns:
      A `Model`, with the loss `sequence_cross_entropy`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 20), int), "y": jnp.zeros((2, 20), int)}
      >>> model = fo.models.stack_overflow_lstm()
      >>> params = jax.eval_shape(model.init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      4050748

    Reference:
      Reddi et al., Adaptive federated optimization, 2021.
    """
    return _language_model("LSTMLayer", vocabulary, 96, (670,), projection=96)


def _language_model(layer, vocabulary, embedding, hidden, projection=None):
    checks.integer("vocabulary", vocabulary, low=2)
    checks.integer("embedding", embedding, low=1)
    widths = [checks.integer("hidden", width, low=1) for width in hidden]
    family = network("recurrent")
    layers = tuple(getattr(family, layer)(width) for width in widths)
    module = family.LanguageModel(vocabulary, embedding, layers, projection)
    return from_linen(module, features=1, loss=sequence_cross_entropy)
