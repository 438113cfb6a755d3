"""Computes the loss of a batch in microbatches, with the statistics of the whole batch."""

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxnorm._running import updates
from jaxnorm._statistics import BatchStatistics, correction_factor, merge_statistics
from jaxnorm.internal import check_array, check_function, check_whole, split_batch
from jaxnorm.nnx._layers import BatchRenorm, RunningNorm
from jaxnorm.nnx._models import changes
from jaxnorm.nnx._surgery import batch_norms

Loss = Callable[[nnx.Module, Any], Float[Array, ""]]


def microbatched(loss: Loss, microbatches: int) -> Loss:
    """A function that equals `loss` up to rounding, but computes the batch in microbatches.

    In the usual accumulation of gradients, each microbatch is normalized by its own statistics.
    With `microbatched`, all microbatches are normalized by the statistics of the whole batch,
    merged as in Chan, Golub and LeVeque (1979), and gradients flow through these statistics. The
    statistics of a layer depend on all earlier layers. Therefore a model with L batch norms takes L
    passes over the batch for the statistics, and one pass for the loss. The gradient takes L + 1
    further passes over the batch. If the whole batch fits into memory with `nnx.remat`, use
    `nnx.remat`, which is faster. The running statistics are updated once, with the statistics of
    the whole batch. All other state of the model, such as the counters of random keys, becomes the
    state after the last microbatch, except the values that `sow` records.

    Args:
      loss: A function of two arguments, a model in training mode and a batch. The function returns
        a mean over the samples of the batch, and must call every batch norm exactly once. Random
        numbers of the model, such as dropout masks, are the same for all microbatches of a batch.
      microbatches: The number of parts, each with the same number of consecutive samples.

    Returns:
      A function of the model and the batch, which is called and differentiated like `loss`.

    Raises:
      ValueError: `microbatches` is less than 1 or does not divide the number of samples. The model
        has a batch norm of Flax, a `BatchRenorm`, a batch norm with groups or in inference mode,
        batch norms that `nnx.vmap` stacked, or a batch norm that `loss` does not call exactly once.
        `loss` calls a batch norm in inference mode, or with an `update_running_average` that
        differs from the batch norm's own. The result of `loss` is not one number.

    Example:
      >>> from jaxnorm.nnx import BatchNorm
      >>> layer = BatchNorm(1, rngs=nnx.Rngs(0))
      >>> x = jnp.arange(8, dtype="float32")[:, None]
      >>> loss = lambda layer, x: jnp.square(layer(x) - 1).mean()
      >>> print(loss(layer, x).round(4), microbatched(loss, 4)(layer, x).round(4))
      2.0 2.0
    """
    check_function(loss, "loss", "lambda model, batch: ...")
    check_whole(microbatches=microbatches)
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1; got {microbatches}")

    def whole(model: nnx.Module, batch: Any) -> Float[Array, ""]:
        norms = _in_training(model)
        parts = jax.tree.map(lambda x: _split(x, microbatches), batch)
        graph, state = nnx.split(model)
        one = jax.checkpoint(lambda *arguments: _one(loss, graph, *arguments))

        @jax.checkpoint
        def merged(state: Any, given: list[BatchStatistics]) -> list[BatchStatistics]:
            seen = jax.lax.map(lambda part: one(state, given, part)[1], parts)
            return [_union(statistics) for statistics in seen]

        # The first pass can use any finite statistics. The running statistics are not used, because
        # they can be NaN, and then the gradients would be NaN.
        unsettled = [
            BatchStatistics(jnp.zeros_like(mean), jnp.ones_like(mean), jnp.ones((), mean.dtype))
            for mean in (norm.mean[...] for norm in norms)
        ]
        given = merged(state, unsettled)
        # After each pass, one more layer has its final statistics, because all earlier layers
        # already had their final statistics.
        given, _ = jax.lax.scan(
            lambda given, _: (merged(state, given), None), given, length=max(len(norms) - 1, 0)
        )
        losses, changed = jax.lax.map(lambda part: one(state, given, part)[::2], parts)
        nnx.update(model, jax.tree.map(lambda x: x[-1], changed))
        for norm, statistics in zip(norms, given, strict=True):
            if updates(False, norm.update_running_average):
                norm._update(statistics)
        return losses.mean()

    return whole


