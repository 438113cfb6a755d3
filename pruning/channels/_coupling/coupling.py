"""Which channels of which parameters are coupled, read off the program of any model.

`apply(params, *inputs)` is traced and evaluated on ids of channels. A channel is a set of
positions, (array, axis, index), that the program needs all or none of: removed together, what is
left computes what the model computes with these positions set to zero. Channels of the inputs and
outputs are never removed, nor those for which this cannot be shown: `fixed_channels` says why.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from pruning.channels._coupling.channel_ids import (
    FIXED,
    ChannelIds,
    Pinned,
    Requirement,
    UnionFind,
    fixed,
)
from pruning.channels._coupling.control_flow import evaluate
from pruning.channels._coupling.groups import (
    ChannelGroup,
    FixedChannels,
    Parameters,
    Position,
    described,
)
from pruning.channels._program.interpret import traced
from pruning.channels._program.lines import at, line_of

Axis = tuple[int, int]
"""An axis of an array of a tree: the number of the array, the number of the axis."""


class TracedChannels(NamedTuple):
    """The united ids of a model, and those of the arguments of its program.

    `starts`: the first id of each of the `axes` that have ids, and the first of no parameter.
    """

    sets: UnionFind
    parameters: Parameters
    arguments: list[ChannelIds]
    starts: list[int]
    axes: list[Axis]

    def axes_of(self, ids: np.ndarray) -> list[Axis]:
        """The axes of the parameters that the ids belong to."""
        of_parameters = ids[(ids > FIXED) & (ids < self.starts[-1])]
        numbers = np.searchsorted(self.starts, of_parameters, side="right") - 1
        return [self.axes[k] for k in np.unique(numbers)]

    def check_removable(self, ids: np.ndarray) -> None:
        """Raise if some of `ids` are pinned, by what pins them."""
        pinned = ids[self.sets.find(ids) == FIXED]
        if pinned.size:
            reason = self.sets.reasons[pinned[0]]
            by = reported(self.sets.pinned[reason])
            raise ValueError(
                "groups must be of channels that this program too can do without; "
                f"{by.primitive} needs some that were removed{at(by.line)}"
            )


def coupled_channels(
    apply: Callable[..., Any], params: Any, *inputs: Any, resize: bool = False
) -> tuple[ChannelGroup, ...]:
    """The groups of channels of `params` that can be removed from `apply(params, *inputs)`.

    Elementwise operations couple the channels of their operands. A convolution or a dense layer
    couples the inputs of its kernel with the channels of its operand, and its result has the
    channels of the kernel's outputs; of grouped convolutions one channel of each group is removed,
    of depthwise ones a channel with its outputs, and of outputs that are split one channel of every
    part that is combined with the others. Of an axis that is folded into heads or groups, whole
    ones are removed. Flattened maps, concatenation, padding, loops and their states, and parameters
    that are used twice are followed. Never cut are the channels of inputs and outputs, those added
    to zeros of a padded shortcut, and all that `fixed_channels` names.

    Only shapes count: small images are faster, and `jax.ShapeDtypeStruct` does for any array.

    Args:
      apply: A function that JAX can trace; of a module, its evaluation, without dropout.
      params: Any tree of arrays, running statistics included.
      inputs: What else `apply` is called with.
      resize: Whether the smaller tree is run by `resized`. Then channels under a norm over them,
        such as the residual stream of a transformer, are removed too: means and variances remain
        those of the whole width, with zeros at removed channels; so are those along which a
        constant varies, such as angles of rotary positions. The model itself would divide by
        another width, or has the constant at one width only, so that these groups, marked
        `normed`, are left out by default.

    Raises:
      ValueError: `apply` cannot be traced at these arguments.

    Example:
      >>> import jax
      >>> params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> for group in coupled_channels(mlp, params, np.ones((1, 2))):
      ...     print(group.size, [(p.path, p.axis) for p in group.positions])
      5 [('a', 1), ('b', 0)]
    """
    groups = _groups(channels_of(apply, params, inputs))
    return tuple(group for group in groups if resize or not group.normed)


def fixed_channels(
    apply: Callable[..., Any], params: Any, *inputs: Any, resize: bool = False
) -> tuple[FixedChannels, ...]:
    """The channels that are never cut, and why: by the primitive that would cut them wrongly.

    Primitives that are not known, sums over channels such as a norm or a softmax over them, and
    constants and random bits along them; with `resize` as in `coupled_channels` norms, constants
    and random bits cut none wrongly. `line` is that of the model. After these come the channels of
    inputs and of outputs, whose `primitive` is `input` or `output` and whose `line` is their path.
    Arguments and errors are those of `coupled_channels`.

    Example:
      >>> import jax
      >>> def normalized(params, x):
      ...     return {"y": jax.nn.softmax(x @ params["a"]) @ params["b"]}
      >>> params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
      >>> for report in fixed_channels(normalized, params, np.ones((1, 2))):
      ...     print(report.primitive, report.paths, report.line.split()[-1])
      reduce_max ('a', 'b') (normalized)
      input ('a',) [0]
      output ('b',) ['y']
    """
    channels = channels_of(apply, params, inputs)
    found: dict[tuple[str, str], set[int]] = {}
    for pinned in channels.sets.pinned:
        ids = pinned.ids if resize else pinned.new
        if ids.size and not (resize and pinned.normed):
            primitive, _, line = reported(pinned)
            found.setdefault((primitive, line), set()).update(i for i, _ in channels.axes_of(ids))
    reports = [
        FixedChannels(primitive, tuple(channels.parameters.paths[i] for i in sorted(arrays)), line)
        for (primitive, line), arrays in found.items()
        if arrays
    ]
    return tuple(sorted(reports, key=lambda report: ("input", "output").count(report.primitive)))


def reported(pinned: Pinned) -> FixedChannels:
    """What pins channels, and where, without their arrays."""
    primitive, line = pinned.name or (
        pinned.equations[-1].primitive.name if pinned.equations else "apply",
        line_of(pinned.equations),
    )
    return FixedChannels(primitive, (), line)


def channels_of(apply: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> TracedChannels:
    """The united ids of a model, all axes of channels of its outputs pinned."""
    program, result = traced(apply, params, inputs)
    return united(program, described(params), inputs, result)


def united(
    program: Any,
    parameters: Parameters,
    inputs: Sequence[Any],
    result: Any = None,
    *,
    states: int = 0,
) -> TracedChannels:
    """The united ids of a traced model.

    Channels of its inputs are pinned, but for those of the first `states` of these; so are those of
    its outputs where `result` has their shapes.
    """
    for variable in program.jaxpr.invars:
        if any(map(jax.export.is_symbolic_dim, variable.aval.shape)):
            raise ValueError(
                f"inputs must have known shapes; got {variable.aval.shape}: for a symbolic batch "
                "apply jax.vmap to the function of one sample"
            )
    sets, starts, axes, values = UnionFind(), [], [], []
    count = len(parameters.shapes)
    used = {id(v) for eqn in program.jaxpr.eqns for v in eqn.invars}
    for i, variable in enumerate(program.jaxpr.invars[:count]):
        vectors = []
        for k, n in enumerate(variable.aval.shape):
            channels = n > 1 and id(variable) in used
            vectors.append(sets.new(n) if channels else fixed(n))
            if channels:
                starts.append(int(vectors[-1][0]))
                axes.append((i, k))
        zero = frozenset({i}) if vectors else None
        values.append(ChannelIds(tuple(vectors), zero, given=True))
    starts.append(sets.parents.size)
    held = len(jax.tree.leaves(inputs[:states]))
    paths = jax.tree_util.tree_leaves_with_path(tuple(inputs))
    pairs = zip(program.jaxpr.invars[count:], paths, strict=True)
    for i, (variable, (path, _)) in enumerate(pairs):
        values.append(_input_ids(sets, variable.aval.shape, path, count + i, i < held))
    results = evaluate(program, sets, values)
    outputs = jax.tree_util.tree_leaves_with_path(result)
    for value, (path, _) in zip(results if outputs else (), outputs, strict=True):
        for vector in value.axes:
            sets.pin(vector, name=("output", jax.tree_util.keystr(path)))
    _pin_ambiguous(sets)
    sets.settled = True
    return TracedChannels(sets, parameters, values, starts, axes)


def _input_ids(
    sets: UnionFind, shape: Sequence[int], path: Any, number: int, state: bool
) -> ChannelIds:
    """Of an input, pinned, or of a state, in which removed channels are zero as in parameters."""
    if state:
        return ChannelIds(tuple(map(sets.new, shape)), frozenset({number}))
    one = sets.pin(sets.new(1), name=("input", jax.tree_util.keystr(path)))
    return ChannelIds(tuple(np.repeat(one, n) if n > 1 else fixed(n) for n in shape))


def _groups(traced_channels: TracedChannels) -> tuple[ChannelGroup, ...]:
    """Channels with the same number of indices in the same axes, in order of the parameters."""
    sets, parameters, _, starts, axes = traced_channels
    incoming = set(traced_channels.axes_of(np.concatenate([*sets.incoming, fixed(0)])))
    channels: dict[int, dict[Axis, list[int]]] = {}
    roots = np.split(sets.find(np.arange(sets.parents.size)), starts)[1:-1]
    for axis, of_axis in zip(axes, roots, strict=True):
        for index, root in enumerate(of_axis.tolist()):
            if root != FIXED:
                channels.setdefault(root, {}).setdefault(axis, []).append(index)
    alike: dict[tuple[bool, tuple[tuple[Axis, int, bool], ...]], list[dict[Axis, list[int]]]] = {}
    singular, zeroed = _singular(sets), _zeroed(sets)
    normed = set(sets.find(sets.normed).tolist())
    for root, channel in channels.items():
        kind = tuple(
            ((i, k), len(indices), root not in singular or root in zeroed.get(i, ()))
            for (i, k), indices in channel.items()
        )
        alike.setdefault((root in normed, kind), []).append(channel)
    return tuple(
        ChannelGroup(
            len(members),
            tuple(
                Position(
                    parameters.paths[i],
                    k,
                    np.array([channel[i, k] for channel in members]),
                    (i, k) in incoming,
                    masked,
                )
                for (i, k), _, masked in kind
            ),
            parameters,
            is_normed,
        )
        for (is_normed, kind), members in alike.items()
    )


def _pin_ambiguous(sets: UnionFind) -> None:
    """Pin the channels of what must be zero in one place and must not in another."""

    def pin(required: Requirement, roots: set[int]) -> None:
        among = np.isin(sets.find(required.ids), list(roots))
        sets.pin(required.ids[among], required.equations)

    zeroed, singular = _zeroed(sets), _singular(sets)
    for divisor in sets.singular:
        needed = [zeroed.get(i, set()) for i in divisor.parameters or ()]
        if needed and (both := set.intersection(*needed)):
            pin(divisor, both)
    for factor in sets.zeroed:
        if not factor.given:
            pin(factor, singular)


def _singular(sets: UnionFind) -> set[int]:
    """The sets of ids of what must not be zero."""
    ids = [divisor.ids for divisor in sets.singular]
    return set(sets.find(np.concatenate([*ids, fixed(0)])).tolist())


def _zeroed(sets: UnionFind) -> dict[int, set[int]]:
    """For each parameter, the sets of ids at which sums over channels need it to be zero."""
    zeroed: dict[int, set[int]] = {}
    for factor in sets.zeroed:
        roots = sets.find(factor.ids).tolist()
        for i in factor.parameters or ():
            zeroed.setdefault(i, set()).update(roots)
    return zeroed
