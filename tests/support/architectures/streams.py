"""Transformers in each module library, for tests of the residual stream."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn, nnx
from jax import lax

import jaxnorm
from tests.support.architectures._common import (
    Architecture,
    Make,
    normal,
    of_equinox,
    of_linen,
    of_nnx,
)
from tests.support.architectures.convolutions import CONVOLUTIONS
from tests.support.architectures.transformers import (
    TOKENS,
    TRANSFORMERS,
    WIDTH,
    WORDS,
    attention,
    embedded,
    encoder_block,
    mlp,
    model,
    sentence,
    words,
)


def rotated(x):
    """Rotary positions, which rotate pairs of consecutive elements of the last axis."""
    angles = np.arange(TOKENS)[:, None] * 100.0 ** -np.arange(x.shape[-1] // 2)[None]
    shape = (1, TOKENS, *(1,) * (x.ndim - 3), x.shape[-1] // 2)
    cos, sin = (f(angles).reshape(shape).astype(x.dtype) for f in (np.cos, np.sin))
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


class RotaryBlock(nnx.Module):
    """A block as in LLaMA, with RMS norms, grouped queries, rotary positions and SwiGLU."""

    def __init__(self, rngs: nnx.Rngs, dtype: Any):
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        dense = partial(nnx.LinearGeneral, use_bias=False, **options)
        self.norms = nnx.List([nnx.RMSNorm(WIDTH, **options) for _ in range(2)])
        self.query = dense(WIDTH, (2, 2, 4))
        self.key, self.value = dense(WIDTH, (2, 4)), dense(WIDTH, (2, 4))
        self.out = dense((2, 2, 4), WIDTH, axis=(-3, -2, -1))
        self.gate, self.up, self.down = dense(WIDTH, 12), dense(WIDTH, 12), dense(12, WIDTH)

    def __call__(self, x):
        h = self.norms[0](x)
        q, k, v = rotated(self.query(h)), rotated(self.key(h)), self.value(h)
        later = np.triu(np.ones((TOKENS, TOKENS), bool), 1)[None, None, None]
        scores = jnp.where(later, -1e9, jnp.einsum("bqlhd,bkhd->blhqk", q, k) / 2.0)
        x = x + self.out(jnp.einsum("blhqk,bkhd->bqlhd", jax.nn.softmax(scores, -1), v))
        h = self.norms[1](x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


class Llama(nnx.Module):
    """A network of two blocks with rematerialization, and an untied output layer."""

    def __init__(self, rngs: nnx.Rngs, dtype: Any):
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        self.embed = nnx.Embed(WORDS, WIDTH, **options)
        self.blocks = nnx.List([RotaryBlock(rngs, dtype) for _ in range(2)])
        self.norm = nnx.RMSNorm(WIDTH, **options)
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, **options)

    def __call__(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = nnx.remat(RotaryBlock.__call__)(block, x)
        return self.head(self.norm(x))


class Block(eqx.Module):
    """A block for one sentence, whose norms compute the mean first and then the variance."""

    attention: eqx.nn.MultiheadAttention
    norms: list[eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[0])
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH, use_bias=False)]
        self.up = eqx.nn.Linear(WIDTH, 24, key=keys[1])
        self.down = eqx.nn.Linear(24, WIDTH, key=keys[2])

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((TOKENS, TOKENS), bool)))
        h = jax.vmap(self.up)(jax.vmap(self.norms[1])(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(h))


class Gpt(eqx.Module):
    """A GPT whose blocks are the steps of a scan with rematerialization."""

    embed: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: Block
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.positions = eqx.nn.Embedding(TOKENS, WIDTH, key=keys[1])
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(keys[2], 2))
        self.norm = eqx.nn.LayerNorm(WIDTH, use_weight=False, use_bias=False)
        self.head = eqx.nn.Linear(WIDTH, WORDS, key=keys[3])

    def __call__(self, x):
        x = jax.vmap(self.embed)(x) + jax.vmap(self.positions)(jnp.arange(TOKENS))
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)

        def layer(x, arrays):
            return jax.checkpoint(lambda x: eqx.combine(arrays, rest)(x))(x), None

        return jax.vmap(self.head)(jax.vmap(self.norm)(lax.scan(layer, x, arrays)[0]))


class ScannedBlock(nn.Module):
    """A block as the body of `nn.scan`."""

    @nn.compact
    def __call__(self, x, _):
        return encoder_block(x), None


def scanned(module, x):
    """A network like BERT in Flax, with layers in a scan with rematerialization."""
    layers = nn.scan(
        nn.remat(ScannedBlock, prevent_cse=False),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=3,
    )
    x, _ = layers()(nn.LayerNorm()(embedded(module, x)), None)
    return nn.Dense(WORDS)(x)


class Decoding(nn.Module):
    """A decoder that reads one word with a cache of keys and values."""

    @nn.compact
    def __call__(self, x):
        h = nn.Embed(WORDS, WIDTH)(x)
        attend = nn.MultiHeadDotProductAttention(2, decode=True, deterministic=True)
        h = h + attend(nn.LayerNorm()(h))
        return nn.Dense(WORDS)(h + mlp(nn.RMSNorm()(h)))


def decoding(dtype: Any) -> Architecture:
    """A decoder whose cache is a part of `params`, so that the cache is also pruned."""
    found = of_linen(Decoding(), dtype, words())
    cache = jax.tree.map(
        lambda leaf: np.int32(2) if leaf.ndim == 0 else leaf, found.params["cache"]
    )

    def apply(variables: Any, x: Any) -> Any:
        return Decoding().apply(variables, x, mutable=["cache"])[0]

    return Architecture(apply, {**found.params, "cache": cache}, (words()[:, :1],))


def sparse(module, x):
    """A mixture of three experts, of which a router after a norm chooses two for each token."""
    x = embedded(module, x)
    h = nn.RMSNorm()(x)
    logits, chosen = lax.top_k(nn.Dense(3)(h), 2)
    shares = (nn.softmax(logits, -1)[..., None] * jax.nn.one_hot(chosen, 3, dtype=x.dtype)).sum(-2)
    up = module.param("up", nn.initializers.lecun_normal(), (3, WIDTH, 12))
    down = module.param("down", nn.initializers.lecun_normal(), (3, 12, WIDTH))
    y = jnp.einsum("bteh,ehc->btec", nn.silu(jnp.einsum("btc,ech->bteh", h, up)), down)
    return nn.Dense(WORDS)(nn.RMSNorm()(x + jnp.einsum("bte,btec->btc", shares, y)))


def state_space(dtype: Any) -> Architecture:
    """A diagonal recurrence as in Mamba, after RMS norms, as a plain function."""
    shapes = {"embed": (WORDS, WIDTH), "in": (2, WIDTH, 12), "gate": (2, WIDTH, 12)}
    shapes |= {"rate": (2, 12), "norm": (2, WIDTH), "out": (2, 12, WIDTH), "last": (WIDTH,)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    def rms(x, scale):
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale[None, None]

    def layer(x, p):
        h = rms(x, p["norm"])
        inner = h @ p["in"]

        def step(state, now):
            state = jax.nn.sigmoid(p["rate"])[None] * state + now
            return state, state

        over = jnp.swapaxes(inner, 0, 1)
        y = jnp.swapaxes(lax.scan(step, jnp.zeros_like(over[0]), over)[1], 0, 1)
        return x + (y * jax.nn.silu(h @ p["gate"])) @ p["out"], None

    def apply(p, x):
        names = ("in", "gate", "rate", "norm", "out")
        x = lax.scan(layer, p["embed"][x], {name: p[name] for name in names})[0]
        return rms(x, p["last"]) @ p["embed"].T

    return Architecture(apply, params, (words(),))


def normalized(norm: Any) -> Make:
    """Blocks with the norm `norm()(x)`, which is made inside a Linen module."""

    def body(module, x):
        x = embedded(module, x)
        for _ in range(2):
            x = x + attention(norm()(x))
            x = x + mlp(norm()(x))
        return nn.Dense(WORDS)(norm()(x))

    return model(body, sentence)


def batch_norm() -> nn.Module:
    return nn.BatchNorm(use_running_average=True)


def unitized() -> nn.Module:
    return jaxnorm.linen.UnitizedBatchNorm(
        use_running_average=True, alpha_init=nn.initializers.constant(0.5)
    )


STREAMS: dict[str, Make] = {
    "GPT, tied (Linen)": TRANSFORMERS["GPT"],
    "GPT, tied (flax.nnx)": TRANSFORMERS["Transformer (flax.nnx)"],
    "GPT, scan and remat (Equinox)": lambda dtype: of_equinox(Gpt, dtype, words()),
    "BERT, scan and remat (Linen)": model(scanned, sentence),
    "LLaMA, halves turned (a function)": TRANSFORMERS["LLaMA"],
    "LLaMA, neighbors turned, remat (flax.nnx)": lambda dtype: of_nnx(
        lambda rngs: Llama(rngs, dtype), dtype, words()
    ),
    "one step beside a cache (Linen)": decoding,
    "encoder and decoder (Linen)": TRANSFORMERS["Transformer, encoder and decoder"],
    "ViT (Linen)": TRANSFORMERS["ViT"],
    "Swin (Linen)": TRANSFORMERS["Swin"],
    "MLP-Mixer (Linen)": TRANSFORMERS["MLP-Mixer"],
    "gMLP (Linen)": TRANSFORMERS["gMLP"],
    "ConvNeXt (Linen)": CONVOLUTIONS["ConvNeXt"],
    "ConvNeXt V2 (Linen)": CONVOLUTIONS["ConvNeXt V2"],
    "OLMo 2 (Linen)": TRANSFORMERS["OLMo 2"],
    "two of three experts (Linen)": model(sparse, sentence),
    "state space, scan (a function)": state_space,
    "group norm of two groups (Linen)": normalized(partial(nn.GroupNorm, 2, reduction_axes=-1)),
    "group norm of one group (Linen)": normalized(partial(nn.GroupNorm, 1)),
    "batch norm (Linen)": normalized(batch_norm),
    "unitized batch norm (Linen)": normalized(unitized),
    "layer norm in two passes, without a scale (Linen)": normalized(
        partial(nn.LayerNorm, use_scale=False, use_bias=False, use_fast_variance=False)
    ),
}
