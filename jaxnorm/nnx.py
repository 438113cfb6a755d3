"""Flax modules: parameters and running statistics around the functions of `jaxnorm`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import AxisName, batch_norm, unitized_batch_norm
from jaxnorm._statistics import BatchStatistics

Normalize = Callable[..., tuple[Array, BatchStatistics]]


class _RunningNorm(nnx.Module):
    """Scale, bias and running statistics, and the choice between training and inference."""

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool = False,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        param_dtype: jnp.dtype | type = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = nnx.initializers.zeros,
        scale_init: Initializer = nnx.initializers.ones,
        axis_name: AxisName | None = None,
        rngs: nnx.Rngs,
    ):
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1; got {num_features}")
        shape = (num_features,)
        self.scale = nnx.Param(scale_init(rngs.params(), shape, param_dtype)) if use_scale else None
        self.bias = nnx.Param(bias_init(rngs.params(), shape, param_dtype)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(shape, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(shape, jnp.float32))
        self.num_features = num_features
        self.use_running_average = use_running_average
        self.momentum = momentum
        self.epsilon = epsilon
        self.axis_name = axis_name

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Choose inference or training; called by `nnx.view`."""
        if use_running_average is not None:
            self.use_running_average = use_running_average

    def _apply(
        self, normalize: Normalize, x: Array, use_running_average: bool | None, mask: Array | None
    ) -> Array:
        if x.shape[-1] != self.num_features:
            raise ValueError(
                f"the last axis of x must hold {self.num_features} features; got shape {x.shape}"
            )
        inference = self.use_running_average if use_running_average is None else use_running_average
        running = BatchStatistics(self.mean[...], self.var[...], jnp.ones((), jnp.float32))
        y, batch = normalize(
            x,
            scale=None if self.scale is None else self.scale[...],
            bias=None if self.bias is None else self.bias[...],
            statistics=running if inference else None,
            eps=self.epsilon,
            where=mask,
            axis_name=self.axis_name,
        )
        if not inference:
            self.mean[...], self.var[...] = _moved(running, batch, self.momentum)
        return y


class BatchNorm(_RunningNorm):
    """`batch_norm` with learned `scale` and `bias` and running statistics.

    Takes the place of `flax.nnx.BatchNorm`. Running statistics are exponential averages with
    `momentum`, in float32, of the batches' means and unbiased variances; a batch without any
    counted sample leaves them as they are.

    Args:
      num_features: Channels, the last axis of the input.
      use_running_average: Inference instead of training; `model.eval()` and `model.train()` set
        it, and it may be given at call.
      momentum: Weight of the old running statistics.
      epsilon: Added to the variance.
      axis_name: Mapped axes over which the batch is spread.
      rngs: Keys for the initializers.

    Example:
      >>> layer = BatchNorm(3, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.ones((4, 8, 8, 3))).shape)
      (4, 8, 8, 3)
    """

    def __call__(
        self,
        x: Float[Array, "n *spatial c"],
        use_running_average: bool | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *spatial c"]:
        return self._apply(batch_norm, x, use_running_average, mask)


class UnitizedBatchNorm(_RunningNorm):
    """`unitized_batch_norm` with learned `alpha`, `scale` and `bias` and running statistics.

    Everything that `BatchNorm` takes, and

    Args:
      alpha_init: Initializer of alpha, one per channel: 0, batch norm, by default.
      pixels: Line 9's constant; by default the number of pixels of the input.

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
        pixels: int | float | None = None,
        param_dtype: jnp.dtype | type = jnp.float32,
        rngs: nnx.Rngs,
        **options,
    ):
        super().__init__(num_features, param_dtype=param_dtype, rngs=rngs, **options)
        self.alpha = nnx.Param(alpha_init(rngs.params(), (num_features,), param_dtype))
        self.pixels = pixels

    def __call__(
        self,
        x: Float[Array, "n *spatial c"],
        use_running_average: bool | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *spatial c"]:
        def normalize(x: Array, **given) -> tuple[Array, BatchStatistics]:
            return unitized_batch_norm(x, self.alpha[...], pixels=self.pixels, **given)

        return self._apply(normalize, x, use_running_average, mask)


def _moved(
    running: BatchStatistics, batch: BatchStatistics, momentum: float
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Running mean and variance after one more batch, whose variance is corrected by n/(n − 1)."""
    unbiased = batch.var * batch.count / jnp.maximum(batch.count - 1, 1)
    weight = jnp.where(batch.count > 0, 1 - momentum, 0.0).astype(running.mean.dtype)

    def move(old: Array, new: Array) -> Array:
        return old + weight * (jax.lax.stop_gradient(new).astype(old.dtype) - old)

    return move(running.mean, batch.mean), move(running.var, unbiased)
