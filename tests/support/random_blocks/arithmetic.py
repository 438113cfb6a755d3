"""Kinds of block that compute with a width, so that the program may change with the width."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.random_blocks import Kinds, last

tanh = jnp.tanh


def projected(p, x):
    """A shortcut with a projection only if shapes differ, as in Flax's ImageNet example."""
    y = tanh(x @ p["w"]) @ p["u"]
    return y + (x if x.shape == y.shape else x @ p["p"])


def truncated(p, x):
    """A shortcut for the first min(input channels, output channels) channels."""
    y = tanh(x @ p["w"])
    c = min(x.shape[-1], y.shape[-1])
    return y.at[..., :c].add(x[..., :c])


def waves(p, x):
    c = x.shape[-1]
    angles = np.outer(np.arange(x.shape[-2]), 10000.0 ** -(np.arange(c) / c))
    return x + last(np.sin(angles), x)


def gain_by_width(p, x):
    h = tanh(x @ p["w"])
    return h * 2 if h.shape[-1] > 4 else h


def sum_over_width(p, x):
    h = tanh(x @ p["w"])
    return h + jnp.sum(jnp.broadcast_to(jnp.asarray(p["g"]), (h.shape[-1], 2))[:, 0])


def loop_over_width(p, x):
    h = tanh(x @ p["w"])
    return lax.fori_loop(0, h.shape[-1], lambda _, h: h * 0.9, h)


def tangent_kernel(p, x):
    return tanh(x @ p["w"]) @ p["u"] / p["u"].shape[0] ** 0.5


def three(p, x):
    """A product of three arrays. The widths determine which two arrays are multiplied first."""
    return jnp.einsum("...c,cm,mn->...n", x, p["w"], p["u"])


def dense_by_groups(p, x):
    """A dense layer that is applied to each pair of consecutive channels."""
    grouped = x.reshape(*x.shape[:-1], -1, 2)
    return (grouped @ p["w"]).reshape(x.shape)


ARITHMETIC: Kinds = {
    "equalized": ("w:cn", lambda p, x: tanh(x @ (p["w"] * p["w"].shape[0] ** -0.5))),
    "equalized by outputs": ("w:cn", lambda p, x: tanh(x @ p["w"] * p["w"].shape[1] ** -0.5)),
    "tangent kernel": ("w:cm u:mn", tangent_kernel),
    "divided by a width": ("w:cn", lambda p, x: x @ p["w"] / x.shape[-1]),
    "mean by division": ("", lambda p, x: x - x.sum(-1, keepdims=True) / x.shape[-1]),
    "gain by width": ("w:cn", gain_by_width),
    "projection where needed": ("w:cm u:mn p:cn", projected),
    "projection, same width": ("w:cm u:mc p:cc", projected),
    "shortcut that is cut off": ("w:cn", truncated),
    "sum over a width": ("w:cn g:s", sum_over_width),
    "loop over a width": ("w:cn", loop_over_width),
    "waves": ("", waves),
    "ramp": ("", lambda p, x: x * last(np.linspace(0.5, 1.5, x.shape[-1]), x)),
    "counted": ("", lambda p, x: x + last(jnp.arange(x.shape[-1], dtype=x.dtype) / 4, x)),
    "identity matrix": ("", lambda p, x: x @ jnp.eye(x.shape[-1])),
    "identity and weights": ("w:cc", lambda p, x: x @ (jnp.eye(x.shape[-1]) + p["w"])),
    "permuted": ("w:cn", lambda p, x: (x @ p["w"])[..., np.arange(p["w"].shape[1])[::-1]]),
    "pairs": ("w:rr", dense_by_groups),
    "logarithm of a width": ("w:cn", lambda p, x: tanh(x @ p["w"]) + np.log(x.shape[-1])),
    "noise": (
        "w:cn",
        lambda p, x: (
            tanh(x @ p["w"])
            + jax.random.normal(jax.random.key(0), (p["w"].shape[1],))[(None,) * (x.ndim - 1)]
        ),
    ),
    "scalar by size": ("w:cn", lambda p, x: x @ p["w"] / jnp.sqrt(float(p["w"].size))),
    "einsum of three": ("w:cm u:mn", three),
}
