"""Batch statistics that merge exactly, over parts, masks and shards.

Samples lie on the leading axes, features on the last. Everything is summed in at least float32.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Tree = TypeVar("Tree")
Axes = int | Sequence[int]
AxisName = Hashable | tuple[Hashable, ...]


class BatchStatistics(NamedTuple):
    """Mean and biased variance of `count` samples, one of each per feature.

    No samples at all are (0, 0, 0), which `merge_statistics` leaves out.
    """

    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]


def widen(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` in at least float32, the precision in which statistics are summed."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be of a floating dtype; got {x.dtype}")
    return x.astype(np.promote_types(x.dtype, np.float32))


def centre(x: Float[Array, "*shape"], axis: Axes) -> Float[Array, "*shape"]:
    """`x` less its mean along `axis`, exactly zero where `x` is constant.

    The first entry is taken off before the mean is formed: a constant then has no rounding left,
    and a large mean costs no digits. The gradient is that of x − mean(x).
    """
    axes = axis_tuple(x, axis)
    first = x[tuple(slice(0, 1) if i in axes else slice(None) for i in range(x.ndim))]
    h = x - jax.lax.stop_gradient(first)
    return h - h.mean(axes, keepdims=True)


def axis_tuple(x: Array, axis: Axes) -> tuple[int, ...]:
    """The axes of `x` named by `axis`, counted from the front; they must hold samples."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    if not all(-x.ndim <= i < x.ndim for i in given) or not given:
        raise ValueError(f"axis must name axes of an array of shape {x.shape}; got {axis}")
    axes = tuple(i % x.ndim for i in given)
    if any(x.shape[i] == 0 for i in axes):
        raise ValueError(f"axis must hold at least one sample; got shape {x.shape}, axis {axis}")
    return axes


