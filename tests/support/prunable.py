"""Small networks of many kinds, as plain functions of a dictionary of arrays.

A block is a function `block(rng, shape) -> (params, apply, shape)`. The function `apply` maps
images of the first shape `(h, w, c)` to images of the second shape, and takes all widths from the
parameters. All arrays are random, including running statistics and biases, so that no array is
zero.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, int, int]
Block = Callable[[np.random.Generator, Shape], tuple[dict, Callable, Shape]]
CLASSES = 3


class Network(NamedTuple):
    apply: Callable[..., jax.Array]
    params: Any
    x: Any


def network(
    seed: int, blocks: Sequence[Block], shape: Shape = (4, 4, 2), batch: int = 2
) -> Network:
    """A network of `blocks`, with random images as input."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, *shape))
    params, functions = {}, []
    for i, block in enumerate(blocks):
        own, function, shape = block(rng, shape)
        params[f"{i}"] = own
        functions.append(function)

    def apply(params: dict, x: jax.Array) -> jax.Array:
        for i, function in enumerate(functions):
            x = function(params[f"{i}"], x)
        return x

    return Network(apply, params, x)


def kernel(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape) * np.prod(shape[:-1]) ** -0.5


def norm(rng: np.random.Generator, width: int) -> dict:
    mean, scale, bias = rng.normal(size=(3, width))
    return {"mean": mean, "var": rng.uniform(0.5, 1.5, width), "scale": scale, "bias": bias}


