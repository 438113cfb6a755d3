"""Decoders like Llama, as functions; parameters have the names that Llama's files use.

The parameters of a layer are a dictionary with keys such as `self_attn.q_proj.weight`, without the
prefix `model.layers.3.`. A kernel has the shape (outputs, inputs). A residual stream is an array
(*batch, tokens, hidden). Models are run in at least float32. To count the memory traffic of a chip,
the functions are compiled in bfloat16, but not run.

A layer has four steps: `attend`, `add_attention`, `activate`, `add_activations`. Between the steps,
callers can score the inputs of the layer's two output projections, and fit the projections. A
mixture of experts has `add_experts` instead of `activate` and `add_activations`. The function
`activate_expert` computes the inputs of an expert's down projection. The kernels of all experts of
a layer are one array, (experts, outputs, inputs).
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
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}


class Positions(NamedTuple):
    """The angles (as cos and sin) that rotate heads at each position, and the attention mask."""

    cos: Float[Array, "tokens half"]
    sin: Float[Array, "tokens half"]
    visible: Bool[Array, "tokens tokens"]


def positions(model: Architecture, layer: int, tokens: int) -> Positions:
    """The `Positions` of a layer, for a sequence that begins at position 0."""
    at = np.arange(tokens)
    angles = at[:, None] * np.asarray(model.rates[layer], np.float64)
    behind = at[:, None] - at
    visible = (behind >= 0) & (behind < (model.windows[layer] or tokens))
    cos, sin = (jnp.asarray(f(angles), jnp.float32) for f in (np.cos, np.sin))
    return Positions(cos, sin, jnp.asarray(visible))


def embed(
    model: Architecture,
    table: Float[Array, "words hidden"],
    tokens: Int[Array, "*b t"],
    places: Float[Array, "positions hidden"] | None = None,
) -> Stream:
    """The residual stream before the first layer; `places` are learned positions, or None."""
    scale = model.hidden**0.5 if model.traits.gemma else 1.0
    x = table[tokens] * scale
    return x if places is None else x + to_rank(places[: tokens.shape[-1]], x)


def attend(model: Architecture, p: Params, x: Stream, at: Positions) -> Float[Array, "*b t heads"]:
    """The outputs of all heads at every position, which are inputs of the output projection."""
    h = normalize(model, p, "input_layernorm", x)
    q, k, v = (heads(model, linear(p, f"self_attn.{name}_proj", h)) for name in "qkv")
    if model.traits.head_norms:
        q = rms_norm(model, q, p["self_attn.q_norm.weight"])
        k = rms_norm(model, k, p["self_attn.k_norm.weight"])
    if not model.traits.gpt2:
        q, k = rotate(q, at), rotate(k, at)
    # In the next lines, g counts key-value heads, and r counts the query heads of one key-value
    # head.
    q = q.reshape(*q.shape[:-2], k.shape[-2], -1, model.head_dim)
    scores = soft_cap(
        jnp.einsum("...qgrd,...kgd->...grqk", q, k) * model.score_scale, model.score_cap
    )
    shares = jax.nn.softmax(jnp.where(to_rank(at.visible, scores), scores, -jnp.inf), -1)
    mixed = jnp.einsum("...grqk,...kgd->...qgrd", shares, v)
    return mixed.reshape(*mixed.shape[:-3], -1)


def add_attention(model: Architecture, p: Params, x: Stream, mixed: Array) -> Stream:
    """Apply attention's output projection to `mixed`; return the residual stream after it."""
    y = linear(p, "self_attn.o_proj", mixed)
    return x + (
        rms_norm(model, y, p["post_attention_layernorm.weight"]) if model.traits.gemma else y
    )


def activate(model: Architecture, p: Params, x: Stream) -> Float[Array, "*b t intermediate"]:
    """The activations of the perceptron's hidden units, which the down projection reads."""
    h = normalize(model, p, perceptron_norm(model), x)
    activation = ACTIVATIONS[model.activation]
    if model.traits.gpt2:
        return activation(linear(p, "mlp.up_proj", h))
    return activation(linear(p, "mlp.gate_proj", h)) * linear(p, "mlp.up_proj", h)


def add_activations(model: Architecture, p: Params, x: Stream, activated: Array) -> Stream:
    """Apply the down projection to `activated`; return the residual stream after the perceptron."""
    y = linear(p, "mlp.down_proj", activated)
    name = "post_feedforward_layernorm.weight"
    return x + (rms_norm(model, y, p[name]) if model.traits.gemma else y)


def shares(model: Architecture, p: Params, h: Stream) -> Float[Array, "*b t experts"]:
    """The router's weights of all experts for every token; zero if a token skips the expert.

    The function `shares` takes a softmax over all experts, and then keeps only the largest weights
    of each token. If a token's kept weights are divided by their sum, the quotients equal a softmax
    over only the experts with the largest logits, as in Shazeer et al. (2017).
    """
    found = jax.nn.softmax(linear(p, "mlp.gate", h), -1)
    values, experts = lax.top_k(found, model.experts_per_token)
    if model.shares_sum_to_one:
        values = values / values.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(experts, found.shape[-1], dtype=found.dtype)
    return jnp.einsum("...k,...ke->...e", values, chosen)


