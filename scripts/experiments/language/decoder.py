"""Decoders of the Llama kind as plain functions of their parameters, named as in their files.

The parameters of a layer are a dictionary: `self_attn.q_proj.weight`, (outputs, inputs), and so on,
without the prefix `model.layers.3.`. A stream is (*batch, tokens, hidden). Everything is float32.

A layer is in four steps, so that what its two output projections read can be measured, scored and
solved for: `attend`, `add_attention`, `activate`, `add_activations`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from experiments.language.architecture import Architecture

Params = Mapping[str, Any]
Stream = Float[Array, "*batch tokens hidden"]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}


class Positions(NamedTuple):
    """The positions that a layer needs: rotations of its heads, and which positions see which."""

    cos: Float[Array, "tokens half"]
    sin: Float[Array, "tokens half"]
    visible: Bool[Array, "tokens tokens"]


def positions(model: Architecture, layer: int, tokens: int) -> Positions:
    """The positions of a layer, for a sequence that begins at position 0."""
    at = np.arange(tokens)
    angles = at[:, None] * np.asarray(model.rates[layer])
    behind = at[:, None] - at
    visible = (behind >= 0) & (behind < (model.windows[layer] or tokens))
    cos, sin = (jnp.asarray(f(angles), jnp.float32) for f in (np.cos, np.sin))
    return Positions(cos, sin, jnp.asarray(visible))


def embed(model: Architecture, table: Float[Array, "words hidden"], tokens: Int[Array, "*t"]):
    """The stream before the first layer."""
    scale = model.hidden**0.5 if model.traits.gemma else 1.0
    return table[tokens] * scale


def attend(model: Architecture, p: Params, x: Stream, at: Positions) -> Float[Array, "*b t heads"]:
    """The input of attention's output projection: the heads of every position, joined."""
    h = rms_norm(model, x, p["input_layernorm.weight"])
    q, k, v = (heads(model, linear(p, f"self_attn.{name}_proj", h)) for name in "qkv")
    if model.traits.head_norms:
        q = rms_norm(model, q, p["self_attn.q_norm.weight"])
        k = rms_norm(model, k, p["self_attn.k_norm.weight"])
    q, k = rotate(q, at), rotate(k, at)
    q = q.reshape(*q.shape[:-2], k.shape[-2], -1, model.head_dim)  # queries by their keys
    scores = soft_cap(
        jnp.einsum("...qgrd,...kgd->...grqk", q, k) * model.score_scale, model.score_cap
    )
    shares = jax.nn.softmax(jnp.where(to_rank(at.visible, scores), scores, -jnp.inf), -1)
    mixed = jnp.einsum("...grqk,...kgd->...qgrd", shares, v)
    return mixed.reshape(*mixed.shape[:-3], -1)


def add_attention(model: Architecture, p: Params, x: Stream, mixed: Array) -> Stream:
    """The stream after attention, whose heads are `mixed`."""
    y = linear(p, "self_attn.o_proj", mixed)
    return x + (
        rms_norm(model, y, p["post_attention_layernorm.weight"]) if model.traits.gemma else y
    )


def activate(model: Architecture, p: Params, x: Stream) -> Float[Array, "*b t intermediate"]:
    """The input of the down projection."""
    name = "pre_feedforward_layernorm" if model.traits.gemma else "post_attention_layernorm"
    h = rms_norm(model, x, p[f"{name}.weight"])
    gate = ACTIVATIONS[model.activation](linear(p, "mlp.gate_proj", h))
    return gate * linear(p, "mlp.up_proj", h)


def add_activations(model: Architecture, p: Params, x: Stream, activated: Array) -> Stream:
    """The stream after the perceptron, whose hidden units are `activated`."""
    y = linear(p, "mlp.down_proj", activated)
    name = "post_feedforward_layernorm.weight"
    return x + (rms_norm(model, y, p[name]) if model.traits.gemma else y)


def layer(model: Architecture, p: Params, x: Stream, at: Positions) -> Stream:
    """The stream after one layer."""
    x = add_attention(model, p, x, attend(model, p, x, at))
    return add_activations(model, p, x, activate(model, p, x))


def logits(
    model: Architecture,
    norm: Float[Array, " hidden"],
    head: Float[Array, "words hidden"],
    x: Stream,
) -> Float[Array, "*b t words"]:
    """The logits of the next token, from the stream after the last layer."""
    return soft_cap(rms_norm(model, x, norm) @ head.T, model.logit_cap)


def rms_norm(model: Architecture, x: Array, weight: Array) -> Array:
    """x / √(mean x² + eps), scaled: Zhang and Sennrich (2019)."""
    scale = 1 + weight if model.traits.gemma else weight
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + model.eps) * to_rank(scale, x)


def linear(p: Params, name: str, x: Array) -> Array:
    """A projection, with its bias if the file has one."""
    y = x @ p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + to_rank(bias, y)


def heads(model: Architecture, x: Array) -> Array:
    """The last axis divided into heads."""
    return x.reshape(*x.shape[:-1], -1, model.head_dim)


def rotate(x: Float[Array, "*b t heads dims"], at: Positions) -> Float[Array, "*b t heads dims"]:
    """The halves of every head turned together, Su et al. (2021)."""
    a, b = jnp.split(x, 2, -1)
    cos, sin = (to_rank(turn[:, None], x) for turn in (at.cos, at.sin))
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def soft_cap(x: Array, cap: float | None) -> Array:
    """c tanh(x / c), unless there is no cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def to_rank(a: Array, x: Array) -> Array:
    """`a` with leading axes of one, as many as `x` has more."""
    return jnp.expand_dims(a, tuple(range(x.ndim - a.ndim)))
