"""Batch normalization for training and inference, with or without recentering and rescaling.

Inputs have the shape (n, c) or (n, ..., c), with samples first, any number of spatial axes, and
channels last. In training, a batch is normalized by its own statistics. In inference, a batch is
normalized by the argument `statistics`. The result has the dtype of `x`; statistics, sums and
scales are in at least float32.

The code computes y = gain (x − shift) + offset, with one gain and one offset for each channel. The
subtracted shift is near the mean of the batch, so a large mean or outliers cost little precision.
If the sum of squared deviations of a batch exceeds the largest float, 3·10³⁸, the variance and the
result are NaN.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxnorm._statistics import (
    AxisName,
    BatchStatistics,
    Correction,
    Keep,
    Number,
    Reduction,
    Shifted,
    channels,
    check_features,
    check_statistics,
    sample_mask,
    shift_batch,
)
from jaxnorm.internal import (
    check_array,
    check_eps,
    check_fits,
    check_flags,
    check_whole,
    join_batch,
    promote_to_float32,
    split_batch,
)

PerChannel = Number | Float[Array, ""] | Float[Array, " c"]


def batch_norm(
    x: Float[Array, "n *spatial c"],
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
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
    """Batch norm, Ioffe and Szegedy (2015): scale (x − μ) / √(σ² + eps) + bias.

    The variance σ² is biased: it is the mean of the squared deviations from μ.

    In training with recentering and a positive `eps`, a constant channel becomes `bias`. If no
    sample is in the mask `where`, the batch is normalized by mean 0 and variance 0. If `eps` is 0,
    rescaling by a variance of 0 gives NaN in training, and NaN or infinity in inference.

    Args:
      x: The batch, with samples on the first axis and channels on the last axis.
      scale: The factor γ, one number or one number per channel, by default 1.
      bias: The summand β, one number or one number per channel, by default 0.
      statistics: The statistics to use in inference. In training, leave `statistics` out: the
        statistics of `x` are used.
      eps: The number added to the variance.
      recentering: Whether to subtract μ. Without recentering, the layer is `rescale`, and σ² is
        still the variance about μ.
      rescaling: Whether to divide by the standard deviation. Without rescaling, the layer is
        `recenter`.
      correction: A function such as `bessel`, which maps the number of averaged elements to a
        factor that multiplies the variance in training. The correction does not change the returned
        statistics.
      groups: The number of ghost batches. Ghost batches are consecutive parts of the batch, and
        each ghost batch is normalized by its own statistics. In training with several groups, the
        returned statistics have an additional leading axis. In inference, `groups` has no effect.
      where: A mask of the samples that enter the statistics, as in `batch_statistics`. Samples
        outside the mask are normalized too.
      axis_name: The mapped axes (of vmap or shard_map) over which the batch is distributed.
      axis_index_groups: Groups of indices along `axis_name`, as in `batch_statistics`.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: The shape of an argument does not fit `x`, `eps` is negative, or `groups` does not
        divide the batch.

    Example:
      >>> y, statistics = batch_norm(jnp.array([[1.0], [3.0]]), eps=0.0)
      >>> print(y.ravel(), statistics.mean)
      [-1.  1.] [2.]
    """
    check_features(x)
    check_flags(recentering=recentering, rescaling=rescaling)
    eps = check_eps(eps)
    scale = per_channel("scale", 1 if scale is None else scale, x)
    bias = per_channel("bias", 0 if bias is None else bias, x)
    reduction = Reduction(axis_name, axis_index_groups, correction)

    def normalize(
        x: Float[Array, "n *spatial c"], keep: Keep
    ) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
        batch = own_or_given(x, keep, statistics, reduction)
        gain = jax.lax.rsqrt(batch.var + eps) if rescaling else jnp.ones_like(batch.var)
        gain = gain * scale
        # Here h is x − shift. With recentering, the output is gain · (h − mean of h) + bias.
        # Without recentering, the output is gain · x + bias = gain · h + gain · shift + bias.
        offset = gain * (-batch.mean if recentering else batch.shift) + bias
        y = channels(gain, x) * batch.h + channels(offset, x)
        return y.astype(jnp.result_type(x)), batch.statistics

    return by_group(normalize, x, where, groups if statistics is None else 1)


def own_or_given(
    x: Float[Array, "n *spatial c"],
    keep: Keep,
    statistics: BatchStatistics | None,
    reduction: Reduction,
) -> Shifted:
    """`x` minus a shift, and the statistics that normalize `x`.

    In inference, `statistics` normalize `x`. In training, `statistics` is None, and the statistics
    of `x` normalize `x`.
    """
    if statistics is None:
        return shift_batch(x, keep, reduction)
    check_statistics(statistics, "statistics")
    mean = per_channel("statistics.mean", statistics.mean, x)
    var = per_channel("statistics.var", statistics.var, x)
    given = BatchStatistics(mean, var, jnp.asarray(statistics.count, mean.dtype))
    h = promote_to_float32(x) - channels(mean, x)
    return Shifted(h, None, mean, jnp.zeros_like(mean), var, given)


def per_channel(name: str, value: PerChannel, x: Array) -> Float[Array, " c"]:
    """`value` as one number for each channel of `x`, in at least float32."""
    if isinstance(value, int | float):
        check_fits(value, name)
    else:
        check_array(value, name)
        if not jnp.isrealobj(value):
            raise TypeError(f"{name} must be real; got {value.dtype}")
    value = jnp.asarray(value, np.promote_types(jnp.result_type(x), np.float32))
    if value.shape not in ((), x.shape[-1:]):
        raise ValueError(
            f"{name} must be a number or have shape {x.shape[-1:]}, one number per channel; "
            f"got shape {value.shape}"
        )
    return jnp.broadcast_to(value, x.shape[-1:])


def by_group(
    normalize: Callable[[Array, Array | None], tuple[Array, BatchStatistics]],
    x: Array,
    where: Array | None,
    groups: int,
) -> tuple[Array, BatchStatistics]:
    """Apply `normalize` to each of the `groups` parts of the batch and of the mask."""
    check_whole(groups=groups)
    if groups < 1 or x.shape[0] % groups:
        raise ValueError(f"groups must divide the number of samples, {x.shape[0]}; got {groups}")
    keep = None if where is None else sample_mask(x, where)
    if groups == 1:
        return normalize(x, keep)
    parts = (split_batch(x, groups), None if keep is None else split_batch(keep, groups))
    y, statistics = jax.vmap(normalize)(*parts)
    return join_batch(y, x), statistics
