"""Layers of `flax.nnx` with removed channels get their new sizes, and give NumPy's results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    bare = nnx.GroupNorm(12, num_groups=4, use_bias=False, use_scale=False, rngs=nnx.Rngs(0))
    fit_widths(bare)
    assert bare.num_groups == 4  # without parameters, the width is unknown


def test_attention_whose_queries_share_keys_keeps_its_own_number_of_key_heads():
    """Six query heads share three key heads; one key head is removed with its two query heads."""
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


LAYERS: dict[str, Any] = {
    "conv of one channel": lambda n, **o: nnx.Conv(1, 2 * n, (3, 3), **o),
    "conv": lambda n, **o: nnx.Conv(n, 2 * n, (3,), **o),
    "conv of two groups": lambda n, **o: nnx.Conv(2 * n, 4 * n, (3,), feature_group_count=2, **o),
    "depthwise conv": lambda n, **o: nnx.Conv(n, 2 * n, (3,), feature_group_count=n, **o),
    "transposed conv": lambda n, **o: nnx.ConvTranspose(n, 2 * n, (3,), **o),
    "transposed kernel": lambda n, **o: nnx.ConvTranspose(
        n, 2 * n, (3,), transpose_kernel=True, **o
    ),
    "linear": lambda n, **o: nnx.Linear(n, 2 * n, **o),
    "general with a batch": lambda n, **o: nnx.LinearGeneral(n, 2 * n, batch_axis={0: 3}, **o),
    "general": lambda n, **o: nnx.LinearGeneral((2, n), (n, 5), axis=(-2, -1), **o),
    "einsum": lambda n, **o: nnx.Einsum("ab,bcd->acd", (n, 2, 3 * n), (2, 3 * n), **o),
    "embedding": lambda n, **o: nnx.Embed(5 * n, n, **o),
    "layer norm": lambda n, **o: nnx.LayerNorm(n, **o),
    "RMS norm": lambda n, **o: nnx.RMSNorm(n, **o),
    "norm without a scale": lambda n, **o: nnx.LayerNorm(n, use_scale=False, **o),
    "instance norm": lambda n, **o: nnx.InstanceNorm(n, **o),
    "group norm": lambda n, **o: nnx.GroupNorm(6 * n, num_groups=2 * n, **o),
    "attention": lambda n, **o: nnx.MultiHeadAttention(n, 5, 4 * n, decode=False, **o),
    "attention to other features": lambda n, **o: nnx.MultiHeadAttention(
        2, 3 * n, 8, 6 * n, in_kv_features=5 * n, decode=False, **o
    ),
    "LSTM": lambda n, **o: nnx.LSTMCell(2 * n, n, **o),
    "fused LSTM": lambda n, **o: nnx.OptimizedLSTMCell(2 * n, n, **o),
    "GRU": lambda n, **o: nnx.GRUCell(2 * n, n, **o),
    "recurrent cell": lambda n, **o: nnx.SimpleCell(2 * n, n, **o),
}


class Renamed(nnx.Linear):
    """A user's layer, to which `fit_widths` applies the rule of its base class."""


LAYERS["derived"] = lambda n, **o: Renamed(n, 2 * n, **o)


def sizes(layer):
    """All attributes of a layer and of its parts that are sizes or tuples of sizes."""
    return {
        (*path, name): tuple(value) if isinstance(value, list) else value
        for path, part in nnx.iter_modules(layer)
        for name, value in vars(part).items()
        if isinstance(value, int | tuple | list) and not isinstance(value, bool)
    }


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_smaller_arrays_has_the_sizes_of_a_layer_that_was_built_small(name):
    large, small = (LAYERS[name](n, rngs=nnx.Rngs(0)) for n in (4, 3))
    assert sizes(large) != sizes(small)
    nnx.update(large, nnx.state(small, nnx.Param))
    assert sizes(fit_widths(large)) == sizes(small)


@pytest.mark.parametrize("name", [*LAYERS, "batch norm"])
def test_layers_that_vmap_stacked_keep_the_sizes_of_one_layer(name):
    layers = LAYERS | {"batch norm": lambda n, **o: nnx.BatchNorm(n, **o)}

    def stacked(n):
        make = nnx.vmap(lambda rngs: layers[name](n, rngs=rngs))
        return nnx.split_rngs(splits=2)(make)(nnx.Rngs(0))

    large, small = stacked(4), stacked(3)
    expected = sizes(layers[name](3, rngs=nnx.Rngs(0)))
    nnx.update(large, nnx.state(small))
    assert sizes(fit_widths(large)) == sizes(small) == expected
