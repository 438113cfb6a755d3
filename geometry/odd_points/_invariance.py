"""Theorems 13 and 14 of Nachum et al., on a batch that a recentered ReLU layer does not change.

A layer recenters the batch and has Gaussian weights of variance 2α/width. He's initialization is α
= 1. The theorems use a different α, which this module calls `gain`. With this gain, both theorems
hold for expected Gram matrices and expected squared norms. As printed, the theorems are about
expected elements and expected norms. In this form, the theorems are wrong. Sample 1 of the theorems
is the first row of the batch. The functions `is_invariant` and `next_layer` gather sharded arrays.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geometry._arguments import as_gram, as_samples
from geometry.mean_field._kernel import relu_kernel
from jaxnorm import recenter
from jaxnorm.internal import (
    check_numeric,
    check_range,
    check_whole,
    floating,
    matmul,
    norm,
    promote_to_float32,
    replicate,
    unit_of,
)


class NextLayer(NamedTuple):
    """Expectations about the batch after the layer of Theorem 14.

    Attributes:
      radius: The distance R = ‖x₁ − ν‖ before the layer, where ν is the mean of the other samples.
      gain: The factor α = n²/((n − 1)² R²) in the variance of the weights.
      gram: The expected Gram matrix after the layer. The last row and column are for ν. The other
        rows and columns are for the n samples.
    """

    radius: Float[Array, ""]
    gain: Float[Array, ""]
    gram: Float[Array, "n+1 n+1"]


def is_invariant(gram: Float[Array, "n n"], *, tolerance: float = 1e-6) -> Bool[Array, ""]:
    """Whether a Gram matrix belongs to an invariant representation, up to order and scale.

    In Definition 12, the longest sample is orthogonal to all other samples. The other samples are
    equal, and n − 1 times shorter than the longest sample. After a division of the given Gram
    matrix by its largest element, each element may differ from the Gram matrix of Definition 12 by
    at most `tolerance`. The result is false for a Gram matrix of zeros.

    Raises:
      ValueError: There are fewer than 2 samples.

    Example:
      >>> print(is_invariant(jnp.array([[9.0, 0.0], [0.0, 9.0]])))
      True
    """
    check_range(tolerance, "tolerance")
    g = replicate(as_gram(gram, min_samples=2))
    n = len(g)
    odd = jnp.arange(n) == jnp.argmax(jnp.diagonal(g))
    g = g / unit_of(jnp.max(jnp.diagonal(g)))
    # The largest element is above 1 only if `gram` has elements near the largest float.
    largest = jnp.max(jnp.diagonal(g))
    one = jnp.where(odd[:, None] & odd[None], 1, 0)
    cluster = jnp.where(~odd[:, None] & ~odd[None], (n - 1) ** -2, 0)
    expected = (one + cluster).astype(g.dtype)
    error = jnp.abs(g / jnp.where(largest > 0, largest, 1) - expected)
    return (largest > 0) & jnp.all(error <= tolerance)


def next_layer(x: Float[Array, "n d"]) -> NextLayer:
    """Expectations about the batch after the layer of Theorem 14.

    The gain of the layer depends on the batch. The first sample must differ from the mean ν of the
    other samples; otherwise the Gram matrix is NaN. Three expectations are exact: the squared norm
    1 of the output for the first sample, the squared norm 1/(n − 1)² of the output for ν, and their
    inner product 0. Items 1 to 3 of Theorem 14 print norms instead of the squared norms; see
    `expected_norm_factor`. Let R be the `radius` of the result. Distances between the other samples
    do not grow if R ≥ n/(n − 1) (item 4). In an invariant representation, R² is (n² − 2n + 2)/(n −
    1)², which is too small for item 4. In an invariant representation, a layer multiplies squared
    distances between the other samples, relative to R², by the factor `cluster_growth`.

    Raises:
      ValueError: There are fewer than 2 samples.

    Example:
      >>> layer = next_layer(jnp.array([[4.0], [1.0], [1.0]]))
      >>> print(layer.radius, layer.gain.round(4), layer.gram[0, 0].round(4))
      3.0 0.25 1.0
    """
    h = replicate(as_samples(x, min_samples=2))
    n = len(h)
    h = h - h.mean(0, keepdims=True)
    # Deviations are divided by the largest deviation, so no square overflows.
    unit = unit_of(jnp.abs(h).max())
    # The mean of samples with a large offset has a rounding error, which `recenter` subtracts.
    h = recenter(h / unit)
    # After recentering, the mean ν of the other samples is −1/(n − 1) times the first sample.
    h = jnp.concatenate([h, -h[:1] / (n - 1)])
    g = matmul(h, h.T)
    gain = 1 / g[0, 0]
    radius = unit * (n / (n - 1) / jnp.sqrt(gain))
    layer = NextLayer(radius, gain / unit / unit, gain * relu_kernel(g))
    return NextLayer(*(part.astype(jnp.result_type(x)) for part in layer))


def expected_entries(
    x: Float[Array, "n d"], *, width: int, gain: int | float | Float[Array, ""] = 1.0
) -> Float[Array, " n"]:
    """The expected activity of a neuron for each sample: √(α/(π width)) ‖xᵢ − μ‖.

    Here μ is the mean of the batch, and α is `gain`. All neurons have the same expected activity,
    so the expectation of each sample is a multiple of the vector of ones. Therefore the expected
    batch is never an invariant representation, in contrast to Theorem 13 as printed. The gradient
    is zero at a sample that equals the mean of the batch.

    Raises:
      TypeError: `width` is not an `int`.
      ValueError: `width` is below 1, or `gain` is a negative number. A negative element of an array
        gives NaN instead.

    Example:
      >>> print(expected_entries(jnp.array([[1.0], [-1.0]]), width=1).round(4))
      [0.5642 0.5642]
    """
    check_whole(width=width)
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    check_numeric(gain, "gain")
    if isinstance(gain, int | float) and gain < 0:
        raise ValueError(f"gain must not be negative; got {gain}")
    gain = promote_to_float32(floating(gain, "gain"), "gain")
    norms = norm(recenter(as_samples(x)))[:, 0]
    return (jnp.sqrt(gain / (math.pi * float(width))).astype(norms.dtype) * norms).astype(
        jnp.result_type(x)
    )
