"""Flax Linen modules: the layers of `jaxnorm.nnx`, to the last bit, in the older interface.

Parameters are `scale`, `bias` and `alpha` in the collection "params", running statistics `mean`
and `var` in "batch_stats", which training must declare mutable, as for `flax.linen.BatchNorm`.
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from flax import linen
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import batch_norm
from jaxnorm._running import Normalize, Running, apply, updates
from jaxnorm._statistics import AxisName, Correction, bessel
from jaxnorm._unitized_batch_norm import Factor, interpolated, unitized_batch_norm
from jaxnorm.internal import check_eps, check_range


class _RunningNorm(linen.Module):
    """Scale, bias and running statistics, and the choice between training and inference."""

    use_running_average: bool | None = None
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = linen.initializers.zeros
    scale_init: Initializer = linen.initializers.ones
    axis_name: AxisName | None = None
    axis_index_groups: Sequence[Sequence[int]] | None = None
    correction: Correction | None = None
    running_correction: Correction = bessel
    groups: int = 1
    update_running_average: bool | None = None

    def _parameter(self, name: str, init: Initializer, x: Array) -> Array:
        return self.param(name, init, (x.shape[self.axis],), self.param_dtype)

    def _apply(
        self,
        normalize: Normalize,
        x: Array,
        use_running_average: bool | None,
        update_running_average: bool | None,
        mask: Array | None,
    ) -> Array:
        use = linen.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        check_eps(self.epsilon, "epsilon")
        check_range(self.momentum, "momentum", 1.0)
        update = updates(use, update_running_average, self.update_running_average)
        shape = (x.shape[self.axis],)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        running = Running(mean.value, var.value)
        scale = self._parameter("scale", self.scale_init, x) if self.use_scale else None
        bias = self._parameter("bias", self.bias_init, x) if self.use_bias else None

        with_parameters = partial(
            normalize,
            scale=scale,
            bias=bias,
            eps=self.epsilon,
            correction=self.correction,
            groups=self.groups,
            # While parameters are made there need not be a mapped axis.
            axis_name=None if self.is_initializing() else self.axis_name,
            axis_index_groups=self.axis_index_groups,
        )
        y, batch = apply(
            with_parameters,
            x,
            running,
            mask,
            use=use,
            update=update,
            axis=self.axis,
            dtype=self.dtype,
        )
        if batch is not None and not self.is_initializing():
            mean.value, var.value = running.updated(batch, self.momentum, self.running_correction)
        return y


class BatchNorm(_RunningNorm):
    """`jaxnorm.nnx.BatchNorm`, in the place of `flax.linen.BatchNorm`.

    Args:
      use_running_average: Inference instead of training; given here or at call.
      axis: The feature axis, which is not the first.
      momentum: Weight of the old running statistics, in [0, 1].
      epsilon: Added to the variance.
      dtype: The dtype of the result, by default the input's.
      param_dtype: The dtype of scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and multiplied by.
      bias_init: Initializer of bias.
      scale_init: Initializer of scale.
      axis_name: Mapped axes over which the batch is spread.
      axis_index_groups: Groups of indices along `axis_name`, each a batch of its own.
      correction: Factor of the variance in training, as in `batch_norm`.
      running_correction: Factor of the variance that enters the running variance.
      groups: Ghost batches in training, as in `batch_norm`; their average enters the running
        statistics.
      update_running_average: Whether the running statistics are updated; None: where they are not
        used. With True they may be used and updated, by the batch after it was normalized, and with
        False neither.
      recentering: Whether the mean is subtracted.
      rescaling: Whether the standard deviation divides.

    Example:
      >>> import jax
      >>> layer = BatchNorm(use_running_average=False)
      >>> x = jnp.array([[1.0], [3.0]])
      >>> variables = layer.init(jax.random.key(0), x)
      >>> y, updated = layer.apply(variables, x, mutable="batch_stats")
      >>> print(y.ravel(), updated["batch_stats"]["mean"])
      [-0.999995  0.999995] [0.02]
    """

    recentering: bool = True
    rescaling: bool = True

    @linen.compact
    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        update_running_average: bool | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        normalize = partial(batch_norm, recentering=self.recentering, rescaling=self.rescaling)
        return self._apply(normalize, x, use_running_average, update_running_average, mask)


class UnitizedBatchNorm(_RunningNorm):
    """`jaxnorm.nnx.UnitizedBatchNorm`, in the place of `flax.linen.BatchNorm`.

    Args:
      use_running_average: Inference instead of training; given here or at call.
      axis: The feature axis, which is not the first.
      momentum: Weight of the old running statistics, in [0, 1].
      epsilon: Added to the variance and to the squared norms.
      dtype: The dtype of the result, by default the input's.
      param_dtype: The dtype of alpha, scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and multiplied by.
      bias_init: Initializer of bias.
      scale_init: Initializer of scale.
      axis_name: Mapped axes over which the batch is spread.
      axis_index_groups: Groups of indices along `axis_name`, each a batch of its own.
      correction: Factor of the variance in training, as in `batch_norm`.
      running_correction: Factor of the variance that enters the running variance.
      groups: Ghost batches in training, as in `batch_norm`; their average enters the running
        statistics.
      update_running_average: Whether the running statistics are updated; None: where they are not
        used. With True they may be used and updated, by the batch after it was normalized, and with
        False neither.
      alpha_init: Initializer of alpha, one per channel: 0, batch norm, by default.
      pixels: Line 9's constant; by default the number of pixels of the input.
      per_pixel: The norm of each pixel, Figure 1(b), instead of each sample's.
      factor: `interpolated`, Eq. 10, by default; or `bounded`, Eq. 9, or a function of one's own.

    Example:
      >>> import jax
      >>> layer = UnitizedBatchNorm(use_running_average=True)
      >>> print(layer.init(jax.random.key(0), jnp.ones((2, 3)))["params"]["alpha"])
      [0. 0. 0.]
    """

    alpha_init: Initializer = linen.initializers.zeros
    pixels: int | float | None = None
    per_pixel: bool = False
    factor: Factor = interpolated

    @linen.compact
    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        update_running_average: bool | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        normalize = partial(
            unitized_batch_norm,
            alpha=self._parameter("alpha", self.alpha_init, x),
            pixels=self.pixels,
            per_pixel=self.per_pixel,
            factor=self.factor,
        )
        return self._apply(normalize, x, use_running_average, update_running_average, mask)
