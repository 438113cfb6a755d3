"""The correlation of two samples after a layer of infinite width with any activation φ.

The preactivations of a neuron at two samples are Gaussian with equal standard deviation and
correlation ρ. If aₖ are the coefficients of φ in the normalized Hermite polynomials,

    E φ(u) φ(v) = Σ aₖ² ρᵏ.

If φ has kinks, the series converges slowly at ρ = ±1. A kink at t, where the slope jumps by j,
contributes a ramp j max(x − t, 0) to φ. The sum of the series of two ramps is an integral over an
angle,

    E max(u − s, 0) max(v − t, 0) = (linear in ρ) + ∫ (ρ − sin θ) h(θ) dθ,   0 ≤ θ ≤ arcsin ρ,
    h(θ) = exp(−((s − t)²/(1 − sin θ) + (s + t)²/(1 + sin θ))/4) / 2π,

by Plackett's identity. The code sums a finite number of terms of φ, and adds all further terms of
the ramps. For piecewise linear functions the result is therefore exact.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from geometry._arguments import as_cosine
from jaxnorm.internal import (
    check_function,
    check_numeric,
    check_positive,
    check_whole,
    floating,
    is_traced,
    promote_to_float32,
)

Activation = Callable[[Array], Array]
"""A function of each element of an array, such as `jnp.tanh`."""

# Integrals over x end at |x| = 12, because the Hermite functions times the square root of the
# Gaussian density are below 1e-15 there.
_RADIUS = 12.0
_TERMS, _TERMS_WITH_KINKS = 128, 1024


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class KernelMap:
    """A function κ from the correlation of two samples before a layer to that after the layer.

    The layer has the activation φ and Gaussian preactivations u. The argument of κ is a cosine in
    [−1, 1], as a number or an array, and κ(1) = 1. A `KernelMap` is a pytree, so it can be an
    argument of functions under `jit`, `vmap` and `grad`. `jax.grad(kernel)` is the slope of κ. If φ
    has kinks, the second derivative of κ at ±1 is infinite, but is computed as a large finite
    number.

    Attributes:
      powers: The coefficients of ρᵏ, without the coefficients of the ramps.
      kinks: The positions of the kinks, in standard deviations of the preactivations.
      jumps: The change of the slope at each kink, divided by the root mean square of the
        activations.
      mean_square: The mean square of the activations, E φ(u)².
      slope: The slope κ′(1) = E φ′(u)² E u²/E φ(u)². A layer multiplies the square of a small angle
        by κ′(1).
      tail: The sum of the coefficients that the series omits. For correlations of at least 0, the
        error of κ is below `tail`, except for rounding. For negative correlations, errors of 8
        times `tail` were measured.
    """

    powers: Float[Array, " terms"]
    kinks: Float[Array, " kinks"]
    jumps: Float[Array, " kinks"]
    mean_square: Float[Array, ""]
    slope: Float[Array, ""]
    tail: Float[Array, ""]

    def __call__(self, cosine: int | float | Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The value κ of each cosine; NaN for numbers outside [−1, 1] by more than 0.01."""
        cosine = floating(cosine, "cosine")
        rho = within(as_cosine(cosine).astype(self.powers.dtype))

        def value(rho: Array) -> Array:
            return _power_series(self.powers, rho) + ramp_kernel(self, self, rho)

        return jnp.vectorize(value)(rho).astype(cosine.dtype)


class FixedPoint(NamedTuple):
    """The correlation that samples approach over many layers, and the rate of the approach.

    Attributes:
      cosine: The correlation at the fixed point.
      slope: The slope κ′ of the map at the fixed point. A layer multiplies small deviations from
        the fixed point by `slope`.
      depth_scale: The number of layers after which deviations are e times smaller, −1/log|slope|.
    """

    cosine: Float[Array, ""]
    slope: Float[Array, ""]
    depth_scale: Float[Array, ""]


class Expansion(NamedTuple):
    """The Hermite coefficients of φ(std x) and of the ramps at its kinks."""

    coefficients: Float[Array, " terms"]
    ramps: Float[Array, " terms"]
    kinks: Float[Array, " kinks"]
    jumps: Float[Array, " kinks"]
    mean_square: Float[Array, ""]
    mean_square_slope: Float[Array, ""]