def batch_statistics(
    x: Float[Array, "*batch c"],
    *,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> BatchStatistics:
    """Mean and biased variance of each feature over all axes but the last.

    One pass over the data, shifted by a sample of it, so that a mean of 10⁴ at standard deviation
    1 keeps six digits of the variance in float32. The result is in at least float32, whatever the
    dtype of `x`.

    Args:
      x: Samples on the leading axes, features on the last.
      where: Which samples count: of the shape of the leading axes, or broadcastable to `x` with a
        last axis of 1. What `x` holds elsewhere, NaN included, has no influence.
      axis_name: Mapped axis or axes (vmap, shard_map) over which the samples are spread. The
        result is that of the union, and an empty shard adds nothing.
      axis_index_groups: Groups of indices along `axis_name`, each with statistics of its own, as
        in `jax.lax.psum`.

    Raises:
      ValueError: `x` has no features or no leading axis, or `where` has another shape.

    Example:
      >>> stats = batch_statistics(jnp.array([[1.0, 5.0], [3.0, 5.0]]))
      >>> print(stats.mean, stats.var, stats.count)
      [2. 5.] [1. 0.] 2.0
    """
    keep = None if where is None else sample_mask(x, where)
    shards = Shards(axis_name, axis_index_groups)
    h, shift = shifted(x, keep, shards)
    offset, var, count = mean_and_variance(shards.total(sums(h, keep, tuple(range(x.ndim - 1)))))
    return BatchStatistics(shift + offset, var, count)


class Shards(NamedTuple):
    """Mapped axes over which a batch is spread; none for a batch that lies in one place."""

    axis_name: AxisName | None
    axis_index_groups: Sequence[Sequence[int]] | None = None

    def total(self, sums: Tree) -> Tree:
        """Sums over all shards, exact because every shard's are about the same shift."""
        if self.axis_name is None:
            return sums
        return jax.lax.psum(sums, self.axis_name, axis_index_groups=self.axis_index_groups)

    def largest(self, x: Array) -> Array:
        if self.axis_name is None:
            return x
        return jax.lax.pmax(x, self.axis_name, axis_index_groups=self.axis_index_groups)


class Sums(NamedTuple):
    """Σ h and Σ h² of each feature, and how many entries were summed."""

    first: Float[Array, "*rest c"]
    second: Float[Array, "*rest c"]
    count: Float[Array, "*rest"]  # pyright: ignore[reportIncompatibleMethodOverride]


def shifted(
    x: Float[Array, "*batch c"], keep: Bool[Array, "*batch"] | None, shards: Shards
) -> tuple[Float[Array, "*batch c"], Float[Array, " c"]]:
    """x − shift in at least float32, and the shift: a sample that counts, the same on all shards.

    Sums about a sample keep the digits that sums about zero lose to a large mean.
    """
    check_features(x)
    h = widen(x)
    rows = jax.lax.stop_gradient(h).reshape(-1, x.shape[-1])
    if len(rows) == 0:
        first, counts = jnp.zeros(x.shape[-1], h.dtype), jnp.zeros((), bool)
    elif keep is None:
        first, counts = rows[0], jnp.ones((), bool)
    else:
        first, counts = rows[jnp.argmax(keep)], keep.any()
    shift = shards.largest(jnp.where(counts, first, -math.inf))
    shift = jnp.where(shift == -math.inf, 0, shift)  # no sample at all
    return h - channels(shift, h), shift


def check_features(x: Array) -> None:
    if x.ndim < 2 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (samples, ..., features); got {x.shape}")


def sums(
    h: Float[Array, "*batch c"], keep: Bool[Array, "*batch"] | None, axes: tuple[int, ...]
) -> Sums:
    """Σ h and Σ h² over `axes` of the entries to `keep`.

    Each sum is kept: XLA would otherwise turn a sum of these sums into one more pass over `h`.
    """
    shape = tuple(n for i, n in enumerate(h.shape[:-1]) if i not in axes)
    if keep is None:
        count = jnp.full(shape, math.prod(h.shape[i] for i in axes), h.dtype)
    else:
        h = jnp.where(keep[..., None], h, 0)
        count = keep.sum(axes).astype(h.dtype)
    return Sums(kept(h.sum(axes)), kept(jnp.square(h).sum(axes)), count)


def fenced(x: Array) -> Array:
    """`x`, and on the way back its cotangent, as an array that XLA computes once and keeps."""
    return jax.lax.optimization_barrier(x)


@jax.custom_jvp
def kept(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x`, and on the way back its cotangent, as arrays that XLA computes once: in any version.

    Where XLA's CPU back end takes fences down before it joins operations, it computes what comes
    back anew for every number of the data that reads it, unless that ends in a division. This one
    is by 1 or 2: XLA cannot know which, and no digits are lost.
    """
    return fenced(x)


@kept.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]):
    (x,), (d,) = primals, tangents
    divisor = 1 + (x > 0).astype(x.dtype)
    return kept(x), d / divisor * divisor


def mean_and_variance(total: Sums) -> tuple[Array, Array, Array]:
    """Mean and biased variance of what was summed, 0 where nothing was, and its count."""
    divisor = jnp.maximum(total.count, 1)
    mean = total.first / divisor
    return mean, jnp.maximum(total.second / divisor - jnp.square(mean), 0), total.count


def bessel(count: Float[Array, "*shape"], *, eps: float = 0.0) -> Float[Array, "*shape"]:
    """n / (n − 1 − eps), which makes the biased variance of n samples unbiased (eps 0).

    The unitization paper's code corrects by it with its eps, 10⁻³, in training as well. Where
    n ≤ 1 + eps there is nothing to correct, and the factor is 1.

    Example:
      >>> print(bessel(jnp.array([1.0, 2.0, 5.0])))
      [1.   2.   1.25]
    """
    degrees = count - (1 + eps)
    return jnp.where(degrees > 0, count / jnp.where(degrees > 0, degrees, 1), 1)


def channels(parameter: Float[Array, " c"], x: Array) -> Array:
    """`parameter` shaped to act along the last axis of `x`."""
    return parameter.reshape([1] * (x.ndim - 1) + [-1])


def sample_mask(x: Array, where: Array) -> Bool[Array, "*batch"]:
    """`where` as one boolean for every sample, that is every entry of `x` but its last axis."""
    samples = where[..., 0] if where.ndim == x.ndim and where.shape[-1] == 1 else where
    if samples.ndim != x.ndim - 1 or any(
        m not in (1, n) for m, n in zip(samples.shape, x.shape[:-1], strict=True)
    ):
        raise ValueError(
            f"where must broadcast to the samples of x, shape {x.shape[:-1]}, or have a last axis "
            f"of 1 more; got {where.shape}"
        )
    return jnp.broadcast_to(samples.astype(bool), x.shape[:-1])


def merge_statistics(a: BatchStatistics, b: BatchStatistics) -> BatchStatistics:
    """Statistics of the union of two sets of samples, Chan, Golub and LeVeque (1979).

    An empty set (count 0) leaves the other unchanged; two empty sets give an empty one.

    Example:
      >>> x = jnp.array([[1.0], [2.0], [6.0]])
      >>> merged = merge_statistics(batch_statistics(x[:1]), batch_statistics(x[1:]))
      >>> print(merged.mean, merged.count)
      [3.] 3.0
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    delta = b.mean - a.mean
    var = (1 - share) * a.var + share * b.var + share * (1 - share) * jnp.square(delta)
    return BatchStatistics(
        jnp.where(a.count > 0, a.mean + share * delta, b.mean),
        jnp.where(a.count > 0, var, b.var),
        count,
    )
