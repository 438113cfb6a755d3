"""Kinds of dense layer whose weights are computed from several parameters."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.random_blocks import Kinds

tanh = jnp.tanh


def wide(v, shape):
    return jnp.broadcast_to(v, shape)


def standardized(w, eps=1e-5):
    w = w - w.mean(0, keepdims=True)
    return w * lax.rsqrt(jnp.square(w).mean(0, keepdims=True) + eps)


def directions(w, axes, eps=0.0):
    return w / jnp.sqrt(jnp.square(w).sum(axes, keepdims=True) + eps)


def scanned(p, x):
    """A layer whose weights are the carry of a scan."""
    return x @ lax.scan(lambda w, u: (w @ u, None), p["w"], p["u"])[0]


def replaced(p, x):
    """A scan whose carry is the weights in the first step and a constant in the second."""

    def step(w, _):
        return wide(p["g"], w.shape), x @ w

    return tanh(lax.scan(step, p["w"], None, length=2)[1].sum(0))


def either(p, x):
    return lax.cond(x.mean() > 9, lambda: p["w"], lambda: wide(p["g"], p["w"].shape))


def modulated(p, x):
    """A layer whose weights are scaled along their input axis by a function of the input."""
    style = 1 + x.reshape(len(x), -1, x.shape[-1]).mean(1) @ p["a"]  # the shape is (batch, c)
    w = style[:, :, None] * p["w"][None]
    w = w * lax.rsqrt(jnp.square(w).sum(1, keepdims=True) + 1e-3)
    return jnp.einsum("b...c,bcn->b...n", x, w)


def hyper(p, x):
    """A layer whose weights are all computed from the input."""
    code = x.reshape(len(x), -1, x.shape[-1]).mean(1) @ p["a"]
    return jnp.einsum("b...c,bcn->b...n", x, jnp.einsum("br,rcn->bcn", code, p["w"]))


def tied(p, x):
    return tanh(x @ p["w"]) @ p["w"].T


def stripes(w):
    return w * lax.expand_dims(jnp.arange(w.shape[0]) % 2, [1]).astype(w.dtype)


WEIGHTS: Kinds = {
    "low rank": ("w:cr u:rn", lambda p, x: tanh(x @ (p["w"] @ p["u"]))),
    "low rank, wide": ("w:cm u:mn", lambda p, x: tanh(x @ (p["w"] @ p["u"]))),
    "lora": ("w:cn a:cr u:rn g:s", lambda p, x: tanh(x @ (p["w"] + p["g"] * (p["a"] @ p["u"])))),
    "lora of activations": ("w:cn a:cr u:rn", lambda p, x: tanh(x @ p["w"] + x @ p["a"] @ p["u"])),
    "tied": ("w:cm", tied),
    "transposed": ("w:nc", lambda p, x: tanh(x @ p["w"].T)),
    "reversed": ("w:cn", lambda p, x: tanh(x @ p["w"][:, ::-1])),
    "standardized": ("w:cn", lambda p, x: tanh(x @ standardized(p["w"]))),
    "standardized, gain": (
        "w:cn g:n",
        lambda p, x: tanh(x @ (standardized(p["w"]) * p["g"][None])),
    ),
    "weight norm": ("w:cn g:n", lambda p, x: tanh(x @ (directions(p["w"], 0) * p["g"][None]))),
    "weight norm with eps": ("w:cn", lambda p, x: tanh(x @ directions(p["w"], 0, 1e-5))),
    "weight norm of inputs": ("w:cn", lambda p, x: tanh(x @ directions(p["w"], 1))),
    "frobenius": ("w:cn", lambda p, x: tanh(x @ directions(p["w"], (0, 1)))),
    "spectral": ("w:cn a:c", lambda p, x: tanh(x @ p["w"] / (1 + jnp.abs(p["a"] @ p["w"]).max()))),
    "concatenated outputs": (
        "w:cn u:cn",
        lambda p, x: tanh(x @ jnp.concatenate([p["w"], p["u"]], 1)),
    ),
    "concatenated inputs": (
        "w:cn u:cn",
        lambda p, x: jnp.concatenate([x, tanh(x)], -1) @ jnp.concatenate([p["w"], p["u"]]),
    ),
    "beside a constant": (
        "w:cn g:s",
        lambda p, x: x @ jnp.concatenate([p["w"], wide(p["g"], (p["w"].shape[0], 2))], 1),
    ),
    "stacked": ("w:cn u:cn", lambda p, x: tanh(x @ jnp.stack([p["w"], p["u"]]).sum(0))),
    "stacked experts": (
        "w:cn u:cn",
        lambda p, x: jnp.einsum("...c,lcn->...ln", x, jnp.stack([p["w"], p["u"]])).max(-2),
    ),
    "tiled": ("w:cn", lambda p, x: tanh(x @ jnp.tile(p["w"], (1, 2)))),
    "padded": ("w:cn", lambda p, x: tanh(x @ jnp.pad(p["w"], ((0, 0), (1, 1))))),
    "padded with sevens": (
        "w:cn",
        lambda p, x: tanh(x @ jnp.pad(p["w"], ((0, 0), (0, 2)), constant_values=7.0)),
    ),
    "padded with a parameter": (
        "w:cn g:s",
        lambda p, x: tanh(x @ lax.pad(p["w"], jnp.asarray(p["g"]), ((0, 0, 0), (0, 2, 0)))),
    ),
    "cond of weights": ("w:cn g:s", lambda p, x: tanh(x @ either(p, x))),
    "cond of two": (
        "w:cn u:cn",
        lambda p, x: tanh(x @ lax.cond(x.mean() > 0, lambda: p["w"], lambda: p["u"])),
    ),
    "select": ("w:cn u:cn", lambda p, x: tanh(x @ jnp.where(p["w"] > 0, p["w"], p["u"]))),
    "scan": ("w:cm u:lmm", scanned),
    "scan, replaced": ("w:cn g:s", replaced),
    "stopped gradient": ("w:cn", lambda p, x: tanh(x @ lax.stop_gradient(p["w"]))),
    "positive": ("w:cn", lambda p, x: x @ jax.nn.relu(p["w"])),
    "exponential": ("w:cn", lambda p, x: tanh(x @ jnp.exp(p["w"]))),
    "squared": ("w:cn", lambda p, x: tanh(x @ jnp.square(p["w"]))),
    "signs": ("w:cn", lambda p, x: tanh(x @ jnp.sign(p["w"]))),
    "signed scale": (
        "w:cn",
        lambda p, x: tanh(x @ (jnp.sign(p["w"]) * jnp.abs(p["w"]).mean(0, keepdims=True))),
    ),
    "rounded": ("w:cn", lambda p, x: x @ (jnp.round(8 * p["w"]) / 8)),
    "softmax of outputs": ("w:cn", lambda p, x: x @ jax.nn.softmax(p["w"], 1)),
    "softmax of inputs": ("w:cn", lambda p, x: x @ jax.nn.softmax(p["w"], 0)),
    "learned mask": ("w:cn u:cn", lambda p, x: tanh(x @ (p["w"] * jax.nn.sigmoid(p["u"])))),
    "written mask": ("w:cn", lambda p, x: tanh(x @ stripes(p["w"]))),
    "scale and shift": (
        "w:cn s:c b:n",
        lambda p, x: tanh(x @ (p["w"] * p["s"][:, None] + p["b"][None])),
    ),
    "outer product of vectors": (
        "a:c b:n",
        lambda p, x: tanh(x @ (p["a"][:, None] * p["b"][None])),
    ),
    "difference": ("w:cn u:cn", lambda p, x: tanh(x @ (p["w"] - p["u"]))),
    "divided": ("w:cn v:cn", lambda p, x: tanh(x @ (p["w"] / p["v"]))),
    "modulated": ("w:cn a:cc", modulated),
    "hypernetwork": ("a:cr w:rcn", hyper),
    "sum of layers": ("w:lcn", lambda p, x: tanh(x @ p["w"].sum(0))),
    "product of layers": ("w:cc", lambda p, x: x + tanh(x @ (p["w"] @ p["w"]))),
    "gram": ("w:cn", lambda p, x: x @ (p["w"] @ p["w"].T)),
    "reshaped": ("w:clr", lambda p, x: tanh(x @ p["w"].reshape(p["w"].shape[0], -1))),
}
