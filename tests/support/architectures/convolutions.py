"""Published networks for images, with few blocks, in Linen and NNX."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxnorm import models
from tests.support.architectures._common import Architecture, Make, normal, of_linen, of_nnx

CLASSES = 5


class Classifier(nn.Module):
    """A network that applies a dense layer to the mean of `body(images)` over positions."""

    body: Callable[..., Any]

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(self.body(x).mean((1, 2)))


def conv(x, width, size=3, stride=1, groups=1):
    window, strides = (size, size), (stride, stride)
    return nn.Conv(width, window, strides, feature_group_count=groups, use_bias=False)(x)


def norm(x):
    return nn.BatchNorm(use_running_average=True)(x)


def conv_norm(x, width, size=3, stride=1, groups=1, act=nn.relu):
    return act(norm(conv(x, width, size, stride, groups)))


def linear(x):
    return x


def max_pool(x, size=2, stride=2):
    return nn.max_pool(x, (size, size), (stride, stride), "SAME")


def mean_pool(x):
    return nn.avg_pool(x, (2, 2), (2, 2))


def vgg(x):
    """VGG with batch norm, Simonyan and Zisserman (2015)."""
    for width in (8, 16):
        x = max_pool(conv_norm(conv_norm(x, width), width))
    x = nn.relu(nn.Dense(16)(x.reshape(len(x), -1)))
    return nn.relu(nn.Dense(16)(x))[:, None, None]


def alexnet(x):
    """AlexNet with two convolutions of two groups, Krizhevsky et al. (2012)."""
    x = max_pool(nn.relu(nn.Conv(8, (5, 5), (2, 2))(x)))
    x = nn.relu(nn.Conv(16, (3, 3), feature_group_count=2)(x))
    return nn.relu(nn.Conv(8, (3, 3), feature_group_count=2)(x))


def residual(x, width, stride=1, squeeze=False):
    y = conv_norm(conv_norm(x, width, stride=stride), width, act=linear)
    y = excited(y, 4, nn.sigmoid) if squeeze else y
    if stride > 1:
        x = conv_norm(x, width, 1, stride, act=linear)
    return nn.relu(x + y)


def resnet(x, squeeze=False):
    """ResNet with basic blocks, He et al. (2016a); with `squeeze`, SE-ResNet, Hu et al. (2018)."""
    x = conv_norm(x, 8)
    for width, stride in ((8, 1), (16, 2), (16, 1)):
        x = residual(x, width, stride, squeeze)
    return x


def bottlenecks(x, groups=1):
    """ResNet with bottlenecks, He et al. (2016a); with `groups`, ResNeXt, Xie et al. (2017)."""
    x = conv_norm(x, 16)
    for width, stride in ((16, 1), (32, 2)):
        y = conv_norm(conv_norm(x, 8, 1), 8, 3, stride, groups)
        y = conv_norm(y, width, 1, act=linear)
        x = nn.relu(y + (x if stride == 1 else conv_norm(x, width, 1, stride, act=linear)))
    return x


def pre_activation(x):
    """He et al. (2016b), identity mappings."""
    x = conv(x, 8)
    for width, stride in ((8, 1), (16, 2)):
        h = nn.relu(norm(x))
        y = conv(nn.relu(norm(conv(h, width, 3, stride))), width)
        x = y + (x if stride == 1 else conv(h, width, 1, stride))
    return nn.relu(norm(x))


def densenet(x):
    """DenseNet with two blocks of bottlenecks and a transition, Huang et al. (2017)."""
    x = conv(x, 8)
    for block in range(2):
        for _ in range(2):
            y = conv(nn.relu(norm(x)), 16, 1)
            x = jnp.concatenate([x, conv(nn.relu(norm(y)), 4)], -1)
        if block == 0:
            x = mean_pool(conv(nn.relu(norm(x)), 8, 1))
    return nn.relu(norm(x))


def excited(x, width, gate):
    h = nn.relu(nn.Dense(width)(x.mean((1, 2))))
    return x * gate(nn.Dense(x.shape[-1])(h))[:, None, None]


def inverted(x, width, expansion, stride=1, act=nn.relu6, gate=None):
    """MobileNetV2's inverted residual block, with squeeze-and-excitation if `gate` is given."""
    inner = x.shape[-1] * expansion
    y = conv_norm(x, inner, 1, act=act)
    y = conv_norm(y, inner, 3, stride, inner, act)
    y = excited(y, 4, gate) if gate else y
    y = conv_norm(y, width, 1, act=linear)
    return x + y if x.shape == y.shape else y


