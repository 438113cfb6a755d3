"""Networks of the papers, each built on any normalization: pass its constructor as `norm`."""

from collections.abc import Callable
from functools import partial

from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.nnx import BatchNorm

Norm = Callable[..., Callable[..., Array]]


class PreActBlock(nnx.Module):
    """Normalization, ReLU and 3×3 convolution, twice, and a shortcut: He et al. (2016b).

    Where the shape changes, the shortcut is a 1×1 convolution of the block's raw input.
    """

    def __init__(self, channels: int, width: int, *, stride: int = 1, norm: Norm, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, kernel_init=nnx.initializers.he_normal(), rngs=rngs)
        self.norm1 = norm(channels, rngs=rngs)
        self.conv1 = conv(channels, width, (3, 3), strides=stride)
        self.norm2 = norm(width, rngs=rngs)
        self.conv2 = conv(width, width, (3, 3))
        changes = stride > 1 or channels != width
        self.shortcut = conv(channels, width, (1, 1), strides=stride) if changes else None

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        h = self.conv1(nnx.relu(self.norm1(x)))
        h = self.conv2(nnx.relu(self.norm2(h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class PreActResNet(nnx.Module):
    """Full pre-activation ResNet for small images, He et al. (2016b), of depth 6k + 2.

    Three stages of k blocks with 16, 32 and 64 channels, the second and third at half the
    resolution of the one before; He initialization; biases, as in the unitization paper's code.

    Args:
      depth: 20, 110, or any other 6k + 2.
      classes: Number of outputs.
      channels: Channels of the images.
      norm: Constructor of the normalization, called as `norm(num_features, rngs=rngs)`.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `depth` is not 6k + 2.

    Example:
      >>> import jax.numpy as jnp
      >>> model = PreActResNet(20, classes=10, rngs=nnx.Rngs(0))
      >>> print(model.last_normalized(jnp.zeros((2, 32, 32, 3), "float32")).shape)
      (2, 8, 8, 64)
    """

    def __init__(
        self,
        depth: int,
        *,
        classes: int,
        channels: int = 3,
        norm: Norm = BatchNorm,
        rngs: nnx.Rngs,
    ):
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6k + 2 with k at least 1; got {depth}")
        he_normal = nnx.initializers.he_normal()
        self.stem = nnx.Conv(channels, 16, (3, 3), kernel_init=he_normal, rngs=rngs)
        self.stem_norm = norm(16, rngs=rngs)
        blocks, width = [], 16
        for stage in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                stride = 1 if stage == width else 2
                blocks.append(PreActBlock(width, stage, stride=stride, norm=norm, rngs=rngs))
                width = stage
        self.blocks = nnx.List(blocks)
        self.norm = norm(width, rngs=rngs)
        self.head = nnx.Linear(width, classes, kernel_init=he_normal, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n classes"]:
        return self.head(nnx.relu(self.last_normalized(x)).mean((1, 2)))

    def last_normalized(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 64"]:
        """Output of the last normalization, before ReLU and pooling."""
        x = nnx.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