def kernel_map(
    activation: Activation,
    kinks: tuple[float, ...] = (),
    *,
    std: int | float | Float[Array, ""] = 1.0,
    terms: int | None = None,
) -> KernelMap:
    """The function that a layer of infinite width applies to the correlation of two samples.

    For Gaussian u and v of standard deviation `std` and correlation ρ, κ(ρ) = E φ(u) φ(v)/E φ(u)².
    The function κ is the map of correlations of Poole et al. (2016). The function κ is also the
    dual activation of Daniely et al. (2016). For ReLU, κ is `cosine_step`. κ is convex on [0, 1],
    because no coefficient is negative. With RMS norm or layer norm of the preactivations, `std` is
    the scale of the norm. Without a norm, `std` is √v for the variance v that the layers keep. The
    variance v that the layers keep is the fixed point of v ↦ weight_variance · `mean_square` +
    bias_variance, where the field `mean_square` of the result depends on v.

    If φ is 0 everywhere, the result is NaN.

    In float64 and at `std` 1, the error is about 1e-14 for GELU, erf, tanh and piecewise linear
    functions, and at most 4e-9 for ELU and SELU. For functions that are not piecewise linear, the
    error grows with `std`. For erf, the error is up to 1.5e-7 at `std` 3 and up to 3e-3 at `std`
    10. The field `tail` of the result estimates the error. More `terms` reduce the error.

    Args:
      activation: The function φ, continuous, and differentiable except at the kinks.
      kinks: Positions at which the slope or a higher derivative of φ jumps, in ascending order.
      std: Standard deviation of the preactivations; `std` may be traced and differentiated.
      terms: The number of terms of the series, by default 128, or 1,024 for functions with kinks.

    Raises:
      TypeError: `activation` is not a function.
      ValueError: The kinks are not finite or do not ascend, `activation` is discontinuous at a
        kink or does not map each element by itself, there are fewer than 3 terms, or `std` is not
        positive.

    Example:
      >>> relu = kernel_map(jax.nn.relu, (0.0,))
      >>> print(relu(jnp.array([-0.5, 0.0, 1.0])).round(4))
      [0.109  0.3183 1.    ]
      >>> print(f"{jax.grad(kernel_map(jnp.tanh))(0.5):.2f}")
      0.98
    """
    std = promote_to_float32(floating(check_positive(std, "std"), "std"))
    series = expand(activation, kinks, std, terms=terms)
    powers = jnp.square(series.coefficients) - jnp.square(series.ramps)
    size = jnp.sqrt(series.mean_square)
    unit = KernelMap(
        powers / series.mean_square,
        series.kinks,
        series.jumps / size,
        series.mean_square,
        jnp.square(std) * series.mean_square_slope / series.mean_square,
        jnp.zeros_like(std),
    )
    # The sum of the omitted coefficients is added to the last coefficient, so that κ(1) = 1.
    tail = 1 - unit.powers.sum() - ramp_kernel(unit, unit, within(jnp.ones_like(std)))
    return replace(unit, powers=unit.powers.at[-1].add(tail), tail=tail)


def mixed_map(
    kernel: KernelMap,
    *,
    skip: int | float | Float[Array, ""] = 0.0,
    bias: int | float | Float[Array, ""] = 0.0,
) -> KernelMap:
    """The map of a layer with a residual stream or biases: skip ρ + bias + (1 − skip − bias) κ(ρ).

    Args:
      skip: The share of the residual stream in the squared norm of the sum of the stream and the
        branch.
      bias: The share of the biases in the variance of the preactivations.

    Raises:
      ValueError: A share that is a Python number is negative, or the sum of such shares exceeds 1.
        Arrays are not checked.

    Example:
      >>> kernel = mixed_map(kernel_map(jax.nn.relu, (0.0,)), skip=0.5)
      >>> print(f"{kernel(0.0):.4f}")
      0.1592
    """
    _check_kernel(kernel)
    check_numeric(skip, "skip")
    check_numeric(bias, "bias")
    concrete = [share for share in (skip, bias) if isinstance(share, int | float)]
    if any(share < 0 for share in concrete) or sum(concrete) > 1:
        raise ValueError(
            f"skip and bias must not be negative and their sum must be at most 1; got skip {skip} "
            f"and bias {bias}"
        )
    dtype = kernel.powers.dtype
    skip, bias = (floating(share).astype(dtype) for share in (skip, bias))
    rest = 1 - skip - bias
    powers = (rest * kernel.powers).at[1].add(skip).at[0].add(bias)
    return replace(
        kernel,
        powers=powers,
        jumps=jnp.sqrt(rest) * kernel.jumps,
        slope=rest * kernel.slope + skip,
        tail=rest * kernel.tail,
    )


