"""Residual blocks, made of two or three convolutions, their normalizations, and a shortcut.

`width` is the number of output channels of a block. The inner convolutions of a bottleneck have a
quarter of `width` channels.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.models._norm import Norm

Conv = Callable[..., nnx.Conv]
Block = Callable[..., Callable[..., Array]]

HE_NORMAL = nnx.initializers.he_normal()


def conv(channels: int, width: int, size: int, *, stride: int = 1, rngs: nnx.Rngs) -> nnx.Conv:
    """A convolution without bias, centered on every `stride`-th pixel, beginning with the first.

    With `"SAME"`, a 3×3 or 7×7 convolution of stride 2 would be centered on the second, fourth, …
    pixel of a side of even length.
    """
    return nnx.Conv(
        channels,
        width,
        (size, size),
        strides=stride,
        padding=size // 2,
        use_bias=False,
        kernel_init=HE_NORMAL,
        rngs=rngs,
    )


def biased_conv(
    channels: int, width: int, size: int, *, stride: int = 1, rngs: nnx.Rngs
) -> nnx.Conv:
    """A convolution with bias and `"SAME"` padding, as in Keras and Flax."""
    return nnx.Conv(channels, width, (size, size), strides=stride, kernel_init=HE_NORMAL, rngs=rngs)


def stages(
    block: Block, channels: int, widths: Sequence[int], counts: Sequence[int]
) -> list[Callable[..., Array]]:
    """The blocks of all stages: stage i has `counts[i]` blocks of `widths[i]` channels.

    The first block of each stage i > 0 has stride 2.
    """
    blocks = []
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
        for position in range(count):
            stride = 2 if stage > 0 and position == 0 else 1
            blocks.append(block(channels, width, stride=stride))
            channels = width
    return blocks


class PreActBlock(nnx.Module):
    """A pre-activation block of two normalizations, ReLUs and 3×3 convolutions (He et al., 2016b).

    The shortcut adds the block's input to the result. If the shape changes, the shortcut is a 1×1
    convolution of the block's input before normalization.
    """

    def __init__(
        self, channels: int, width: int, *, stride: int = 1, conv: Conv, norm: Norm, rngs: nnx.Rngs
    ):
        self.norm1 = norm(channels, rngs=rngs)
        self.conv1 = conv(channels, width, 3, stride=stride, rngs=rngs)
        self.norm2 = norm(width, rngs=rngs)
        self.conv2 = conv(width, width, 3, rngs=rngs)
        changes = stride > 1 or channels != width
        self.shortcut = conv(channels, width, 1, stride=stride, rngs=rngs) if changes else None

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        h = self.conv1(nnx.relu(self.norm1(x)))
        h = self.conv2(nnx.relu(self.norm2(h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class PreActBottleneck(nnx.Module):
    """A pre-activation block of three normalizations, ReLUs and convolutions (He et al., 2016b).

    The kernels of the bottleneck are 1×1, 3×3 and 1×1. The first 1×1 convolution has the stride.
    The shortcut adds the block's input to the result. If the shape changes, the shortcut is a 1×1
    convolution of the block's input before normalization.
    """

    def __init__(
        self, channels: int, width: int, *, stride: int = 1, conv: Conv, norm: Norm, rngs: nnx.Rngs
    ):
        inner = width // 4
        self.norm1 = norm(channels, rngs=rngs)
        self.conv1 = conv(channels, inner, 1, stride=stride, rngs=rngs)
        self.norm2 = norm(inner, rngs=rngs)
        self.conv2 = conv(inner, inner, 3, rngs=rngs)
        self.norm3 = norm(inner, rngs=rngs)
        self.conv3 = conv(inner, width, 1, rngs=rngs)
        changes = stride > 1 or channels != width
        self.shortcut = conv(channels, width, 1, stride=stride, rngs=rngs) if changes else None

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        h = self.conv1(nnx.relu(self.norm1(x)))
        h = self.conv2(nnx.relu(self.norm2(h)))
        h = self.conv3(nnx.relu(self.norm3(h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class Projection(nnx.Module):
    """A shortcut by a normalized 1×1 convolution (option B of He et al., 2016a)."""

    def __init__(self, channels: int, width: int, *, stride: int, norm: Norm, rngs: nnx.Rngs):
        self.conv = conv(channels, width, 1, stride=stride, rngs=rngs)
        self.norm = norm(width, rngs=rngs)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        return self.norm(self.conv(x))


class Identity(nnx.Module):
    """A shortcut without parameters (option A of He et al., 2016a).

    The shortcut takes every `stride`-th pixel. The missing channels are zeros. Half of the zeros
    are before the channels of the input, and half are after.
    """

    def __init__(self, channels: int, width: int, *, stride: int):
        self.zeros = (width - channels) // 2
        self.stride = stride

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        x = x[:, :: self.stride, :: self.stride]
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (self.zeros, self.zeros)))


class BasicBlock(nnx.Module):
    """Two 3×3 convolutions, each normalized, and a shortcut (He et al., 2016a).

    The shortcut is a `Projection` if `project` is true and the shape changes, and otherwise an
    `Identity`.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        stride: int = 1,
        project: bool,
        norm: Norm,
        rngs: nnx.Rngs,
    ):
        self.conv1 = conv(channels, width, 3, stride=stride, rngs=rngs)
        self.norm1 = norm(width, rngs=rngs)
        self.conv2 = conv(width, width, 3, rngs=rngs)
        self.norm2 = norm(width, rngs=rngs)
        if project and (stride > 1 or channels != width):
            self.shortcut = Projection(channels, width, stride=stride, norm=norm, rngs=rngs)
        else:
            self.shortcut = Identity(channels, width, stride=stride)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        h = nnx.relu(self.norm1(self.conv1(x)))
        return nnx.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class Bottleneck(nnx.Module):
    """Convolutions of 1×1, 3×3 and 1×1, each normalized, and a shortcut (He et al., 2016a).

    The 3×3 convolution has the stride, as in torchvision. In the paper, the first 1×1 convolution
    has the stride. If the shape changes, the shortcut is a `Projection`.
    """

    def __init__(self, channels: int, width: int, *, stride: int = 1, norm: Norm, rngs: nnx.Rngs):
        inner = width // 4
        self.conv1 = conv(channels, inner, 1, rngs=rngs)
        self.norm1 = norm(inner, rngs=rngs)
        self.conv2 = conv(inner, inner, 3, stride=stride, rngs=rngs)
        self.norm2 = norm(inner, rngs=rngs)
        self.conv3 = conv(inner, width, 1, rngs=rngs)
        self.norm3 = norm(width, rngs=rngs)
        changes = stride > 1 or channels != width
        self.shortcut = (
            Projection(channels, width, stride=stride, norm=norm, rngs=rngs) if changes else None
        )

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        h = nnx.relu(self.norm1(self.conv1(x)))
        h = nnx.relu(self.norm2(self.conv2(h)))
        h = self.norm3(self.conv3(h))
        return nnx.relu(h + (x if self.shortcut is None else self.shortcut(x)))
