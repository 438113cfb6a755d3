"""Compare the times of whole transformers and of transformers with half the heads and widths.

The networks are plain functions with random weights: GPT-2 (small) and a LLaMA of the same width,
both with their layers in a scan. The pruned networks run by `resized`, which keeps the constants of
the whole network, such as 1/√width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pruning
from experiments.benchmarks.timing import Pair

LAYERS, WIDTH, HEADS, WORDS, TOKENS = 12, 768, 12, 50257, 128
BATCHES = (1, 8)
RUNS = 10  # the largest number of timed calls, which is small because a call takes seconds
Params = dict[str, Any]


def groups() -> dict[str, Callable[[], list[Pair]]]:
    families = {"GPT-2": (gpt, gpt_shapes()), "LLaMA": (llama, llama_shapes())}
    what = f"with half of its heads and widths, {TOKENS} tokens, compared with the whole network"
    return {f"{name} {what}": partial(pairs, *family) for name, family in families.items()}


def pairs(apply: Callable[..., Any], shapes: Params) -> list[Pair]:
    """Pairs of a network with half of all heads and widths and the whole network, to be timed.

    The first pruned network has the whole residual stream. The second pruned network has half of
    the stream's channels.
    """
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(shapes))))
    draw = jax.jit(jax.random.normal, static_argnums=1)
    whole = jax.tree.map(lambda n: 0.02 * draw(next(keys), n), shapes, is_leaf=_is_shape)
    one = jnp.zeros((1, TOKENS), int)
    macs, run, timed = pruning.cost(apply, whole, one).macs, jax.jit(apply), []
    halve = partial(pruning.prune, apply, whole, one, ratios=[0.5], fold=False, resize=True)
    small = {"blocks": halve(exclude=["down"]), "blocks and stream": halve()}
    for batch in BATCHES:
        x = jax.random.randint(jax.random.key(1), (batch, TOKENS), 0, WORDS)
        for what, half in small.items():
            resized = pruning.channels.resized(apply, half.groups, half.keep)
            ideal = pruning.cost(resized, half.params, one).macs / macs
            label = f"{what}, batch {batch}, ideal {ideal:.3f}"
            ours = partial(jax.jit(resized), half.params, x)
            timed.append(Pair(label, ours, partial(run, whole, x), runs=RUNS))
    return timed


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple)


def gpt_shapes() -> Params:
    d, dims = WIDTH, WIDTH // HEADS
    block = {"scale": (d,), "bias": (d,), "scale_mlp": (d,), "bias_mlp": (d,)}
    block |= dict.fromkeys(("q", "k", "v"), (d, HEADS, dims)) | {"o": (HEADS, dims, d)}
    block |= {"up": (d, 4 * d), "shift": (4 * d,), "down": (4 * d, d)}
    stacked = {name: (LAYERS, *shape) for name, shape in block.items()}
    ends = {"words": (WORDS, d), "positions": (TOKENS, d), "scale": (d,), "bias": (d,)}
    return ends | {"layers": stacked}


def gpt(params: Params, tokens: jax.Array) -> jax.Array:
    """GPT-2 with layer norms, learned positions and tied embeddings, Radford et al. (2019)."""

    def block(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        h = layer_norm(x, p["scale"], p["bias"])
        q, k, v = (jnp.einsum("btc,chd->bthd", h, p[name]) for name in "qkv")
        x = x + jnp.einsum("bthd,hdc->btc", attention(q, k, v), p["o"])
        h = jax.nn.gelu(layer_norm(x, p["scale_mlp"], p["bias_mlp"]) @ p["up"] + p["shift"])
        return x + h @ p["down"], None

    x = params["words"][tokens] + params["positions"]
    x, _ = lax.scan(block, x, params["layers"])
    return layer_norm(x, params["scale"], params["bias"]) @ params["words"].T


def llama_shapes() -> Params:
    d = WIDTH
    stacked = {name: (LAYERS, *shape) for name, shape in llama_block_shapes(d, HEADS).items()}
    return {"words": (WORDS, d), "scale": (d,), "head": (d, WORDS), "layers": stacked}


def llama_block_shapes(d: int, heads: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters of a block with a residual stream of `d` channels."""
    dims, wide = d // heads, 8 * d // 3
    block = {"scale": (d,), "scale_mlp": (d,), "q": (d, heads, dims), "o": (heads, dims, d)}
    block |= {"k": (d, heads, dims), "v": (d, heads, dims)}
    return block | {"gate": (d, wide), "up": (d, wide), "down": (wide, d)}


def llama(params: Params, tokens: jax.Array) -> jax.Array:
    """LLaMA with RMS norms, rotary positions, SwiGLU and a scan, Touvron et al. (2023)."""

    def block(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        return llama_block(x, p), None

    x, _ = lax.scan(block, params["words"][tokens], params["layers"])
    return rms_norm(x, params["scale"]) @ params["head"]


def unrolled_llama(params: Params, tokens: jax.Array) -> jax.Array:
    """LLaMA without a scan: the list `params["layers"]` has one entry for each block."""
    x = params["words"][tokens]
    for p in params["layers"]:
        x = llama_block(x, p)
    return rms_norm(x, params["scale"]) @ params["head"]


def llama_block(x: jax.Array, p: Params) -> jax.Array:
    h = rms_norm(x, p["scale"])
    q, k, v = (jnp.einsum("btc,chd->bthd", h, p[name]) for name in "qkv")
    x = x + jnp.einsum("bthd,hdc->btc", attention(rotate(q), rotate(k), v), p["o"])
    h = rms_norm(x, p["scale_mlp"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def rotate(x: jax.Array) -> jax.Array:
    """Apply rotary positions, which rotate channel i of each half of the last axis as a pair."""
    a, b = jnp.split(x, 2, -1)
    rates = 10000.0 ** -np.linspace(0, 1, a.shape[-1], endpoint=False)
    angles = (np.arange(x.shape[1])[:, None] * rates)[:, None]
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention: each position attends to itself and to all earlier positions."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    earlier = np.tri(q.shape[1], dtype=bool)
    shares = jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)