def layer_norm_map(kernel: KernelMap) -> KernelMap:
    """The map κ of a layer that applies layer norm to its activations over features.

    At infinite width, layer norm subtracts the mean activation E φ(u). The subtraction removes the
    constant term of the series, so the map is (κ(ρ) − κ(0))/(1 − κ(0)). RMS norm of the activations
    does not change κ. RMS norm and layer norm of the preactivations do not change κ, because the
    mean of preactivations over features is zero.

    Example:
      >>> kernel = layer_norm_map(kernel_map(jax.nn.relu, (0.0,)))
      >>> print(f"{kernel(0.0):.4f} {kernel(1.0):.4f}")
      0.0000 1.0000
    """
    _check_kernel(kernel)
    rest = 1 - kernel.powers[0]
    return KernelMap(
        kernel.powers.at[0].set(0) / rest,
        kernel.kinks,
        kernel.jumps / jnp.sqrt(rest),
        rest * kernel.mean_square,
        kernel.slope / rest,
        kernel.tail / rest,
    )


def fixed_point(kernel: KernelMap) -> FixedPoint:
    """The stable fixed point of κ in [0, 1], to which correlations in [0, 1) tend.

    Because κ is convex on [0, 1] and κ(1) = 1, the fixed point depends on the slope κ′(1). If κ′(1)
    ≤ 1, the fixed point is 1 and samples become alike ("ordered"). If κ′(1) > 1, the result is the
    only fixed point below 1 ("chaotic"), Poole et al. (2016). Joudaki and Hofmann (2024) show by
    the Hermite series that every correlation in [0, 1) tends to the fixed point. The depth scale is
    defined by Schoenholz et al. (2017). If κ′(1) = 1, the depth scale is infinite up to rounding.
    If κ′(1) = 1 and φ has kinks, angles decrease like 1/(c · number of layers), where c is
    `cubic_term`. If κ′(1) = 1 and φ has no kinks, angles decrease like 1/√(number of layers). The
    result can be differentiated with respect to the parameters of κ.

    Example:
      >>> print(fixed_point(kernel_map(jax.nn.relu, (0.0,))).cosine)
      1.0
      >>> chaotic = fixed_point(kernel_map(jnp.sin, std=2.0))
      >>> print(f"{chaotic.cosine:.2f} {chaotic.slope:.2f} {chaotic.depth_scale:.2f}")
      0.00 0.15 0.52
    """
    _check_kernel(kernel)
    dtype = kernel.powers.dtype

    def excess(cosine: Array) -> Array:
        return kernel(cosine) - cosine

    def bisect(f: Callable[[Array], Array], start: Array) -> Array:
        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = (ends[0] + ends[1]) / 2
            above = f(middle) > 0
            return jnp.where(above, middle, ends[0]), jnp.where(above, ends[1], middle)

        steps = jnp.finfo(dtype).nmant + 8
        return jax.lax.fori_loop(0, steps, halve, (start, jnp.ones_like(start)))[0]

    def divide(linear: Callable[[Array], Array], y: Array) -> Array:
        slope = linear(jnp.ones_like(y))
        return y / jnp.where(slope == 0, 1, slope)

    ordered = kernel.slope <= 1 + 4 * jnp.finfo(dtype).eps
    root = jax.lax.custom_root(excess, jnp.zeros_like(kernel.slope), bisect, divide)
    slope_at_root = jax.jvp(kernel, (root,), (jnp.ones_like(root),))[1]
    slope = jnp.where(ordered, kernel.slope, slope_at_root)
    size = jnp.abs(slope)
    moves = (size > 0) & (size < 1)
    log = jnp.log(jnp.where(moves, size, 0.5))
    depth = jnp.where(moves, -1 / log, jnp.where(size > 0, jnp.inf, 0))
    return FixedPoint(jnp.where(ordered, 1, root), slope, depth)


