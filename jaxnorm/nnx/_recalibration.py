"""Computes new running statistics for a whole model."""

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxnorm._running import mask_of_samples
from jaxnorm._statistics import BatchStatistics, Reduction, merge_features
from jaxnorm.internal import check_array, check_batches, check_function
from jaxnorm.nnx._layers import RunningNorm
from jaxnorm.nnx._models import changes
from jaxnorm.nnx._surgery import batch_norms

# With the options `IN_TRAINING` and `OF_THE_BATCH`, a layer normalizes each batch by the statistics
# of the whole batch, and its running statistics are the statistics of the last batch.
IN_TRAINING = {"use_running_average": False, "update_running_average": True}
OF_THE_BATCH: dict[str, Any] = {
    "momentum": 0.0,
    "groups": 1,
    "r_max": 1.0,
    "d_max": 0.0,
    **IN_TRAINING,
}


def _called(model: nnx.Module, batch: Any) -> Any:
    return model(batch)


def recalibrate(
    model: nnx.Module, batches: Iterable[Any], *, call: Callable[[nnx.Module, Any], Any] = _called
) -> None:
    """Replace the running statistics of `model` by the statistics of all samples of `batches`.

    Use `recalibrate` if the weights of a network were pruned, averaged or otherwise changed. Every
    batch norm of `jaxnorm` or Flax gets the mean and the biased variance of all its inputs. During
    recalibration, batch norms normalize each batch by its own statistics, even if the model calls
    its batch norms with `use_running_average=True`. The old running statistics do not matter, even
    if they are NaN. If a layer is called twice for a batch, only the last call counts. Layers
    without batch statistics do not change, and a batch norm whose inputs are all masked does not
    change either. If the model raises an error for a batch, no running statistics are changed.

    Args:
      model: A model with at least one batch norm.
      batches: The batches of inputs of the model. In every layer, the weight of a batch is the
        number of its unmasked elements. The model is compiled once for each shape of a batch.
      call: A function `call(model, batch)` that calls the model on the inputs in the batch.

    Raises:
      TypeError: `batches` is a single array, or a batch consists of several arrays and no `call` is
        given.
      ValueError: The model has no batch norm, there is no batch, or `call` calls no batch norm of
        the model that it gets.

    Example:
      >>> from jaxnorm.nnx import BatchNorm
      >>> layer = BatchNorm(1, use_running_average=True, rngs=nnx.Rngs(0))
      >>> recalibrate(layer, [jnp.array([[1.0], [3.0]]), jnp.array([[5.0], [7.0]])])
      >>> print(layer.mean[...], layer.var[...])
      [4.] [5.]
    """
    check_batches(batches)
    check_function(call, "call", "lambda model, batch: model(batch[0])")
    norms = batch_norms(model)
    if not norms:
        raise ValueError("the model must hold at least one batch norm; it holds none")
    graph, state = nnx.split(model)
    seen = jax.jit(lambda state, batch: _last_statistics(call, graph, state, batch))
    fresh: list[BatchStatistics] | None = None
    for batch in batches:
        if call is _called and (count := len(jax.tree.leaves(batch))) != 1:
            raise TypeError(
                f"a batch must be one array of inputs; got {count} arrays: select the inputs, such "
                "as by call=lambda model, batch: model(batch[0])"
            )
        new, changed = seen(state, batch)
        state = nnx.merge_state(state, changed)
        merged = zip(fresh or new, new, strict=True)
        fresh = new if fresh is None else [merge_features(a, b) for a, b in merged]
    if fresh is None:
        raise ValueError("batches must hold at least one batch; got none")
    for norm, statistics in zip(norms, fresh, strict=True):
        mean, var, count, *old = _alike(*statistics, norm.mean[...], norm.var[...])
        norm.mean.set_value(jnp.where(count > 0, mean, old[0]))
        norm.var.set_value(jnp.where(count > 0, var, old[1]))


def _last_statistics(
    call: Callable[[nnx.Module, Any], Any], graph: Any, state: Any, batch: Any
) -> tuple[list[BatchStatistics], Any]:
    """The statistics and the counts of each batch norm's last inputs, and the changed state."""
    model = nnx.merge(graph, state, copy=True)
    norms: list[Any] = batch_norms(model)
    counts = [jnp.zeros_like(norm.mean[...], jnp.float32) for norm in norms]
    for norm, count in zip(norms, counts, strict=True):
        norm.__class__ = _counting(type(norm))
        norm.set_attributes(**{name: v for name, v in OF_THE_BATCH.items() if name in vars(norm)})
        # The count has an element for each feature, and for each layer of an `nnx.vmap` stack.
        norm.count = nnx.BatchStat(count)
        # The old running statistics can be NaN, and zero times NaN is NaN.
        norm.mean.set_value(jnp.zeros_like(norm.mean[...]))
        norm.var.set_value(jnp.ones_like(norm.var[...]))
    call(model, batch)
    if all(norm.count.get_value() is count for norm, count in zip(norms, counts, strict=True)):
        raise ValueError(
            "call must call the model that it gets, such as lambda model, batch: model(batch[0]); "
            "it calls no batch norm of this model"
        )
    seen = [BatchStatistics(*_alike(n.mean[...], n.var[...], n.count[...])) for n in norms]
    return seen, changes(model, state)


@cache  # The classes are cached, because JAX keeps every module class forever.
def _counting(kind: type[Any]) -> type[Any]:
    """A batch norm class that records the statistics and the number of elements of its last batch.

    The class ignores the options of `__call__`, because a model may select inference by an option.
    """
    own = inspect.signature(kind.__call__)

    class Counting(kind):
        def __call__(self, x: Array, *args: Any, **options: Any) -> Array:
            call = own.bind(self, x, *args, **options)
            self.count.set_value(_count(self, x, call.arguments.get("mask")))
            call.arguments |= {name: v for name, v in IN_TRAINING.items() if name in own.parameters}
            return kind.__call__(*call.args, **call.kwargs)

        def _update(self, batch: BatchStatistics) -> None:
            # The usual update of a running average is not exact: in float32, 1 + (10⁻⁸ − 1) is 0.
            self.mean.set_value(batch.mean.astype(self.mean[...].dtype))
            self.var.set_value(batch.var.astype(self.var[...].dtype))

    return Counting


def _count(norm: Any, x: Array, mask: Array | None) -> Array:
    """For each feature, the number of elements of `x` that enter the statistics of `norm`."""
    check_array(x, "x")
    features = norm.mean[...].shape[-1]  # pruned arrays have fewer features than `num_features`
    count = jnp.full(features, x.size // features, jnp.float32)
    if mask is not None:
        if isinstance(norm, RunningNorm):
            mask = jnp.expand_dims(mask_of_samples(mask, x, norm.axis), norm.axis)
        included = jnp.moveaxis(jnp.broadcast_to(mask, x.shape), norm.axis, -1)
        count = included.sum(tuple(range(x.ndim - 1)), dtype=jnp.float32)
    return Reduction(norm.axis_name, norm.axis_index_groups).total(count)


def _alike(*arrays: Array) -> list[Array]:
    """The arrays with one sharding, because `jnp.where` needs one sharding on an Explicit mesh."""
    return [x + sum(jnp.zeros_like(like, x.dtype) for like in arrays) for x in arrays]
