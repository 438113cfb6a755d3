"""Finds the channels of parameters that must be removed together, from the traced program.

`coupled_channels` traces `apply(params, *inputs)` and evaluates the program on channel ids. A
channel is a set of positions (array, axis, index) that must be removed together. The model without
the positions of a channel gives the same outputs as the whole model after `mask_channels` sets the
channel to zero. If the library cannot prove that the outputs are the same, the channel cannot be
removed, and `fixed_channels` gives the reason. Channels of the model's inputs and outputs are never
removed.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from jaxnorm.internal import check_flags
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
    describe,
)
from pruning.channels._program.calls import Apply, Program, Tree, shape_of
from pruning.channels._program.interpret import live_program, trace_apply
from pruning.channels._program.lines import at, line_of

Axis = tuple[int, int]
"""An axis of an array of a tree: the number of the array, and the number of the axis."""


class TracedChannels(NamedTuple):
    """The program of a model, its united channel ids, and the ids of the program's arguments.

    `result` has the shapes of the outputs. `arguments` holds the channel ids first of all
    parameters, then of all inputs. `axes` are the axes of parameters that have channel ids. `live`
    has the indices of those parameters on which an output depends.
    """

    program: Program
    result: Tree
    sets: UnionFind
    parameters: Parameters
    arguments: list[ChannelIds]
    axes: list[Axis]
    live: frozenset[int]

    def ids_of(self, path: str, axis: int) -> np.ndarray:
        """The channel ids along an axis of a parameter."""
        return self.arguments[self.parameters.paths.index(path)].axes[axis]

    def incoming_axes(self) -> set[Axis]:
        """The axes of parameters over which a product of the program sums."""
        return {
            self.axes[k]
            for required in self.sets.zeroed
            for k in required.incoming or ()
            if any(self.axes[k][0] in either for either in required.parameters or ())
        }

    def check_removable(self, ids: np.ndarray) -> None:
        """Raise an error with the reason if a channel of `ids` cannot be removed."""
        pinned = ids[self.sets.find(ids) == FIXED]
        if pinned.size:
            reason = self.sets.reasons[pinned[0]]
            by = report_of(self.sets.pinned[reason])
            raise ValueError(
                "groups must hold only channels that can be removed from this program; its "
                f"{by.primitive} needs some of them{at(by.line)}"
            )


def coupled_channels(
    apply: Apply, params: Tree, *inputs: Tree, resize: bool = False
) -> tuple[ChannelGroup, ...]:
    """Find the groups of channels of `params` that can be removed from `apply(params, *inputs)`.

    Elementwise operations couple channel i of one operand with channel i of every other operand. A
    convolution or a dense layer couples the input axis of its kernel with the channels of its
    input. The channels of the result are the channels of the kernel's output axis. In a grouped
    convolution, a channel of one feature group is removed together with a channel of every other
    feature group. In a depthwise convolution, an input channel is removed together with its output
    channels. If the outputs of a layer are split into parts that are combined later, a channel of
    one part is removed together with a channel of every other part. If an axis is reshaped into the
    heads of attention or the groups of a group norm, only whole heads or groups are removed. The
    analysis follows channels through flattened feature maps, concatenation, padding, loops with
    their states, and parameters that are used twice. Channels that `fixed_channels` lists are never
    removed. For example, channels of inputs and outputs, and channels that are added to the zeros
    of a padded shortcut, are never removed.

    The result depends on the shapes of the arrays, but not on their values. Therefore you can pass
    a `jax.ShapeDtypeStruct` instead of any array. The analysis is faster if images in `inputs` are
    small.

    Args:
      apply: A function that JAX can trace, such as a model in evaluation mode, without dropout.
      params: Any tree of arrays, running statistics included.
      inputs: The other arguments of `apply`.
      resize: Whether `resized` will run the smaller tree. With `resize`, the groups include
        channels over which a norm is computed, such as the residual stream of a transformer. Means
        and variances are still computed over the whole width, with zeros at removed channels. With
        `resize`, the groups also include channels along which a constant varies, such as the angles
        of rotary positions. Without `resized`, the smaller model would divide by the smaller width,
        or combine smaller arrays with a constant of the old size. In the groups that only `resize`
        adds, the attribute `normed` is true.

    Raises:
      ValueError: `apply` cannot be traced at the given arguments. Two arrays of `params` have the
        same path, as in `{"a/b": x, "a": {"b": y}}`.

    Example:
      >>> import jax
      >>> params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> for group in coupled_channels(mlp, params, np.ones((1, 2))):
      ...     print(group.size, [(p.path, p.axis) for p in group.positions])
      5 [('a', 1), ('b', 0)]
    """
    check_flags(resize=resize)
    paths = describe(params).paths
    if len(set(paths)) < len(paths):
        path = next(path for k, path in enumerate(paths) if path in paths[:k])
        raise ValueError(
            f"arrays of params must have different paths; several have the path {path}"
        )
    groups = _groups(channels_of(apply, params, inputs))
    return tuple(group for group in groups if resize or not group.normed)


def fixed_channels(
    apply: Apply, params: Tree, *inputs: Tree, resize: bool = False
) -> tuple[FixedChannels, ...]:
    """List the channels that cannot be removed, and the primitives that prevent their removal.

    If the channels were removed, the primitives could compute a different result.

    For example, removals are prevented by primitives that the library does not know, by sums over
    channels such as a norm or a softmax, and by constants and random bits that vary along channels.
    With `resize`, as in `coupled_channels`, norms, constants and random bits do not prevent
    removal. A `shard_map` that splits channels over devices also prevents removal. To remove
    channels that a `shard_map` splits, read the groups from the same network without `shard_map`.
    Channels of inputs and of outputs come last in the list. Arguments and errors are the same as
    for `coupled_channels`, but several arrays of `params` may have the same path.

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
    check_flags(resize=resize)
    channels = channels_of(apply, params, inputs)
    found: dict[tuple[str, str], set[int]] = {}
    for pinned in channels.sets.pinned:
        axes = pinned.axes if resize else pinned.new
        if axes.size and not (resize and pinned.normed):
            primitive, _, line = report_of(pinned)
            found.setdefault((primitive, line), set()).update(channels.axes[k][0] for k in axes)
    reports = [
        FixedChannels(primitive, tuple(channels.parameters.paths[i] for i in sorted(arrays)), line)
        for (primitive, line), arrays in found.items()
    ]
    return tuple(sorted(reports, key=lambda report: ("input", "output").count(report.primitive)))