def mobilenet(x):
    """Howard et al. (2017)."""
    x = conv_norm(x, 8, stride=2)
    for width, stride in ((16, 1), (16, 2)):
        x = conv_norm(conv_norm(x, x.shape[-1], 3, stride, x.shape[-1]), width, 1)
    return x


def mobilenet_v2(x):
    """Sandler et al. (2018)."""
    x = conv_norm(x, 8, stride=2, act=nn.relu6)
    for width, stride in ((8, 1), (12, 2), (12, 1)):
        x = inverted(x, width, 3, stride)
    return conv_norm(x, 24, 1, act=nn.relu6)


def mobilenet_v3(x):
    """Howard et al. (2019)."""
    x = conv_norm(x, 8, stride=2, act=nn.hard_swish)
    for width, stride in ((8, 1), (12, 2), (12, 1)):
        x = inverted(x, width, 3, stride, nn.hard_swish, nn.hard_sigmoid)
    return conv_norm(x, 24, 1, act=nn.hard_swish)


def efficientnet(x):
    """Tan and Le (2019)."""
    x = conv_norm(x, 8, stride=2, act=nn.swish)
    for width, stride in ((8, 1), (12, 2), (12, 1)):
        x = inverted(x, width, 4, stride, nn.swish, nn.sigmoid)
    return conv_norm(x, 24, 1, act=nn.swish)


def shuffled(x, groups=2):
    y = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    return jnp.swapaxes(y, -1, -2).reshape(x.shape)


def shufflenet(x):
    """ShuffleNet with grouped convolutions and shuffles, Zhang et al. (2018)."""
    x = conv_norm(x, 8, stride=2)
    for _ in range(2):
        y = shuffled(conv_norm(x, 8, 1, groups=2))
        y = conv_norm(y, 8, 3, groups=8, act=linear)
        x = nn.relu(x + conv_norm(y, 8, 1, groups=2, act=linear))
    return x


def shufflenet_v2(x):
    """ShuffleNet V2: half of the channels are unchanged, and all are shuffled, Ma et al. (2018)."""
    x = conv_norm(x, 16, stride=2)
    for _ in range(2):
        a, b = jnp.split(x, 2, -1)
        b = conv_norm(conv_norm(b, 8, 1), 8, 3, groups=8, act=linear)
        x = shuffled(jnp.concatenate([a, conv_norm(b, 8, 1)], -1))
    return conv_norm(x, 16, 1)


def inception(x):
    """Szegedy et al. (2015), with batch norm."""
    x = conv_norm(x, 8, stride=2)
    for _ in range(2):
        wide = conv_norm(conv_norm(x, 4, 1), 8)
        wider = conv_norm(conv_norm(x, 4, 1), 4, 5)
        pooled = conv_norm(max_pool(x, 3, 1), 4, 1)
        x = jnp.concatenate([conv_norm(x, 8, 1), wide, wider, pooled], -1)
    return x


def squeezenet(x):
    """Iandola et al. (2016)."""
    x = nn.relu(nn.Conv(8, (3, 3), (2, 2))(x))
    for _ in range(2):
        h = nn.relu(nn.Conv(4, (1, 1))(x))
        x = jnp.concatenate([nn.relu(nn.Conv(8, (n, n))(h)) for n in (1, 3)], -1)
    return x


def xception(x):
    """Xception: separable convolutions with residuals, Chollet (2017)."""
    x = conv_norm(x, 8)
    y = nn.relu(x)
    for _ in range(2):
        y = norm(conv(conv(y, y.shape[-1], 3, groups=y.shape[-1]), 12, 1))
    return max_pool(y, 3) + conv_norm(x, 12, 1, 2, act=linear)


