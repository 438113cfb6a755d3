"""Layers of `flax.nnx` that lost channels know their new sizes, and compute what NumPy does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxnorm.nnx import fit_widths


def drawn(layer):
    rng = np.random.default_rng(0)
    for _, variable in nnx.iter_graph(layer):
        if isinstance(variable, nnx.Param):
            variable.set_value(jnp.asarray(rng.normal(size=variable.shape), "float32"))
    return layer


def cut(variable, index):
    variable.set_value(variable[...][index])


def test_a_group_norm_keeps_the_size_of_its_groups():
    layer: Any = drawn(nnx.GroupNorm(12, num_groups=4, rngs=nnx.Rngs(0)))
    for part in (layer.scale, layer.bias):
        cut(part, np.s_[:9])
    fit_widths(layer)
    assert (layer.num_groups, layer.group_size) == (3, 3)
    x = np.random.default_rng(1).normal(2, 3, (5, 9))
    parts = x.reshape(5, 3, 3)
    std = np.sqrt(parts.var(-1, keepdims=True) + 1e-6)
    expected = ((parts - parts.mean(-1, keepdims=True)) / std).reshape(5, 9)
    scale, bias = (np.asarray(part[...]) for part in (layer.scale, layer.bias))
    np.testing.assert_allclose(
        layer(jnp.asarray(x, "float32")), expected * scale + bias, rtol=1e-4, atol=1e-4
    )


def test_attention_whose_queries_share_keys_keeps_its_own_number_of_key_heads():
    """Six queries of three key heads; one key head goes, with its two queries."""
    layer: Any = drawn(
        nnx.MultiHeadAttention(6, 5, 24, num_kv_heads=3, decode=False, rngs=nnx.Rngs(0))
    )
    for projection, heads in ((layer.query, 4), (layer.key, 2), (layer.value, 2)):
        cut(projection.kernel, np.s_[:, :heads])
        cut(projection.bias, np.s_[:heads])
    cut(layer.out.kernel, np.s_[:4])
    fit_widths(layer)
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.qkv_features) == (
        4,
        2,
        4,
        16,
    )
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    q, k, v = (
        np.einsum("ntc,chd->nthd", x, np.asarray(p.kernel[...], float)) + np.asarray(p.bias[...])
        for p in (layer.query, layer.key, layer.value)
    )
    k, v = (np.repeat(part, 2, axis=2) for part in (k, v))
    weights = np.exp(np.einsum("nthd,nshd->nhts", q, k) / 2)
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("nhts,nshd->nthd", weights, v)
    expected = np.einsum("nthd,hdc->ntc", mixed, np.asarray(layer.out.kernel[...]))
    found = jax.jit(lambda x: layer(x))(jnp.asarray(x, "float32"))
    np.testing.assert_allclose(
        found, expected + np.asarray(layer.out.bias[...]), rtol=1e-4, atol=1e-4
    )