def report_of(pinned: Pinned) -> FixedChannels:
    """The primitive and the model's line that forbid a removal; the field `paths` is empty."""
    primitive, line = pinned.name or (
        pinned.equations[-1].primitive.name if pinned.equations else "apply",
        line_of(pinned.equations),
    )
    return FixedChannels(primitive, (), line)


def channels_of(
    apply: Apply, params: Tree, inputs: Sequence[Tree], *, states: int = 0, pin_outputs: bool = True
) -> TracedChannels:
    """The traced program of a model, with the channel ids of its arrays.

    Only the first `states` inputs have channels that can be removed. If `pin_outputs` is true,
    channels of the outputs cannot be removed either.
    """
    (program, result), parameters = trace_apply(apply, params, inputs), describe(params)
    for variable in program.jaxpr.invars:
        if any(map(jax.export.is_symbolic_dim, shape_of(variable))):
            raise ValueError(
                f"inputs must have known shapes; got {shape_of(variable)}: for a symbolic batch "
                "apply jax.vmap to the function of one sample"
            )
    sets, values = UnionFind(), []
    count = len(parameters.shapes)
    used = {id(v) for eqn in program.jaxpr.eqns for v in eqn.invars}
    shapes = [shape_of(v) if id(v) in used else () for v in program.jaxpr.invars[:count]]
    axes = [(i, k) for i, shape in enumerate(shapes) for k, n in enumerate(shape) if n > 1]
    vectors = dict(zip(axes, sets.of_axes([shapes[i][k] for i, k in axes]), strict=True))
    for i, shape in enumerate(parameters.shapes):
        ids = tuple(vectors.get((i, k), fixed(n)) for k, n in enumerate(shape))
        values.append(ChannelIds(ids, frozenset({(i,)}) if shape else None, given=True))
    held = len(jax.tree.leaves(inputs[:states]))
    paths = jax.tree_util.tree_leaves_with_path(tuple(inputs))
    pairs = zip(program.jaxpr.invars[count:], paths, strict=True)
    for i, (variable, (path, _)) in enumerate(pairs):
        values.append(_input_ids(sets, shape_of(variable), path, count + i, i < held))
    results = evaluate(program, sets, values)
    outputs = jax.tree_util.tree_leaves_with_path(result)
    for value, (path, _) in zip(results, outputs, strict=True):
        for vector in value.axes if pin_outputs else ():
            sets.pin(vector, name=("output", jax.tree_util.keystr(path)))
    _pin_ambiguous(sets)
    sets.settled = True
    read = {id(v) for eqn in live_program(program).jaxpr.eqns for v in eqn.invars}
    live = frozenset(i for i, v in enumerate(program.jaxpr.invars[:count]) if id(v) in read)
    return TracedChannels(program, result, sets, parameters, values, axes, live)


def _input_ids(
    sets: UnionFind, shape: Sequence[int], path: Any, number: int, state: bool
) -> ChannelIds:
    """The channel ids of an input; only channels of a state can be removed.

    At the removed channels, a state is zero.
    """
    if state:
        return ChannelIds(tuple(map(sets.new, shape)), frozenset({(number,)}))
    of_input = sets.new_pinned(1, ("input", jax.tree_util.keystr(path)))
    return ChannelIds(tuple(np.repeat(of_input, n) if n > 1 else fixed(n) for n in shape))


