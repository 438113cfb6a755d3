"""Networks of Simonyan and Zisserman (2015), with and without normalization."""

import math
from collections.abc import Sequence
from itertools import pairwise

from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.models._blocks import HE_NORMAL
from jaxnorm.models._norm import Norm, check_images, check_norm, check_sizes, check_widths
from jaxnorm.nnx import BatchNorm

WIDTHS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nnx.Module):
    """The VGG network, Simonyan and Zisserman (2015), Table 1: configurations A, B, D and E.

    The network has five stages of 3×3 convolutions with bias, then dense layers. ReLU follows each
    convolution, and a 2×2 max pooling follows each stage. The paper's dense layers have dropout;
    the dense layers here have no dropout.

    Args:
      depth: 11, 13, 16 or 19.
      classes: The number of outputs.
      hidden: The numbers of units of the hidden dense layers. With hidden layers, images must be
        224×224, which gives a 7×7 feature map. For smaller images, pass an empty tuple `()`. Then
        one dense layer maps the mean of the feature map to the outputs.
      norm: The constructor of the normalization between convolution and ReLU, called as
        `norm(num_features, rngs=rngs)`; `None` gives the paper's network, which has no
        normalization.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `depth` is not a depth of Table 1. With hidden layers, images are not 224×224.
        Without hidden layers, images are smaller than 32×32.

    Example:
      >>> import jax.numpy as jnp
      >>> images = jnp.zeros((2, 32, 32, 3), "float32")
      >>> def logits(x):
      ...     return VGG(11, classes=10, hidden=(), rngs=nnx.Rngs(0))(x)
      >>> print(nnx.eval_shape(logits, images).shape)
      (2, 10)
    """

    def __init__(
        self,
        depth: int,
        *,
        classes: int,
        hidden: Sequence[int] = (4096, 4096),
        norm: Norm | None = BatchNorm,
        rngs: nnx.Rngs,
    ):
        if norm is not None:
            check_norm(norm)
        check_sizes(rngs, depth=depth, classes=classes)
        check_widths("hidden", hidden)
        if depth not in CONVOLUTIONS:
            depths = ", ".join(map(str, CONVOLUTIONS))
            raise ValueError(f"depth must be one of {depths}; got {depth}")
        self.stages = nnx.List()
        channels = 3
        for width, count in zip(WIDTHS, CONVOLUTIONS[depth], strict=True):
            layers = []
            for _ in range(count):
                layers.append(ConvLayer(channels, width, norm=norm, rngs=rngs))
                channels = width
            self.stages.append(nnx.Sequential(*layers))
        sizes = [channels * 49 if hidden else channels, *hidden, classes]
        *dense, self.head = (
            nnx.Linear(fan_in, fan_out, kernel_init=HE_NORMAL, rngs=rngs)
            for fan_in, fan_out in pairwise(sizes)
        )
        self.hidden = nnx.List(dense)

    def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n classes"]:
        check_images(x, 3)
        n, *sides, _ = x.shape
        if self.hidden and sides != [224, 224]:
            raise ValueError(f"images must be 224×224 pixels unless hidden=(); got shape {x.shape}")
        if min(sides) < 32:
            raise ValueError(f"images must be at least 32×32 pixels; got shape {x.shape}")
        for stage in self.stages:
            x = nnx.max_pool(stage(x), (2, 2), strides=(2, 2))
        x = x.reshape(n, math.prod(x.shape[1:])) if self.hidden else x.mean((1, 2))
        for dense in self.hidden:
            x = nnx.relu(dense(x))
        return self.head(x)


class ConvLayer(nnx.Module):
    """A 3×3 convolution with bias, a normalization unless `norm` is `None`, and ReLU."""

    def __init__(self, channels: int, width: int, *, norm: Norm | None, rngs: nnx.Rngs):
        self.conv = nnx.Conv(channels, width, (3, 3), kernel_init=HE_NORMAL, rngs=rngs)
        self.norm = None if norm is None else norm(width, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w c2"]:
        h = self.conv(x)
        return nnx.relu(h if self.norm is None else self.norm(h))