def convnext(x):
    """Liu et al. (2022)."""
    x = nn.LayerNorm()(nn.Conv(8, (2, 2), (2, 2))(x))
    for _ in range(2):
        y = nn.LayerNorm()(nn.Conv(8, (7, 7), feature_group_count=8)(x))
        y = nn.Dense(8)(nn.gelu(nn.Dense(32)(y)))
        x = x + LayerScale()(y)
    return x


def convnext_v2(x):
    """ConvNeXt V2: each map's norm is divided by the mean norm of the maps, Woo et al. (2023)."""
    x = nn.LayerNorm()(nn.Conv(8, (2, 2), (2, 2))(x))
    for _ in range(2):
        y = nn.LayerNorm()(nn.Conv(8, (7, 7), feature_group_count=8)(x))
        x = x + nn.Dense(8)(ResponseNorm()(nn.gelu(nn.Dense(32)(y))))
    return x


class ResponseNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        scale, shift = (
            self.param(name, nn.initializers.normal(), (x.shape[-1],), x.dtype)
            for name in ("scale", "shift")
        )
        norms = jnp.sqrt(jnp.square(x).sum((1, 2), keepdims=True))
        response = norms / (norms.mean(-1, keepdims=True) + 1e-6)
        return x * response * scale[None, None, None] + shift[None, None, None] + x


class LayerScale(nn.Module):
    @nn.compact
    def __call__(self, x):
        gamma = self.param("gamma", nn.initializers.ones, (x.shape[-1],))
        return x * gamma[None, None, None]


def repvgg(x):
    """RepVGG in training, with three branches in each block, Ding et al. (2021)."""
    x = conv_norm(x, 8)
    for _ in range(2):
        branches = norm(conv(x, 8)) + norm(conv(x, 8, 1)) + norm(x)
        x = nn.relu(branches)
    return x


def weight_standardized(dtype: Any) -> Architecture:
    """The BiT-ResNet with standardized kernels, Kolesnikov et al. (2020)."""

    def kernel(w):
        centered = w - w.mean((0, 1, 2), keepdims=True)
        return centered / (jnp.sqrt(jnp.square(centered).mean((0, 1, 2), keepdims=True)) + 1e-5)

    def apply(p, x):
        for name in ("a", "b"):
            x = jax.lax.conv_general_dilated(
                x, kernel(p[name]), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ p["head"]

    shapes = {"a": (3, 3, 3, 8), "b": (3, 3, 8, 8), "head": (8, CLASSES)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return Architecture(apply, params, (normal(dtype, 2, 8, 8, 3),))


def classifier(body: Callable[..., Any]) -> Make:
    return lambda dtype: of_linen(Classifier(body), dtype, normal(dtype, 2, 8, 8, 3))


def resnet_of_nnx(dtype: Any) -> Architecture:
    def make(rngs):
        return models.CifarResNet(8, classes=CLASSES, rngs=rngs)

    return of_nnx(make, dtype, normal(dtype, 2, 8, 8, 3))


CONVOLUTIONS: dict[str, Make] = {
    "AlexNet, two groups": classifier(alexnet),
    "VGG": classifier(vgg),
    "ResNet": classifier(resnet),
    "ResNet, bottlenecks": classifier(bottlenecks),
    "ResNet, pre-activation": classifier(pre_activation),
    "ResNet (flax.nnx)": resnet_of_nnx,
    "ResNeXt": classifier(partial(bottlenecks, groups=2)),
    "SE-ResNet": classifier(partial(resnet, squeeze=True)),
    "BiT-ResNet, standardized": weight_standardized,
    "RepVGG": classifier(repvgg),
    "DenseNet": classifier(densenet),
    "Inception": classifier(inception),
    "Xception": classifier(xception),
    "SqueezeNet": classifier(squeezenet),
    "MobileNet": classifier(mobilenet),
    "MobileNetV2": classifier(mobilenet_v2),
    "MobileNetV3": classifier(mobilenet_v3),
    "EfficientNet": classifier(efficientnet),
    "ShuffleNet": classifier(shufflenet),
    "ShuffleNetV2": classifier(shufflenet_v2),
    "ConvNeXt": classifier(convnext),
    "ConvNeXt V2": classifier(convnext_v2),
}
