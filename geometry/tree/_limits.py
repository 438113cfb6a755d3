"""Limits of the recentering tree, by Theorems 10 and 11 of Nachum et al. with sharper constants.

A neuron is stable if it takes at most three values on the batch. All neurons that descend from a
stable neuron are stable. In the limit of infinite depth, the largest and the smallest sample (the
two ends) are orthogonal, and all other samples merge into one cluster. The cluster's length and
angles relative to the two ends depend only on the number n of samples and on a number r, which the
initial batch determines. For sorted samples, r is the limit of ‖xₙ − xₙ₋₁‖² / ‖x₂ − x₁‖². If
samples are sharded over Explicit mesh axes, they are gathered. Bounds that depend on n alone are
Python numbers, computed on the host.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._arguments import as_vector, whole_number
from geometry.tree._tree import tree_gram
from jaxnorm.internal import floating, host_only, promote_to_float32, replicate


class TreeLimits(NamedTuple):
    """The cluster of the n − 2 inner samples, relative to the smallest and to the largest sample.

    Attributes:
      norm_ratios: The norm of the cluster, divided by the norm of each of the two ends.
      angles: The angles between the cluster and each of the two ends, in radians.
    """

    norm_ratios: Float[Array, "2"]
    angles: Float[Array, "2"]


class EndBounds(NamedTuple):
    """Bounds on the cluster relative to an end, which hold for at least one of the two ends.

    Attributes:
      norm_ratio: An upper bound on the norm of the cluster divided by the norm of the end.
      angle: A lower bound on the angle between the cluster and the end, in radians.
    """

    norm_ratio: float
    angle: float


def depth_bound(x: Float[Array, " n"]) -> Float[Array, ""]:
    """A depth from which all neurons of the tree are stable, an explicit bound for Theorem 10.

    The depth is (n − 3) (3 + 2 max(0, log(R (n − 3) / 2D)) / log(n / (n − 3))), where R is the
    range of the n samples. D is the smallest gap between neighbors among the n − 2 samples that
    are neither the smallest nor the largest. The gaps between neighboring distinct values of a
    neuron are gaps of the samples, except the first and the last. A layer that merges no values of
    a neuron multiplies the first or the last gap by at most (n − 3)/n. Before such a layer, the
    multiplied gap is above 2D/(n − 3). Observed depths are at most about 0.7 of the bound. There is
    no bound that depends only on n. If D is zero, the bound is ∞.

    Raises:
      ValueError: There are fewer than 4 samples; all neurons are then stable at depth 0.

    Example:
      >>> print(depth_bound(jnp.array([0.0, 1.0, 2.0, 3.0])).round(2))
      3.58
    """
    h = as_vector(x)
    n = len(h)
    if n < 4:
        raise ValueError(
            "x must have at least 4 samples, because the neurons "
            f"of fewer samples are stable at any depth; got {n}"
        )
    h = jnp.sort(replicate(h))
    gap = jnp.diff(h[1:-1]).min()
    coincide = gap == 0  # the comparison is false for NaN, so NaN remains NaN
    ratio = (n - 3) / 2 * (h[-1] - h[0]) / jnp.where(coincide, 1, gap)
    ratio = jnp.where(coincide, math.inf, ratio)
    steps = 3 + 2 / math.log(n / (n - 3)) * jnp.maximum(0, jnp.log(ratio))
    return ((n - 3) * steps).astype(jnp.result_type(x))


def limit_ratio(x: Float[Array, " n"], *, depth: int = 10_000) -> Float[Array, ""]:
    """The ratio r of two squared distances in the tree, for n distinct samples in any order.

    The ratio is ‖xₙ − xₙ₋₁‖² / ‖x₂ − x₁‖² for sorted samples xᵢ at `depth`. As the depth grows, r
    tends to a limit in (0, ∞). If the limit is below 1, the smallest sample gets the largest norm.
    If the limit is above 1, the largest sample gets the largest norm. The smallest and the largest
    sample get larger norms than all other samples. If samples coincide, r may be 0 or ∞. If both
    distances are zero, the result is 1, as for a symmetric batch. If the two smallest samples
    coincide, the gradient is zero.

    Raises:
      ValueError: There are fewer than 3 samples, or `depth` is below 1.

    Example:
      >>> import jax
      >>> print(jax.jit(limit_ratio)(jnp.array([-1.0, 0.0, 1.0])).round(3))
      1.0
    """
    h = replicate(as_vector(x))
    _at_least_three(len(h))
    if whole_number(depth, "depth") < 1:
        raise ValueError(f"depth must be at least 1; got {depth}")
    square = tree_gram(jnp.sort(h), depth).squared_distances
    top, bottom = square[-1, -2], square[1, 0]
    tied = bottom == 0
    of_ties = jnp.where(top == 0, 1, jnp.where(top > 0, jnp.inf, top))
    return jnp.where(tied, of_ties, top / jnp.where(tied, 1, bottom)).astype(jnp.result_type(x))


def limits(n: int, r: int | float | Float[Array, ""]) -> TreeLimits:
    """The exact limits of Theorem 11 for n distinct samples with the ratio r.

    Let m be (n − 1)². The norm ratios to the smallest and to the largest sample are √((1 + r)/(m +
    r)) and √((1 + r)/(1 + m r)). The cosines are r/√((1 + r)(m + r)) and 1/√((1 + r)(1 + m r)). The
    paper bounds the limits of norms and cosines; see `end_bounds`.

    Raises:
      ValueError: n is not an integer, or is below 3; or r is a negative number. Negative elements
        of an array give NaN instead.

    Example:
      >>> ends = limits(5, jnp.ones(()))
      >>> print(ends.norm_ratios.round(4), jnp.degrees(ends.angles).round(2))
      [0.343 0.343] [80.13 80.13]
    """
    _at_least_three(n)
    if isinstance(r, int | float) and r < 0:
        raise ValueError(f"r must not be negative; got {r}")
    r = floating(r, "r")
    m, h = float(n - 1) ** 2, promote_to_float32(r)
    h = jnp.where(h < 0, jnp.nan, h)
    # Products with a large r could overflow. If r > 1, the code uses 1/r instead of r. This
    # exchanges the results for the smallest and the largest sample.
    exchanged = h > 1
    h = jnp.where(exchanged, 1 / jnp.where(exchanged, h, 1), h)
    scale, smallest, largest = 1 + h, m + h, 1 + m * h
    cosines = jnp.stack([h / jnp.sqrt(scale * smallest), 1 / jnp.sqrt(scale * largest)])
    norm_ratios = jnp.sqrt(jnp.stack([scale / smallest, scale / largest]))
    norm_ratios, angles = (
        jnp.where(exchanged[None], ends[::-1], ends) for ends in (norm_ratios, jnp.arccos(cosines))
    )
    return TreeLimits(norm_ratios.astype(jnp.result_type(r)), angles.astype(jnp.result_type(r)))


@host_only("`limits` at r = 1")
def end_bounds(n: int) -> EndBounds:
    """Sharp bounds for Theorem 11, items 3 and 4: √(2/(m + 1)) and arccos(1/√(2(m + 1))).

    In the bounds, m is (n − 1)². Samples that are symmetric about their mean have r = 1 and attain
    the bounds.

    Raises:
      ValueError: n is not an integer, or is below 3.

    Example:
      >>> print(f"{end_bounds(5).norm_ratio:.3f}, {math.degrees(end_bounds(5).angle):.2f}")
      0.343, 80.13
    """
    _at_least_three(n)
    m = (n - 1) ** 2
    return EndBounds((2 / (m + 1)) ** 0.5, math.acos((2 * (m + 1)) ** -0.5))


def _at_least_three(n: int) -> None:
    if whole_number(n, "n") < 3:
        raise ValueError(
            f"the number of samples must be at least 3, because a cluster needs 3; got {n}"
        )
