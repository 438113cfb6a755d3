"""Bounds on the earth mover distance of a layer's outputs, from the layer's parameters.

The bounds hold for all inputs, and are similar to Theorems 3.1 to 3.3 of Huang and Yu. The outputs
of a layer are in a ball of radius M around its bias. The distance between two outputs is at most L
times the distance between their inputs. Let W be the earth mover distance W₁ between the layer's
inputs at two times of training. If the layer has the same parameters at both times, W₁ of its
outputs is at most min(2M, L W). Vectors are along the last axis: the features of a sample, of a
pixel or of a token. If a sample consists of P vectors, the radius of its outputs is √P M, and L
does not change.

M and L are the smallest numbers that hold for all inputs, unless the docstring of a function says
otherwise. `scale` is the factor γ, one number per feature. The bias shifts all outputs equally, so
the bounds do not depend on the bias.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    check_eps,
    check_fits,
    check_floating,
    check_range,
    floating,
    norm,
    promote_to_float32,
    replicate,
    safe_sqrt,
    unit_of,
)

Alpha = int | float | Float[Array, ""] | Float[Array, " d"]
"""A number, or one number for each feature."""


class LayerBounds(NamedTuple):
    """The radius M and the Lipschitz constant L of a layer.

    M is the largest distance between an output and the bias, or for `derf_bounds` between an output
    and the center of the outputs.
    """

    radius: Float[Array, ""]
    lipschitz: Float[Array, ""]


def certified_upper_bound(
    bounds: LayerBounds, distance: int | float | Float[Array, ""] = math.inf
) -> Float[Array, ""]:
    """The largest possible W₁ of a layer's outputs, min(2M, L W), if W₁ of its inputs is W.

    The product L W counts as 0 if one factor is 0 and the other is infinite. W₁ of the outputs
    approaches 2M if every output moves from near the surface of the ball to the opposite point. W₁
    approaches L W if inputs move where the slope of the layer is largest. If the mean of the
    outputs equals the bias at both times of training, √2 M is also a bound.

    Args:
      bounds: The bounds of the layer. The layer must not change between the two times of training.
      distance: W₁ of the inputs; by default the bound holds for any inputs.

    Example:
      >>> bounds = rms_norm_bounds(jnp.ones(4), eps=1e-2)
      >>> print(f"{certified_upper_bound(bounds):.3f} {certified_upper_bound(bounds, 0.1):.3f}")
      4.000 1.000
    """
    if not isinstance(bounds, LayerBounds):
        raise TypeError(f"bounds must be LayerBounds, such as dyt_bounds(...); got {bounds!r}")
    check_range(distance, "distance")
    if isinstance(distance, int | float):
        check_fits(distance, "distance")
    else:
        check_floating(distance, "distance")
    return jnp.minimum(2 * bounds.radius, _product(bounds.lipschitz, distance))


def layer_norm_bounds(scale: Float[Array, " d"], *, eps: float = 1e-6) -> LayerBounds:
    """The bounds of γ (x − mean)/√(var + eps): M = √d s and L = s/√eps.

    The number s is the norm of the map x ↦ γ x on vectors of mean 0. Therefore s² is the maximum of
    Σ γᵢ² uᵢ² over unit vectors u with Σ uᵢ = 0. The number s² lies between the two largest γ² and
    is a zero of Σ 1/(γᵢ² − s²). If the two largest γ² are equal, s² is their value. The bounds are
    sharp: distances of outputs from the bias approach M if the variance is large, and the slope of
    the layer approaches L if the variance tends to 0. With one feature, M = L = 0, because every
    output is the bias.

    Args:
      scale: The factor γ of each feature.
      eps: The number added to the variance; if eps is 0, L is infinite.

    Example:
      >>> bounds = layer_norm_bounds(jnp.ones(4), eps=0.01)
      >>> print(f"{bounds.radius:.3f} {bounds.lipschitz:.3f}")
      2.000 10.000
    """
    scale = _vector(scale)
    unit = unit_of(jnp.abs(scale).max())  # the largest square then neither overflows nor underflows
    largest = _largest_without_mean(jnp.square(scale / unit))
    return _normalized(unit * safe_sqrt(jnp.maximum(largest, 0)), scale, eps)


def rms_norm_bounds(scale: Float[Array, " d"], *, eps: float = 1e-6) -> LayerBounds:
    """The bounds of an RMS norm, γ x/√(mean x² + eps): M = √d max|γ| and L = max|γ|/√eps.

    RMS norm is defined by Zhang and Sennrich (2019). The bounds are sharp: distances of outputs
    from the bias approach M if the mean square is large, and the slope of the layer approaches L if
    the mean square tends to 0.

    Args:
      scale: The factor γ of each feature.
      eps: The number added to the mean square; if eps is 0, L is infinite.

    Example:
      >>> bounds = rms_norm_bounds(jnp.array([1.0, -3.0, 2.0, 0.5]), eps=0.01)
      >>> print(f"{bounds.radius:.3f} {bounds.lipschitz:.3f}")
      6.000 30.000
    """
    scale = _vector(scale)
    return _normalized(jnp.abs(scale).max(), scale, eps)


def dyt_bounds(alpha: Alpha, scale: Float[Array, " d"]) -> LayerBounds:
    """The bounds of `dyt`, γ tanh(α x) + bias: M = ‖γ‖ and L = max|α γ|.

    The bounds are sharp: distances of outputs from the bias approach M if every |α x| is large, and
    the slope of the layer is L at x = 0. Features with α = 0 do not count in M.

    Args:
      alpha: The factor α inside tanh.
      scale: The factor γ of each feature.

    Example:
      >>> bounds = dyt_bounds(0.5, jnp.array([3.0, 4.0]))
      >>> print(f"{bounds.radius:.3f} {bounds.lipschitz:.3f}")
      5.000 2.000
    """
    return _pointwise(alpha, scale, 1.0)


def derf_bounds(alpha: Alpha, scale: Float[Array, " d"]) -> LayerBounds:
    """The bounds of `derf`, γ erf(α x + s) + bias: M = ‖γ‖, L = (2/√π) max|α γ|, for every s.

    The bounds are sharp: distances of outputs from the bias approach M if every |α x| is large, and
    the slope of the layer is L at α x = −s. A feature with α = 0 has the constant output γ erf(s) +
    bias, and does not count in M.

    Args:
      alpha: The factor α inside erf.
      scale: The factor γ of each feature.

    Example:
      >>> bounds = derf_bounds(0.5, jnp.array([3.0, 4.0]))
      >>> print(f"{bounds.radius:.3f} {bounds.lipschitz:.3f}")
      5.000 2.257
    """
    return _pointwise(alpha, scale, 2 / math.sqrt(math.pi))


def unitized_bounds(alpha: Alpha, scale: Float[Array, " d"]) -> LayerBounds:
    """The bounds of γ `unitize_bounded`(x, α): M = max|γ/α| and L = max|γ/(1 − α)|.

    `unitize_bounded` computes Equations 8 and 9 of Huang and Yu, and γ is the scale of the layer.

    Far from the origin, distances of outputs from the bias approach M. Near the origin, the slope
    of the layer approaches max|γ/(1 − α)|. M is infinite if an α is 0, and L is infinite if an α is
    1. If an α is outside [0, 1], M and L are NaN. If α differs between features, the returned L is
    5/4 of max|γ/(1 − α)|, which is not the smallest possible constant. The factor 5/4 comes from
    the Jacobian Γ (I − A)⁻¹ (I − C) (I − C w wᵀ) with a unit vector w. Here Γ and A are the
    diagonal matrices of γ and α. C is a diagonal matrix with elements in [0, 1), so the norm of C
    (I − C) w is at most 1/4.

    Args:
      alpha: The parameter α of unitization.
      scale: The factor γ of each feature.

    Example:
      >>> bounds = unitized_bounds(0.5, jnp.array([3.0, 1.0]))
      >>> print(f"{bounds.radius:.3f} {bounds.lipschitz:.3f}")
      6.000 6.000
    """
    scale = jnp.abs(_vector(scale))
    alpha = jnp.broadcast_to(_number_or_vector(alpha, scale), scale.shape)
    radius, lipschitz = (
        jnp.where(part > 0, scale / jnp.where(part > 0, part, 1), math.inf).max()
        for part in (alpha, 1 - alpha)
    )
    lipschitz = jnp.where(alpha.min() == alpha.max(), lipschitz, 1.25 * lipschitz)
    inside = (alpha.min() >= 0) & (alpha.max() <= 1)
    return LayerBounds(*(jnp.where(inside, part, math.nan) for part in (radius, lipschitz)))


def _normalized(s: Float[Array, ""], scale: Float[Array, " d"], eps: float) -> LayerBounds:
    eps = check_eps(eps)
    return LayerBounds(scale.size**0.5 * s, _product(s, eps**-0.5 if eps else math.inf))


def _product(a: Float[Array, ""], b: int | float | Float[Array, ""]) -> Float[Array, ""]:
    """The product a b, which is 0 if one factor is 0 and the other is infinite."""
    undefined = ((a == 0) & jnp.isinf(b)) | (jnp.isinf(a) & (b == 0))
    return jnp.where(undefined, 0, jnp.where(undefined, 0, a) * jnp.where(undefined, 0, b))


def _pointwise(alpha: Alpha, scale: Float[Array, " d"], slope: float) -> LayerBounds:
    scale = jnp.abs(_vector(scale))
    alpha = jnp.abs(_number_or_vector(alpha, scale))
    length = norm(jnp.where(alpha > 0, scale, 0))[0]
    return LayerBounds(length, slope * (alpha * scale).max())


def _largest_without_mean(square: Float[Array, " d"]) -> Float[Array, ""]:
    """The maximum of Σ Dᵢ uᵢ² over unit vectors u with Σ uᵢ = 0, where D is `square`.

    The maximum λ is attained at a vector u with uᵢ ∝ 1/(Dᵢ − λ). Let D₁ ≥ D₂ be the two largest Dᵢ,
    g = D₁ − D₂, and gapᵢ = D₁ − Dᵢ. Write the unknown maximum as λ = D₁ − t g, with t in [0, 1/2].
    Then uᵢ/u₁ = −t/(gapᵢ/g − t) for i > 1. The code finds by bisection the t at which these
    quotients sum to −1, so that Σ uᵢ = 0. The value Σ Dᵢ uᵢ² at this u has the gradient of λ,
    because u is a stationary point.
    """
    if square.size == 1:
        return jnp.zeros_like(square[0])
    square = jnp.sort(square)
    top, rest = square[-1], square[:-1]
    gap = jax.lax.stop_gradient(top - rest)
    smallest = gap[-1]
    farther = jnp.where(gap > 0, math.inf, 1.0)
    ratio = jnp.where(smallest > 0, gap / jnp.where(smallest > 0, smallest, 1), farther)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        below = jnp.sum(middle / (ratio - middle)) < 1
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    ends = jnp.zeros_like(top), jnp.full_like(top, 0.5)
    t = jax.lax.stop_gradient(jax.lax.fori_loop(0, 60, halve, ends)[1])
    weights = jnp.square(t / (ratio - t))
    return (top + jnp.sum(weights * rest)) / (1 + weights.sum())


def _vector(scale: Float[Array, " d"]) -> Float[Array, " d"]:
    scale = replicate(promote_to_float32(scale, "scale"))
    if scale.ndim != 1 or scale.size == 0:
        raise ValueError(
            f"scale must be a vector with one number per feature; got shape {scale.shape}"
        )
    return scale


def _number_or_vector(alpha: Alpha, scale: Float[Array, " d"]) -> Array:
    is_number = isinstance(alpha, int | float)
    alpha = promote_to_float32(floating(alpha, "alpha"), "alpha")
    if alpha.shape not in ((), scale.shape):
        raise ValueError(f"alpha must be a scalar or have shape {scale.shape}; got {alpha.shape}")
    return alpha.astype(scale.dtype) if is_number else alpha
