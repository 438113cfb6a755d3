"""Computes batch statistics with masks and over shards, and merges statistics of two sets.

Samples lie on the leading axes of an array, and features on the last axis. All sums are computed in
at least float32.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm.internal import (
    check_array,
    check_eps,
    check_function,
    check_range,
    floating,
    merge_means,
    promote_to_float32,
    spread_slice,
)

Tree = TypeVar("Tree")
AxisName = Hashable | tuple[Hashable, ...]
Keep = Bool[Array, "*batch"] | None
Number = int | float
Correction = Callable[[Array], Number | Array]


class BatchStatistics(NamedTuple):
    """Mean and biased variance of `count` samples, for each feature.

    If there are no samples, the count, the mean and the variance are 0. `merge_statistics` ignores
    statistics with count 0.
    """

    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]


def batch_statistics(
    x: Float[Array, "*batch c"],
    *,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> BatchStatistics:
    """Mean and biased variance of each feature over all axes but the last.

    One pass over the data suffices, because the code first subtracts the mean of a subset with
    about one sample in 128. With a mask, the code first subtracts the mean of all chosen samples.
    If the mean is 10⁴ standard deviations, or if there is an outlier of any size, float32 loses at
    most the last two of its seven digits. The statistics are in at least float32, whatever the
    dtype of `x`. If Σ (x − μ)² exceeds the largest float, 3·10³⁸, the variance is NaN.

    Args:
      x: Samples on the leading axes, features on the last.
      where: A mask of the samples that enter the statistics. The mask has the leading axes of
        `x`, of the same sizes or of size 1, and may have one more axis, of size 1. Elements outside
        the mask do not change the statistics, even if they are NaN.
      axis_name: The mapped axis or axes (of vmap or shard_map) over which the samples are
        distributed. The result covers the samples of all shards, and an empty shard adds nothing.
      axis_index_groups: Groups of indices along `axis_name`; each group has its own statistics, as
        in `jax.lax.psum`.

    Raises:
      ValueError: `x` has no features or no leading axis, or the shape of `where` does not fit `x`.

    Example:
      >>> stats = batch_statistics(jnp.array([[1.0, 5.0], [3.0, 5.0]]))
      >>> print(stats.mean, stats.var, stats.count)
      [2. 5.] [1. 0.] 2.0
    """
    check_features(x)
    keep = None if where is None else sample_mask(x, where)
    return shift_batch(x, keep, Reduction(axis_name, axis_index_groups)).statistics


class Reduction(NamedTuple):
    """The options with which a batch is reduced to its statistics.

    Attributes:
      axis_name: The mapped axes over which the batch is distributed; None for one device.
      axis_index_groups: Groups of indices along the mapped axes; each group is a separate batch.
      correction: A function of the sample count. The result of the function multiplies the variance
        that normalizes the batch.
    """

    axis_name: AxisName | None = None
    axis_index_groups: Sequence[Sequence[int]] | None = None
    correction: Correction | None = None

    def total(self, sums: Tree) -> Tree:
        """The sums over all shards of the batch.

        The sums of the shards can be added, because all shards subtract the same shift.
        """
        groups = self.axis_index_groups
        if self.axis_name is None:
            if groups is not None:
                raise ValueError(f"axis_index_groups need an axis_name; got the groups {groups}")
            return sums
        try:
            return jax.lax.psum(sums, self.axis_name, axis_index_groups=groups)
        except NameError as error:
            raise ValueError(
                "axis_name must name an axis that vmap or shard_map maps around the call; got "
                f"{self.axis_name!r}"
            ) from error


class Sums(NamedTuple):
    """The sums Σ h and Σ h² of each feature's elements h, and the number of elements."""

    first: Float[Array, "*rest c"]
    second: Float[Array, "*rest c"]
    count: Float[Array, "*rest"]  # pyright: ignore[reportIncompatibleMethodOverride]


class Shifted(NamedTuple):
    """A batch minus a shift, the mean of the difference, and the variance for normalization."""

    h: Float[Array, "n *spatial c"]
    # the sums of h and h² over the pixels of each image; None for vectors and in inference
    samples: Sums | None
    shift: Float[Array, " c"]
    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    statistics: BatchStatistics


def shift_batch(x: Float[Array, "n *spatial c"], keep: Keep, reduction: Reduction) -> Shifted:
    """`x` minus a shift near its mean, and the statistics of `x`.

    If no sample is in the mask `keep`, the statistics are 0.
    """
    x = jnp.asarray(x)
    h, shift = shift_near_mean(x, keep, reduction)
    samples = None
    if x.ndim == 2:
        total = sums(h, keep, (0,))
    else:
        samples = sums_by_sample(h, keep)
        # Without the barrier, XLA would compute the sums in a second pass over the data.
        first, second = jax.lax.optimization_barrier((samples.first, samples.second))
        samples = Sums(first, second, samples.count)
        total = _over_samples(samples, keep)
    mean, var, count = mean_and_variance(reduction.total(total))
    correct = reduction.correction
    corrected = var if correct is None else var * correction_factor(correct, count, "correction")
    return Shifted(h, samples, shift, mean, corrected, BatchStatistics(shift + mean, var, count))