def activate_expert(
    model: Architecture, p: Params, x: Stream, expert: Int[Array, ""]
) -> Float[Array, "*b t intermediate"]:
    """The input of an expert's down projection, times the router's weight for each token."""
    h = normalize(model, p, perceptron_norm(model), x)
    return weigh_expert(model, p, h, shares(model, p, h), expert)


def weigh_expert(
    model: Architecture, p: Params, h: Stream, weights: Array, expert: Int[Array, ""]
) -> Float[Array, "*b t intermediate"]:
    """The hidden units of an expert that reads `h`, times the router's weight for each token."""
    gate, up = (jnp.asarray(p[f"mlp.experts.{x}_proj.weight"])[expert] for x in ("gate", "up"))
    units = ACTIVATIONS[model.activation](h @ gate.T) * (h @ up.T)
    return units * weights[..., expert, None]


def add_experts(model: Architecture, p: Params, x: Stream) -> Stream:
    """The residual stream after a mixture of experts; every expert runs on all tokens."""
    h = normalize(model, p, perceptron_norm(model), x)
    weights, down = shares(model, p, h), jnp.asarray(p["mlp.experts.down_proj.weight"])

    def add(y: Stream, expert: Array) -> tuple[Stream, None]:
        return y + weigh_expert(model, p, h, weights, expert) @ down[expert].T, None

    return lax.scan(add, x, jnp.arange(model.experts))[0]


def layer(model: Architecture, p: Params, x: Stream, at: Positions) -> Stream:
    """The residual stream after one layer."""
    x = add_attention(model, p, x, attend(model, p, x, at))
    if model.traits.mixture:
        return add_experts(model, p, x)
    return add_activations(model, p, x, activate(model, p, x))


def logits(
    model: Architecture,
    norm: Float[Array, " hidden"],
    head: Float[Array, "words hidden"],
    x: Stream,
    bias: Float[Array, " hidden"] | None = None,
) -> Float[Array, "*b t words"]:
    """The logits of the next token, from the residual stream after the last layer.

    `bias` is the bias of the last norm.
    """
    h = layer_norm(model, x, norm, bias) if bias is not None else rms_norm(model, x, norm)
    return soft_cap(h @ head.T, model.logit_cap)


def perceptron_norm(model: Architecture) -> str:
    """The name of the norm before the perceptron."""
    return "pre_feedforward_layernorm" if model.traits.gemma else "post_attention_layernorm"


def normalize(model: Architecture, p: Params, name: str, x: Array) -> Array:
    """Normalize `x` by the norm `name`: a layer norm for GPT-2, an RMS norm for other families."""
    if model.traits.gpt2:
        return layer_norm(model, x, p[f"{name}.weight"], p[f"{name}.bias"])
    return rms_norm(model, x, p[f"{name}.weight"])


def layer_norm(model: Architecture, x: Array, weight: Array, bias: Array) -> Array:
    """Layer norm: (x − mean) / √(var + eps), scaled and shifted, Ba et al. (2016)."""
    x = x - x.mean(-1, keepdims=True)
    h = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + model.eps)
    return h * to_rank(weight, x) + to_rank(bias, x)


def rms_norm(model: Architecture, x: Array, weight: Array) -> Array:
    """RMS norm: x / √(mean x² + eps), scaled, Zhang and Sennrich (2019)."""
    scale = 1 + weight if model.traits.gemma else weight
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + model.eps) * to_rank(scale, x)


def linear(p: Params, name: str, x: Array) -> Array:
    """Apply the projection `name` to `x`, and add the projection's bias if there is one."""
    y = x @ p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + to_rank(bias, y)


def heads(model: Architecture, x: Array) -> Array:
    """Divide the last axis of an array into two axes: heads, and channels of a head."""
    return x.reshape(*x.shape[:-1], -1, model.head_dim)


def rotate(x: Float[Array, "*b t heads dims"], at: Positions) -> Float[Array, "*b t heads dims"]:
    """Apply rotary positions to the heads, Su et al. (2021).

    Channels are rotated in pairs; each pair has one channel from each half of a head.
    """
    a, b = jnp.split(x, 2, -1)
    cos, sin = (to_rank(turn[:, None], x) for turn in (at.cos, at.sin))
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def soft_cap(x: Array, cap: float | None) -> Array:
    """Limit x smoothly to c tanh(x / c), where c is the cap; without a cap, return x."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def to_rank(a: Array, x: Array) -> Array:
    """The array `a` with leading axes of size one, so that it has as many axes as `x`."""
    return jnp.expand_dims(a, tuple(range(x.ndim - a.ndim)))
