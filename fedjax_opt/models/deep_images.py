"""Deep image classifiers, with group normalisation where the originals have batch normalisation.

Batch statistics of clients whose labels differ spoil each other (Hsieh et al., The non-IID data quagmire
of decentralized machine learning, 2020). Inputs and `conv` are as in `images`.
"""

from fedjax_opt.core import Model, checks
from fedjax_opt.models.convolution import patch_conv
from fedjax_opt.models.images import Conv, network
from fedjax_opt.models.linen import from_linen


def resnet20(num_classes: int = 10, groups: int = 2, conv: Conv = patch_conv) -> Model:
    """ResNet-20 for CIFAR, shortcuts without parameters, group normalisation.

    Args:
      num_classes: the number of classes.
      groups: the number of groups that each layer's features are normalised in.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

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
    return _resnet(num_classes, ((16, 3), (32, 3), (64, 3)), groups, False, conv)


def resnet18(num_classes: int = 10, groups: int = 2, conv: Conv = patch_conv) -> Model:
    """ResNet-18 in its form for small images (a 3x3 stem, no first pooling), group normalisation.

    Args:
      num_classes: the number of classes.
      groups: the number of groups that each layer's features are normalised in.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

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
    return _resnet(num_classes, stages, groups, True, conv)


def _resnet(num_classes, stages, groups, project, conv):
    checks.integer("num_classes", num_classes, low=2)
    checks.integer("groups", groups, low=1)
    if stages[0][0] % groups:
        raise ValueError(f"groups must divide {stages[0][0]} features, got {groups}.")
    return from_linen(network("resnet").ResNet(num_classes, stages, groups, project, conv))


def mobilenet_v2(num_classes: int, conv: Conv = patch_conv) -> Model:
    """MobileNetV2 with group normalisation, 8 groups in each layer.

    Args:
      num_classes: the number of classes.
      conv: the convolution, as `jax.lax.conv_general_dilated`.

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
    checks.integer("num_classes", num_classes, low=2)
    return from_linen(network("mobilenet").MobileNetV2(num_classes, conv=conv))


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
    checks.integer("num_classes", num_classes, low=2)
    return from_linen(network("transformer").VisionTransformer(num_classes))
