"""Batch norm and unitized batch norm as modules: parameters and state around the functions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import batch_norm
from jaxnorm._statistics import AxisName, Correction, bessel
from jaxnorm._unitized_batch_norm import Factor, interpolated, unitized_batch_norm
from jaxnorm.nnx._running_norm import RunningNorm


class BatchNorm(RunningNorm):
    """`batch_norm` with learned `scale` and `bias` and running statistics.

    Takes the place of `flax.nnx.BatchNorm`, whose arguments it has with their meaning; the result
    is by default of the input's dtype. Statistics are in at least float32, and running ones in
    float32, in training and inference. They are exponential averages of the batches' means and
    unbiased variances; a batch without any counted sample leaves them as they are.

    Args:
      num_features: Channels of the input, along `axis`.
      use_running_average: Inference instead of training; `model.eval()` and `model.train()` set
        it, and a call may give it. None: the call must give it.
      axis: The feature axis, which is not the first.
      momentum: Weight of the old running statistics.
      epsilon: Added to the variance.
      dtype: The dtype of the result, by default the input's.
      param_dtype: The dtype of scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and multiplied by.
      bias_init: Initializer of bias.
      scale_init: Initializer of scale.
      axis_name: Mapped axes over which the batch is spread.
      axis_index_groups: Groups of indices along `axis_name`, each a batch of its own.
      recentering: Whether the mean is subtracted.
      rescaling: Whether the standard deviation divides.
      correction: Factor of the variance in training, as in `batch_norm`.
      running_correction: Factor of the variance that enters the running variance.
      groups: Ghost batches in training, as in `batch_norm`; their average enters the running
        statistics.
      rngs: Keys for the initializers.
      bias_metadata: Metadata of the bias's variable, such as its sharding.
      scale_metadata: Metadata of the scale's variable.

    Example:
      >>> layer = BatchNorm(3, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.ones((4, 8, 8, 3))).shape)
      (4, 8, 8, 3)
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = nnx.initializers.zeros,
        scale_init: Initializer = nnx.initializers.ones,
        axis_name: AxisName | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        recentering: bool = True,
        rescaling: bool = True,
        correction: Correction | None = None,
        running_correction: Correction = bessel,
        groups: int = 1,
        rngs: nnx.Rngs,
        bias_metadata: Mapping[str, Any] | None = None,
        scale_metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__(
            num_features,
            use_running_average=use_running_average,
            axis=axis,
            momentum=momentum,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_bias=use_bias,
            use_scale=use_scale,
            bias_init=bias_init,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            correction=correction,
            running_correction=running_correction,
            groups=groups,
            rngs=rngs,
            bias_metadata=bias_metadata,
            scale_metadata=scale_metadata,
        )
        self.recentering = recentering
        self.rescaling = rescaling

    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        normalize = partial(batch_norm, recentering=self.recentering, rescaling=self.rescaling)
        return self._apply(normalize, x, use_running_average, mask)


class UnitizedBatchNorm(RunningNorm):
    """`unitized_batch_norm` with learned `alpha`, `scale` and `bias` and running statistics.

    Args:
      num_features: Channels of the input, along `axis`.
      use_running_average: Inference instead of training; `model.eval()` and `model.train()` set
        it, and a call may give it. None: the call must give it.
      axis: The feature axis, which is not the first.
      momentum: Weight of the old running statistics.
      epsilon: Added to the variance and to the squared norms.
      dtype: The dtype of the result, by default the input's.
      param_dtype: The dtype of alpha, scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and multiplied by.
      bias_init: Initializer of bias.
      scale_init: Initializer of scale.
      axis_name: Mapped axes over which the batch is spread.
      axis_index_groups: Groups of indices along `axis_name`, each a batch of its own.
      alpha_init: Initializer of alpha, one per channel: 0, batch norm, by default.
      alpha_metadata: Metadata of alpha's variable.
      pixels: Line 9's constant; by default the number of pixels of the input.
      per_pixel: The norm of each pixel, Figure 1(b), instead of each sample's.
      factor: `interpolated`, Eq. 10; or `bounded`, Eq. 9, or any function of alpha and s + eps.
      correction: Factor of the variance in training, as in `batch_norm`.
      running_correction: Factor of the variance that enters the running variance.
      groups: Ghost batches in training, as in `batch_norm`; their average enters the running
        statistics.
      rngs: Keys for the initializers.
      bias_metadata: Metadata of the bias's variable, such as its sharding.
      scale_metadata: Metadata of the scale's variable.

    Example:
      >>> layer = UnitizedBatchNorm(3, alpha_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
      >>> print(layer.alpha[...])
      [1. 1. 1.]
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = nnx.initializers.zeros,
        scale_init: Initializer = nnx.initializers.ones,
        axis_name: AxisName | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        alpha_init: Initializer = nnx.initializers.zeros,
        alpha_metadata: Mapping[str, Any] | None = None,
        pixels: int | float | None = None,
        per_pixel: bool = False,
        factor: Factor = interpolated,
        correction: Correction | None = None,
        running_correction: Correction = bessel,
        groups: int = 1,
        rngs: nnx.Rngs,
        bias_metadata: Mapping[str, Any] | None = None,
        scale_metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__(
            num_features,
            use_running_average=use_running_average,
            axis=axis,
            momentum=momentum,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_bias=use_bias,
            use_scale=use_scale,
            bias_init=bias_init,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            correction=correction,
            running_correction=running_correction,
            groups=groups,
            rngs=rngs,
            bias_metadata=bias_metadata,
            scale_metadata=scale_metadata,
        )
        if pixels is not None and not pixels > 0:
            raise ValueError(f"pixels must be positive; got {pixels}")
        alpha = alpha_init(rngs.params(), (num_features,), param_dtype)
        self.alpha = nnx.Param(alpha, **(alpha_metadata or {}))
        self.pixels = pixels
        self.per_pixel = per_pixel
        self.factor = factor

    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        normalize = partial(
            unitized_batch_norm,
            alpha=self.alpha[...],
            pixels=self.pixels,
            per_pixel=self.per_pixel,
            factor=self.factor,
        )
        return self._apply(normalize, x, use_running_average, mask)
