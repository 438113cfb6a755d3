"""Bounds on the earth mover distance of two distributions, from their moments.

Let p and q be two distributions on R^d, in practice a layer's outputs at two times of training.
Means and variances are vectors with one number for each coordinate. S and S' are the sums of the
variances of p and q, and D is the distance of the means. If p and q are the empirical distributions
of two sets of samples, the bounds have no statistical error. If a mean or a variance is NaN, the
result is NaN. Vectors are promoted to at least float32. The functions raise `ValueError` for
vectors of different lengths or without elements. Outside `jit`, upper bounds also raise
`ValueError` for a negative variance. Functions of samples raise `ValueError` outside `jit` for an
element that is not finite.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import check_positive, check_whole, promote_to_float32, safe_sqrt, unit_of
from jaxnorm.shift._samples import check_not_negative, check_pair, length, same_length, vectors


def moment_upper_bound(
    mean_x: Float[Array, " d"],
    var_x: Float[Array, " d"],
    mean_y: Float[Array, " d"],
    var_y: Float[Array, " d"],
) -> Float[Array, ""]:
    """The upper bound S + S' + D + 2 of Theorem 1 of Huang and Yu, as printed.

    Here S and S' are the sums of the variances of the two distributions, and D is the distance of
    their means. Theorem 1 adds squared lengths to lengths, so the quality of the bound depends on
    the unit of the outputs. `sharp_moment_upper_bound` never exceeds the bound of Theorem 1.

    Example:
      >>> zero, one = jnp.zeros(3), jnp.ones(3)
      >>> print(moment_upper_bound(zero, one, zero, one))
      8.0
    """
    mean_x, var_x, mean_y, var_y = same_length(
        mean_x=mean_x, var_x=var_x, mean_y=mean_y, var_y=var_y
    )
    check_not_negative(var_x, "var_x")
    check_not_negative(var_y, "var_y")
    return jnp.sum(var_x) + jnp.sum(var_y) + length(mean_x - mean_y) + 2


def sharp_moment_upper_bound(
    mean_x: Float[Array, " d"],
    var_x: Float[Array, " d"],
    mean_y: Float[Array, " d"],
    var_y: Float[Array, " d"],
) -> Float[Array, ""]:
    """The root mean square distance √(S + S' + D²) of independent samples, an upper bound.

    Here S and S' are the sums of the variances of the two distributions, and D is the distance of
    their means. No smaller function of S, S' and D is a bound in all dimensions. The bound has the
    unit of the outputs. The bound equals the distance, for example, if one distribution is on two
    points ±a and the other on two points ±b, with a and b perpendicular and all probabilities ½.

    Example:
      >>> zero, one = jnp.zeros(3), jnp.ones(3)
      >>> print(sharp_moment_upper_bound(zero, one, zero, one).round(3))
      2.449
    """
    mean_x, var_x, mean_y, var_y = same_length(
        mean_x=mean_x, var_x=var_x, mean_y=mean_y, var_y=var_y
    )
    check_not_negative(var_x, "var_x")
    check_not_negative(var_y, "var_y")
    apart, var = mean_x - mean_y, var_x + var_y
    # Lengths are divided by the largest length, so no square overflows.
    unit = unit_of(jnp.maximum(jnp.abs(apart).max(), jnp.sqrt(jnp.abs(var).max())))
    return unit * safe_sqrt(jnp.sum(var / unit / unit) + jnp.sum(jnp.square(apart / unit)))


def normalized_upper_bound(
    mean_x: Float[Array, " d"],
    excess_x: Float[Array, " d"],
    mean_y: Float[Array, " d"],
    excess_y: Float[Array, " d"],
) -> Float[Array, ""]:
    """Upper bound for outputs of a batch norm, Equation 4: Σ v + Σ v' + 2d + ‖e − e'‖ + 2.

    Without noise, the bound of Equation 4 is 2d + 2 for d features, but the distance is never
    larger than √(2d).

    Args:
      mean_x: The mean e of outputs that are normalized by noisy statistics; zero without noise.
      excess_x: The variance of the normalized outputs minus 1, which is v in Equation 4.
      mean_y: The mean e' at a second time of training.
      excess_y: The variance at the second time minus 1, which is v' in Equation 4.

    Example:
      >>> zero = jnp.zeros(3)
      >>> print(normalized_upper_bound(zero, zero, zero, zero))
      8.0
    """
    mean_x, excess_x, mean_y, excess_y = same_length(
        mean_x=mean_x, excess_x=excess_x, mean_y=mean_y, excess_y=excess_y
    )
    check_not_negative(1 + excess_x, "1 + excess_x")
    check_not_negative(1 + excess_y, "1 + excess_y")
    return moment_upper_bound(mean_x, 1 + excess_x, mean_y, 1 + excess_y)


def mean_lower_bound(mean_x: Float[Array, " d"], mean_y: Float[Array, " d"]) -> Float[Array, ""]:
    """The distance of the means, D = ‖μ − μ'‖, which is a lower bound.

    No transport plan costs less than the distance of the means. The bound equals the distance if
    one distribution is a translation of the other. `mean_lower_bound` is often the largest of the
    lower bounds. The paper does not state the bound D.

    Example:
      >>> print(mean_lower_bound(jnp.array([3.0, 0.0]), jnp.array([0.0, 4.0])))
      5.0
    """
    mean_x, mean_y = same_length(mean_x=mean_x, mean_y=mean_y)
    return length(mean_x - mean_y)


def paired_upper_bound(x: Float[Array, "n *features"], y: Float[Array, "n *features"]) -> Array:
    """The mean distance between outputs x_i and y_i of the same input.

    The mean distance is the cost of the transport plan that moves each x_i to y_i.

    Raises:
      ValueError: The numbers of samples differ, or `emd_1d` would raise an error for the samples.

    Example:
      >>> print(paired_upper_bound(jnp.zeros((2, 2)), jnp.array([[3.0, 4.0], [0.0, 1.0]])))
      3.0
    """
    check_pair(x, y)
    if len(x) != len(y):
        raise ValueError(
            f"x and y must have equally many samples, because they form pairs; got {len(x)} and "
            f"{len(y)}"
        )
    return length(vectors(x) - vectors(y)).mean()


def clipped_power(
    x: Float[Array, "*n d"], *, radius: int | float | Float[Array, ""], p: int = 2
) -> Float[Array, "*n"]:
    """The test function of Theorem 2, Σ clip(x_i, −C, C)^p / (p C^(p−1) √d), where C is `radius`.

    The Lipschitz constant of the function is exactly 1, for even and odd p. The result has the
    dtype of `x`.

    Raises:
      ValueError: `radius` is not positive, `p` is below 1, or there are no features.

    Example:
      >>> print(clipped_power(jnp.array([1.0, -3.0]), p=2, radius=2.0).round(4))
      0.8839
    """
    radius = check_positive(radius, "radius")
    check_whole(p=p)
    if p < 1:
        raise ValueError(f"p must be at least 1; got {p}")
    h = promote_to_float32(x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have features on its last axis; got shape {x.shape}")
    # No power overflows, because x is divided by the radius and clipped to [−1, 1].
    powers = jnp.sum(jnp.clip(h / radius, -1, 1) ** p, -1)
    return (powers * (radius / (p * x.shape[-1] ** 0.5))).astype(jnp.result_type(x))


def moment_lower_bound(
    x: Float[Array, "n *features"],
    y: Float[Array, "m *features"],
    *,
    radius: int | float | Float[Array, ""],
    p: int = 2,
) -> Float[Array, ""]:
    """The lower bound |E f_{p,C}(X) − E f_{p,C}(Y)| of Theorem 2.

    The function f_{p,C} is `clipped_power`, and d is the number of features. The bound is at most
    √d C/p for even p and 2√d C/p for odd p. The paper requires p ≥ 2, but the bound also holds for
    p = 1. A small value of the bound says nothing about the distance.

    Args:
      x: Samples on the first axis; each sample is flattened to a vector.
      y: Samples of the same features, in any number.
      radius: The limit C; larger values are clipped.
      p: The exponent.

    Raises:
      ValueError: `radius` is not positive, `p` is below 1, or `emd_1d` would raise an error for the
        samples.

    Example:
      >>> x = jnp.array([[0.0], [1.0]])
      >>> print(moment_lower_bound(x, 2 * x, radius=2.0))
      0.375
    """
    check_pair(x, y)
    means = (clipped_power(vectors(part), p=p, radius=radius).mean() for part in (x, y))
    return jnp.abs(jnp.subtract(*means))


def normalized_lower_bound(
    mean_x: Float[Array, " d"],
    excess_x: Float[Array, " d"],
    mean_y: Float[Array, " d"],
    excess_y: Float[Array, " d"],
    *,
    radius: int | float | Float[Array, ""],
) -> Float[Array, ""]:
    """Lower bound for outputs of a batch norm, Equation 5: |Σ (e² + v − e'² − v')| / (2 C √d).

    The sum is over the d features. The bound requires that no absolute output exceeds `radius`.
    Outputs that are normalized by their own batch of m samples never exceed √(m − 1). If the
    square of a mean overflows, the result is infinite or NaN.

    Args:
      mean_x: The mean e of outputs that a batch norm normalizes by noisy statistics.
      excess_x: The variance of the normalized outputs minus 1, which is v in Equation 5.
      mean_y: The mean e' at a second time of training.
      excess_y: The variance at the second time minus 1, which is v' in Equation 5.
      radius: The largest absolute value C of an output.

    Raises:
      ValueError: `radius` is not positive.

    Example:
      >>> zero = jnp.zeros(4)
      >>> print(normalized_lower_bound(zero, zero + 0.5, zero, zero, radius=2.0))
      0.25
    """
    radius = check_positive(radius, "radius")
    mean_x, excess_x, mean_y, excess_y = same_length(
        mean_x=mean_x, excess_x=excess_x, mean_y=mean_y, excess_y=excess_y
    )
    difference = jnp.square(mean_x) + excess_x - jnp.square(mean_y) - excess_y
    return jnp.abs(jnp.sum(difference)) / (2 * radius * len(mean_x) ** 0.5)
