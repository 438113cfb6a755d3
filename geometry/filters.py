"""Measures the lengths, angles and distances of filters, and computes them for Gaussian filters.

In many dimensions, filters with weights from N(0, c²) have almost equal lengths, almost right
angles and almost equal distances, by Theorem 5 of Huang et al. (2020). For Gaussian weights, all
moments in `geometry.filters` are known exactly in any dimension. As the dimension grows, ratios of
lengths or distances tend to 1 at the rate 1/√dims, but differences of lengths or distances do not
tend to 0. Filters are the rows of a matrix. Angles are in radians. For the covariance of the
filters and the interval of Marchenko and Pastur, see `pruning.weight_tests.covariance_report`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import polygamma
from jaxtyping import Array, Float

from geometry._angles import angles, distances
from geometry._arguments import as_samples, whole_number
from jaxnorm.internal import (
    check_numeric,
    check_positive,
    chi_defect,
    chi_mean,
    host_only,
    norm,
    replicate,
)

__all__ = [
    "FilterGeometry",
    "filter_geometry",
    "gaussian_filter_geometry",
    "norm_envelope",
    "welch_bound",
]


class FilterGeometry(NamedTuple):
    """Means and variances of norms (over filters), cosines, angles and distances (over pairs)."""

    norm_mean: Float[Array, ""]
    norm_variance: Float[Array, ""]
    cosine_mean: Float[Array, ""]
    cosine_variance: Float[Array, ""]
    cosine_size: Float[Array, ""]  # the mean of |cos| over pairs of filters
    angle_mean: Float[Array, ""]
    angle_variance: Float[Array, ""]
    distance_mean: Float[Array, ""]
    distance_variance: Float[Array, ""]


def filter_geometry(filters: Float[Array, "n dims"]) -> FilterGeometry:
    """The nine moments of a layer's filters; only the variance of the norms is unbiased.

    Two pairs that share a filter are dependent: for Gaussian filters, their squared distances have
    correlation 1/4. If a filter is zero, the moments of angles and cosines are NaN. If filters are
    sharded over Explicit mesh axes, their angles and distances are gathered.

    Raises:
      ValueError: There are fewer than 2 filters.

    Example:
      >>> moments = filter_geometry(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
      >>> print(moments.norm_mean, moments.distance_mean, jnp.degrees(moments.angle_mean))
      3.5 5.0 90.0
    """
    h = as_samples(filters, min_samples=2)
    pairs = np.triu_indices(len(h), 1)
    length = norm(h)[:, 0]
    angle, distance = replicate(angles(h))[pairs], replicate(distances(h))[pairs]
    # Most angles are close to π/2, where sin(π/2 − angle) is more precise than cos(angle).
    cosine = jnp.sin(math.pi / 2 - angle)
    moments = FilterGeometry(
        length.mean(),
        length.var(ddof=1),
        cosine.mean(),
        cosine.var(),
        jnp.abs(cosine).mean(),
        angle.mean(),
        angle.var(),
        distance.mean(),
        distance.var(),
    )
    return FilterGeometry(*(moment.astype(jnp.result_type(filters)) for moment in moments))


@host_only()
def gaussian_filter_geometry(dims: int, *, std: float = 1.0) -> FilterGeometry:
    """The nine exact moments of independent filters N(0, std² I).

    Let R = Γ((d + 1)/2)/Γ(d/2), c = std and d = dims. A norm is c times a chi variable, so its mean
    is √2 c R. Cosines have mean 0, variance 1/d and mean absolute value 1/(√π R), because (1 +
    cos)/2 is Beta((d − 1)/2, (d − 1)/2). Angles have mean π/2 and variance ψ′(d/2)/2. Distances are
    distributed like the norms of filters whose std is √2 times as large. As the dimension grows,
    the variance of the difference of two norms tends to c². The variance of the difference of two
    distances from one filter tends to 3c²/2. `dims` and `std` are Python numbers, and the function
    runs on the host.

    Raises:
      ValueError: dims is not an integer or is below 2, or std is not positive.

    Example:
      >>> moments = gaussian_filter_geometry(576)
      >>> f"{moments.norm_mean:.3f} {moments.norm_variance:.4f} {moments.cosine_variance:.5f}"
      '23.990 0.4998 0.00174'
    """
    dims, std = whole_number(dims, "dims"), check_positive(std, "std")
    if dims < 2:
        raise ValueError(f"dims must be at least 2; got {dims}")
    length, variance = chi_mean(dims), 2 * chi_defect(dims) * std**2
    moments = (
        std * length,
        variance,
        0.0,
        1 / dims,
        (2 / math.pi) ** 0.5 / length,
        math.pi / 2,
        polygamma(1, jnp.asarray(dims / 2)) / 2,
        2**0.5 * std * length,
        2 * variance,
    )
    return FilterGeometry(*map(jnp.asarray, moments))


@host_only()
def norm_envelope(num_filters: int, *, delta: float = 0.05) -> float:
    """A bound on the deviation of all norms of Gaussian filters from their mean, divided by std.

    The bound is √(2 log(2 num_filters / delta)). With probability at least 1 − delta, no norm
    deviates from the mean by more than the bound times std. The bound follows from the
    concentration of Lipschitz functions, and does not depend on the dimension. `norm_envelope` runs
    on the host.

    Raises:
      ValueError: `num_filters` is not an integer or is below 1, or `delta` is not in (0, 1).

    Example:
      >>> round(norm_envelope(512), 2)
      4.46
    """
    num_filters = whole_number(num_filters, "num_filters")
    check_numeric(delta, "delta")
    if num_filters < 1 or not 0 < delta < 1:
        raise ValueError(
            "num_filters must be at least 1 and delta must lie in (0, 1); got num_filters "
            f"{num_filters} and delta {delta}"
        )
    return math.sqrt(2 * math.log(2 * num_filters / delta))


@host_only()
def welch_bound(num_filters: int, dims: int) -> float:
    """A lower bound on the largest |cos| of n filters in d dimensions: √((n − d)/(d (n − 1))).

    If there are at least as many dimensions as filters, the bound is 0.

    The bound holds for any filters (Welch, 1974): if there are more filters than dimensions, the
    filters cannot be mutually orthogonal. `welch_bound` runs on the host.

    Raises:
      ValueError: `num_filters` or `dims` is not an integer, or is below 1.

    Example:
      >>> round(welch_bound(256, 64), 3), welch_bound(64, 576)
      (0.108, 0.0)
    """
    n, dims = whole_number(num_filters, "num_filters"), whole_number(dims, "dims")
    if n < 1 or dims < 1:
        raise ValueError(
            f"num_filters and dims must be at least 1; got num_filters {n} and dims {dims}"
        )
    return math.sqrt((n - dims) / (dims * (n - 1))) if n > dims else 0.0
