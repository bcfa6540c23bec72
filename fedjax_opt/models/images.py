"""The papers' image classifiers.

The deep ones have group normalisation where the originals have batch normalisation, since batch
statistics of clients whose labels differ spoil each other (Hsieh et al., The non-IID data quagmire of
decentralized machine learning, 2020). Each takes `x` of `[B, height, width]` or `[B, height, width,
channels]`; bytes are scaled to [0, 1]. They need flax. Without batch normalisation, 3x3 kernels take
Winograd's minimal filtering on CPUs.
"""

import dataclasses
import importlib
from typing import Any

from fedjax_opt.core import Model, checks
from fedjax_opt.models.adapters import from_linen


def network(family: str) -> Any:
    """The Flax modules of one family, which need flax."""
    try:
        return importlib.import_module(f"fedjax_opt.models.networks.{family}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flax":
            raise
        raise ImportError("This model needs flax: pip install 'fedjax_opt[models]'.") from error


def of_images(module: Any, *options: Any, batch_norm: bool = False) -> Model:
    """The model of a Flax module. Batch normalisation could magnify Winograd's rounding errors."""
    checks.integer("num_classes", module.num_classes, low=2)
    ways = True if batch_norm else "winograd"
    return dataclasses.replace(from_linen(module, *options, features=1), fast_convolutions=ways)


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
    return of_images(network("images").DNN(num_classes, batch_norm=batch_norm), "train")


def cnn(num_classes: int = 100, batch_norm: bool = False) -> Model:
    """Unpadded 3x3 convolutions of 32 and 64 features, each pooled by 2, and 512 ReLU units.

    The CNN of the FEMNIST (62 classes) and CIFAR-100 tasks of FedGBO and of decaying local steps.

    Args:
      num_classes: the number of classes.
      batch_norm: whether each block ends in batch normalisation, as in MTFL's published code.

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
    return of_images(
        network("images").CNN(num_classes, batch_norm=batch_norm), "train", batch_norm=batch_norm
    )


def mnist_cnn(num_classes: int = 10) -> Model:
    """Padded 5x5 convolutions of 32 and 64 features, each pooled by 2, and 512 ReLU units.

    Args:
      num_classes: the number of classes.

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
    module = network("images").CNN(num_classes, kernel_size=5, padding="SAME")
    return of_images(module, "train")


def cifar_cnn(num_classes: int = 10) -> Model:
    """Six padded 3x3 convolutions with batch normalisation and dropout, without pooling.

    Pairs of 32, 64 and 128 features, with dropout of 0.2, 0.3 and 0.4 after them. Regularise it with
    `fo.weight_decay` if the L2 term of the original is wanted.

    Args:
      num_classes: the number of classes.

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
    return of_images(
        network("images").CifarCNN(num_classes), "train", ("dropout",), batch_norm=True
    )


def lenet(num_classes: int = 10) -> Model:
    """Two unpadded 5x5 convolutions of 64 features, each pooled by 2, and 384 and 192 ReLU units.

    The network "similar to LeNet-5" of GHBM and of many federated CIFAR experiments.

    Args:
      num_classes: the number of classes.

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
    module = network("images").CNN(num_classes, features=(64, 64), hidden=(384, 192), kernel_size=5)
    return of_images(module, "train")


def resnet20(num_classes: int = 10, groups: int = 2) -> Model:
    """ResNet-20 for CIFAR, shortcuts without parameters, group normalisation.

    Args:
      num_classes: the number of classes.
      groups: the number of groups that each layer's features are normalised in.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 32, 32, 3), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.resnet20().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      269722

    Reference:
      He et al., Deep residual learning for image recognition, 2016, section 4.2.
    """
    return _resnet(num_classes, ((16, 3), (32, 3), (64, 3)), groups, False)


def resnet18(num_classes: int = 10, groups: int = 2) -> Model:
    """ResNet-18 in its form for small images (a 3x3 stem, no first pooling), group normalisation.

    Args:
      num_classes: the number of classes.
      groups: the number of groups that each layer's features are normalised in.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.zeros((2, 32, 32, 3), jnp.uint8), "y": jnp.zeros(2, int)}
      >>> params = jax.eval_shape(fo.models.resnet18().init, jax.random.key(0), batch).params
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      11173962

    Reference:
      He et al., Deep residual learning for image recognition, 2016.
    """
    stages = ((64, 2), (128, 2), (256, 2), (512, 2))
    return _resnet(num_classes, stages, groups, True)


def _resnet(num_classes, stages, groups, project):
    checks.integer("groups", groups, low=1)
    if stages[0][0] % groups:
        raise ValueError(f"groups must divide {stages[0][0]} features, got {groups}.")
    return of_images(network("images").ResNet(num_classes, stages, groups, project))


def mobilenet_v2(num_classes: int) -> Model:
    """MobileNetV2 with group normalisation, 8 groups in each layer.

    Args:
      num_classes: the number of classes.

    Returns:
      A `Model`, for images of 224 x 224 or any other size.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.mobilenet_v2(num_classes=2028)

    Reference:
      Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, 2018; Hsu, Qi and Brown,
      Federated visual classification with real-world data distribution, 2020.
    """
    return of_images(network("images").MobileNetV2(num_classes))


def vit_b16(num_classes: int) -> Model:
    """The vision transformer ViT-B/16: 12 blocks of width 768 on patches of 16 x 16.

    Args:
      num_classes: the number of classes.

    Returns:
      A `Model`, for images whose sides are multiples of 16; the positions that it learns are those of
      the batch it is initialised with.

    Example:
      >>> import fedjax_opt as fo
      >>> model = fo.models.vit_b16(num_classes=1203)       # 86 million parameters

    Reference:
      Dosovitskiy et al., An image is worth 16x16 words: transformers for image recognition at scale,
      2021.
    """
    return of_images(network("images").VisionTransformer(num_classes))