@cache  # The classes are cached, because JAX keeps every module class forever.
def _recorder(kind: type[RunningNorm]) -> type[Any]:
    """A batch norm class that normalizes by given statistics and records its batch's statistics."""

    class Recorder(kind):
        # The names are long, so that they differ from the attributes of a user's subclass.
        _microbatch_called: bool
        _microbatch_statistics: nnx.Variable

        def _modes(self, use: bool | None, update: bool | None) -> tuple[bool, bool]:
            used = self.use_running_average if use is None else use
            own = updates(False, self.update_running_average)
            if used is None or used or updates(False, update, own) != own:
                raise ValueError(
                    "loss must call every batch norm in training mode, and without "
                    f"update_running_average; one call has use_running_average={used} and "
                    f"update_running_average={update}"
                )
            return True, True

        def _update(self, batch: BatchStatistics) -> None:
            if self._microbatch_called:
                raise ValueError(
                    "loss must call every batch norm once; it calls one batch norm twice"
                )
            self._microbatch_called = True
            self._microbatch_statistics.set_value(batch)

    return Recorder


def _one(
    loss: Loss, graph: Any, state: Any, given: list[BatchStatistics], part: Any
) -> tuple[Array, list[BatchStatistics], Any]:
    """A microbatch's loss with the `given` statistics, its own statistics, and the new state."""
    model = nnx.merge(graph, state, copy=True)
    norms: list[Any] = batch_norms(model)
    running = [(norm.mean[...], norm.var[...]) for norm in norms]
    for norm, statistics in zip(norms, given, strict=True):
        mean, var, count = statistics
        norm.__class__ = _recorder(type(norm))
        norm._microbatch_called = False
        norm._microbatch_statistics = nnx.Intermediate(statistics)
        norm.mean.set_value(mean)
        if norm.correction is not None:
            var = var * correction_factor(norm.correction, count, "correction")
        norm.var.set_value(var)
    value = loss(model, part)
    shape = () if isinstance(value, int | float) else getattr(value, "shape", None)
    if shape != ():
        got = type(value).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"loss must return one number, a mean; got {got}")
    if not all(norm._microbatch_called for norm in norms):
        raise ValueError("loss must call every batch norm once; one batch norm is never called")
    for norm, (mean, var) in zip(norms, running, strict=True):
        norm.mean.set_value(mean)
        norm.var.set_value(var)
    recorded = [norm._microbatch_statistics.get_value() for norm in norms]
    return jnp.asarray(value), recorded, changes(model, state)


def _in_training(model: nnx.Module) -> list[Any]:
    """All batch norms in `model`; raise unless they are from `jaxnorm` and in training mode."""
    norms = batch_norms(model)
    for norm in norms:
        if not isinstance(norm, RunningNorm):
            raise ValueError(
                "batch norms must be layers of jaxnorm.nnx: first call "
                "jaxnorm.nnx.replace_batch_norm(model)"
            )
        if isinstance(norm, BatchRenorm):
            raise ValueError(
                "batch norms must not be BatchRenorm, because microbatches do not compute its "
                "factors r and d"
            )
        if norm.groups != 1 or norm.use_running_average:
            raise ValueError(
                "every batch norm must be in training mode and have groups=1; one has "
                f"groups={norm.groups} and use_running_average={norm.use_running_average}"
            )
        if norm.mean[...].ndim != 1:
            raise ValueError(
                "every batch norm must be one layer; the statistics of one have shape "
                f"{norm.mean[...].shape}: make the layers in a loop instead of by nnx.vmap"
            )
    return norms


def _split(x: Array, microbatches: int) -> Array:
    check_array(x, "a part of the batch")
    if x.ndim == 0:
        raise ValueError("a part of the batch must have samples on its first axis; got a scalar")
    if x.shape[0] % microbatches:
        raise ValueError(
            f"microbatches must divide the number of samples, {len(x)}; got {microbatches}"
        )
    return split_batch(x, microbatches, in_loop=True)


def _union(statistics: BatchStatistics) -> BatchStatistics:
    """The statistics of all samples, from statistics with a leading axis of microbatches."""
    parts = [BatchStatistics(*part) for part in zip(*statistics, strict=True)]
    return reduce(merge_statistics, parts)
