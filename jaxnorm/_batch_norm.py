"""Batch normalization, in training and in inference, with any of its parts.

Inputs are (n, c) or (n, ..., c): samples first, any number of spatial axes, channels last. Without
`statistics` the batch is normalized by its own (training), with them by the given ones
(inference). The result has the dtype of `x`; statistics, sums and scales are in at least float32.

The layer is y = gain (x − shift) + offset with one gain and offset a channel: everything between
the sums over the data and the result happens on small arrays, and the data are read once for each
sum and once for the result. Differentiated as it stands, that is the fused backward pass too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._statistics import (
    AxisName,
    BatchStatistics,
    Shards,
    Sums,
    channels,
    check_features,
    fenced,
    mean_and_variance,
    sample_mask,
    shifted,
    sums,
    widen,
)

Correction = Callable[[Array], Array]


def batch_norm(
    x: Float[Array, "n *spatial c"],
    scale: Float[Array, " c"] | None = None,
    bias: Float[Array, " c"] | None = None,
    statistics: BatchStatistics | None = None,
    *,
    eps: float = 1e-5,
    recentering: bool = True,
    rescaling: bool = True,
    correction: Correction | None = None,
    groups: int = 1,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
    """scale (x − μ) / √(σ² + eps) + bias, Ioffe and Szegedy (2015), with the biased variance σ².

    A constant channel becomes `bias`; a batch without any counted sample is normalized by mean 0
    and variance 0, without NaN.

    Args:
      x: Samples first, channels last.
      scale: γ, by default 1.
      bias: β, by default 0.
      statistics: Given in inference; in training those of `x` are taken.
      eps: Added to the variance.
      recentering: Without it μ is not taken off: `rescale`, with the variance still about μ.
      rescaling: Without it nothing is divided: `recenter`.
      correction: Factor of the variance in training, a function of the number of entries that
        were averaged, such as `bessel`. Returned statistics are not corrected.
      groups: Parts of the batch, each normalized by its own statistics (ghost batches); samples
        stay in order. The returned statistics have one more, leading axis if there are several.
      where: Samples that count in the statistics, as in `batch_statistics`. All are normalized.
      axis_name: Mapped axes over which the batch, or each group of it, is spread.
      axis_index_groups: As in `batch_statistics`.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: A shape does not fit, or `groups` does not divide the batch.

    Example:
      >>> y, statistics = batch_norm(jnp.array([[1.0], [3.0]]), eps=0.0)
      >>> print(y.ravel(), statistics.mean)
      [-1.  1.] [2.]
    """
    check_shapes(x, {"scale": scale, "bias": bias}, statistics)
    if groups != 1 and statistics is None:
        normalize = partial(
            batch_norm,
            eps=eps,
            recentering=recentering,
            rescaling=rescaling,
            correction=correction,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
        )
        return by_group(lambda x, keep: normalize(x, scale, bias, where=keep), x, where, groups)
    keep = None if where is None else sample_mask(x, where)
    place = place_of(x, keep, statistics, Shards(axis_name, axis_index_groups), correction)
    gain = jax.lax.rsqrt(place.var + eps) if rescaling else jnp.ones_like(place.var)
    if scale is not None:
        gain = gain * scale.astype(gain.dtype)
    # y = gain (h − mean of h) + bias, or without recentering gain (h + shift) + bias
    offset = gain * (-place.mean if recentering else place.shift)
    if bias is not None:
        offset = offset + bias.astype(gain.dtype)
    y = channels(fenced(gain), x) * place.h + channels(fenced(offset), x)
    return y.astype(x.dtype), place.statistics


class Place(NamedTuple):
    """A batch less a shift, its sums by sample, and where it lies relative to that shift."""

    h: Float[Array, "n *spatial c"]
    by_sample: Sums | None  # none in inference
    shift: Float[Array, " c"]
    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    statistics: BatchStatistics


def place_of(
    x: Array,
    keep: Array | None,
    statistics: BatchStatistics | None,
    shards: Shards,
    correction: Correction | None,
) -> Place:
    spatial = tuple(range(1, x.ndim - 1))
    if statistics is not None:
        stats = given(statistics, x)
        h = widen(x) - channels(stats.mean, x)
        return Place(h, None, stats.mean, jnp.zeros_like(stats.mean), stats.var, stats)
    h, shift = shifted(x, keep, shards)
    by_sample = sums(h, keep, spatial)
    # Vectors are their own sums: those are taken again, from the data.
    local = Sums(*(part.sum(0) for part in by_sample)) if spatial else sums(h, keep, (0,))
    mean, var, count = mean_and_variance(shards.total(local))
    corrected = var if correction is None else var * correction(count)
    stats = BatchStatistics(shift + mean, var, count)
    return Place(h, by_sample, shift, mean, corrected, stats)


def given(statistics: BatchStatistics, x: Array) -> BatchStatistics:
    """`statistics` in the precision in which `x` is summed."""
    return BatchStatistics(*(part.astype(widen(x).dtype) for part in statistics))


def by_group(
    normalize: Callable[[Array, Array | None], tuple[Array, BatchStatistics]],
    x: Array,
    where: Array | None,
    groups: int,
) -> tuple[Array, BatchStatistics]:
    """`normalize` of each of the `groups` parts of the batch, and of its mask."""
    if groups < 1 or x.shape[0] % groups:
        raise ValueError(f"groups must divide the batch of {x.shape[0]}; got {groups}")
    keep = None if where is None else sample_mask(x, where)

    def split(x: Array) -> Array:
        return x.reshape(groups, x.shape[0] // groups, *x.shape[1:])

    parts = (split(x), None if keep is None else split(keep))
    y, statistics = jax.vmap(normalize, (0, None if keep is None else 0))(*parts)
    return y.reshape(x.shape), statistics


def check_shapes(
    x: Array, parameters: dict[str, Array | None], statistics: BatchStatistics | None
) -> None:
    check_features(x)
    if statistics is not None:
        own = {"statistics.mean": statistics.mean, "statistics.var": statistics.var}
        parameters = parameters | own
    for name, value in parameters.items():
        if value is not None and value.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape {x.shape[-1:]}, one number per channel; got {value.shape}"
            )
