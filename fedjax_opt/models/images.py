"""The papers' image classifiers.

Each takes `x` of `[B, height, width]` or `[B, height, width, channels]`; bytes are scaled to [0, 1].
They need flax. `conv` is the convolution inside: `patch_conv`, which is fast in compiled loops on CPUs,
or any other with the signature of `jax.lax.conv_general_dilated`.
"""

import importlib
from collections.abc import Callable
from typing import Any

from fedjax_opt.core import Model, checks
from fedjax_opt.models.convolution import patch_conv
from fedjax_opt.models.linen import from_linen

Conv = Callable[..., Any]


def network(family: str) -> Any:
    """The Flax modules of one family, which need flax."""
    try:
        return importlib.import_module(f"fedjax_opt.models.networks.{family}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flax":
            raise
        raise ImportError("This model needs flax: pip install 'fedjax_opt[models]'.") from error


def dnn(num_classes: int = 62, batch_norm: bool = False) -> Model:
    """Two ReLU layers of 200 units on flattened images: FEMNIST's DNN, MNIST's 2NN with 10 classes.

    Args:
      num_classes: the number of classes.
      batch_norm: whether the first layer is followed by batch normalisation, the patch of MTFL.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 28, 28), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = fo.models.dnn().init(jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      209662

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 1
      (6.71 Mbit); Mills, Hu and Min, Multi-task federated learning for personalised deep neural
      networks in edge computing (with batch normalisation).
    """
    checks.integer("num_classes", num_classes, low=2)
    return from_linen(network("cnn").DNN(num_classes, batch_norm=batch_norm), "train")


def cnn(num_classes: int = 100, batch_norm: bool = False, conv: Conv = patch_conv) -> Model:
    """Unpadded 3x3 convolutions of 32 and 64 features, each pooled by 2, and 512 ReLU units.

    The CNN of the FEMNIST (62 classes) and CIFAR-100 tasks of FedGBO and of decaying local steps.

    Args:
      num_classes: the number of classes.
      batch_norm: whether each block ends in batch normalisation, as in MTFL's published code.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 32, 32, 3), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.cnn().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1250852

    Reference:
      Mills et al., Accelerating federated learning with a global biased optimiser, section 5.
    """
    checks.integer("num_classes", num_classes, low=2)
    return from_linen(network("cnn").CNN(num_classes, batch_norm=batch_norm, conv=conv), "train")


def mnist_cnn(num_classes: int = 10, conv: Conv = patch_conv) -> Model:
    """Padded 5x5 convolutions of 32 and 64 features, each pooled by 2, and 512 ReLU units.

    Args:
      num_classes: the number of classes.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

    Returns:
      A `Model`; 1,663,370 parameters on MNIST.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 28, 28), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.mnist_cnn().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1663370

    Reference:
      McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017;
      Mills, Hu and Min, Communication-efficient federated learning for wireless edge intelligence in
      IoT, 2020.
    """
    checks.integer("num_classes", num_classes, low=2)
    module = network("cnn").CNN(num_classes, kernel_size=5, padding="SAME", conv=conv)
    return from_linen(module, "train")


def cifar_cnn(num_classes: int = 10, conv: Conv = patch_conv) -> Model:
    """Six padded 3x3 convolutions with batch normalisation and dropout, without pooling.

    Pairs of 32, 64 and 128 features, with dropout of 0.2, 0.3 and 0.4 after them. Regularise it with
    `fo.weight_decay` if the L2 term of the original is wanted.

    Args:
      num_classes: the number of classes.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

    Returns:
      A `Model` with batch statistics in its state.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 32, 32, 3), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> variables = jax.eval_shape(fo.models.cifar_cnn().init, jax.random.key(0), batch)
      >>> sorted(variables.state)
      ['batch_stats']

    Reference:
      Mills, Hu and Min, Communication-efficient federated learning for wireless edge intelligence in
      IoT, 2020.
    """
    checks.integer("num_classes", num_classes, low=2)
    return from_linen(network("cnn").CifarCNN(num_classes, conv=conv), "train", ("dropout",))


def lenet(num_classes: int = 10, conv: Conv = patch_conv) -> Model:
    """Two unpadded 5x5 convolutions of 64 features, each pooled by 2, and 384 and 192 ReLU units.

    The network "similar to LeNet-5" of GHBM and of many federated CIFAR experiments.

    Args:
      num_classes: the number of classes.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 32, 32, 3), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.lenet().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      797962

    Reference:
      Hsu, Qi and Brown, Federated visual classification with real-world data distribution, 2020.
    """
    checks.integer("num_classes", num_classes, low=2)
    module = network("cnn").CNN(
        num_classes, features=(64, 64), hidden=(384, 192), kernel_size=5, conv=conv
    )
    return from_linen(module, "train")