def sums_by_sample(h: Float[Array, "n *spatial c"], keep: Keep) -> Sums:
    """For each image, the sums over the pixels that are in the mask `keep`.

    If no pixel of an image is in `keep`, the sums are over all pixels of the image.
    """
    spatial = tuple(range(1, h.ndim - 1))
    return sums(h, None if keep is None else keep | ~keep.any(spatial, keepdims=True), spatial)


def _over_samples(samples: Sums, keep: Keep) -> Sums:
    """The total of `samples` over all images with at least one pixel in the mask `keep`."""
    if keep is not None:
        counts = keep.any(tuple(range(1, keep.ndim)))
        first, second = (jnp.where(counts[:, None], a, 0) for a in samples[:2])
        samples = Sums(first, second, jnp.where(counts, samples.count, 0))
    return Sums(*(part.sum(0) for part in samples))


def shift_near_mean(
    x: Float[Array, "*batch c"], keep: Keep, reduction: Reduction
) -> tuple[Float[Array, "*batch c"], Float[Array, " c"]]:
    """The difference x − shift in at least float32, and the shift, which is a mean of some samples.

    All shards have the same shift. Without a mask, the shift is the mean of a subset with about one
    sample in 128. With a mask, the shift is the mean of all chosen samples. Let μ and σ² be the
    mean and the variance of all N samples, and let the shift be the mean of m of the N samples.
    Then (μ − shift)² ≤ (N/m) σ² by the Cauchy–Schwarz inequality. Therefore the variance E[h²] −
    E[h]² of h = x − shift has a relative error of at most a few hundred roundings, for any outliers
    and any mean.
    """
    h, axes = promote_to_float32(x), tuple(range(x.ndim - 1))
    still = jax.lax.stop_gradient(x)
    if keep is None:
        part = promote_to_float32(spread_slice(still))
        total = part.sum(axes), jnp.asarray(math.prod(part.shape[:-1]), h.dtype)
    else:
        total = jnp.where(keep[..., None], promote_to_float32(still), 0).sum(axes), keep.sum()
    first, count = reduction.total(total)
    shift = first / jnp.maximum(count, 1).astype(h.dtype)
    return h - channels(shift, h), shift


def check_features(x: Array, *, single: bool = False) -> None:
    """Raise unless `x` is an array of floats with features on its last axis.

    If `single` is true, `x` may be one vector of features.
    """
    check_array(x, "x")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be of a floating dtype; got {x.dtype}")
    if x.ndim < (1 if single else 2) or x.shape[-1] == 0:
        shape = "(..., features)" if single else "(samples, ..., features)"
        raise ValueError(f"x must have shape {shape}; got {x.shape}")


def sums(h: Float[Array, "*batch c"], keep: Keep, axes: tuple[int, ...]) -> Sums:
    """The sums Σ h and Σ h² over `axes`, only of the elements that are in the mask `keep`.

    Leading axes that are not in `axes` remain in the result.
    """
    if keep is None:
        shape = tuple(n for i, n in enumerate(h.shape[:-1]) if i not in axes)
        count = jnp.full(shape, math.prod(h.shape[i] for i in axes), h.dtype)
    else:
        h = jnp.where(keep[..., None], h, 0)
        count = keep.sum(axes).astype(h.dtype)
    return Sums(h.sum(axes), jnp.square(h).sum(axes), count)


def mean_and_variance(total: Sums) -> tuple[Array, Array, Array]:
    """The mean, the biased variance and the count of the summed elements; all 0 for no elements.

    The elements are deviations from a shift. Unless all elements are equal, mean² ≤ 200 variance
    (see `shift_near_mean`). Therefore a variance below 10⁻⁵ mean² is the rounding error of equal
    elements, and is replaced by 0. A variance that overflows is NaN, because an infinite variance
    would normalize all elements to zero.
    """
    divisor = jnp.maximum(total.count, 1)
    square = jnp.square(total.first / divisor)
    var = total.second / divisor - square
    var = jnp.where(var <= 1e-5 * square, 0, jnp.where(var == math.inf, math.nan, var))
    return total.first / divisor, var, total.count


def bessel(count: Number | Float[Array, "*shape"], *, eps: float = 0.0) -> Float[Array, "*shape"]:
    """The factor n / (n − 1 − eps); if eps is 0, a biased variance times the factor is unbiased.

    The code of the unitization paper multiplies the variance by n / (n − 1 − eps) also in training,
    with eps = 10⁻³. If n ≤ 1 + eps, the factor is 1.

    Example:
      >>> print(bessel(jnp.array([1.0, 2.0, 5.0])))
      [1.   2.   1.25]
    """
    count, eps = floating(count, "count"), check_eps(eps)
    degrees = count - (1 + eps)
    none = degrees <= 0  # the comparison is false for NaN, so NaN remains NaN
    return jnp.where(none, 1, count / jnp.where(none, 1, degrees))


