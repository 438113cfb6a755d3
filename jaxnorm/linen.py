"""Flax Linen modules whose results equal those of `jaxnorm.nnx` to the last bit.

The collection "params" contains the parameters `scale`, `bias`, `alpha` and `offset` that a layer
has. The collection "batch_stats" contains the running statistics `mean` and `var`. In training,
pass `mutable=["batch_stats"]`, as for `flax.linen.BatchNorm`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import batch_norm
from jaxnorm._batch_renorm import batch_renorm
from jaxnorm._pointwise import derf, dyt, unitize_with
from jaxnorm._running import Normalize, Running, apply, check_axis, updates
from jaxnorm._statistics import AxisName, BatchStatistics, Correction, bessel
from jaxnorm._unitize import unitize
from jaxnorm._unitized_batch_norm import Factor, interpolated, unitized_batch_norm
from jaxnorm.internal import (
    check_dtype,
    check_flags,
    check_function,
    check_range,
    check_whole,
    choose_eps,
    promote_to,
)

__all__ = ["BatchNorm", "BatchRenorm", "Derf", "DyT", "Unitization", "UnitizedBatchNorm"]


class _RunningNorm(linen.Module):
    """A layer with scale, bias and running statistics, for training and inference."""

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
    eps: float | None = None

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
        check_range(self.momentum, "momentum", 1.0)
        check_whole(groups=self.groups)
        check_axis(x, self.axis)
        update = updates(use, update_running_average, self.update_running_average)
        shape = (x.shape[self.axis],)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        running = Running(mean.value, var.value)

        with_parameters = partial(
            normalize,
            **_scale_and_bias(self, x, self.axis),
            eps=choose_eps(self.epsilon, self.eps),
            correction=self.correction,
            # A Linen model can be initialized with a single sample. It can also be initialized
            # outside of vmap and shard_map, where `axis_name` is unknown.
            groups=min(self.groups, 1) if self.is_initializing() else self.groups,
            axis_name=None if self.is_initializing() else self.axis_name,
            axis_index_groups=None if self.is_initializing() else self.axis_index_groups,
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
            mean.value, var.value = running.update_running(
                batch, self.momentum, self.running_correction
            )
        return y


def _scale_and_bias(layer: Any, x: Array, axis: int = -1) -> dict[str, Array | None]:
    """The scale and the bias of a layer, or None for a parameter that the layer does not use."""
    check_flags(use_scale=layer.use_scale, use_bias=layer.use_bias)
    check_dtype(layer.param_dtype, "param_dtype")
    if layer.dtype is not None:
        check_dtype(layer.dtype, "dtype")
    use = {"scale": layer.use_scale, "bias": layer.use_bias}
    init = {"scale": layer.scale_init, "bias": layer.bias_init}
    shape = (x.shape[axis],)
    return {name: _parameter(layer, name, init[name], shape) if use[name] else None for name in use}


def _parameter(layer: Any, name: str, init: Initializer, shape: tuple[int, ...]) -> Array:
    check_function(init, "an initializer", "linen.initializers.constant(0.5)")
    return layer.param(name, init, shape, layer.param_dtype)


class BatchNorm(_RunningNorm):
    """The layer `jaxnorm.nnx.BatchNorm` for Linen, in place of `flax.linen.BatchNorm`.

    Arguments are the same as for `jaxnorm.nnx.BatchNorm`, with three differences. The input gives
    the number of features. `use_running_average` has no default: pass the option either to the
    constructor or to `__call__`, not to both. The module has no arguments for keys and metadata.

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
    """The layer `jaxnorm.nnx.UnitizedBatchNorm` for Linen, in place of `flax.linen.BatchNorm`.

    Arguments are the same as for `jaxnorm.nnx.UnitizedBatchNorm`, with three differences. The input
    gives the number of features. `use_running_average` has no default: pass the option either to
    the constructor or to `__call__`, not to both. The module has no arguments for keys and
    metadata.

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
        check_axis(x, self.axis)
        normalize = partial(
            unitized_batch_norm,
            alpha=_parameter(self, "alpha", self.alpha_init, (x.shape[self.axis],)),
            pixels=self.pixels,
            per_pixel=self.per_pixel,
            factor=self.factor,
        )
        return self._apply(normalize, x, use_running_average, update_running_average, mask)


class BatchRenorm(_RunningNorm):
    """The layer `jaxnorm.nnx.BatchRenorm` for Linen, in place of `flax.linen.BatchNorm`.

    Arguments are the same as for `jaxnorm.nnx.BatchRenorm`, with three differences. The input gives
    the number of features. `use_running_average` has no default: pass the option either to the
    constructor or to `__call__`, not to both. The module has no arguments for keys and metadata.

    Example:
      >>> import jax
      >>> layer = BatchRenorm(use_running_average=False)
      >>> x = jnp.array([[1.0], [3.0]])
      >>> variables = layer.init(jax.random.key(0), x)
      >>> print(layer.apply(variables, x, mutable="batch_stats")[0].ravel().round(2))
      [1. 3.]
    """

    r_max: int | float = 3.0
    d_max: int | float = 5.0

    @linen.compact
    def __call__(
        self,
        x: Float[Array, "n *shape"],
        use_running_average: bool | None = None,
        *,
        update_running_average: bool | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "n *shape"]:
        def normalize(x: Array, **options: Any) -> tuple[Array, BatchStatistics]:
            # The variables exist, because `_apply` creates them before it calls this function.
            mean, var = (self.get_variable("batch_stats", name) for name in ("mean", "var"))
            running = BatchStatistics(mean, var, jnp.ones((), jnp.float32))
            limits = {"r_max": self.r_max, "d_max": self.d_max}
            return batch_renorm(x, running=running, **limits, **options)

        return self._apply(normalize, x, use_running_average, update_running_average, mask)


class _Stateless(linen.Module):
    """A layer with one scale and one bias for each feature."""

    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = linen.initializers.zeros
    scale_init: Initializer = linen.initializers.ones

    def _apply(self, function: Callable[..., Array], x: Array, *parameters: Array) -> Array:
        scale_and_bias = _scale_and_bias(self, x)  # this call checks the dtype
        y = function(promote_to(x, self.dtype), *parameters, **scale_and_bias)
        return y if self.dtype is None else y.astype(self.dtype)


class DyT(_Stateless):
    """The layer `jaxnorm.nnx.DyT` for Linen, in place of `flax.linen.LayerNorm`.

    Arguments are the same as for `jaxnorm.nnx.DyT`, with two differences: the input gives the
    number of features, and the module has no arguments for keys and metadata.

    Example:
      >>> import jax
      >>> x = jnp.array([[0.0, 1e3]])
      >>> print(DyT().init_with_output(jax.random.key(0), x)[0])
      [[0. 1.]]
    """

    alpha_init: Initializer = linen.initializers.constant(0.5)

    @linen.compact
    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        alpha = _parameter(self, "alpha", self.alpha_init, ())
        return self._apply(dyt, x, alpha)


class Derf(_Stateless):
    """The layer `jaxnorm.nnx.Derf` for Linen, in place of `flax.linen.LayerNorm`.

    Arguments are the same as for `jaxnorm.nnx.Derf`, with two differences: the input gives the
    number of features, and the module has no arguments for keys and metadata.

    Example:
      >>> import jax
      >>> x = jnp.array([[0.0, 1e3]])
      >>> print(Derf().init_with_output(jax.random.key(0), x)[0])
      [[0. 1.]]
    """

    alpha_init: Initializer = linen.initializers.constant(0.5)
    offset_init: Initializer = linen.initializers.zeros

    @linen.compact
    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        alpha = _parameter(self, "alpha", self.alpha_init, ())
        offset = _parameter(self, "offset", self.offset_init, ())
        return self._apply(derf, x, alpha, offset)


class Unitization(_Stateless):
    """The layer `jaxnorm.nnx.Unitization` for Linen, in place of `flax.linen.LayerNorm`.

    Arguments are the same as for `jaxnorm.nnx.Unitization`, with two differences: the input gives
    the number of features, and the module has no arguments for keys and metadata.

    Example:
      >>> import jax
      >>> x = jnp.array([[3.0, 4.0]])
      >>> print(Unitization().init_with_output(jax.random.key(0), x)[0].round(3))
      [[0.6 0.8]]
    """

    alpha_init: Initializer = linen.initializers.ones
    transform: Callable[[Array, Array], Array] = unitize

    @linen.compact
    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        alpha = _parameter(self, "alpha", self.alpha_init, x.shape[-1:])
        check_function(self.transform, "transform", "jaxnorm.unitize")
        return self._apply(partial(unitize_with, self.transform), x, alpha)