def convolve(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def every(v: jax.Array) -> jax.Array:
    return v[None, None, None, :]


def normalize(p: dict, x: jax.Array) -> jax.Array:
    gain = p["scale"] * lax.rsqrt(p["var"] + 1e-3)
    return (x - every(p["mean"])) * every(gain) + every(p["bias"])


def conv_relu(rng, shape, *, width=6, size=3):
    h, w, c = shape
    params = {"w": kernel(rng, size, size, c, width), "b": rng.normal(size=width)}

    def apply(p, x):
        return jax.nn.relu(convolve(x, p["w"]) + every(p["b"]))

    return params, apply, (h, w, width)


def conv_norm(rng, shape, *, width=6, size=3, stride=1, act=jax.nn.relu):
    """Convolution, batch norm and an activation."""
    h, w, c = shape
    params = {"w": kernel(rng, size, size, c, width), "n": norm(rng, width)}

    def apply(p, x):
        return act(normalize(p["n"], convolve(x, p["w"], stride)))

    return params, apply, (-(-h // stride), -(-w // stride), width)


def max_pool(rng, shape):
    h, w, c = shape

    def apply(p, x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return {}, apply, (h // 2, w // 2, c)


def sequence(rng, shape, *, blocks):
    params, functions = {}, []
    for i, block in enumerate(blocks):
        params[f"{i}"], function, shape = block(rng, shape)
        functions.append(function)

    def apply(p, x):
        for i, function in enumerate(functions):
            x = function(p[f"{i}"], x)
        return x

    return params, apply, shape


def linear(x):
    return x


def residual(rng, shape, *, inside=4, stride=1, width=None, shortcut=None):
    """Two convolutions with a shortcut: the input, a projection, or the input padded with zeros."""
    width = width or shape[-1]
    blocks = [
        partial(conv_norm, width=inside, stride=stride),
        partial(conv_norm, width=width, act=linear),
    ]
    body, function, new = sequence(rng, shape, blocks=blocks)
    beside, past = {}, linear_shortcut
    if shortcut is not None:
        beside, past, _ = shortcut(rng, shape, stride=stride, width=width)

    def apply(p, x):
        return jax.nn.relu(function(p["body"], x) + past(p["shortcut"], x))

    return {"body": body, "shortcut": beside}, apply, new


def linear_shortcut(p, x):
    return x


def projection(rng, shape, *, stride, width):
    return conv_norm(rng, shape, size=1, stride=stride, width=width, act=linear)


def zero_padding(rng, shape, *, stride, width):
    h, w, c = shape
    before = (width - c) // 2
    after = width - c - before

    def apply(p, x):
        return jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (before, after)))

    return {}, apply, (-(-h // stride), -(-w // stride), width)


def pre_activation(rng, shape, *, inside=4):
    """Two rounds of normalization, ReLU and convolution, added to the input."""
    c = shape[-1]
    params = {
        "n1": norm(rng, c),
        "w1": kernel(rng, 3, 3, c, inside),
        "n2": norm(rng, inside),
        "w2": kernel(rng, 3, 3, inside, c),
    }

    def apply(p, x):
        h = convolve(jax.nn.relu(normalize(p["n1"], x)), p["w1"])
        return x + convolve(jax.nn.relu(normalize(p["n2"], h)), p["w2"])

    return params, apply, shape


def bottleneck(rng, shape, *, inside=4, groups=1):
    """Convolutions of size 1×1, 3×3 and 1×1. With `groups`, this is the block of ResNeXt."""
    width = shape[-1]
    blocks = [
        partial(conv_norm, width=inside, size=1),
        partial(grouped, width=inside, groups=groups),
        partial(conv_norm, width=width, size=1, act=linear),
    ]
    params, function, new = sequence(rng, shape, blocks=blocks)
    return params, lambda p, x: jax.nn.relu(x + function(p, x)), new


def grouped(rng, shape, *, width=6, groups=2):
    h, w, c = shape
    params = {"w": kernel(rng, 3, 3, c // groups, width), "n": norm(rng, width)}

    def apply(p, x):
        return jax.nn.relu(normalize(p["n"], convolve(x, p["w"], groups=groups)))

    return params, apply, (h, w, width)


def separable(rng, shape, *, width=6, multiplier=1):
    """MobileNet's block: a depthwise convolution and a 1×1 convolution."""
    h, w, c = shape
    inner = c * multiplier
    params = {
        "deep": kernel(rng, 3, 3, 1, inner),
        "n1": norm(rng, inner),
        "point": kernel(rng, 1, 1, inner, width),
        "n2": norm(rng, width),
    }

    def apply(p, x):
        h = jax.nn.relu6(normalize(p["n1"], convolve(x, p["deep"], groups=x.shape[-1])))
        return jax.nn.relu6(normalize(p["n2"], convolve(h, p["point"])))

    return params, apply, (h, w, width)


def dense_block(rng, shape, *, growth=4, layers=2):
    """DenseNet's block: every layer reads the outputs of all earlier layers."""
    h, w, c = shape
    made = [conv_norm(rng, (h, w, c + i * growth), width=growth) for i in range(layers)]

    def apply(p, x):
        for i, (_, function, _) in enumerate(made):
            x = jnp.concatenate([x, function(p[f"{i}"], x)], -1)
        return x

    return {f"{i}": own for i, (own, _, _) in enumerate(made)}, apply, (h, w, c + layers * growth)


def squeeze_excitation(rng, shape, *, inside=4):
    c = shape[-1]
    params = {
        "down": kernel(rng, c, inside),
        "b1": rng.normal(size=inside),
        "up": kernel(rng, inside, c),
        "b2": rng.normal(size=c),
    }

    def apply(p, x):
        h = jax.nn.relu(x.mean((1, 2)) @ p["down"] + p["b1"][None])
        return x * jax.nn.sigmoid(h @ p["up"] + p["b2"][None])[:, None, None, :]

    return params, apply, shape


def u_net(rng, shape, *, inside=6):
    """Pooling, a convolution, upsampling by nearest neighbors, concatenation with the input."""
    h, w, c = shape
    inner, function, _ = conv_norm(rng, (h // 2, w // 2, c), width=inside)

    def apply(p, x):
        down = max_pool(rng, shape)[1]({}, x)
        up = jnp.repeat(jnp.repeat(function(p, down), 2, 1), 2, 2)
        return jnp.concatenate([x, up], -1)

    return inner, apply, (h, w, c + inside)


def scanned(rng, shape, *, inside=4, layers=2):
    """Residual layers of one shape in a scan, with stacked parameters."""
    c = shape[-1]
    params = {
        "in": kernel(rng, layers, 1, 1, c, inside),
        "out": kernel(rng, layers, 1, 1, inside, c),
    }

    def layer(x, p):
        return x + convolve(jnp.tanh(convolve(x, p["in"])), p["out"]), None

    def apply(p, x):
        return lax.scan(layer, x, p)[0]

    return params, apply, shape


def shared(rng, shape, *, width=6):
    """A layer that is used twice, after a linear layer."""
    c = shape[-1]
    params = {
        "in": kernel(rng, c, width),
        "twice": kernel(rng, width, width),
        "b": rng.normal(size=width),
    }

    def apply(p, x):
        x = x @ p["in"]
        for _ in range(2):
            x = jnp.tanh(x @ p["twice"] + every(p["b"]))
        return x

    return params, apply, (*shape[:2], width)


def flat_head(rng, shape, *, hidden=6):
    """A network that flattens its input for two dense layers."""
    params = {
        "w1": kernel(rng, int(np.prod(shape)), hidden),
        "b1": rng.normal(size=hidden),
        "w2": kernel(rng, hidden, CLASSES),
        "b2": rng.normal(size=CLASSES),
    }

    def apply(p, x):
        h = jax.nn.relu(x.reshape(len(x), -1) @ p["w1"] + p["b1"][None])
        return h @ p["w2"] + p["b2"][None]

    return params, apply, shape


def mean_head(rng, shape):
    params = {"w": kernel(rng, shape[-1], CLASSES), "b": rng.normal(size=CLASSES)}
    return params, lambda p, x: x.mean((1, 2)) @ p["w"] + p["b"][None], shape


def mixing(mix: Callable[[jax.Array], jax.Array]) -> Block:
    """A block without parameters."""
    return lambda rng, shape: ({}, lambda p, x: mix(x), shape)


def layer_norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3)


def shuffle(x):
    return x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)


def attention(x):
    tokens = x.reshape(len(x), -1, x.shape[-1])
    weights = jax.nn.softmax(jnp.einsum("bic,bjc->bij", tokens, tokens) / 8)
    return jnp.einsum("bij,bjc->bic", weights, tokens).reshape(x.shape)


def halves(x):
    c = x.shape[-1] // 2
    return x * jnp.concatenate([jax.nn.sigmoid(x[..., c:]), x[..., :c]], -1)


# blocks that prevent the removal of the channels before them, and the primitive that is the reason
UNCUT: dict[str, tuple[Callable[[jax.Array], jax.Array], str]] = {
    "softmax": (lambda x: jax.nn.softmax(x, -1), "reduce_max"),
    "layer norm": (layer_norm, "reduce_sum"),
    "running sum": (lambda x: jnp.cumsum(x, -1), "cumsum"),
    "spectrum": (lambda x: jnp.fft.fft(x, axis=-1).real, "fft"),
    "largest": (lambda x: lax.top_k(x, x.shape[-1])[0], "top_k"),
    "fixed gain": (lambda x: x * every(jnp.arange(1.0, 1 + x.shape[-1])), "mul"),
}

MODELS: dict[str, tuple[Sequence[Block], Sequence[int]]] = {
    # for each name: the blocks, and the sizes of the groups in the order of the parameters
    "mlp": ((flat_head,), (6,)),
    "vgg": ((conv_relu, max_pool, conv_norm, flat_head), (6, 6, 6)),
    "resnet, projection": (
        (conv_norm, partial(residual, stride=2, width=8, shortcut=projection), mean_head),
        (6, 4, 8),
    ),
    "resnet, identity": ((conv_norm, residual, residual, mean_head), (6, 4, 4)),
    "resnet, zeros": (
        (conv_norm, partial(residual, stride=2, width=10, shortcut=zero_padding), mean_head),
        (6, 4),
    ),
    "pre-activation": ((conv_norm, pre_activation, pre_activation, mean_head), (6, 4, 4)),
    "bottleneck": ((conv_norm, bottleneck, mean_head), (6, 4, 4)),
    "densenet": ((conv_norm, dense_block, mean_head), (6, 4, 4)),
    "mobilenet": ((conv_norm, separable, separable, mean_head), (6, 6, 6)),
    "multiplier": ((conv_norm, partial(separable, multiplier=2), mean_head), (6, 6)),
    "squeeze-and-excitation": ((conv_norm, squeeze_excitation, mean_head), (6, 4)),
    "resnext": ((conv_norm, partial(bottleneck, groups=2), mean_head), (6, 2, 2)),
    "u-net": ((conv_norm, u_net, mean_head), (6, 6)),
    "scan": ((conv_norm, scanned, mean_head), (6, 4)),
    "shared": ((conv_norm, shared, mean_head), (6, 6)),
    "shuffle": ((conv_norm, mixing(shuffle), conv_norm, mean_head), (3, 6)),
    "halves": ((conv_norm, mixing(halves), conv_norm, mean_head), (3, 6)),
    "attention": ((conv_norm, mixing(attention), conv_norm, mean_head), (6, 6)),
}


def model(name: str, seed: int = 0) -> Network:
    return network(seed, MODELS[name][0])


BLOCKS: Sequence[Block] = (
    conv_relu,
    conv_norm,
    partial(conv_norm, width=4, size=1),
    residual,
    partial(residual, shortcut=projection, width=8, inside=6),
    partial(residual, shortcut=projection, width=4, stride=2),
    pre_activation,
    bottleneck,
    partial(bottleneck, groups=2),
    grouped,
    separable,
    partial(separable, multiplier=2),
    dense_block,
    squeeze_excitation,
    u_net,
    scanned,
    shared,
    *map(mixing, (shuffle, halves, attention)),
)


def padded(rng, shape):
    """A residual block whose shortcut has two additional zero channels on each side."""
    return residual(rng, shape, shortcut=zero_padding, width=shape[-1] + 4)


def random_network(seed: int) -> Network:
    """A network of random blocks, some of which prevent the removal of channels."""
    rng = np.random.default_rng(seed)
    pool = (*BLOCKS, padded)
    blocks = [pool[i] for i in rng.integers(len(pool), size=rng.integers(1, 4))]
    if rng.random() < 0.3:
        mixes = list(UNCUT.values())
        blocks.insert(rng.integers(len(blocks) + 1), mixing(mixes[rng.integers(len(mixes))][0]))
    head = (flat_head, mean_head)[rng.integers(2)]
    return network(seed, [conv_norm, *blocks, head])