def correction_factor(
    correction: Correction, count: Float[Array, "*shape"], name: str
) -> Float[Array, "*shape one"]:
    """The result of `correction(count)`, with an axis of size 1 for the features.

    Raises:
      TypeError: `correction` is not a function, or its result does not consist of real numbers.
      ValueError: The result has neither one number nor as many numbers as `count`.
    """
    check_function(correction, name, "jaxnorm.bessel")
    factor, what = correction(count), f"the result of {name}"
    if not isinstance(factor, int | float):
        check_array(factor, what)
        if not jnp.isrealobj(factor):
            raise TypeError(f"{what} must be real; got {factor.dtype}")
    if (shape := jnp.shape(factor)) not in ((), count.shape):
        raise ValueError(f"{what} must be one number for each count; got shape {shape}")
    return jnp.broadcast_to(jnp.asarray(factor, count.dtype), count.shape)[..., None]


def channels(parameter: Float[Array, " c"], x: Array) -> Array:
    """The `parameter`, reshaped to act along the last axis of `x`."""
    return parameter.reshape([1] * (x.ndim - 1) + [-1])


def sample_mask(x: Array, where: Array, name: str = "where") -> Bool[Array, "*batch"]:
    """The mask `where` as booleans, in the shape of `x` without the last axis.

    The mask may have one more axis, of size 1. Error messages call the mask `name`.
    """
    check_array(where, name)
    if where.dtype != bool:
        raise TypeError(f"{name} must be boolean; got {where.dtype}: pass {name} != 0")
    samples = where[..., 0] if where.ndim == x.ndim and where.shape[-1] == 1 else where
    if samples.ndim != x.ndim - 1 or any(
        m not in (1, n) for m, n in zip(samples.shape, x.shape[:-1], strict=True)
    ):
        raise ValueError(
            f"{name} must have shape {x.shape[:-1]}, one boolean per sample, where any size may be "
            f"1 instead, or have one more axis of size 1; got {where.shape}"
        )
    return jnp.broadcast_to(samples, x.shape[:-1])


def merge_statistics(a: BatchStatistics, b: BatchStatistics) -> BatchStatistics:
    """The statistics of the union of two sets of samples, Chan, Golub and LeVeque (1979).

    An empty set (count 0) does not change the statistics of the other set. Two empty sets give an
    empty set. The means in `a` and `b` are rounded. Therefore the relative error of the merged
    variance is about ε |mean| / standard deviation, where ε is the rounding unit of the dtype. In
    float32 the error is up to 0.1 % if the mean is 10⁴ standard deviations, and up to a few per
    cent if the mean is 10⁶ standard deviations. To avoid the rounding error of a merge, compute
    `batch_statistics` of the union. If means are much larger than standard deviations, merge in
    float64 or first subtract a common number from all samples.

    Raises:
      TypeError: `a` or `b` is not a `BatchStatistics`.
      ValueError: The two sets have different features, or a count is negative, NaN, or not one
        number.

    Example:
      >>> x = jnp.array([[1.0], [2.0], [6.0]])
      >>> merged = merge_statistics(batch_statistics(x[:1]), batch_statistics(x[1:]))
      >>> print(merged.mean, merged.count)
      [3.] 3.0
    """
    check_statistics(a, "a")
    check_statistics(b, "b")
    check_same_features(a.mean, b.mean)
    return merge_features(a, b)


def merge_features(a: BatchStatistics, b: BatchStatistics) -> BatchStatistics:
    """The result of `merge_statistics`, without checks; every feature may have its own count."""
    count, mean, share, (deviation_a, deviation_b) = merge_means(a, b)
    var_a = jnp.where(a.count > 0, a.var, 0) + jnp.square(deviation_a)
    var_b = jnp.where(b.count > 0, b.var, 0) + jnp.square(deviation_b)
    return BatchStatistics(mean, (1 - share) * var_a + share * var_b, count)


def check_statistics(statistics: Any, name: str) -> None:
    """Raise unless `statistics` are `BatchStatistics` with a mean and a variance of equal shape.

    The count must be one number.
    """
    if not isinstance(statistics, BatchStatistics):
        got = type(statistics).__name__
        raise TypeError(f"{name} must be BatchStatistics; got {got}")
    mean, var, count = statistics
    if jnp.shape(mean) != jnp.shape(var):
        raise ValueError(
            f"mean and var of {name} must have one shape; got {jnp.shape(mean)} and "
            f"{jnp.shape(var)}"
        )
    check_range(count, f"the count of {name}")


def check_same_features(a: Array, b: Array) -> None:
    """Raise unless the arrays `a` and `b` of statistics have the same shape."""
    if jnp.shape(a) != jnp.shape(b):
        raise ValueError(
            f"a and b must have the same features; got shapes {jnp.shape(a)} and {jnp.shape(b)}"
        )
