"""Which channels of which parameters belong together, read off the program of any model.

`apply(params, *inputs)` is traced and evaluated on labels of channels. A channel is a set of
positions, (array, axis, index), that the program needs all or none of: removed together, what is
left computes what the model computes with these positions set to zero. Channels of the inputs and
outputs stay, and so do those for which this cannot be shown: `fixed_channels` says why.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pruning.channels._groups import (
    Axis,
    ChannelGroup,
    FixedChannels,
    Labelled,
    Position,
    described,
)
from pruning.channels._ids import FIXED, Joins, Labels, fixed
from pruning.channels._programs import evaluate


def coupled_channels(
    apply: Callable[..., Any], params: Any, *inputs: Any
) -> tuple[ChannelGroup, ...]:
    """The groups of channels of `params` that can be removed from `apply(params, *inputs)`.

    Elementwise operations join the channels of their operands. A convolution or a dense layer
    joins the inputs of its kernel with the channels that come in, and its result has the channels
    of the kernel's outputs; in grouped convolutions one of each group goes, in depthwise ones the
    outputs of a channel go with it. Flattened maps, concatenation, padding, scans over layers and
    parameters that are used twice are followed. Never cut are the channels of inputs and outputs,
    those that meet zeros of a padded shortcut, and all that `fixed_channels` names.

    Only shapes count: small images are faster, and `jax.ShapeDtypeStruct` does for any array.

    Args:
      apply: A function that JAX can trace; of a module, its evaluation, without dropout.
      params: Any tree of arrays; running statistics belong to it.
      inputs: What else `apply` is called with.

    Raises:
      ValueError: `apply` cannot be traced at these arguments.

    Example:
      >>> params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> for group in coupled_channels(mlp, params, np.ones((1, 2))):
      ...     print(group.size, [(p.path, p.axis) for p in group.positions])
      5 [('a', 1), ('b', 0)]
    """
    return _groups(_labelled(apply, params, inputs))


def fixed_channels(
    apply: Callable[..., Any], params: Any, *inputs: Any
) -> tuple[FixedChannels, ...]:
    """The channels that could not be cut, by the primitive that would have cut them wrongly.

    Primitives that are not known; sums over channels such as a norm over them; products of
    activations, as in attention; slices and splits of an axis of channels, whose bounds are
    written in the program. Arguments and errors are those of `coupled_channels`.

    Example:
      >>> def normalized(params, x):
      ...     return jax.nn.softmax(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
      >>> print(*fixed_channels(normalized, params, np.ones((1, 2))))
      FixedChannels(primitive='reduce_max', paths=('a',))
    """
    labelled = _labelled(apply, params, inputs)
    reports = []
    for cut in labelled.joins.cuts:
        arrays = sorted({labelled.axes[k][1][0] for k in labelled.axis_numbers(cut.labels)})
        paths = tuple(labelled.parameters.paths[i] for i in arrays)
        reports.append(FixedChannels(cut.primitive, paths))
    return tuple(dict.fromkeys(reports))


def traced(apply: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> Any:
    """The program of `apply(params, *inputs)`, its leaves in order as arguments."""
    try:
        return jax.make_jaxpr(apply)(params, *inputs)
    except Exception as error:
        raise ValueError(
            f"apply must be traceable at these params and inputs; got {type(error).__name__}: "
            f"{error}"
        ) from error


def _labelled(apply: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> Labelled:
    """The joined labels of a model, all axes of channels of its outputs made to stay."""
    program, parameters = traced(apply, params, inputs), described(params)
    joins, axes, values = Joins(), [], []
    count = len(parameters.shapes)
    used = {id(v) for eqn in program.jaxpr.eqns for v in eqn.invars}
    for i, variable in enumerate(program.jaxpr.invars):
        vectors = []
        for k, n in enumerate(variable.aval.shape):
            channels = i < count and n > 1 and id(variable) in used
            vectors.append(joins.new(n) if channels else fixed(n))
            if channels:
                axes.append((int(vectors[-1][0]), (i, k)))
        values.append(Labels(tuple(vectors), weight=i < count))
    for value in evaluate(program, joins, values):
        for vector in value.axes:
            joins.join(vector, fixed(vector.size))
    return Labelled(joins, parameters, axes)


def _groups(labelled: Labelled) -> tuple[ChannelGroup, ...]:
    """Channels with the same number of indices in the same axes, in order of the parameters."""
    joins, parameters, axes = labelled
    incoming = labelled.incoming()
    channels: dict[int, dict[Axis, list[int]]] = {}
    ends = [start for start, _ in axes[1:]] + [joins.parents.size]
    for (start, axis), end in zip(axes, ends, strict=True):
        for index, root in enumerate(joins.roots(np.arange(start, end)).tolist()):
            if root != FIXED:
                channels.setdefault(root, {}).setdefault(axis, []).append(index)
    alike: dict[tuple[tuple[Axis, int], ...], list[dict[Axis, list[int]]]] = {}
    for channel in channels.values():
        kind = tuple((axis, len(indices)) for axis, indices in channel.items())
        alike.setdefault(kind, []).append(channel)
    return tuple(
        ChannelGroup(
            len(members),
            tuple(
                Position(
                    parameters.paths[i],
                    k,
                    np.array([channel[i, k] for channel in members]),
                    (i, k) in incoming,
                )
                for (i, k), _ in kind
            ),
            parameters,
        )
        for kind, members in alike.items()
    )
