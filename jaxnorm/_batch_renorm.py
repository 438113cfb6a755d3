"""Batch renormalization, a batch norm with similar outputs in training and in inference.

Shapes, dtypes, and the use of `statistics` are the same as for `batch_norm`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import PerChannel, by_group, own_or_given, per_channel
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
)
from jaxnorm.internal import check_eps, check_numeric, check_range, is_traced

Bound = Number | Float[Array, ""]


def batch_renorm(
    x: Float[Array, "n *spatial c"],
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
    statistics: BatchStatistics | None = None,
    *,
    running: BatchStatistics | None = None,
    r_max: Bound = 3.0,
    d_max: Bound = 5.0,
    eps: float = 1e-5,
    correction: Correction | None = None,
    groups: int = 1,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
    """Batch renormalization, Ioffe (2017), Algorithm 1: scale (r (x − μ) / σ + d) + bias.

    Here μ and μ′ are the mean of the batch and the running mean. With the biased variance v of the
    batch, σ is √(v + eps). With the running variance v′, σ′ is √(v′ + eps). The factor r is σ/σ′,
    clipped to [1/r_max, r_max]. The summand d is (μ − μ′)/σ′, clipped to [−d_max, d_max]. Gradients
    treat r and d as constants. If neither r nor d is clipped, the result equals the result in
    inference, scale (x − μ′)/σ′ + bias. But the gradient with respect to `x` is r times the
    gradient of batch norm. With `r_max` 1 and `d_max` 0, or without `running`, the layer is batch
    norm. The paper begins with `r_max` 1 and `d_max` 0, and ends with `r_max` 3 and `d_max` 5. In
    inference the layer is `batch_norm`. If Σ (x − μ)² exceeds the largest float, 3·10³⁸, the result
    is NaN.

    Args:
      x: The batch, with samples on the first axis and channels on the last axis.
      scale: The factor γ, one number or one number per channel, by default 1.
      bias: The summand β, one number or one number per channel, by default 0.
      statistics: The statistics to use in inference. In training, leave `statistics` out: the
        statistics of `x` are used.
      running: The running statistics before this batch, from which μ′ and σ′ are computed. The
        gradient with respect to the running statistics is zero.
      r_max: The upper limit of the factor r, at least 1; a number, or a traced number from a
        schedule.
      d_max: The upper limit of the absolute summand |d|, at least 0; a number, or a traced number
        from a schedule.
      eps: The number added to the variance of the batch and to the running variance.
      correction: A function such as `bessel`, which maps the number of averaged elements to a
        factor that multiplies the variance in training.
      groups: The number of ghost batches, as in `batch_norm`; each ghost batch has its own r and d.
      where: A mask of the samples that enter the statistics, as in `batch_statistics`. Samples
        outside the mask are normalized too.
      axis_name: The mapped axes (of vmap or shard_map) over which the batch is distributed.
      axis_index_groups: Groups of indices along `axis_name`, as in `batch_statistics`.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: The shape of an argument does not fit `x`, `r_max` is below 1, `d_max` or `eps` is
        negative, or `groups` does not divide the batch.

    Example:
      >>> running = BatchStatistics(jnp.array([1.0]), jnp.array([4.0]), jnp.array(1.0))
      >>> y, _ = batch_renorm(jnp.array([[1.0], [3.0]]), running=running, eps=0.0)
      >>> print(y.ravel())  # as in inference: (x - 1) / 2
      [0. 1.]
      >>> y, _ = batch_renorm(jnp.array([[1.0], [3.0]]), running=running, r_max=1, d_max=0, eps=0.0)
      >>> print(y.ravel())
      [-1.  1.]
    """
    check_features(x)
    eps = check_eps(eps)
    check_limits(r_max, d_max)
    if running is not None:
        check_statistics(running, "running")
    scale = per_channel("scale", 1 if scale is None else scale, x)
    bias = per_channel("bias", 0 if bias is None else bias, x)
    reduction = Reduction(axis_name, axis_index_groups, correction)

    def normalize(
        x: Float[Array, "n *spatial c"], keep: Keep
    ) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
        batch = own_or_given(x, keep, statistics, reduction)
        gain, offset = scale * jax.lax.rsqrt(batch.var + eps), bias
        if statistics is None and running is not None:
            r, d = _corrections(batch, running, x, eps, r_max, d_max)
            gain, offset = gain * r, bias + scale * d
        y = channels(gain, x) * batch.h + channels(offset - gain * batch.mean, x)
        return y.astype(jnp.result_type(x)), batch.statistics

    return by_group(normalize, x, where, groups if statistics is None else 1)


def check_limits(r_max: Bound, d_max: Bound) -> None:
    """Raise unless `r_max` is at least 1 and `d_max` at least 0; under `jit`, check only types."""
    check_range(d_max, "d_max")
    check_numeric(r_max, "r_max")
    if not is_traced(r_max) and not float(r_max) >= 1:
        raise ValueError(f"r_max must be at least 1; got {r_max}")


def _corrections(
    batch: Shifted, running: BatchStatistics, x: Array, eps: float, r_max: Bound, d_max: Bound
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """The factor r and the summand d of Algorithm 1, constant in gradients."""
    mean = per_channel("running.mean", running.mean, x)
    inverse = jax.lax.rsqrt(per_channel("running.var", running.var, x) + eps)
    r_max, d_max = (jnp.asarray(bound, inverse.dtype) for bound in (r_max, d_max))
    r = jnp.clip(jnp.sqrt(batch.var + eps) * inverse, 1 / r_max, r_max)
    # `batch.mean` is the batch's mean μ minus the shift, so a large mean does not increase the
    # rounding error of μ − μ′.
    d = jnp.clip((batch.mean + (batch.shift - mean)) * inverse, -d_max, d_max)
    return jax.lax.stop_gradient((r, d))
