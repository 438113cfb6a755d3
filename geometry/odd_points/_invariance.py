"""Theorems 13 and 14 of Nachum et al.: what a recentred ReLU layer does to an invariant batch.

A layer recentres, and has Gaussian weights of variance 2α/width: α = 1 is He's, and the theorems
choose `gain`. Both are right of expected Gram matrices and squared norms, and wrong of expected
entries and norms, of which they speak. Sample 1 of the theorems is the first row. `is_invariant`
and `theorem_14` gather what is sharded over Explicit mesh axes.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geometry._arguments import samples, square
from geometry.mean_field._kernel import arccosine_kernel
from jaxnorm._sharding import replicated


class NextLayer(NamedTuple):
    """Expectations after the layer of Theorem 14.

    Attributes:
      radius: R = ‖x₁ − ν‖ before it, ν the mean of the other samples.
      gain: α = n²/((n − 1)² R²).
      gram: Expected Gram matrix of the n samples and, last, of the image of ν.
    """

    radius: Float[Array, ""]
    gain: Float[Array, ""]
    gram: Float[Array, "n+1 n+1"]


def is_invariant(gram: Float[Array, "n n"], *, tolerance: float = 1e-6) -> Bool[Array, ""]:
    """Whether a batch is an invariant representation (Definition 12), up to order and scale.

    The longest sample is orthogonal to the others, which coincide and are n − 1 times shorter: no
    entry of the Gram matrix over its largest is farther than `tolerance` from that. False for
    zeros.

    Raises:
      ValueError: There are fewer than 2 samples.

    Example:
      >>> print(is_invariant(jnp.array([[9.0, 0.0], [0.0, 9.0]])))
      True
    """
    g = replicated(square(gram, least=2))
    n = len(g)
    odd = jnp.arange(n) == jnp.argmax(jnp.diagonal(g))
    largest = jnp.max(jnp.diagonal(g))
    one = jnp.where(odd[:, None] & odd[None], 1, 0)
    cluster = jnp.where(~odd[:, None] & ~odd[None], (n - 1) ** -2, 0)
    expected = (one + cluster).astype(g.dtype)
    error = jnp.abs(g / jnp.where(largest > 0, largest, 1) - expected)
    return (largest > 0) & jnp.all(error <= tolerance)


def theorem_14(x: Float[Array, "n d"]) -> NextLayer:
    """The layer of Theorem 14 on any batch whose first sample is not the mean ν of the others.

    Squared norms 1 and 1/(n − 1)² of the first sample and of the image of ν, and their inner
    product 0, are exact (items 1 to 3, where the paper has norms; see `expected_norm_factor`).
    Distances between the others do not grow if R ≥ n/(n − 1) (item 4), which no invariant
    representation reaches: R² = (n² − 2n + 2)/(n − 1)². Relative to R they grow, by
    `cluster_growth`.

    Raises:
      ValueError: There are fewer than 2 samples.

    Example:
      >>> layer = theorem_14(jnp.array([[4.0], [1.0], [1.0]]))
      >>> print(layer.radius, layer.gain.round(4), layer.gram[0, 0].round(4))
      3.0 0.25 1.0
    """
    h = replicated(samples(x, least=2))
    n = len(h)
    h = h - h.mean(0, keepdims=True)
    # Recentred, ν and the first sample are opposite: x₁ − ν is n/(n − 1) times the first.
    centre = -h[:1] / (n - 1)
    every = jnp.concatenate([h, centre])
    g = jnp.einsum("id,jd->ij", every, every, precision="highest")
    gain = 1 / g[0, 0]
    radius = n / (n - 1) / jnp.sqrt(gain)
    found = NextLayer(radius, gain, gain * arccosine_kernel(g))
    return NextLayer(*(part.astype(x.dtype) for part in found))


def expected_entries(
    x: Float[Array, "n d"], width: int, *, gain: int | float | Float[Array, ""] = 1.0
) -> Float[Array, " n"]:
    """E of every neuron of the layer at each sample: √(α/(π width)) ‖xᵢ − μ‖.

    All neurons have the same: the expected batch has rank one, its samples are parallel, and it is
    never an invariant representation, whatever Theorem 13 prints.

    Raises:
      ValueError: `width` is below 1.

    Example:
      >>> print(expected_entries(jnp.array([[1.0], [-1.0]]), 1).round(4))
      [0.5642 0.5642]
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    h = samples(x)
    norms = jnp.linalg.norm(h - h.mean(0, keepdims=True), axis=1)
    return (jnp.sqrt(gain / (math.pi * width)) * norms).astype(x.dtype)
