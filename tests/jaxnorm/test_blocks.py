"""Residual blocks and networks, compared with forward passes in NumPy and float64.

Strides, paddings and shortcuts are written again here; only the arrays come from the layers.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxnorm import models
from jaxnorm.models import _blocks as blocks
from jaxnorm.nnx import BatchNorm
from tests.support.numpy_programs import output_of


def drawn(model: Any) -> Any:
    """The model with random arrays, including running statistics, so that all channels differ."""
    rng = np.random.default_rng(0)
    for path, variable in nnx.iter_graph(model):
        if isinstance(variable, nnx.Variable):
            shape = variable.shape
            values = {
                "kernel": lambda s: rng.normal(size=s) * np.prod(s[:-1]) ** -0.5,
                "scale": lambda s: rng.uniform(0.5, 1.5, s),
                "var": lambda s: rng.uniform(0.5, 2, s),
            }.get(str(path[-1]), lambda s: rng.normal(size=s))(shape)
            variable.set_value(jnp.asarray(values, "float32"))
    model.eval()
    return model


def built(build: Any) -> Any:
    return drawn(nnx.eval_shape(lambda: build(norm=BatchNorm, rngs=nnx.Rngs(0))))


def array(variable: Any) -> np.ndarray:
    return np.asarray(variable[...], np.float64)


def relu(x):
    return np.maximum(x, 0)


def normalized(norm: Any, x: Any) -> Any:
    return array(norm.scale) * (x - array(norm.mean)) / np.sqrt(array(norm.var) + 1e-5) + array(
        norm.bias
    )


def convolved(conv, x, *, stride=1, same=False):
    """A convolution with windows centered on pixels 0, stride, …, or with "SAME" padding."""
    kernel = array(conv.kernel)
    size, (height, width) = kernel.shape[0], x.shape[1:3]
    rows, columns = -(-height // stride), -(-width // stride)
    pads = [(size // 2, size)] * 2
    if same:
        missing = [
            max((n - 1) * stride + size - m, 0) for n, m in ((rows, height), (columns, width))
        ]
        pads = [(m // 2, size) for m in missing]
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    y: Any = sum(
        x[:, i : i + stride * rows : stride, j : j + stride * columns : stride] @ kernel[i, j]
        for i in range(size)
        for j in range(size)
    )
    return y if conv.bias is None else y + array(conv.bias)


def pre_act(block: Any, x: Any, stride: int, same: bool, sizes: tuple[int, ...]) -> Any:
    """The output of a pre-activation block, whose first convolution has the stride."""
    h = x
    for k in range(len(sizes)):
        h = relu(normalized(getattr(block, f"norm{k + 1}"), h))
        conv = getattr(block, f"conv{k + 1}")
        h = convolved(conv, h, stride=stride if k == 0 else 1, same=same)
    if h.shape == x.shape:
        assert block.shortcut is None
        return h + x
    return h + convolved(block.shortcut, x, stride=stride, same=same)


def residual(block: Any, x: Any, strides: tuple[int, ...]) -> Any:
    """A block of normalized convolutions. A shortcut without a kernel adds channels of zeros."""
    h = x
    for k, stride in enumerate(strides):
        h = normalized(
            getattr(block, f"norm{k + 1}"),
            convolved(getattr(block, f"conv{k + 1}"), h, stride=stride),
        )
        h = relu(h) if k + 1 < len(strides) else h
    stride = max(strides)
    if isinstance(block.shortcut, blocks.Projection):
        x = normalized(block.shortcut.norm, convolved(block.shortcut.conv, x, stride=stride))
    else:
        missing = (h.shape[-1] - x.shape[-1]) // 2
        x = np.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (missing, missing)))
    return relu(h + x)


def images(*shape):
    return np.random.default_rng(1).normal(1, 2, shape)


def assert_same(found, expected):
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.parametrize(
    ("channels", "width", "stride"), [(8, 8, 1), (8, 8, 2), (4, 12, 1), (4, 12, 2)]
)
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("kind", ["PreActBlock", "PreActBottleneck"])
def test_pre_activation_blocks_by_numpy(kind, channels, width, stride, same):
    conv = blocks.biased_conv if same else blocks.conv
    block = built(partial(getattr(blocks, kind), channels, width, stride=stride, conv=conv))
    x = images(2, 6, 5, channels)
    sizes = (3, 3) if kind == "PreActBlock" else (1, 3, 1)
    assert_same(block(jnp.asarray(x, "float32")), pre_act(block, x, stride, same, sizes))


@pytest.mark.parametrize(
    ("channels", "width", "stride"), [(8, 8, 1), (8, 8, 2), (4, 12, 1), (4, 12, 2)]
)
@pytest.mark.parametrize("kind", ["projected", "padded", "bottleneck"])
def test_residual_blocks_by_numpy(kind, channels, width, stride):
    build: Any = {
        "projected": partial(blocks.BasicBlock, project=True),
        "padded": partial(blocks.BasicBlock, project=False),
        "bottleneck": blocks.Bottleneck,
    }[kind]
    block = built(partial(build, channels, width, stride=stride))
    x = images(2, 6, 5, channels)
    projected = (stride > 1 or channels != width) and kind != "padded"
    assert isinstance(block.shortcut, blocks.Projection) is projected
    strides = (stride, 1) if kind != "bottleneck" else (1, stride, 1)
    assert_same(block(jnp.asarray(x, "float32")), residual(block, x, strides))


def head(model, x):
    return x.mean((1, 2)) @ array(model.head.kernel) + array(model.head.bias)


@pytest.mark.parametrize(("depth", "bottleneck"), [(8, False), (11, True)])
def test_pre_activation_networks_by_numpy(depth, bottleneck):
    model = built(partial(models.PreActResNet, depth, classes=3, bottleneck=bottleneck))
    x = images(2, 9, 8, 3)
    h = relu(normalized(model.stem_norm, convolved(model.stem, x, same=True)))
    for block, stride in zip(model.blocks, (1, 2, 2), strict=True):
        h = pre_act(block, h, stride, True, (1, 3, 1) if bottleneck else (3, 3))
    last = normalized(model.norm, h)
    found, logits = output_of(
        model, jnp.asarray(x, "float32"), lambda model, x: (model.last_normalized(x), model(x))
    )
    assert_same(found, last)
    assert_same(logits, head(model, relu(last)))


def test_the_last_normalized_map_of_a_pre_activation_network_is_before_relu():
    """Sums and products stand for layers, because only the order of the layers is tested."""
    stem = drawn(nnx.eval_shape(lambda: nnx.Conv(3, 4, (1, 1), rngs=nnx.Rngs(0))))
    net: Any = SimpleNamespace(
        stem=stem,
        stem_norm=lambda h: 2 * h - 0.5,
        blocks=[lambda h: h - 1, lambda h: -3 * h],
        norm=lambda h: h - 0.7,
        head=lambda h: 5 * h,
    )
    net.last_normalized = partial(models.PreActResNet.last_normalized, net)
    x = images(2, 3, 2, 3)
    h = relu(2 * (x @ array(stem.kernel)[0, 0] + array(stem.bias)) - 0.5)
    last = -3 * (h - 1) - 0.7
    assert (last < 0).any()
    assert (last > 0).any()
    assert_same(net.last_normalized(jnp.asarray(x, "float32")), last)
    found = models.PreActResNet.__call__(net, jnp.asarray(x, "float32"))
    assert_same(found, 5 * relu(last).mean((1, 2)))


def test_networks_for_small_images_by_numpy():
    model = built(partial(models.CifarResNet, 8, classes=3))
    x = images(2, 9, 8, 3)
    h = relu(normalized(model.stem_norm, convolved(model.stem, x)))
    for block, stride in zip(model.blocks, (1, 2, 2), strict=True):
        h = residual(block, h, (stride, 1))
    assert_same(model(jnp.asarray(x, "float32")), head(model, h))


@pytest.mark.parametrize("pre_activation", [False, True])
def test_networks_for_imagenet_by_numpy(pre_activation):
    """The last feature map of a ResNet-18 has several pixels, so their mean and maximum differ."""
    model = built(partial(models.ResNet, 18, classes=3, pre_activation=pre_activation))
    x = images(1, 40, 33, 3)
    h = relu(normalized(model.stem_norm, convolved(model.stem, x, stride=2)))
    rows, columns = -(-h.shape[1] // 2), -(-h.shape[2] // 2)
    padded = np.pad(h, ((0, 0), (1, 3), (1, 3), (0, 0)), constant_values=-np.inf)
    h = np.max(
        [
            padded[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2]
            for i in range(3)
            for j in range(3)
        ],
        0,
    )
    for block, stride in zip(model.blocks, (1, 1, 2, 1, 2, 1, 2, 1), strict=True):
        h = (
            pre_act(block, h, stride, False, (3, 3))
            if pre_activation
            else residual(block, h, (stride, 1))
        )
    assert h.shape[1:3] == (2, 2)
    assert (h < 0).any() == pre_activation
    assert_same(output_of(model, jnp.asarray(x, "float32")), head(model, relu(h)))


@pytest.mark.parametrize("activation_first", [False, True])
def test_dense_networks_by_numpy(activation_first):
    build = partial(models.MLP, inputs=12, widths=(7, 5, 6), classes=3)
    model = built(partial(build, activation_first=activation_first))
    x = images(4, 2, 2, 3)
    h = x.reshape(4, 12)
    for k, (layer, norm) in enumerate(zip(model.layers, model.norms, strict=True)):
        h = h @ array(layer.kernel) + array(layer.bias)
        if activation_first:
            h = normalized(norm, relu(h))
        else:
            h = normalized(norm, h)
            h = relu(h) if k < 2 else h
    assert_same(model.last_normalized(jnp.asarray(x, "float32")), h)
    assert (h < 0).any()
    h = h if activation_first else relu(h)
    expected = h @ array(model.head.kernel) + array(model.head.bias)
    assert_same(model(jnp.asarray(x, "float32")), expected)


def test_the_dense_layers_of_vgg_by_numpy():
    """A product over channels stands for the stages, because only the dense layers are tested."""
    rng = np.random.default_rng(2)
    mix = rng.normal(size=(3, 512))
    dense = [
        drawn(nnx.Linear(*sizes, rngs=nnx.Rngs(0))) for sizes in ((49 * 512, 7), (7, 5), (5, 3))
    ]
    stages = [*[lambda x: x] * 4, lambda x: x @ jnp.asarray(mix, "float32")]
    net = SimpleNamespace(stages=stages, hidden=dense[:2], head=dense[2])
    x = images(2, 224, 224, 3)
    found = models.VGG.__call__(net, jnp.asarray(x, "float32"))  # pyright: ignore[reportArgumentType]
    h = x.reshape(2, 14, 16, 14, 16, 3).max((2, 4)) @ mix
    h = h.reshape(2, 7, 2, 7, 2, 512).max((2, 4)).reshape(2, -1)
    for layer in dense[:2]:
        h = h @ array(layer.kernel) + array(layer.bias)
        assert (h < 0).any()
        h = relu(h)
    assert_same(found, h @ array(dense[2].kernel) + array(dense[2].bias))
