"""Kinds of block with random bits, a cache or a custom derivative rule."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.random_blocks import Kinds, last
from tests.support.random_blocks.tokens import ATTENTION, heads

tanh = jnp.tanh


def dropped(x, shape=None, rate=0.5):
    """Dropout as in Flax, with a key that depends on the shape."""
    key = jax.random.key(sum(x.shape))
    mask = jnp.broadcast_to(jax.random.bernoulli(key, 1 - rate, shape or x.shape), x.shape)
    return lax.select(mask, x / (1 - rate), jnp.zeros_like(x))


def noisy(x):
    return x * (1 + jax.random.normal(jax.random.key(1), x.shape) / 4)


def dropped_in_layers(p, x):
    """Layers with dropout in a scan, with a different key for each layer."""

    def layer(x, parts):
        up, down, key = parts
        return x + dropped_by(key, tanh(x @ up)) @ down, None

    keys = jax.random.split(jax.random.key(2), len(p["w"]))
    return lax.scan(layer, x, (p["w"], p["u"], keys))[0]


def dropped_by(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0)


def written_to_a_cache(p, x):
    """Attention word by word, with keys and values in a cache, as in decoding."""
    q, k, v = heads(x, p["q"], p["k"], p["v"])
    cache = jnp.zeros_like(k), jnp.zeros_like(v)

    def step(state, parts):
        position, (keys, values) = state
        q, *new = parts
        write = lambda old, y: lax.dynamic_update_slice(old, y[:, None], (0, position, 0, 0))  # noqa: E731
        keys, values = map(write, (keys, values), new)
        scores = 0.5 * jnp.einsum("bhd,bkhd->bhk", q, keys)
        later = jnp.arange(keys.shape[1]) > position
        shares = jax.nn.softmax(jnp.where(last(later, scores), -1e9, scores), -1)
        return (position + 1, (keys, values)), jnp.einsum("bhk,bkhd->bhd", shares, values)

    steps = tuple(jnp.swapaxes(y, 0, 1) for y in (q, k, v))
    seen = lax.scan(step, (0, cache), steps)[1]
    return x + jnp.einsum("tbhd,hdc->btc", seen, p["o"])


def half_a_cache(p, x):
    """Attention to a cache of which only a part is filled."""
    old = tanh(x @ p["w"])
    cache = jnp.zeros((*old.shape[:1], 2 * old.shape[1], old.shape[2]))
    cache = lax.dynamic_update_slice(cache, old, (0, 0, 0))
    cache = cache.at[:, old.shape[1]].set(old[:, 0] ** 2)
    return x + (old @ jnp.swapaxes(cache, 1, 2)) @ cache @ p["u"]


@jax.custom_jvp
def doubled(x):
    return 2 * jnp.sin(x)


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 3 * tangents[0] * primals[0]))


@jax.custom_vjp
def product(x, w):
    return x @ w


def backward(saved, g):
    x, w = saved
    flat = lambda y: y.reshape(-1, y.shape[-1])  # noqa: E731
    return 2 * g @ w.T, flat(x).T @ flat(g)


product.defvjp(lambda x, w: (product(x, w), (x, w)), backward)


@jax.custom_vjp
def rounded(x):
    return jnp.round(4 * x) / 4


rounded.defvjp(lambda x: (rounded(x), x), lambda x, g: (jnp.where(abs(x) < 1, g, 0),))


@jax.custom_vjp
def scaled_gradient(x, scale):
    return x


scaled_gradient.defvjp(lambda x, scale: (x, scale), lambda scale, g: (scale * g, None))

RULES: Kinds = {
    "rule for the tangent": ("w:cn", lambda p, x: doubled(x @ p["w"])),
    "rule for the cotangent": ("w:cn", lambda p, x: tanh(product(x, p["w"]))),
    "quantized": ("w:cn", lambda p, x: rounded(x @ p["w"])),
    "quantized kernel": ("w:cn b:n", lambda p, x: x @ rounded(p["w"]) + last(p["b"], x)),
    "scaled gradient": ("w:cn g:s", lambda p, x: scaled_gradient(x @ p["w"], jnp.asarray(p["g"]))),
    "rules in a checkpoint": (
        "w:cn",
        lambda p, x: jax.checkpoint(lambda x: rounded(doubled(product(x, p["w"]))))(x),
    ),
}
RANDOM: Kinds = {
    "dropout": ("w:cn", lambda p, x: dropped(tanh(x @ p["w"]))),
    "dropout of a sum": ("w:cn u:nc", lambda p, x: x + dropped(tanh(x @ p["w"]) @ p["u"])),
    "dropout of channels": (
        "w:cn",
        lambda p, x: (lambda h: dropped(h, (1,) * (h.ndim - 1) + h.shape[-1:]))(x @ p["w"]),
    ),
    "dropout of weights": ("w:cn", lambda p, x: x @ dropped(jnp.asarray(p["w"]))),
    "noise by factors": ("w:cn", lambda p, x: noisy(jnp.exp(tanh(x @ p["w"])))),
    "dropout in layers": ("w:lcn u:lnc", dropped_in_layers),
}
CACHES: Kinds = {
    "cache": (ATTENTION, written_to_a_cache),
    "half a cache": ("w:cn u:nc", half_a_cache),
}
STEPS = RULES | RANDOM
