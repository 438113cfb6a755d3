"""Batch norm, batch renorm and unitized batch norm as modules of Flax NNX."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import batch_norm
from jaxnorm._batch_renorm import batch_renorm, check_limits
from jaxnorm._running import Normalize, Running, apply, updates
from jaxnorm._statistics import AxisName, BatchStatistics, Correction, bessel
from jaxnorm._unitized_batch_norm import Factor, interpolated, unitized_batch_norm
from jaxnorm.internal import (
    check_dtype,
    check_flags,
    check_function,
    check_positive,
    check_range,
    check_whole,
    choose_eps,
)

Metadata = Mapping[str, Any] | None


def check_rngs(rngs: Any) -> None:
    """Raise `TypeError` unless `rngs` are random streams of NNX."""
    if not isinstance(rngs, nnx.Rngs):
        got = repr(rngs) if isinstance(rngs, int) else type(rngs).__name__
        raise TypeError(f"rngs must be nnx.Rngs, such as nnx.Rngs(0); got {got}")


@dataclass(eq=False, repr=False)
class Affine(nnx.Module):
    """A layer with one scale and one bias for each feature."""

    num_features: int
    _: KW_ONLY
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: InitVar[Initializer] = nnx.initializers.zeros
    scale_init: InitVar[Initializer] = nnx.initializers.ones
    rngs: InitVar[nnx.Rngs]
    bias_metadata: InitVar[Metadata] = None
    scale_metadata: InitVar[Metadata] = None

    def __post_init__(
        self,
        bias_init: Initializer,
        scale_init: Initializer,
        rngs: nnx.Rngs,
        bias_metadata: Metadata,
        scale_metadata: Metadata,
    ):
        check_whole(num_features=self.num_features)
        check_flags(use_bias=self.use_bias, use_scale=self.use_scale)
        check_dtype(self.param_dtype, "param_dtype")
        check_rngs(rngs)
        if self.dtype is not None:
            check_dtype(self.dtype, "dtype")
        if self.num_features < 1:
            raise ValueError(f"num_features must be at least 1; got {self.num_features}")
        self.scale = self._parameter(scale_init, rngs, scale_metadata) if self.use_scale else None
        self.bias = self._parameter(bias_init, rngs, bias_metadata) if self.use_bias else None

    def _parameter(
        self,
        init: Initializer,
        rngs: nnx.Rngs,
        metadata: Metadata,
        shape: tuple[int, ...] | None = None,
    ) -> nnx.Param:
        shape = (self.num_features,) if shape is None else shape
        check_function(init, "an initializer", "nnx.initializers.constant(0.5)")
        return nnx.Param(init(rngs.params(), shape, self.param_dtype), **(metadata or {}))

    def _scale_and_bias(self) -> dict[str, Array | None]:
        return {
            "scale": None if self.scale is None else self.scale[...],
            "bias": None if self.bias is None else self.bias[...],
        }


@dataclass(eq=False, repr=False)
class RunningNorm(Affine):
    """A layer with running statistics, for training and inference."""

    _: KW_ONLY
    use_running_average: bool | None = False
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    axis_name: AxisName | None = None
    axis_index_groups: Sequence[Sequence[int]] | None = None
    correction: Correction | None = None
    running_correction: Correction = bessel
    groups: int = 1
    update_running_average: bool | None = None
    eps: InitVar[float | None] = None

    def __post_init__(
        self,
        bias_init: Initializer,
        scale_init: Initializer,
        rngs: nnx.Rngs,
        bias_metadata: Metadata,
        scale_metadata: Metadata,
        eps: float | None,
    ):
        super().__post_init__(bias_init, scale_init, rngs, bias_metadata, scale_metadata)
        self.epsilon = choose_eps(self.epsilon, eps)
        check_whole(groups=self.groups, axis=self.axis)
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1; got {self.groups}")
        check_range(self.momentum, "momentum", 1.0)
        self.mean = nnx.BatchStat(jnp.zeros(self.num_features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(self.num_features, jnp.float32))

    def set_view(
        self, use_running_average: bool | None = None, update_running_average: bool | None = None
    ) -> None:
        """Select inference or training for `nnx.view`, which calls this method."""
        if use_running_average is not None:
            self.use_running_average = use_running_average
        if update_running_average is not None:
            self.update_running_average = update_running_average

    def _modes(self, use: bool | None, update: bool | None) -> tuple[bool, bool]:
        """Whether `__call__` uses the running statistics, and whether `__call__` updates them."""
        use = self.use_running_average if use is None else use
        if use is None:
            raise ValueError(
                "use_running_average must be True or False, at construction or in the call; got "
                "None"
            )
        return use, updates(use, update, self.update_running_average)

    def _apply(
        self,
        normalize: Normalize,
        x: Array,
        use_running_average: bool | None,
        update_running_average: bool | None,
        mask: Array | None,
    ) -> Array:
        use, update = self._modes(use_running_average, update_running_average)
        with_parameters = partial(
            normalize,
            **self._scale_and_bias(),
            eps=self.epsilon,
            correction=self.correction,
            groups=self.groups,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
        )
        y, batch = apply(
            with_parameters,
            x,
            Running(self.mean[...], self.var[...]),
            mask,
            use=use,
            update=update,
            axis=self.axis,
            dtype=self.dtype,
        )
        if batch is not None:
            self._update(batch)
        return y

    def _update(self, batch: BatchStatistics) -> None:
        running = Running(self.mean[...], self.var[...])
        running = running.update_running(batch, self.momentum, self.running_correction)
        # `set_value` is used, because JAX before 0.12 searches the whole trace at every assignment
        # to an element such as `self.mean[...]`.
        self.mean.set_value(running.mean)
        self.var.set_value(running.var)


@dataclass(eq=False, repr=False, kw_only=True)
class BatchNorm(RunningNorm):
    """A batch norm layer with learned `scale` and `bias` and running statistics.

    The layer replaces `flax.nnx.BatchNorm` and accepts the same arguments, except
    `use_fast_variance` and `promote_dtype`. By default, the result has the dtype of the input.
    Batch statistics are in at least float32, and running statistics in float32. Running statistics
    are exponential averages of the batches' means and unbiased variances. If no sample of a batch
    is in the mask, the running statistics do not change.

    Args:
      num_features: The number of channels of the input, along `axis`.
      use_running_average: True for inference, False for training. `model.eval()` and
        `model.train()` set `use_running_average`, and an argument of `__call__` overrides
        `use_running_average`. If None, `__call__` must get a value.
      axis: The feature axis, which must not be the first axis.
      momentum: The weight of the old running statistics, in [0, 1].
      epsilon: The number added to the variance.
      dtype: The dtype of the result; by default the dtype of the input.
      param_dtype: The dtype of scale and bias.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and applied.
      bias_init: The initializer of the bias.
      scale_init: The initializer of the scale.
      axis_name: The mapped axes (of vmap or shard_map) over which the batch is distributed.
      axis_index_groups: Groups of indices along `axis_name`; each group is a separate batch.
      recentering: Whether to subtract the mean.
      rescaling: Whether to divide by the standard deviation.
      correction: A function of the number of averaged elements. In training, the variance is
        multiplied by the result, as in `batch_norm`.
      running_correction: A function like `correction`. Before the update of the running variance,
        the batch's variance is multiplied by the result.
      groups: The number of ghost batches in training, as in `batch_norm`. The average of the ghost
        batches' statistics enters the running statistics.
      update_running_average: Whether to update the running statistics. If None, running statistics
        are updated only in training. If True, running statistics are updated in inference too.
      rngs: Keys for the initializers.
      bias_metadata: Metadata of the bias's variable, such as its sharding.
      scale_metadata: Metadata of the scale's variable.
      eps: The name of `epsilon` in the functions of `jaxnorm`. If given, `eps` replaces `epsilon`.

    Example:
      >>> layer = BatchNorm(3, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.ones((4, 8, 8, 3))).shape)
      (4, 8, 8, 3)
    """

    recentering: bool = True
    rescaling: bool = True

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


@dataclass(eq=False, repr=False, kw_only=True)
class UnitizedBatchNorm(RunningNorm):
    """A unitized batch norm layer with learned `alpha`, `scale` and `bias` and running statistics.

    Args:
      alpha_init: The initializer of alpha. The parameter alpha has one number for each channel. The
        default is 0, which makes the layer equal to batch norm.
      alpha_metadata: Metadata of alpha's variable.
      pixels: The constant n in line 9 of Algorithm 2; by default the number of pixels of the input,
        or 1 with `per_pixel`.
      per_pixel: Whether each pixel is divided by the norm of its own channels, as in Figure 1(b),
        instead of the norm of the sample.
      factor: `interpolated` for Equation 10, `bounded` for Equation 9, or another function, as in
        `unitized_batch_norm`.
      epsilon: The number added to the variance and to the mean square of a sample.

    All other arguments are the same as for `BatchNorm`; `recentering` and `rescaling` do not exist
    here.

    Example:
      >>> layer = UnitizedBatchNorm(3, alpha_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
      >>> print(layer.alpha[...])
      [1. 1. 1.]
    """

    alpha_init: InitVar[Initializer] = nnx.initializers.zeros
    alpha_metadata: InitVar[Metadata] = None
    pixels: int | float | None = None
    per_pixel: bool = False
    factor: Factor = interpolated

    def __post_init__(
        self,
        bias_init: Initializer,
        scale_init: Initializer,
        rngs: nnx.Rngs,
        bias_metadata: Metadata,
        scale_metadata: Metadata,
        eps: float | None,
        alpha_init: Initializer,
        alpha_metadata: Metadata,
    ):
        super().__post_init__(bias_init, scale_init, rngs, bias_metadata, scale_metadata, eps)
        if self.pixels is not None:
            check_positive(self.pixels, "pixels")
        check_function(self.factor, "factor", "jaxnorm.bounded")
        self.alpha = self._parameter(alpha_init, rngs, alpha_metadata)

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
            alpha=self.alpha[...],
            pixels=self.pixels,
            per_pixel=self.per_pixel,
            factor=self.factor,
        )
        return self._apply(normalize, x, use_running_average, update_running_average, mask)


@dataclass(eq=False, repr=False, kw_only=True)
class BatchRenorm(RunningNorm):
    """A batch renormalization layer with learned `scale` and `bias` and running statistics.

    In training, r and d of `batch_renorm` are computed before the batch updates the running
    statistics. The paper trains the first steps with `r_max` 1 and `d_max` 0. Because `r_max` and
    `d_max` are static attributes, each new value compiles a new program. If a schedule changes
    `r_max` and `d_max` at every step, call the function `batch_renorm` instead.

    Args:
      r_max: The upper limit of the factor r, as in `batch_renorm`.
      d_max: The upper limit of the absolute summand |d|, as in `batch_renorm`.

    All other arguments are the same as for `BatchNorm`; `recentering` and `rescaling` do not exist
    here.

    Example:
      >>> layer = BatchRenorm(2, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.array([[1.0, 2.0], [3.0, 4.0]])).round(2))  # as in inference
      [[1. 2.]
       [3. 4.]]
    """

    r_max: int | float = 3.0
    d_max: int | float = 5.0

    def __post_init__(self, *options: Any):
        super().__post_init__(*options)
        check_limits(self.r_max, self.d_max)

    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        update_running_average: bool | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        running = BatchStatistics(self.mean[...], self.var[...], jnp.ones((), jnp.float32))
        normalize = partial(batch_renorm, running=running, r_max=self.r_max, d_max=self.d_max)
        return self._apply(normalize, x, use_running_average, update_running_average, mask)
