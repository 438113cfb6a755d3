"""Computes new running statistics for a whole model."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from jaxnorm._running import mask_of_samples
from jaxnorm._statistics import BatchStatistics, merge_statistics
from jaxnorm.internal import check_function
from jaxnorm.nnx._surgery import batch_norms

# With these options, a layer normalizes each batch by the statistics of the whole batch, and its
# running statistics are the statistics of the last batch.
OF_THE_BATCH: dict[str, Any] = {
    "use_running_average": False,
    "momentum": 0.0,
    "groups": 1,
    "r_max": 1.0,
    "d_max": 0.0,
    "update_running_average": None,
}


def _called(model: nnx.Module, batch: Any) -> Any:
    return model(batch)


def recalibrate(
    model: nnx.Module, batches: Iterable[Any], *, call: Callable[[nnx.Module, Any], Any] = _called
) -> None:
    """Replace the running statistics of `model` by the statistics of all samples of `batches`.

    Use `recalibrate` if the weights of a network were pruned, averaged or otherwise changed. Every
    batch norm of `jaxnorm` or Flax gets the mean and the biased variance of all its inputs. During
    recalibration, each batch is normalized by its own statistics, even if the model calls its batch
    norms with `use_running_average=True`. The old running statistics do not matter, even if they
    are NaN. If a layer is called twice for a batch, only the last call counts. Layers without batch
    statistics do not change, and a batch norm whose inputs are all masked does not change either.
    If the model raises an error for a batch, no running statistics are changed.

    Args:
      model: A model with at least one batch norm.
      batches: The batches of inputs of the model. In every layer, the weight of a batch is the
        number of its unmasked elements. The model is compiled once for each shape of a batch.
      call: A function of the model and a batch that calls the model.

    Raises:
      TypeError: `batches` is a single array, or a batch consists of several arrays and no `call` is
        given.
      ValueError: The model has no batch norm, or there is no batch.

    Example:
      >>> from jaxnorm.nnx import BatchNorm
      >>> layer = BatchNorm(1, use_running_average=True, rngs=nnx.Rngs(0))
      >>> recalibrate(layer, [jnp.array([[1.0], [3.0]]), jnp.array([[5.0], [7.0]])])
      >>> print(layer.mean[...], layer.var[...])
      [4.] [5.]
    """
    if isinstance(batches, jax.Array | np.ndarray):
        raise TypeError(
            f"batches must be a list or an iterator of batches; got one array of {batches.shape}"
        )
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        got = type(batches).__name__
        raise TypeError(f"batches must be a list or an iterator of batches; got {got}")
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
        new, state = seen(state, batch)
        merged = zip(fresh or new, new, strict=True)
        fresh = new if fresh is None else [merge_statistics(a, b) for a, b in merged]
    if fresh is None:
        raise ValueError("batches must hold at least one batch; got none")
    for norm, (mean, var, count) in zip(norms, fresh, strict=True):
        norm.mean[...] = jnp.where(count > 0, mean, norm.mean[...])
        norm.var[...] = jnp.where(count > 0, var, norm.var[...])


def _last_statistics(
    call: Callable[[nnx.Module, Any], Any], graph: Any, state: Any, batch: Any
) -> tuple[list[BatchStatistics], Any]:
    """Statistics and sample counts of the batch norms' last calls, and the model's state.

    The state is the state after the batch.
    """
    model = nnx.merge(graph, state, copy=True)
    norms: list[Any] = batch_norms(model)
    kinds = [type(norm) for norm in norms]
    options = [dict(vars(norm)) for norm in norms]
    for norm, kind in zip(norms, kinds, strict=True):
        norm.__class__ = _counting(kind)
        norm.set_attributes(**{name: v for name, v in OF_THE_BATCH.items() if name in vars(norm)})
        norm.count = nnx.Intermediate(jnp.zeros((), jnp.float32))
        # The old running statistics may be NaN, and zero times NaN is NaN.
        norm.mean.set_value(jnp.zeros_like(norm.mean[...]))
        norm.var.set_value(jnp.ones_like(norm.var[...]))
    call(model, batch)
    seen = [BatchStatistics(n.mean[...], n.var[...], n.count[...]) for n in norms]
    for norm, kind, own in zip(norms, kinds, options, strict=True):
        norm.__class__ = kind
        del norm.count
        norm.set_attributes(**{name: own[name] for name in OF_THE_BATCH if name in own})
    return seen, nnx.state(model)


@cache  # The classes are cached, because JAX keeps every module class forever.
def _counting(kind: type[Any]) -> type[Any]:
    """A batch norm class that records the statistics and the number of elements of its last batch.

    The class ignores options of the call, by which a model may choose inference.
    """

    class Counting(kind):
        def __call__(self, x: Array, *_: Any, mask: Array | None = None, **__: Any) -> Array:
            count = jnp.asarray(math.prod(jnp.moveaxis(x, self.axis, -1).shape[:-1]))
            if mask is not None:
                count = mask_of_samples(mask, x, self.axis).sum()
            self.count.set_value(count.astype(jnp.float32))
            return super().__call__(x, use_running_average=False, mask=mask)

        def _update(self, batch: BatchStatistics) -> None:
            # A running average would round: in float32, the variance 1 + (10⁻⁸ − 1) is 0.
            self.mean.set_value(batch.mean.astype(self.mean[...].dtype))
            self.var.set_value(batch.var.astype(self.var[...].dtype))

    return Counting