def cubic_term(kernel: KernelMap) -> Float[Array, ""]:
    """The coefficient c of 1 − κ(cos θ) = κ′(1) θ²/2 − c θ³ + O(θ⁴), for small angles θ.

    The coefficient c is Σ jumps² exp(−kinks²/2)/(6π). For ReLU, c is 1/(3π). Without kinks, c is 0.

    Example:
      >>> print(f"{cubic_term(kernel_map(jax.nn.relu, (0.0,))):.4f}")
      0.1061
    """
    _check_kernel(kernel)
    return jnp.sum(jnp.square(kernel.jumps) * jnp.exp(-jnp.square(kernel.kinks) / 2)) / (
        6 * math.pi
    )


def _check_kernel(kernel: Any) -> None:
    if not isinstance(kernel, KernelMap):
        raise TypeError(f"kernel must be a KernelMap, such as kernel_map(jnp.tanh); got {kernel!r}")


def expand(
    activation: Activation,
    kinks: tuple[float, ...],
    std: Float[Array, ""],
    *,
    terms: int | None,
    nodes: int | None = None,
) -> Expansion:
    """Hermite coefficients of φ(std x), by quadrature with `nodes` nodes on each smooth piece."""
    terms = _checked(activation, kinks, terms)
    dtype, tiny = std.dtype, float(jnp.finfo(std.dtype).tiny)
    scale = jnp.maximum(std, tiny**0.5)
    cuts = jnp.clip(jnp.asarray(kinks, dtype) / scale, -_RADIUS, _RADIUS)
    ends = jnp.concatenate([jnp.full(1, -_RADIUS, dtype), cuts, jnp.full(1, _RADIUS, dtype)])
    # The quadrature rule has more than one node for each half wave of the last Hermite function,
    # and 128 more nodes for the activation.
    rule = leggauss(nodes or 128 + int(_RADIUS * terms**0.5))
    places, weights = (jnp.asarray(a, dtype) for a in rule)
    half, middle = (ends[1:] - ends[:-1]) / 2, (ends[1:] + ends[:-1]) / 2
    x = (middle[:, None] + half[:, None] * places[None]).ravel()
    check_elementwise(activation, x)
    values, slopes = jax.jvp(activation, (std * x,), (jnp.ones_like(x),))
    weights = (half[:, None] * weights[None]).ravel() / math.sqrt(2 * math.pi)
    density = weights * jnp.exp(-jnp.square(x) / 2)
    jumps = std * jump(activation, kinks, dtype)
    # Hermite functions hₖ(x) exp(−x²/4) do not overflow, but Hermite polynomials do.
    points = jnp.concatenate([x, cuts])
    root = jnp.exp(-jnp.square(points) / 4)
    masses = jnp.concatenate([weights * values, jumps / math.sqrt(2 * math.pi)]) * root

    def step(
        pair: tuple[Array, Array], k: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        before, now = pair
        after = (points * now - jnp.sqrt(k) * before) / jnp.sqrt(k + 1)
        product = masses * now
        return (now, after), (product[: x.size].sum(), product[x.size :].sum())

    ks = jnp.arange(terms, dtype=dtype)
    coefficients, at_kinks = jax.lax.scan(step, (jnp.zeros_like(root), root), ks)[1]
    ramps = jnp.pad(at_kinks[:-2] / jnp.sqrt(ks[2:] * (ks[2:] - 1)), (2, 0))
    squares = (jnp.sum(density * y**2) for y in (values, slopes))
    return Expansion(coefficients, ramps, cuts, jumps, *squares)


def ramp_kernel(
    a: KernelMap | Expansion, b: KernelMap | Expansion, rho: Float[Array, ""]
) -> Float[Array, ""]:
    """The sum of j k ∫ (ρ − sin θ) h(θ) dθ over all pairs of kinks, whose jumps are j and k."""
    nodes, weights = (jnp.asarray(x, rho.dtype) for x in leggauss(64))
    half = jnp.arcsin(rho) / 2
    sine = jnp.sin(half * (nodes + 1))
    s, t = a.kinks[:, None, None], b.kinks[None, :, None]
    difference, total = jnp.square(s - t), jnp.square(s + t)
    exponent = (difference / (1 - sine[None, None]) + total / (1 + sine[None, None])) / 4
    heights = (jnp.exp(-exponent) * (rho - sine)[None, None] * weights[None, None]).sum(-1)
    return half * (heights * a.jumps[:, None] * b.jumps[None]).sum() / (2 * math.pi)


def within(rho: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The correlation, clipped to slightly inside (−1, 1), so that arcsin has a finite slope.

    The gradient of the clipping is defined as 1.
    """
    limit = 1 - float(jnp.finfo(rho.dtype).eps)
    constant = jax.lax.stop_gradient(rho)
    return jnp.clip(constant, -limit, limit) + (rho - constant)


def jump(
    activation: Activation, kinks: tuple[float, ...], dtype: jnp.dtype
) -> Float[Array, " kinks"]:
    """The jumps of the slope of φ at the kinks.

    An error of a jump changes only terms of higher order than the last term of the series of φ.
    """
    t = jnp.asarray(kinks, dtype)

    def beside(step: Array) -> tuple[Array, Array, Array]:
        """For each kink, the jump of the slope, the gap in the values, and the largest value."""
        (low, below), (high, above) = (
            jax.jvp(activation, (t + side * step,), (jnp.ones_like(t),)) for side in (-1, 1)
        )
        gap = jnp.abs(high - low - step * (above + below))
        return above - below, gap, jnp.maximum(jnp.abs(high), jnp.abs(low))

    step = float(jnp.finfo(dtype).eps) ** 0.5 * (1 + jnp.abs(t))
    (jumps, gap, size), (_, narrow_gap, _) = beside(step), beside(step / 4)
    # `narrow_gap` is the gap for a quarter of the step. If the function is continuous, `narrow_gap`
    # is much smaller than `gap`. If the function jumps, the two gaps are nearly equal.
    if not is_traced(gap) and jnp.any((gap > 0.01 * size) & (narrow_gap > gap / 2)):
        raise ValueError(f"activation must be continuous; it jumps at one of the kinks {kinks}")
    return jumps


def _checked(activation: Activation, kinks: tuple[float, ...], terms: int | None) -> int:
    """The number of terms of the series, after a check of all arguments."""
    check_function(activation, "activation", "jnp.tanh")
    if isinstance(kinks, int | float | str):
        raise TypeError(f"kinks must be a tuple of numbers, such as (0.0,); got {kinks!r}")
    for kink in kinks:
        check_numeric(kink, "a kink")
    ascending = all(a < b for a, b in itertools.pairwise(kinks))
    if not all(map(math.isfinite, kinks)) or not ascending:
        raise ValueError(f"kinks must be finite numbers in ascending order; got {kinks}")
    terms = (_TERMS_WITH_KINKS if kinks else _TERMS) if terms is None else terms
    check_whole(terms=terms)
    if terms < 3:
        raise ValueError(f"terms must be at least 3; got {terms}")
    return terms


def check_elementwise(activation: Activation, x: Array) -> None:
    """Raise unless `activation` is a JAX function that maps each element of an array by itself."""
    try:
        made = jax.eval_shape(lambda x: activation(x), x)  # `eval_shape` refuses a bare NumPy ufunc
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(
            "activation must be a function of JAX, such as jnp.tanh; got one of NumPy"
        ) from error
    if getattr(made, "shape", None) != x.shape:
        got = getattr(made, "shape", type(made).__name__)
        raise TypeError(f"activation must return an array of shape {x.shape}; got {got}")
    with jax.ensure_compile_time_eval():
        probe = jnp.asarray([0.4, -0.7], x.dtype)
        together, alone = activation(probe)[:1], activation(probe[:1])
        differ = jnp.any(jnp.abs(together - alone) > 0.01 * jnp.abs(alone))
    if not is_traced(differ) and differ.item():
        raise ValueError(
            "activation must map each number by itself, as jnp.tanh does; this one depends on the "
            "other numbers, as a softmax or a norm does"
        )


@cache
def leggauss(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and weights of Gauss-Legendre quadrature, Golub and Welsch (1969)."""
    k = np.arange(1, n)
    off = k / np.sqrt(4.0 * k**2 - 1)
    nodes, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return nodes, 2 * vectors[0] ** 2


def _power_series(powers: Float[Array, " terms"], rho: Float[Array, ""]) -> Float[Array, ""]:
    """The sum Σ powersₖ ρᵏ, computed in blocks of about √terms terms.

    Two short loops are faster than one long loop.
    """
    block = math.isqrt(powers.size)
    rows = jnp.pad(powers, (0, -powers.size % block)).reshape(-1, block)
    return _horner(_horner(rows.T, rho), rho**block)


def _horner(
    coefficients: Float[Array, "terms *rest"], x: Float[Array, ""]
) -> Float[Array, "*rest"]:
    """The sum Σ coefficientsₖ xᵏ, computed with finite derivatives of every order at 0."""
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
