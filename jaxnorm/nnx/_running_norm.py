"""Parameters and running statistics of a normalization layer: what both layers share."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer
from jaxtyping import Array

from jaxnorm._running import Normalize, Running, apply
from jaxnorm._statistics import AxisName, Correction


class RunningNorm(nnx.Module):
    """Scale, bias and running statistics, and the choice between training and inference."""

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None,
        axis: int,
        momentum: float,
        epsilon: float,
        dtype: Dtype | None,
        param_dtype: Dtype,
        use_bias: bool,
        use_scale: bool,
        bias_init: Initializer,
        scale_init: Initializer,
        axis_name: AxisName | None,
        axis_index_groups: Sequence[Sequence[int]] | None,
        correction: Correction | None,
        running_correction: Correction,
        groups: int,
        rngs: nnx.Rngs,
        bias_metadata: Mapping[str, Any] | None,
        scale_metadata: Mapping[str, Any] | None,
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
