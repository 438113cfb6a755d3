"""Running statistics of NNX and Linen modules, and normalization by running or batch statistics."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._statistics import BatchStatistics, Correction, correction_factor, sample_mask
from jaxnorm.internal import check_array, check_flags, check_range, check_whole, promote_to

Normalize = Callable[..., tuple[Array, BatchStatistics]]


class Running(NamedTuple):
    """Exponential averages of the means and corrected variances of batches, in float32."""

    mean: Float[Array, " c"]
    var: Float[Array, " c"]

    def update_running(
        self, batch: BatchStatistics, momentum: float, correction: Correction
    ) -> "Running":
        """The running statistics after one further batch, or after all ghost batches of one batch.

        An empty batch does not change the running statistics.
        """
        check_range(momentum, "momentum", 1.0)
        count = jnp.atleast_1d(batch.count)
        share = count / jnp.maximum(count.sum(), 1)
        factor = correction_factor(correction, count, "running_correction")
        corrected = jnp.atleast_2d(batch.var) * factor
        mean, var = (
            jnp.einsum("g,gc->c", share, part, precision="highest")
            for part in (jnp.atleast_2d(batch.mean), corrected)
        )
        weight = jnp.where(count.sum() > 0, 1 - momentum, 0.0).astype(self.mean.dtype)

        def update(old: Array, new: Array) -> Array:
            return old + weight * (jax.lax.stop_gradient(new).astype(old.dtype) - old)

        return Running(update(self.mean, mean), update(self.var, var))


def updates(use_running_average: bool, *choices: bool | None) -> bool:
    """Whether to update running statistics, given by the first of `choices` that is not None.

    If all `choices` are None, running statistics are updated only in training.
    """
    check_flags(use_running_average=use_running_average)
    return next((choice for choice in choices if choice is not None), not use_running_average)


def check_axis(x: Any, axis: int) -> None:
    """Raise unless `x` is an array with features along `axis`, which is not the first axis."""
    check_array(x, "x")
    check_whole(axis=axis)
    if not -x.ndim <= axis < x.ndim or axis % x.ndim == 0:
        raise ValueError(
            f"axis must name an axis of x, shape {x.shape}, other than the first; got {axis}"
        )


def mask_of_samples(mask: Array, x: Array, axis: int) -> Bool[Array, "*batch"]:
    """The mask of a layer as booleans, in the shape of `x` without `axis`."""
    check_array(mask, "mask")
    of_last = jnp.moveaxis(mask, axis, -1) if mask.ndim == x.ndim else mask
    return sample_mask(jnp.moveaxis(x, axis, -1), of_last, "mask")


def apply(
    normalize: Normalize,
    x: Array,
    running: Running,
    mask: Array | None,
    *,
    use: bool,
    update: bool,
    axis: int,
    dtype: Any,
) -> tuple[Array, BatchStatistics | None]:
    """The normalized `x`, and the statistics of `x` (None if `update` is false).

    If `use` is true, `x` is normalized by `running`, and otherwise by the statistics of `x`.
    """
    check_axis(x, axis)
    check_flags(update_running_average=update)
    features = running.mean.shape[0]
    if x.shape[axis] != features:
        raise ValueError(f"axis {axis} of x must hold {features} features; got shape {x.shape}")
    last = jnp.moveaxis(promote_to(x, dtype), axis, -1)
    if mask is not None:
        mask = mask_of_samples(mask, x, axis)
    given = BatchStatistics(running.mean, running.var, jnp.ones((), running.mean.dtype))
    y, batch = normalize(last, statistics=given if use else None, where=mask)
    y = jnp.moveaxis(y, -1, axis).astype(jnp.result_type(x) if dtype is None else dtype)
    if use and update:
        _, batch = normalize(last, statistics=None, where=mask)
    return y, batch if update else None
