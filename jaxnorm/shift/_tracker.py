"""Measures the shift and the moments of a network's layers during training."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm._moments import Moments, merge_moments, moments
from jaxnorm.internal import (
    auto_sharded,
    check_batches,
    check_call,
    check_floating,
    check_function,
    check_whole,
    host_only,
)
from jaxnorm.shift._emd import emd
from jaxnorm.shift._emd_1d import emd_1d
from jaxnorm.shift._moment_bounds import mean_lower_bound, paired_upper_bound
from jaxnorm.shift._samples import check_pair, vectors

Layers = Mapping[str, Float[Array, "n *features"]]


class LayerShift(NamedTuple):
    """The shift of one layer's outputs between two times of training, in the unit of the outputs.

    The outputs at the two times are for the same inputs.

    Attributes:
      exact: The earth mover distance W₁ of all channels together.
      lower: A lower bound of W₁, the distance of the means.
      upper: An upper bound of W₁, the mean distance of the two outputs for the same input.
      baseline: W₁ between two halves of the later outputs, or NaN for a single sample.
      channels: The earth mover distance W₁ of each channel.
    """

    exact: float
    lower: float
    upper: float
    baseline: float
    channels: Float[np.ndarray, " c"]


@host_only("emd_1d, mean_lower_bound and paired_upper_bound")
def layer_shift(
    before: Float[Array, "n *spatial c"], after: Float[Array, "n *spatial c"], *, exact: int = 400
) -> LayerShift:
    """The shift of one layer's outputs between two times of training.

    `layer_shift` runs on the host; under `jit` use `emd_1d`, `mean_lower_bound` and
    `paired_upper_bound`.

    Args:
      before: Outputs of the layer for some inputs, samples first, channels last.
      after: Later outputs of the layer for the same inputs.
      exact: The number of first samples from which the distance of all channels together and its
        bounds are computed. If `before` has fewer samples, all are used. The time grows with the
        second to third power of `exact`: 400 samples take 30 ms, and 4,000 samples take some
        seconds. The field `baseline` is the distance between two halves of the `exact` samples.
        Two sets of all samples would have a slightly smaller distance.

    Raises:
      ValueError: `exact` is below 2, or `emd_1d` would raise an error for the samples.
      TypeError: An argument is traced.
    """
    check_pair(before, after, names=("before", "after"))
    check_whole(exact=exact)
    if exact < 2:
        raise ValueError(f"exact must be at least 2 samples; got {exact}")
    (x, y), *bounds = _on_device(before, after, exact=exact)
    lower, upper, channels = jax.device_get(bounds)
    half = len(y) // 2
    baseline = emd(y[:half], y[half : 2 * half]) if half else float("nan")
    return LayerShift(emd(x, y), float(lower), float(upper), baseline, channels)


@partial(jax.jit, static_argnames="exact")
@auto_sharded
def _on_device(
    before: Array, after: Array, *, exact: int
) -> tuple[tuple[Array, Array], Array, Array, Array]:
    x, y = vectors(before[:exact]), vectors(after[:exact])
    means = mean_lower_bound(x.mean(0), y.mean(0))
    channels = emd_1d(*(part.reshape(-1, part.shape[-1]) for part in (before, after)))
    return (x, y), means, paired_upper_bound(x, y), channels


def stream_moments(outputs: Callable[[Any], Layers], batches: Iterable[Any]) -> dict[str, Moments]:
    """The moments of every channel of every layer over all `batches`, computed one batch at a time.

    Args:
      outputs: A function, preferably compiled, from a batch of inputs to a dictionary with the
        outputs of each layer, channels last.
      batches: Batches of inputs, of any size. In every layer, the weight of a batch is the number
        of its samples, and for images the number of its pixels.

    Raises:
      ValueError: `batches` is empty.
    """

    check_function(outputs, "outputs", "lambda x: ...")
    check_batches(batches)
    total: dict[str, Moments] = {}
    seen: dict[str, int] = {}
    for batch in batches:
        layers = _by_layer(outputs(batch))
        if total:
            _check_names(layers, total)
        for name, y in layers.items():
            new, count = _moments(y), math.prod(y.shape[:-1])
            if name in total:
                new = _merge(total[name], new, jnp.float32(seen[name]), jnp.float32(count))
            total[name], seen[name] = new, seen.get(name, 0) + count
    if not total:
        raise ValueError("batches must hold at least one batch; got none")
    return total


class Tracker:
    """Measures moments of layers, and the shift since the last measurement, on a fixed probe batch.

    Only changes of the weights should cause the shift. However, outputs that are normalized by
    running averages also depend on the latest batches (at momentum 0.9, on about ten batches).
    After a drop of the learning rate, nearly all of the measured shift can be noise from the latest
    batches. Therefore let `outputs` normalize by statistics of the whole training set, as in the
    example. In the example, `recalibrate` with the training set as one batch gives every layer its
    exact statistics. To see how much of a shift is noise, pass `frozen` to `update`.

    The tracker runs on the host, outside the compiled step; inside a compiled step use `emd_1d` and
    `moments`. Between measurements, the tracker stores one copy of the layers' outputs for the
    probe batch. The attribute `seconds` is the time that the tracker has taken so far.

    Args:
      outputs: A function, preferably compiled, from a network's state and inputs to a dictionary
        with the outputs of the chosen layers, channels last.
      probe: Inputs that stay the same during training. Do not train on the inputs of `probe`.
      exact: The number of samples for the distance of all channels together, as for `layer_shift`.

    Example:
      >>> from flax import nnx
      >>> from jaxnorm.nnx import BatchNorm, layer_outputs, recalibrate
      >>> train_set, probe = jax.random.normal(jax.random.key(0), (2, 64, 3), "float32")
      >>> model = nnx.Sequential(BatchNorm(3, rngs=nnx.Rngs(0)))
      >>> graph, state = nnx.split(nnx.view(model, use_running_average=True))
      >>> @jax.jit
      ... def layers(state, x, train_set):
      ...     model = nnx.merge(graph, state, copy=True)
      ...     recalibrate(model, [train_set])
      ...     return layer_outputs(model, ["layers.0"], x)
      >>> tracker = Tracker(lambda state, x: layers(state, x, train_set), probe)
      >>> tracker.update(state)["layers.0"]["shift"]  # of the untrained network: None
      >>> _ = nnx.view(model, use_running_average=False)(probe)  # changes running averages alone
      >>> print(tracker.update(nnx.state(model))["layers.0"]["shift"]["exact"])
      0.0
    """

    def __init__(
        self,
        outputs: Callable[[Any, Array], Layers],
        probe: Float[Array, "n *sample"],
        *,
        exact: int = 400,
    ):
        check_call(outputs, "outputs", "lambda state, x: ...", "a state and inputs", None, probe)
        check_whole(exact=exact)
        self.outputs, self.probe, self.exact = outputs, probe, exact
        self.before: Layers | None = None
        self.seconds = 0.0

    @host_only("emd_1d and moments")
    def update(self, state: Any, *, frozen: Any = None) -> dict[str, dict[str, Any]]:
        """The metrics "shift", "floor" and "moments" of each layer, as Python numbers.

        The shift is measured since the last call of `update`, and is None at the first call.

        Args:
          state: The current state of the network.
          frozen: A state with the same weights, but with the statistics of other batches. The entry
            "floor" of the result is the distance between the outputs under `state` and under
            `frozen`, or None without `frozen`. The floor measures noise, because the weights of
            both states are equal.
        """
        start = time.perf_counter()
        after = _by_layer(self.outputs(state, self.probe))
        again = None if frozen is None else _by_layer(self.outputs(frozen, self.probe))
        for other in filter(None, (self.before, again)):
            _check_names(other, after)
        metrics = {}
        for name, y in after.items():
            shift = None if self.before is None else self._distance(self.before[name], y)
            floor = None if again is None else self._distance(y, again[name])["exact"]
            moments = {k: np.asarray(v).tolist() for k, v in _moments(y)._asdict().items()}
            metrics[name] = {"shift": shift, "floor": floor, "moments": moments}
        self.before = after
        self.seconds += time.perf_counter() - start
        return metrics

    def _distance(self, before: Array, after: Array) -> dict[str, Any]:
        found = layer_shift(before, after, exact=self.exact)._asdict()
        return found | {"channels": found["channels"].tolist()}


@jax.jit
@auto_sharded
def _moments(y: Float[Array, "n *spatial c"]) -> Moments:
    return moments(y, axis=tuple(range(y.ndim - 1)))


@jax.jit
def _merge(a: Moments, b: Moments, n: Float[Array, ""], m: Float[Array, ""]) -> Moments:
    return merge_moments(a, b, counts=(n, m))


def _check_names(new: Layers, names: Mapping[str, Any]) -> None:
    if set(new) != set(names):
        raise ValueError(
            f"outputs must return the same layers at each call; got {list(new)} and {list(names)}"
        )


def _by_layer(outputs: Any) -> Layers:
    """The result of a function `outputs`; raise unless the result is a dictionary."""
    if not isinstance(outputs, Mapping):
        raise TypeError(
            "outputs must return a dictionary from layers to arrays, as jaxnorm.nnx.layer_outputs "
            f"does; got {type(outputs).__name__}"
        )
    for name, y in outputs.items():
        check_floating(y, f"the output of layer {name}")
        if not y.ndim:
            raise ValueError(f"the output of layer {name} must have samples; got shape ()")
    return outputs
