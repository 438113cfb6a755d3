"""Kinds of block for random transformers: a layer with a norm over channels, added to its input."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxnorm
from tests.support.random_blocks import Kinds, last
from tests.support.random_blocks.channels import normalized
from tests.support.random_blocks.constants import TABLES
from tests.support.random_blocks.steps import CACHES, dropped as dropout, product, rounded
from tests.support.random_blocks.tokens import TOKENS

relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh


def scaled(p, x):
    return x * last(p["ns"], x)


def affine(p, x):
    return scaled(p, x) + last(p["nb"], x)


def rms(p, x):
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3)


def by_power(p, x):
    """An RMS norm computed by powers, as in Keras."""
    return x * jnp.power(jnp.power(x, 2.0).mean(-1, keepdims=True) + 1e-3, -0.5)


def at_once(p, x):
    """A norm whose variance is computed in one pass and clipped at zero, as in Flax."""
    mean, square = x.mean(-1, keepdims=True), jnp.square(x).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0) + 1e-3)


def by_deviation(p, x):
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-2)


def by_skewness(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return x / (1 + jnp.abs((centred**3).mean(-1, keepdims=True)))


def by_sigmoids(p, x):
    """A norm that divides by a sum of sigmoids, which are ½ for zero channels."""
    return x / sigmoid(x).sum(-1, keepdims=True)


def by_exponents(p, x):
    return x * jnp.log(jnp.exp(tanh(x)).sum(-1, keepdims=True))


def of_tokens_too(p, x):
    """A group norm with one group, so that statistics are also over tokens."""
    return normalized(x, (1, 2))


def under_a_mask(p, x):
    """A norm over the positive channels, which divides by their number."""
    here = (x > 0).astype(x.dtype)
    return x / (1 + (x * here).sum(-1, keepdims=True) / (here.sum(-1, keepdims=True) + 1))


def of_groups(p, x):
    parts = x.reshape(*x.shape[:2], 2, -1)
    return normalized(parts, -1).reshape(x.shape)


def largest(p, x):
    """A division by the maximum over channels, so that no channel can be removed."""
    return x / (1 + jnp.abs(x).max(-1, keepdims=True))


NORMS: Kinds = {
    "rms": ("ns:c", lambda p, x: scaled(p, rms(p, x))),
    "rms, no scale": ("", rms),
    "rms by a power": ("ns:c", lambda p, x: scaled(p, by_power(p, x))),
    "layer": ("ns:c nb:c", lambda p, x: affine(p, normalized(x, -1))),
    "layer, no bias": ("ns:c", lambda p, x: scaled(p, normalized(x, -1))),
    "layer, no scale": ("", lambda p, x: normalized(x, -1)),
    "layer at once": ("ns:c nb:c", lambda p, x: affine(p, at_once(p, x))),
    "layer at once, no scale": ("", at_once),
    "layer by jnp.var": (
        "ns:c nb:c",
        lambda p, x: affine(p, (x - x.mean(-1, keepdims=True)) / (1 + x.var(-1, keepdims=True))),
    ),
    "standardized by jax.nn": ("ns:c", lambda p, x: scaled(p, jax.nn.standardize(x))),
    "deviation": ("ns:c", lambda p, x: scaled(p, by_deviation(p, x))),
    "skewness": ("", by_skewness),
    "sigmoids": ("", by_sigmoids),
    "exponents": ("", by_exponents),
    "mask": ("", under_a_mask),
    "one group": ("ns:c nb:c", lambda p, x: affine(p, of_tokens_too(p, x))),
    "two groups": ("ns:c", lambda p, x: scaled(p, of_groups(p, x))),
    "unitized": ("ns:s", lambda p, x: jaxnorm.unitize(x, jnp.asarray(p["ns"]))),
    "batch": ("ns:c nb:c", lambda p, x: affine(p, normalized(x, (0, 1)))),
    "maximum": ("", largest),
    "remat": ("ns:c", lambda p, x: jax.checkpoint(lambda x: scaled(p, normalized(x, -1)))(x)),
}


def mixed_with_biases(p, x):
    """A mixer of tokens with biases, after which a channel of zeros has nonzero values."""
    y = jax.nn.gelu(jnp.swapaxes(x, 1, 2) @ p["w"] + p["a"][None, None])
    return jnp.swapaxes(y @ p["u"] + p["b"][None, None], 1, 2)


def experts(p, x):
    shares = jax.nn.softmax(x @ p["r"], -1)
    y = relu(jnp.einsum("btc,lcn->btln", x, p["w"]))
    return jnp.einsum("btl,btln,lnc->btc", shares, y, p["u"])


def in_a_scan(p, x):
    """Layers in a scan, each with its own norm."""

    def layer(x, w):
        up, down = w
        return x + tanh(normalized(x, -1) @ up) @ down, None

    return lax.scan(layer, x, (p["w"], p["u"]))[0]


def gated_unit(p, x):
    return (jax.nn.silu(x @ p["w"]) * (x @ p["v"])) @ p["u"]


ATTENTIONS = """
    attention, causal attention, attention with biases, attention by depth, folded heads, fused,
    fused heads, grouped queries, repeated keys, multi-query, rotary, normalized queries,
    linear attention, relative bias
"""
LAYERS: Kinds = {
    **{name: TOKENS[name] for name in " ".join(ATTENTIONS.split()).split(", ")},
    "perceptron": ("w:cn b:n u:nc", lambda p, x: relu(x @ p["w"] + last(p["b"], x)) @ p["u"]),
    "gated unit": ("w:cn v:cn u:nc", gated_unit),
    "mixer": ("w:tm a:m u:mt b:t", mixed_with_biases),
    "experts": ("r:cl w:lcn u:lnc", experts),
    "scan": ("w:lcn u:lnc", in_a_scan),
    **{name: TABLES[name] for name in list(TABLES)[::9]},
    **CACHES,
    "dropout": ("w:cn u:nc", lambda p, x: dropout(dropout(relu(x @ p["w"])) @ p["u"])),
    "rules": ("w:cn u:nc", lambda p, x: product(rounded(product(x, p["w"])), p["u"])),
    "running mean": ("b:c", lambda p, x: jnp.cumsum(x, 1) / 4 + last(p["b"], x)),
}


def _behind(norm: Callable[..., Any], layer: Callable[..., Any], p: Any, x: Any) -> Any:
    return x + layer(p, norm(p, x))


def _after(norm: Callable[..., Any], layer: Callable[..., Any], p: Any, x: Any) -> Any:
    """The norm of the sum of input and layer."""
    return norm(p, x + layer(p, x))


PLACES = (("before", _behind), ("after", _after))
STREAMS: Kinds = {
    f"{layer} | {norm} | norm {place}": (f"{a} {b}", partial(join, f, g))
    for place, join in PLACES
    for norm, (a, f) in NORMS.items()
    for layer, (b, g) in LAYERS.items()
}
