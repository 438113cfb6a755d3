"""Batch norm and unitized batch norm as modules: parameters and state around the functions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import batch_norm
from jaxnorm._running import Normalize, Running, apply
from jaxnorm._statistics import AxisName, Correction, bessel
from jaxnorm._unitized_batch_norm import Factor, interpolated, unitized_batch_norm


class RunningNorm(nnx.Module):
    """Scale, bias and running statistics, and the choice between training and inference."""

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
        correction: Correction | None = None,
        running_correction: Correction = bessel,
        groups: int = 1,
        rngs: nnx.Rngs,
        bias_metadata: Mapping[str, Any] | None = None,
        scale_metadata: Mapping[str, Any] | None = None,
    ):
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1; got {num_features}")
        if groups < 1:
            raise ValueError(f"groups must be at least 1; got {groups}")
        shape = (num_features,)

        def parameter(init: Initializer, metadata: Mapping[str, Any] | None) -> nnx.Param:
            return nnx.Param(init(rngs.params(), shape, param_dtype), **(metadata or {}))

        self.scale = parameter(scale_init, scale_metadata) if use_scale else None
        self.bias = parameter(bias_init, bias_metadata) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(shape, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(shape, jnp.float32))
        self.num_features = num_features
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.correction = correction
        self.running_correction = running_correction
        self.groups = groups

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Choose inference or training; called by `nnx.view`."""
        if use_running_average is not None:
            self.use_running_average = use_running_average

    def _apply(
        self, normalize: Normalize, x: Array, use_running_average: bool | None, mask: Array | None
    ) -> Array:
        inference = self.use_running_average if use_running_average is None else use_running_average
        if inference is None:
            raise ValueError("use_running_average must be given at construction or call; got None")

        with_parameters = partial(
            normalize,
            scale=None if self.scale is None else self.scale[...],
            bias=None if self.bias is None else self.bias[...],
            eps=self.epsilon,
            correction=self.correction,
            groups=self.groups,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
        )
        y, running = apply(
            with_parameters,
            x,
            Running(self.mean[...], self.var[...]),
            mask,
            inference=inference,
            axis=self.axis,
            dtype=self.dtype,
            momentum=self.momentum,
            correction=self.running_correction,
        )
        if not inference:
            # Not by [...], with which JAX before 0.12 walks all that was traced, at every layer.
            self.mean.set_value(running.mean)
            self.var.set_value(running.var)
        return y


class BatchNorm(RunningNorm):
    """`batch_norm` with learned `scale` and `bias` and running statistics.

    Takes the place of `flax.nnx.BatchNorm`, whose arguments it has with their meaning; the result
    is by default of the input's dtype. Statistics are in at least float32, and running ones in
    float32, in training and inference. They are exponential averages of the batches' means and
    unbiased variances; a batch without any counted sample leaves them as they are.

    Args:
      num_features: Channels of the input, along `axis`.
      use_running_average: Inference instead of training; `model.eval()` and `model.train()` set
        it, and it may be given at call. None: it must be.
      axis: Of the features, not the first.
      momentum: Weight of the old running statistics.
      epsilon: Added to the variance.
      dtype: Of the result, by default the input's.
      param_dtype: Of scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and multiplied by.
      bias_init: Initializer of bias.
      scale_init: Initializer of scale.
      axis_name: Mapped axes over which the batch is spread.
      axis_index_groups: Groups of indices along `axis_name`, each a batch of its own.
      recentering: Whether the mean is taken off.
      rescaling: Whether the standard deviation divides.
      correction: Factor of the variance in training, as in `batch_norm`.
      running_correction: Factor of the variance that the running one follows.
      groups: Ghost batches in training, as in `batch_norm`; the running statistics follow their
        average.
      rngs: Keys for the initializers.
      bias_metadata: Of the bias's variable, such as its sharding.
      scale_metadata: Of the scale's variable.

    Example:
      >>> layer = BatchNorm(3, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.ones((4, 8, 8, 3))).shape)
      (4, 8, 8, 3)
    """

    def __init__(
        self,
        num_features: int,
        *,
        recentering: bool = True,
        rescaling: bool = True,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        super().__init__(num_features, rngs=rngs, **options)
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

    Everything that `BatchNorm` takes but `recentering` and `rescaling`, and

    Args:
      alpha_init: Initializer of alpha, one per channel: 0, batch norm, by default.
      alpha_metadata: Of alpha's variable.
      pixels: Line 9's constant; by default the number of pixels of the input.
      per_pixel: The norm of each pixel, Figure 1(b), instead of each sample's.
      factor: `interpolated`, Eq. 10; or `bounded`, Eq. 9, or any function of alpha and s + eps.

    Example:
      >>> layer = UnitizedBatchNorm(3, alpha_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
      >>> print(layer.alpha[...])
      [1. 1. 1.]
    """

    def __init__(
        self,
        num_features: int,
        *,
        alpha_init: Initializer = nnx.initializers.zeros,
        alpha_metadata: Mapping[str, Any] | None = None,
        pixels: int | float | None = None,
        per_pixel: bool = False,
        factor: Factor = interpolated,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        super().__init__(num_features, param_dtype=param_dtype, rngs=rngs, **options)
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
