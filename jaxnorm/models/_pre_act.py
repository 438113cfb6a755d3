"""Pre-activation residual networks for small images."""

from functools import partial

from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.models._blocks import HE_NORMAL, PreActBlock, PreActBottleneck, biased_conv, stages
from jaxnorm.models._norm import Norm, check_images, check_norm, check_sizes
from jaxnorm.nnx import BatchNorm


class PreActResNet(nnx.Module):
    """The full pre-activation ResNet for small images (He et al., 2016b).

    The network has three stages of k blocks with 16, 32 and 64 channels. The second and the third
    stage halve the resolution. Biases and padding are the same as in the code of the unitization
    paper. The depth is 6k + 2. With bottlenecks, the depth is 9k + 2, and stages end in 64, 128 and
    256 channels.

    Args:
      depth: 6k + 2, such as 20 or 110; with `bottleneck`, 9k + 2, such as 164.
      classes: The number of outputs.
      channels: The number of channels of the images.
      bottleneck: Whether blocks have 1×1, 3×3 and 1×1 convolutions instead of two 3×3 convolutions.
      norm: The constructor of the normalization, called as `norm(num_features, rngs=rngs)`.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `depth` is not of the form 6k + 2, or with `bottleneck` not of the form 9k + 2.

    Example:
      >>> import jax.numpy as jnp
      >>> images = jnp.zeros((2, 32, 32, 3), "float32")
      >>> def last(x):
      ...     return PreActResNet(20, classes=10, rngs=nnx.Rngs(0)).last_normalized(x)
      >>> print(nnx.eval_shape(last, images).shape)
      (2, 8, 8, 64)
    """

    def __init__(
        self,
        depth: int,
        *,
        classes: int,
        channels: int = 3,
        bottleneck: bool = False,
        norm: Norm = BatchNorm,
        rngs: nnx.Rngs,
    ):
        block, step, widths = (
            (PreActBottleneck, 9, (64, 128, 256)) if bottleneck else (PreActBlock, 6, (16, 32, 64))
        )
        check_norm(norm)
        check_sizes(rngs, depth=depth, classes=classes, channels=channels)
        if depth < step + 2 or (depth - 2) % step:
            raise ValueError(f"depth must be {step}k + 2 with k at least 1; got {depth}")
        block = partial(block, conv=biased_conv, norm=norm, rngs=rngs)
        self.stem = biased_conv(channels, 16, 3, rngs=rngs)
        self.stem_norm = norm(16, rngs=rngs)
        self.blocks = nnx.List(stages(block, 16, widths, ((depth - 2) // step,) * 3))
        self.norm = norm(widths[-1], rngs=rngs)
        self.head = nnx.Linear(widths[-1], classes, kernel_init=HE_NORMAL, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n classes"]:
        return self.head(nnx.relu(self.last_normalized(x)).mean((1, 2)))

    def last_normalized(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        """The output of the last normalization, before the ReLU and the pooling."""
        check_images(x, self.stem.in_features)
        x = nnx.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
