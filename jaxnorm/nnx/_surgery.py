"""Replaces the batch norms of a model, or folds a batch norm into the layer before it."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxnorm._statistics import channels
from jaxnorm.internal import promote_to_float32
from jaxnorm.nnx._layers import BatchNorm, BatchRenorm, RunningNorm, UnitizedBatchNorm

OPTIONS = {
    "use_running_average",
    "axis",
    "momentum",
    "epsilon",
    "dtype",
    "param_dtype",
    "use_bias",
    "use_scale",
    "axis_name",
    "axis_index_groups",
    "correction",
    "running_correction",
    "groups",
    "update_running_average",
}
PARTS = ("recentering", "rescaling")


def replace_batch_norm(
    model: nnx.Module, layer: Callable[..., RunningNorm] = BatchNorm
) -> nnx.Module:
    """Replace every batch norm of `model` by a `layer`, in place, and return `model`.

    If the model is itself a batch norm, its replacement is returned.

    Without `layer`, the new layers are instances of `jaxnorm.nnx.BatchNorm`. For unitized layers,
    call `replace_batch_norm(model, jaxnorm.nnx.UnitizedBatchNorm)`.

    `replace_batch_norm` replaces batch norms of Flax and of `jaxnorm`, including unitized batch
    norms and batch renorms. A new layer has the variables of the old layer, and the old layer's
    values of all options of `BatchNorm`. If a batch norm becomes unitized, its alpha is by default
    0, so outputs do not change. If a `BatchNorm` replaces a unitized layer, the alpha of the
    unitized layer is lost. The options `pixels`, `per_pixel` and `factor` are read only from the
    argument `layer`. The layer that replaces a Flax layer averages biased variances, as Flax does.

    A unitized layer adds the parameter alpha. An optimizer made before the replacement has no state
    for alpha, so its update fails. Make a new optimizer after the replacement. If the replacement
    adds no parameters, you can continue to use the old optimizer.

    Args:
      model: A model with at least one batch norm as an attribute, or in a container that is an
        attribute. `replace_batch_norm` does not find a layer in the closure of a plain function.
      layer: `BatchNorm`, `UnitizedBatchNorm`, or one of these classes with options, such as
        `partial(UnitizedBatchNorm, factor=jaxnorm.bounded)`.

    Raises:
      TypeError: `layer` is neither `BatchNorm` nor `UnitizedBatchNorm`, or `model` is not a module.
        The class of a batch norm is a subclass that defines its own `__call__`.
      ValueError: `model` has no batch norm, or a batch norm without recentering or rescaling would
        become unitized.

    Example:
      >>> model = nnx.Sequential(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
      >>> print(type(replace_batch_norm(model, UnitizedBatchNorm).layers[0]).__name__)
      UnitizedBatchNorm
    """
    replaced = batch_norms(model)
    if not replaced:
        raise ValueError("the model must hold at least one batch norm; it holds none")
    # If two attributes of the model share a layer, they also share its replacement.
    new = {id(old): _replacement(old, layer) for old in replaced}

    def swap(part: Any) -> Any:
        return new.get(id(part), part)

    for _, module in list(nnx.iter_modules(model)):
        for name, child in list(vars(module).items()):
            if any(id(part) in new for part in jax.tree.leaves(child, is_leaf=_is_node)):
                setattr(module, name, nnx.data(jax.tree.map(swap, child, is_leaf=_is_node)))
    return new.get(id(model), model)


def _is_node(part: Any) -> bool:
    """Whether `part` is a module or a variable of NNX."""
    return isinstance(part, nnx.Pytree | nnx.Variable)


def batch_norms(model: nnx.Module) -> list[RunningNorm | nnx.BatchNorm]:
    """Every batch norm in `model`, of `jaxnorm` or Flax, including `model` itself.

    Raises:
      TypeError: `model` is not a module of NNX.
    """
    check_module(model)
    modules = [module for _, module in nnx.iter_modules(model)]
    return [module for module in modules if isinstance(module, RunningNorm | nnx.BatchNorm)]


def check_module(model: Any) -> None:
    """Raise `TypeError` unless `model` is an instance of an NNX module; a class is not accepted."""
    if isinstance(model, type):
        raise TypeError(f"model must be a module; got the class {model.__name__}")
    if not isinstance(model, nnx.Pytree):
        raise TypeError(f"model must be a flax.nnx.Module; got {type(model).__name__}")


def _replacement(
    old: RunningNorm | nnx.BatchNorm, layer: Callable[..., RunningNorm]
) -> RunningNorm:
    made = partial(layer).func if callable(layer) else layer
    if made not in (BatchNorm, UnitizedBatchNorm):
        got = repr(layer) if isinstance(layer, type | str) else f"a {type(layer).__name__} object"
        raise TypeError(
            "layer must be jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm or a partial of "
            f"one; got {got}"
        )
    kinds = nnx.BatchNorm, BatchNorm, UnitizedBatchNorm, BatchRenorm
    _check_call(old, "a batch norm of the model", *kinds)
    parts = [vars(old).get(part, True) for part in PARTS]
    if made is UnitizedBatchNorm and not all(parts):
        raise ValueError(
            "a layer that becomes unitized must recenter and rescale; got "
            f"recentering={parts[0]}, rescaling={parts[1]}"
        )
    options = {name: value for name, value in vars(old).items() if name in OPTIONS}
    # Flax's layers average biased variances, so the correction is a factor of 1.
    flax = {"running_correction": jnp.ones_like}
    new = layer(old.num_features, **{**flax, **options}, rngs=nnx.Rngs(0))
    new.scale, new.bias, new.mean, new.var = old.scale, old.bias, old.mean, old.var
    for name in (*PARTS, "alpha"):
        if name in vars(old) and name in vars(new):
            setattr(new, name, vars(old)[name])
    if isinstance(new, UnitizedBatchNorm) and new.alpha.shape != old.mean.shape:
        # The old layer is a stack of several layers, which `nnx.vmap` has made.
        new.alpha.set_value(jnp.broadcast_to(new.alpha[...], old.mean.shape))
    return new


def _check_call(layer: Any, name: str, *kinds: type[Any]) -> None:
    """Raise `TypeError` if the class of `layer` has a `__call__` that none of the `kinds` has.

    A subclass with its own `__call__`, for example `nnx.LoRALinear`, computes a different function.
    """
    if type(layer).__call__ not in [kind.__call__ for kind in kinds]:
        raise TypeError(
            f"{name} must not have a __call__ of its own, which would be lost; got "
            f"{type(layer).__name__}"
        )


def fix_pixels(model: nnx.Module, x: Float[Array | jax.ShapeDtypeStruct, "n *shape"]) -> nnx.Module:
    """A copy of `model` whose unitized layers keep the pixel counts that they use for `x`.

    Line 9 of Algorithm 2 of Huang and Yu divides by the number of pixels of the image. If a network
    is evaluated on images of a different size than in training, its layers should still use the
    number of pixels in training. Then the scale of outputs does not depend on the size of the
    image. A layer with a given `pixels`, or with `per_pixel`, does not depend on the image size and
    does not change.

    Args:
      model: A model with any layers; the model itself is not changed. The variables of the model
        may be shapes without values.
      x: A batch with images of the training size, or a `jax.ShapeDtypeStruct` of such a batch.

    Raises:
      ValueError: A unitized layer without given `pixels` is called on images of several sizes, or
        is never called.

    Example:
      >>> model = nnx.Sequential(UnitizedBatchNorm(3, rngs=nnx.Rngs(0)))
      >>> print(fix_pixels(model, jnp.ones((2, 8, 8, 3), "float32")).layers[0].pixels)
      64
    """
    check_module(model)
    graph, state = nnx.split(model)
    seen: dict[tuple, set[int]] = {}

    def called(state: Any, x: Array) -> None:
        copied: Any = nnx.merge(graph, state, copy=True)
        _, captured = nnx.capture(copied, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
        for (*path, name), calls in nnx.to_flat_state(captured):
            if name == "__call__":
                seen[tuple(path)] = {math.prod(y.shape[1:]) for y in calls.get_value()}

    jax.eval_shape(called, state, x)
    fixed = nnx.merge(graph, state, copy=True)
    for path, layer in nnx.iter_modules(fixed):
        if not isinstance(layer, UnitizedBatchNorm) or layer.per_pixel:
            continue
        if layer.pixels is None:
            sizes = sorted(n // layer.num_features for n in seen.get(tuple(path), ()))
            if len(sizes) != 1:
                name = ".".join(map(str, path))
                raise ValueError(f"{name} must be called on images of one size; got {sizes} pixels")
            (layer.pixels,) = sizes
    return fixed


def fold(layer: nnx.Conv | nnx.Linear, norm: nnx.Module) -> nnx.Conv | nnx.Linear:
    """One layer that computes `norm(layer(x))`, with the batch norm in inference mode.

    The kernel is multiplied by the norm's scale / √(var + eps), where var is the running variance.
    The bias is changed so that the folded layer has the same outputs. The kernel keeps its dtype,
    and the new bias has the same dtype. Kernel and bias keep their metadata. `fold` does not change
    `layer` and `norm`. A unitized layer cannot be folded, because unitization divides each sample
    by its own norm.

    Args:
      layer: A convolution or dense layer; output features are the last axis of its kernel.
      norm: The batch norm of `jaxnorm` or Flax that directly follows `layer`; `norm` acts along the
        last axis.

    Raises:
      TypeError: `norm` is not a `BatchNorm`, or `layer` is not a convolution or dense layer. A
        subclass with its own `__call__`, such as `nnx.LoRALinear`, is also refused.
      ValueError: The features of `layer` and `norm` differ, or `norm` acts along an axis other than
        the last.

    Example:
      >>> layer, norm = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), BatchNorm(3, rngs=nnx.Rngs(0))
      >>> folded = fold(layer, norm)
      >>> x = jnp.ones((1, 2), "float32")
      >>> print(jnp.allclose(folded(x), norm(layer(x), use_running_average=True)))
      True
    """
    if isinstance(norm, UnitizedBatchNorm):
        raise TypeError(
            "norm must be a batch norm; a unitized batch norm depends on each sample's norm and "
            "cannot be folded into a layer"
        )
    if not isinstance(norm, BatchNorm | nnx.BatchNorm):
        raise TypeError(f"norm must be a batch norm; got {type(norm).__name__}")
    if not isinstance(layer, nnx.Conv | nnx.Linear):
        raise TypeError(f"layer must be a convolution or a dense layer; got {type(layer).__name__}")
    _check_call(norm, "norm", BatchNorm, nnx.BatchNorm)
    _check_call(layer, "layer", nnx.Conv, nnx.Linear)
    kernel = layer.kernel[...]
    if kernel.shape[-1] != norm.num_features or norm.axis != -1:
        raise ValueError(
            f"norm must act on the layer's {kernel.shape[-1]} features along axis -1; got "
            f"{norm.num_features} along axis {norm.axis}"
        )
    var = norm.var[...]
    gain = jax.lax.rsqrt(var + norm.epsilon) if vars(norm).get("rescaling", True) else 0 * var + 1
    if norm.scale is not None:
        gain = gain * promote_to_float32(norm.scale[...])
    bias = 0 * var if layer.bias is None else promote_to_float32(layer.bias[...])
    if vars(norm).get("recentering", True):
        bias = bias - norm.mean[...]
    bias = bias * gain
    if norm.bias is not None:
        bias = bias + promote_to_float32(norm.bias[...])
    folded = nnx.clone(layer)
    scaled = promote_to_float32(kernel) * channels(gain, kernel)
    folded.kernel.set_value(scaled.astype(kernel.dtype))
    bias = bias.astype(kernel.dtype)
    if folded.bias is None:
        folded.bias = nnx.Param(bias)
    else:
        folded.bias.set_value(bias)
    folded.use_bias = True
    return folded