def _groups(channels: TracedChannels) -> tuple[ChannelGroup, ...]:
    """The groups of channels, in the order of the parameters.

    Two channels are in one group if they agree in three points: the number of their indices on each
    axis, the axes on which they are masked, and `normed`. Channels that belong only to unused
    parameters are in no group, because the model may still read the shapes of these parameters.
    """
    _, _, sets, parameters, arguments, axes, live = channels
    every, zeroed = sets.roots(), _zero_requirements(sets)
    normed, singular = sets.mask_of(sets.find(sets.normed)), sets.mask_of(_singular(sets))
    roots = [every[arguments[i].axes[k]] for i, k in axes]

    def masked(i: int, ids: np.ndarray) -> np.ndarray:
        return ~singular[ids] | np.isin(ids, zeroed.get(i, fixed(0)))

    # `kinds` has a label for each root. After the loop, two roots have equal labels if they agree
    # in `normed`, and on each axis in the number of indices and in the result of `masked`.
    kinds, count = normed.astype(int), 2
    for (i, _), of_axis in zip(axes, roots, strict=True):
        found, repeats = np.unique(of_axis, return_counts=True)
        key = (kinds[found] * (of_axis.size + 1) + repeats) * 2 + masked(i, found)
        kinds[found] = count + np.unique(key, return_inverse=True)[1]
        count += found.size
    found, firsts = np.unique(np.concatenate([*roots, fixed(0)]), return_index=True)
    found = found[np.argsort(firsts)]
    found = found[found != FIXED]  # the removable channels, in the order of the parameters
    sizes = dict(zip(*np.unique(kinds[found], return_counts=True), strict=True))
    place = np.zeros(every.size, int)
    place[found] = np.arange(found.size)
    positions: dict[int, list[Position]] = {g: [] for g in dict.fromkeys(kinds[found].tolist())}
    needed = {parameters.paths[i] for i in live}
    incoming = channels.incoming_axes()
    for (i, axis), of_axis in zip(axes, roots, strict=True):
        of_groups = np.where(of_axis == FIXED, -1, kinds[of_axis])
        for group in np.setdiff1d(of_groups, [-1]).tolist():
            indices = np.flatnonzero(of_groups == group)
            indices = indices[np.argsort(place[of_axis[indices]], kind="stable")]
            zero = bool(masked(i, of_axis[indices[:1]]))
            indices = indices.reshape(sizes[group], -1)
            one = Position(parameters.paths[i], axis, indices, (i, axis) in incoming, zero)
            positions[group].append(one)
    return tuple(
        ChannelGroup(
            int(sizes[g]), tuple(ps), parameters, bool(normed[found[kinds[found] == g][0]])
        )
        for g, ps in positions.items()
        if any(p.path in needed for p in ps)
    )


def _pin_ambiguous(sets: UnionFind) -> None:
    """Forbid removing channels at which one equation needs zeros and another needs nonzero values.

    An operand whose requirement is `finite` may be zero where a sum needs zeros.
    """
    zeroed = _zero_requirements(sets)
    summed = [factor for factor in sets.zeroed if not factor.given]

    def at_zero(divisor: Requirement) -> np.ndarray:
        """The channels at which `divisor` is zero if the parameters that sums need are zero."""
        parameters = divisor.parameters or ()
        needed = [
            np.concatenate([zeroed.get(i, fixed(0)) for i in either]) for either in parameters
        ]
        return reduce(np.intersect1d, needed) if needed else fixed(0)

    def pin(required: Requirement, roots: np.ndarray) -> None:
        among = np.isin(sets.find(required.ids), roots)
        sets.pin(required.ids[among], required.equations)

    of_sums = sets.find(np.concatenate([*(factor.ids for factor in summed), fixed(0)]))
    for k, divisor in enumerate(sets.singular):
        if divisor.finite:
            zeros = np.union1d(of_sums, at_zero(divisor))
            sets.singular[k] = divisor._replace(ids=np.setdiff1d(sets.find(divisor.ids), zeros))
    singular = _singular(sets)
    for divisor in sets.singular:
        pin(divisor, at_zero(divisor))
    for factor in summed:
        pin(factor, singular)


def _singular(sets: UnionFind) -> np.ndarray:
    """The channels, as roots of their ids, at which some array must be nonzero."""
    return sets.find(np.concatenate([*(divisor.ids for divisor in sets.singular), fixed(0)]))


def _zero_requirements(sets: UnionFind) -> dict[int, np.ndarray]:
    """For each parameter, the channels whose removal requires that the parameter is zero there.

    A channel is given by the root of its ids. A sum over channels requires that its terms are zero
    at removed channels. A term that is a product is zero if any one of its parameters is zero, so
    only the first of these parameters has to be zero.
    """
    zeroed: dict[int, list[np.ndarray]] = {}
    for factor in sets.zeroed:
        for i, *_ in factor.parameters or ():
            zeroed.setdefault(i, []).append(sets.find(factor.ids))
    return {i: np.unique(np.concatenate(roots)) for i, roots in zeroed.items()}
