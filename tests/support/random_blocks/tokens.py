"""Kinds of block for sequences of tokens: (batch, tokens, channels)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.random_blocks import Kinds, last

relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh
softmax = jax.nn.softmax


def shares(q, k, scale, causal=False):
    """The weights of attention, (batch, heads, queries, keys)."""
    scores = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if causal:
        later = np.triu(np.ones(scores.shape[-2:], bool), 1)
        scores = jnp.where(last(later, scores), -1e9, scores)
    return softmax(scores, -1)


def heads(x, *weights):
    return (jnp.einsum("btc,chd->bthd", x, w) for w in weights)


def attention(p, x, causal=False):
    q, k, v = heads(x, p["q"], p["k"], p["v"])
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, 0.5, causal), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def attention_by_depth(p, x):
    """Attention whose scale is computed from the depth of the queries."""
    q, k, v = heads(x, p["q"], p["k"], p["v"])
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, q.shape[-1] ** -0.5), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def attention_with_biases(p, x):
    """Attention with a bias of the queries that is reshaped to heads, as in Flax."""
    q, k, v = heads(x, p["q"], p["k"], p["v"])
    q = q + p["b"].reshape(1, 1, 2, -1)
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, 0.5), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def folded_heads(p, x):
    """Attention whose heads are a reshape of one axis, as in Equinox and PyTorch."""
    q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, -1) for name in ("q", "k", "v"))
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, 0.5), v)
    return x + seen.reshape(*x.shape[:2], -1) @ p["o"]


def fused(p, x):
    """Attention with one kernel for queries, keys and values."""
    q, k, v = jnp.split(x @ p["w"], 3, -1)
    seen = softmax(0.5 * q @ jnp.swapaxes(k, 1, 2), -1) @ v
    return x + seen @ p["o"]


def fused_heads(p, x):
    """Attention with one kernel, whose axis of outputs is (three, heads, depth), flattened."""
    w = p["w"].reshape(p["w"].shape[0], -1)
    q, k, v = jnp.moveaxis((x @ w).reshape(*x.shape[:2], 3, 2, -1), 2, 0)
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, 0.5), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def grouped_queries(p, x):
    """Attention with four heads of queries and two heads of keys and values."""
    q = jnp.einsum("btc,clhd->btlhd", x, p["q"])
    k, v = heads(x, p["k"], p["v"])
    scores = softmax(0.5 * jnp.einsum("bqlhd,bkhd->blhqk", q, k), -1)
    seen = jnp.einsum("blhqk,bkhd->bqlhd", scores, v)
    return x + jnp.einsum("bqlhd,lhdc->bqc", seen, p["o"])


def repeated_keys(p, x):
    """Grouped queries, in which keys and values are repeated."""
    (q,) = heads(x, p["q"])
    k, v = (jnp.repeat(y, 2, 2) for y in heads(x, p["k"], p["v"]))
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(q, k, 0.5), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def multi_query(p, x):
    q = jnp.einsum("btc,chd->bthd", x, p["q"])
    k, v = x @ p["k"], x @ p["v"]
    seen = jnp.einsum("bhqk,bkd->bqhd", softmax(jnp.einsum("bqhd,bkd->bhqk", q, k), -1), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def rotary(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]

    def turned(y):
        a, b = jnp.split(y, 2, -1)
        angle = jnp.arange(y.shape[1], dtype=y.dtype)[None, :, None] / 4
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a + b], -1)

    return x + softmax(turned(q) @ jnp.swapaxes(turned(k), 1, 2), -1) @ v @ p["o"]


def normalized_queries(p, x):
    def unit(y):
        return y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-3)

    q, k, v = heads(x, p["q"], p["k"], p["v"])
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares(unit(q), unit(k), p["g"]), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def linear_attention(p, x):
    q, k, v = jnp.exp(tanh(x @ p["q"])), jnp.exp(tanh(x @ p["k"])), x @ p["v"]
    memory, total = jnp.einsum("btd,btm->bdm", k, v), k.sum(1)
    seen = jnp.einsum("btd,bdm->btm", q, memory) / jnp.einsum("btd,bd->bt", q, total)[..., None]
    return x + seen @ p["o"]


def latent_queries(p, x):
    """Attention from a few learned queries, as in Perceiver."""
    scores = softmax(jnp.einsum("tm,bkm->btk", p["q"], x @ p["k"]), -1)
    return scores @ (x @ p["v"]) @ p["o"]


def relative_bias(p, x):
    q, k, v = heads(x, p["q"], p["k"], p["v"])
    places = np.arange(x.shape[1])
    bias = p["b"][:, np.minimum(abs(places[:, None] - places[None]), 2)]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias[None]
    seen = jnp.einsum("bhqk,bkhd->bqhd", softmax(scores, -1), v)
    return x + jnp.einsum("bqhd,hdc->bqc", seen, p["o"])


def class_token(p, x):
    token = jnp.broadcast_to(p["b"], (len(x), 1, p["b"].shape[0]))
    return jnp.concatenate([token, x], 1)


def tiled_token(p, x):
    return jnp.concatenate([jnp.tile(p["b"][None, None], (len(x), 1, 1)), x], 1)


def positions(p, x):
    """A learned table of positions, of which each token gets one row."""
    return x + lax.dynamic_slice_in_dim(p["w"], 0, x.shape[1])[None]


def mixed(p, x):
    """A block that mixes tokens, and then channels."""
    x = x + jnp.einsum("bmc,mu->buc", tanh(jnp.einsum("btc,tm->bmc", x, p["w"])), p["u"])
    return x + relu(x @ p["a"]) @ p["z"]


def convolution(p, x):
    y = lax.conv_general_dilated(x, p["w"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"))
    return relu(y)


def over_time(step, start, x):
    return jnp.swapaxes(lax.scan(step, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)


def rnn(p, x, start=None, reverse=False):
    def step(h, x):
        h = tanh(x @ p["w"] + h @ p["u"] + p["b"][None])
        return h, h

    start = jnp.zeros((len(x), p["u"].shape[0]), x.dtype) if start is None else start
    steps = jnp.swapaxes(x, 0, 1)
    return jnp.swapaxes(lax.scan(step, start, steps, reverse=reverse)[1], 0, 1)


def learned_start(p, x):
    return rnn(p, x, jnp.broadcast_to(p["a"], (len(x), p["a"].shape[0])))


def both_ways(p, x):
    return jnp.concatenate([rnn(p, x), rnn(p | {"w": p["z"]}, x, reverse=True)], -1)


def lstm(p, x):
    def step(state, x):
        c, h = state
        i, f, g, o = jnp.split(x @ p["w"] + h @ p["u"] + p["b"][None], 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        return (c, h), h

    zeros = jnp.zeros((len(x), p["u"].shape[0]), x.dtype)
    return over_time(step, (zeros, zeros), x)


def lstm_by_gates(p, x):
    """An LSTM with a kernel for each of its four gates, as in Flax's LSTMCell."""

    def step(state, x):
        c, h = state
        i, f, g, o = (x @ p[f"w{n}"] + h @ p[f"u{n}"] for n in range(4))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        return (c, h), h

    zeros = jnp.zeros((len(x), p["u0"].shape[0]), x.dtype)
    return over_time(step, (zeros, zeros), x)


