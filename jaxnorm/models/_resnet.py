"""Residual networks (He et al., 2016a), for ImageNet and for CIFAR."""

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxnorm.models._blocks import (
    HE_NORMAL,
    BasicBlock,
    Bottleneck,
    PreActBlock,
    PreActBottleneck,
    conv,
    stages,
)
from jaxnorm.models._norm import Norm, check_images, check_norm, check_sizes
from jaxnorm.nnx import BatchNorm

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


class ResNet(nnx.Module):
    """The ResNet for ImageNet (Table 1 of He et al., 2016a).

    The network has a 7×7 convolution and a 3×3 max pooling, both of stride 2, and then four stages
    of blocks. From depth 50 on, the blocks are bottlenecks. Convolutions have no biases.

    With `pre_activation`, the blocks are pre-activation blocks (He et al., 2016b), and the
    shortcuts and the output of the last block are not normalized, as in section 4.3 of the
    unitization paper. The unitization paper does not say whether ReLU follows the last block. In
    this library, ReLU follows the last block.

    Args:
      depth: 18, 34, 50, 101 or 152.
      classes: The number of outputs.
      pre_activation: Whether normalization and ReLU are before each convolution instead of after
        each convolution.
      norm: The constructor of the normalization, called as `norm(num_features, rngs=rngs)`.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `depth` is not a depth of Table 1.

    Example:
      >>> images = jnp.zeros((2, 64, 64, 3), "float32")
      >>> def logits(x):
      ...     return ResNet(18, classes=10, rngs=nnx.Rngs(0))(x)
      >>> print(nnx.eval_shape(logits, images).shape)
      (2, 10)
    """

    def __init__(
        self,
        depth: int,
        *,
        classes: int,
        pre_activation: bool = False,
        norm: Norm = BatchNorm,
        rngs: nnx.Rngs,
    ):
        check_norm(norm)
        check_sizes(rngs, depth=depth, classes=classes)
        if depth not in BLOCKS:
            raise ValueError(f"depth must be one of {', '.join(map(str, BLOCKS))}; got {depth}")
        wide = depth >= 50
        if pre_activation:
            block = partial(PreActBottleneck if wide else PreActBlock, conv=conv)
        else:
            block = Bottleneck if wide else partial(BasicBlock, project=True)
        widths = (256, 512, 1024, 2048) if wide else (64, 128, 256, 512)
        self.stem = conv(3, 64, 7, stride=2, rngs=rngs)
        self.stem_norm = norm(64, rngs=rngs)
        block = partial(block, norm=norm, rngs=rngs)
        self.blocks = nnx.List(stages(block, 64, widths, BLOCKS[depth]))
        self.head = nnx.Linear(widths[-1], classes, kernel_init=HE_NORMAL, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n classes"]:
        check_images(x, self.stem.in_features)
        x = nnx.relu(self.stem_norm(self.stem(x)))
        x = nnx.pool(x, -jnp.inf, lax.max, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        # Only pre-activation blocks have negative outputs; other blocks end with a ReLU.
        return self.head(nnx.relu(x).mean((1, 2)))


class CifarResNet(nnx.Module):
    """The ResNet for small images (section 4.2 of He et al., 2016a), of depth 6k + 2.

    The network has three stages of k blocks with 16, 32 and 64 channels. The second and the third
    stage halve the resolution. Convolutions have no biases. Shortcuts have no parameters. Where the
    number of channels grows, the shortcut takes every second pixel and adds channels of zeros. Half
    of the zeros are before and half are after the channels of the shortcut's input.

    Args:
      depth: 6k + 2, such as 20, 56 or 110.
      classes: The number of outputs.
      channels: The number of channels of the images.
      norm: The constructor of the normalization, called as `norm(num_features, rngs=rngs)`.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `depth` is not of the form 6k + 2.

    Example:
      >>> images = jnp.zeros((2, 32, 32, 3), "float32")
      >>> def logits(x):
      ...     return CifarResNet(20, classes=10, rngs=nnx.Rngs(0))(x)
      >>> print(nnx.eval_shape(logits, images).shape)
      (2, 10)
    """

    def __init__(
        self, depth: int, *, classes: int, channels: int = 3, norm: Norm = BatchNorm, rngs: nnx.Rngs
    ):
        check_norm(norm)
        check_sizes(rngs, depth=depth, classes=classes, channels=channels)
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6k + 2 with k at least 1; got {depth}")
        block = partial(BasicBlock, project=False, norm=norm, rngs=rngs)
        self.stem = conv(channels, 16, 3, rngs=rngs)
        self.stem_norm = norm(16, rngs=rngs)
        self.blocks = nnx.List(stages(block, 16, (16, 32, 64), ((depth - 2) // 6,) * 3))
        self.head = nnx.Linear(64, classes, kernel_init=HE_NORMAL, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n classes"]:
        check_images(x, self.stem.in_features)
        x = nnx.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))