def gru(p, x):
    def step(h, x):
        a, b, c = jnp.split(x @ p["w"], 3, -1)
        d, e, f = jnp.split(h @ p["u"], 3, -1)
        z = sigmoid(b + e)
        h = (1 - z) * tanh(c + sigmoid(a + d) * f) + z * h
        return h, h

    return over_time(step, jnp.zeros((len(x), p["u"].shape[0]), x.dtype), x)


def decaying(p, x):
    """A linear recurrence for each channel, as in state space models."""

    def step(h, x):
        h = sigmoid(p["a"])[None] * h + x
        return h, h

    inner = x @ p["w"]
    return over_time(step, jnp.zeros_like(inner[:, 0]), inner) * jax.nn.silu(x @ p["u"])


def associative(p, x):
    inner = x @ p["w"]
    rates = jnp.broadcast_to(last(sigmoid(p["a"]), inner), inner.shape)

    def compose(first, second):
        return first[0] * second[0], first[1] * second[0] + second[1]

    return lax.associative_scan(compose, (rates, inner), axis=1)[1]


ATTENTION = "q:chd k:chd v:chd o:hdc"
RECURRENT = "w:cn u:nn b:n"
TOKENS: Kinds = {
    "attention": (ATTENTION, attention),
    "causal attention": (ATTENTION, lambda p, x: attention(p, x, True)),
    "attention with biases": (ATTENTION + " b:D", attention_with_biases),
    "folded heads": ("q:cD k:cD v:cD o:Dc", folded_heads),
    "fused": ("w:cT o:mc", fused),
    "fused heads": ("w:ckhd o:hdc", fused_heads),
    "grouped queries": ("q:clhd k:chd v:chd o:lhdc", grouped_queries),
    "repeated keys": ("q:cHd k:chd v:chd o:Hdc", repeated_keys),
    "multi-query": ("q:chd k:cd v:cd o:hdc", multi_query),
    "rotary": ("q:cM k:cM v:cn o:nc", rotary),
    "normalized queries": (ATTENTION + " g:s", normalized_queries),
    "linear attention": ("q:cm k:cm v:cn o:nc", linear_attention),
    "latent queries": ("q:lm k:cm v:cd o:dn", latent_queries),
    "relative bias": (ATTENTION + " b:hk", relative_bias),
    "class token": ("b:c", class_token),
    "tiled class token": ("b:c", tiled_token),
    "positions": ("w:tc", positions),
    "mixer": ("w:tm u:mt a:cn z:nc", mixed),
    "convolution of tokens": ("w:kcn", convolution),
    "rnn": (RECURRENT, rnn),
    "rnn, learned start": (RECURRENT + " a:n", learned_start),
    "both ways": (RECURRENT + " z:cn", both_ways),
    "lstm": ("w:cF u:mF b:F", lstm),
    "lstm by gates": ("w0:cm w1:cm w2:cm w3:cm u0:mm u1:mm u2:mm u3:mm", lstm_by_gates),
    "gru": ("w:cT u:mT", gru),
    "decaying": ("w:cn a:n u:cn", decaying),
    "associative scan": ("w:cn a:n", associative),
    "rolled tokens": ("w:cn", lambda p, x: jnp.roll(x, 1, 1) @ p["w"]),
    "running sum of tokens": ("", lambda p, x: jnp.cumsum(x, 1) / 4),
    "attention by depth": (ATTENTION, attention_by_depth),
    "last token": ("w:cn", lambda p, x: x + x[:, -1:]),
}
