"""Runs the program of a network on smaller arrays, with the constants of the large network.

The network is traced at its original widths, and the traced program is then evaluated on the
smaller arrays. The evaluation replaces each shape in the program by the shape of the array without
the removed channels. Numbers that were computed from a shape, such as 1/√width, do not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from jaxnorm.internal import check_on_host
from pruning.channels._coupling.channel_ids import ChannelIds, Values, is_free
from pruning.channels._coupling.control_flow import (
    equation_ids,
    evaluate,
    ids_of_constant,
    scan_parts,
    while_parts,
)
from pruning.channels._coupling.coupling import channels_of
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._coupling.rules import corresponding_axes, rule_of
from pruning.channels._program.calls import (
    Apply,
    Call,
    Equation,
    Leaf,
    Program,
    Tree,
    call_of,
    evaluate_equation,
    is_floating,
    of_all,
    shape_of,
    subprograms,
    trace_cotangents,
    trace_tangents,
)
from pruning.channels._program.interpret import check_apply, interpret
from pruning.channels._removal.removal import Keep, check_keep, keep_masks
from pruning.channels._removal.sizes import Shape, Sizes, first, large_tree, struct, trim_broadcast

Arguments = Sequence[Values]
"""For each program inside an equation, the channel ids of its arguments."""


class Sized(NamedTuple):
    """A smaller array, the channel ids of the large array, and the value of removed channels.

    `fill(axis)` returns the value that all removed channels along an axis have in common. `fill` is
    None if no common value is known. If the removed channels are zero, `fill` is not called.
    """

    array: Leaf
    ids: ChannelIds
    fill: Callable[[int], Leaf] | None = None

    def removed(self, axis: int) -> Leaf:
        """The common value of the removed channels along an axis, as an array.

        The returned array has size 1 along this axis.
        """
        if self.ids.axes[axis].size == 1 or is_free(self.ids.axes[axis]):
            return jax.lax.slice_in_dim(self.array, 0, 1, axis=axis)
        # The zeros are not copied from `self.array`, because `self.array` can have no channels.
        if self.ids.zero is not None:
            shape = np.shape(self.array)
            return jnp.zeros((*shape[:axis], 1, *shape[axis + 1 :]), self.array.dtype)
        assert self.fill is not None  # removed channels that are not zero have a common value
        return self.fill(axis)


def resized(
    apply: Apply, groups: Sequence[ChannelGroup], keep: Keep, *, states: Sequence[Tree] = ()
) -> Apply:
    """Turn `apply` into a function of the smaller tree, which `remove_channels` returns.

    Use `resized` if `apply` fails at the smaller widths, or computes a different function there.
    For example, `resized` is needed for modules of `flax.linen`, and for models with widths in the
    code, depthwise convolutions, attention, norms over channels, or branches that depend on a
    shape. If the removed channels have a nonzero value, sums over channels include this value.
    `apply` is traced with the shapes before pruning, so the arrays before pruning are not needed.
    The returned function can be compiled, differentiated and batched, and uses the model's rules of
    `jax.custom_jvp` and `jax.custom_vjp`.

    `apply` may differ from the function from which the groups were read. For example, `apply` may
    be a training step. Random bits are drawn for the whole width and then cut, so dropout drops the
    same elements as in the masked network. If a result has channels, such as a hidden activation, a
    gradient or a new statistic of a batch norm, the result has only the remaining channels.

    Args:
      apply: A function of the tree from which the groups were read, and of inputs.
      groups: All or some groups of `coupled_channels`.
      keep: For each group, the mask of kept channels, as for `remove_channels`. `keep` cannot be
        traced.
      states: Inputs with channels that can be removed, as arrays or shapes of the whole width.
        Examples of states are a key-value cache, running statistics, or the carry of a recurrence.
        States must be the first inputs of `apply`. The returned function accepts states at the
        small or at the whole width, and returns states at the small width. The removed channels of
        states are assumed to be zero.

    Raises:
      TypeError: `apply` is not a function.
      ValueError: `keep` does not match the groups. The returned function raises a ValueError if its
        first argument is not the smaller tree, or if a state has the wrong shape. The function also
        raises a ValueError if `apply` cannot be traced, needs removed channels, or couples removed
        channels with kept channels.

    Example:
      >>> from pruning import coupled_channels, remove_channels
      >>> def mean_of_relu(params, x):
      ...     h = jax.nn.relu(x @ params["a"])
      ...     return h @ params["b"] / h.shape[1]
      >>> params = {"a": np.ones((2, 4)), "b": np.ones((4, 1))}
      >>> groups, keep = coupled_channels(mean_of_relu, params, np.ones((1, 2))), [np.arange(4) < 2]
      >>> small = remove_channels(params, groups, keep)
      >>> right = resized(mean_of_relu, groups, keep)(small, np.ones((1, 2)))
      >>> print(mean_of_relu(small, np.ones((1, 2))), right)
      [[2.]] [[1.]]
    """
    check_on_host("resized", keep, instead="for a traced keep, use mask_channels")
    check_apply(apply)
    check_keep(groups, keep, may_be_empty=True)
    return Resized(apply, tuple(groups), tuple(map(np.asarray, keep)), tuple(states))


@dataclass(frozen=True, eq=False)
class Resized:
    """A function of the smaller tree and of inputs, as the docstring of `resized` describes.

    Traced programs of `apply` are cached by the shapes of the arguments, as in `jax.jit`.
    """

    apply: Apply
    groups: tuple[ChannelGroup, ...]
    keep: tuple[np.ndarray, ...]
    states: tuple[Tree, ...]

    def __call__(self, params: Tree, *inputs: Tree) -> Tree:
        """The result of `apply`, in which arrays have only the remaining channels."""
        program, arrays = self._traced.trace(params, *inputs), jax.tree.leaves((params, inputs))
        # The program has further arguments if `apply` closes over traced arrays.
        if len(program.jaxpr.in_avals) > len(arrays):
            return self._evaluate(params, *inputs)
        results = jaxpr_as_fun(program.jaxpr)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(program.out_info), results)

    @cached_property
    def _traced(self) -> Any:
        return jax.jit(self._evaluate)

    def _evaluate(self, params: Tree, *inputs: Tree) -> Tree:
        tree, rest = large_tree(params, self.groups, self.keep), inputs[len(self.states) :]
        whole = (*jax.tree.map(lambda x: struct(np.shape(x), x), self.states), *rest)
        states = len(self.states)
        channels = channels_of(self.apply, tree, whole, states=states, pin_outputs=False)
        sizes = Sizes(channels, keep_masks(self.groups, self.keep))
        count = len(channels.parameters.paths)
        held = _narrow(sizes, self.states, inputs[:states], channels.arguments[count:])
        arrays = [*jax.tree.leaves(params), *held, *jax.tree.leaves(rest)]
        outputs = Resizing(sizes).arrays(channels.program, arrays, channels.arguments)
        return jax.tree.unflatten(jax.tree.structure(channels.result), outputs)


def _narrow(sizes: Sizes, whole: Sequence[Leaf], states: Sequence[Tree], ids: Values) -> list[Leaf]:
    """The arrays of `states` without the removed channels.

    A given state may have the small width or the whole width.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tuple(states))
    if structure != jax.tree.structure(tuple(whole)):
        raise ValueError(
            f"inputs must begin with states of structure {jax.tree.structure(tuple(whole))}; got "
            f"{structure}"
        )
    narrow = []
    for (path, leaf), large, of_leaf in zip(leaves, jax.tree.leaves(whole), ids, strict=False):
        if np.shape(leaf) == np.shape(large):
            leaf = sizes.cut(leaf, of_leaf)
        if np.shape(leaf) != (small := sizes.shape(of_leaf)):
            raise ValueError(
                f"a state must have the shape that the small network returns, {small} at "
                f"{jax.tree_util.keystr(path)}, or the shape before pruning, {np.shape(large)}; "
                f"got {np.shape(leaf)}"
            )
        narrow.append(leaf)
    return narrow


class Resizing:
    """Evaluates a traced program on smaller arrays."""

    def __init__(self, sizes: Sizes):
        self.sizes, self.sets = sizes, sizes.sets

    def run(self, program: Program, values: Sequence[Sized]) -> list[Sized]:
        constant = lambda x: Sized(x, ids_of_constant(x))  # noqa: E731
        return interpret(program, values, constant, self.step, enter_calls=False)

    def step(self, eqn: Equation, values: Sequence[Sized]) -> Sequence[Sized]:
        arrays, operands = [v.array for v in values], [v.ids for v in values]
        call, block = call_of(eqn), BLOCKS.get(eqn.primitive.name)
        whole = all(np.shape(a) == shape_of(v) for a, v in zip(arrays, eqn.invars, strict=True))
        with self.sets.inside(eqn):
            if call is not None and call.kind == "jit" and not whole:
                return self.run(call.program, values)
            inner, ids = equation_ids(self.sets, eqn, operands)
            if whole:
                results = list(map(self.sizes.cut, evaluate_equation(eqn, arrays), ids))
            elif call is not None:
                results = self.call(eqn, call, arrays, inner[0], ids)
            elif block is not None:
                results = block(self, eqn, arrays, inner, list(map(self.sizes.shape, ids)))
            else:
                params = self.sizes.params(eqn, operands, ids)
                arrays = self.sizes.tables(eqn, arrays, operands)
                arrays = trim_broadcast(eqn, arrays, self.sizes.shape(ids[0]))
                results = evaluate_equation(eqn, arrays, params)
            if rule_of(eqn).uniform:
                return [Sized(results[0], ids[0], partial(self.removed, eqn, values))]
            if rule_of(eqn).sums:
                results[0] = results[0] + self.removed_sum(eqn, values[0])
            return list(map(Sized, results, ids))

    def arrays(self, program: Program, arrays: Sequence[Leaf], ids: Values) -> list[Leaf]:
        """The results of `program` as plain arrays, without channel ids."""
        return [v.array for v in self.run(program, list(map(Sized, arrays, ids)))]

    def removed(self, eqn: Equation, values: Sequence[Sized], axis: int) -> Leaf:
        """The value that all removed channels along `axis` have in an equation's result."""
        pairs = zip(values, corresponding_axes(eqn), strict=True)
        operands = [v.removed(axes.index(axis)) if axis in axes else v.array for v, axes in pairs]
        _, (ids, *_) = equation_ids(self.sets, eqn, [v.ids for v in values])
        shape = list(self.sizes.shape(ids))
        shape[axis] = 1
        return evaluate_equation(eqn, trim_broadcast(eqn, operands, tuple(shape)))[0]

    def removed_sum(self, eqn: Equation, value: Sized) -> Leaf:
        """The part of a sum that comes from removed channels, and that the smaller sum lacks.

        Removed channels that are not zero have one common value.
        """
        for axis in map(int, eqn.params["axes"] if value.ids.zero is None else ()):
            count = value.ids.axes[axis].size - value.array.shape[axis]
            if count:
                return count * evaluate_equation(eqn, [value.removed(axis)])[0]
        return 0

    def call(
        self, eqn: Equation, call: Call, arrays: Sequence[Leaf], operands: Values, results: Values
    ) -> list[Leaf]:
        """The results of a call, with the `jax.checkpoint` or derivative rule of the call."""

        def function(*arrays: Leaf) -> list[Leaf]:
            return self.arrays(call.program, arrays, operands)

        if call.kind == "checkpoint":
            function = jax.checkpoint(function, **call.options)
        elif call.kind == "custom_jvp":
            function = jax.custom_jvp(function)
            function.defjvp(partial(self.tangents, eqn, operands))
        else:
            function = jax.custom_vjp(function)
            function.defvjp(*self.rule(eqn, operands, results))
        return function(*arrays)

    def tangents(
        self, eqn: Equation, ids: Values, primals: Sequence[Leaf], tangents: Sequence[Leaf]
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The `jax.custom_jvp` rule of a call, evaluated on smaller arrays."""
        pairs = [(t, i) for x, t, i in zip(primals, tangents, ids, strict=True) if is_floating(x)]
        values = [*map(Sized, primals, ids), *(Sized(t, i) for t, i in pairs)]
        results = [v.array for v in self.run_rule(eqn, trace_tangents(eqn), values)]
        count = len(eqn.outvars)
        return results[:count], of_all(results[:count], results[count:])

    def rule(self, eqn: Equation, operands: Values, results: Values) -> tuple[Apply, Apply]:
        """The two functions of a `jax.custom_vjp` rule, evaluated on smaller arrays."""
        programs: list[Program] = []  # filled by `forward`
        residuals: list[ChannelIds] = []
        cotangents = [v._replace(zero=None, uniform=None, given=False) for v in results]

        def forward(*arrays: Leaf) -> tuple[list[Leaf], Tree]:
            programs[:] = trace_cotangents(eqn)
            values = self.run_rule(eqn, programs[0], list(map(Sized, arrays, operands)))
            outputs, rest = values[: len(results)], values[len(results) :]
            residuals[:] = [v.ids for v in rest]
            return [v.array for v in outputs], ([v.array for v in rest], arrays)

        def backward(saved: Tree, grads: Sequence[Leaf]) -> tuple[Leaf, ...]:
            arrays, primals = saved
            pairs = zip(grads, cotangents, eqn.outvars, strict=True)
            of_results = [Sized(g, i) for g, i, v in pairs if is_floating(v.aval)]
            values = [*map(Sized, arrays, residuals), *of_results]
            found = iter(self.run_rule(eqn, programs[1], values))
            return tuple(
                first(next(found).array, np.shape(x)) if is_floating(x) else None for x in primals
            )

        return forward, backward

    def run_rule(self, eqn: Equation, program: Program, values: Sequence[Sized]) -> list[Sized]:
        """The results of the program of a custom derivative rule, evaluated on smaller arrays."""
        with self.sets.inside(eqn):
            # `evaluate` must come before `run`, because `evaluate` unites the channel ids of the
            # states of loops.
            evaluate(program, self.sets, [v.ids for v in values])
            return self.run(program, values)

    def branch(
        self, eqn: Equation, arrays: Sequence[Leaf], inner: Arguments, shapes: Sequence[Shape]
    ) -> list[Leaf]:
        def taken(program: Program, ids: Values, *operands: Leaf) -> list[Leaf]:
            return list(map(first, self.arrays(program, operands, ids), shapes))

        pairs = zip(eqn.params["branches"], inner, strict=True)
        return jax.lax.switch(arrays[0], [partial(taken, *pair) for pair in pairs], *arrays[1:])

    def scan(
        self, eqn: Equation, arrays: Sequence[Leaf], inner: Arguments, shapes: Sequence[Shape]
    ) -> list[Leaf]:
        count, carried = scan_parts(eqn)
        constants, stacked = arrays[:count], list(arrays[count + carried :])

        def body(carry: list[Leaf], layer: list[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
            outputs = self.arrays(eqn.params["jaxpr"], [*constants, *carry, *layer], inner[0])
            return list(map(first, outputs[:carried], shapes)), outputs[carried:]

        start = list(map(first, arrays[count : count + carried], shapes))
        options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        end, layers = jax.lax.scan(body, start, stacked, **options)
        return [*end, *layers]

    def shard(
        self, eqn: Equation, arrays: Sequence[Leaf], inner: Arguments, shapes: Sequence[Shape]
    ) -> list[Leaf]:
        """The results of a `shard_map`, whose program runs on each device of a mesh."""
        (program,), params = subprograms(eqn), eqn.params
        manual = params["newly_manual_axes" if "newly_manual_axes" in params else "manual_axes"]
        function = jax.shard_map(
            lambda *arrays: self.arrays(program, arrays, inner[0]),
            mesh=params["mesh"],
            in_specs=tuple(params["in_specs"]),
            out_specs=list(params["out_specs"]),
            axis_names=set(manual),
            check_vma=params["check_vma"],
        )
        return function(*arrays)

    def loop(
        self, eqn: Equation, arrays: Sequence[Leaf], inner: Arguments, shapes: Sequence[Shape]
    ) -> list[Leaf]:
        condition, constants, start = while_parts(eqn, arrays)

        def body(carry: list[Leaf]) -> list[Leaf]:
            outputs = self.arrays(eqn.params["body_jaxpr"], [*constants, *carry], inner[0])
            return list(map(first, outputs, shapes))

        def goes_on(carry: list[Leaf]) -> Leaf:
            return self.arrays(eqn.params["cond_jaxpr"], [*condition, *carry], inner[1])[0]

        return jax.lax.while_loop(goes_on, body, list(map(first, start, shapes)))


BLOCKS = {
    "cond": Resizing.branch,
    "scan": Resizing.scan,
    "shard_map": Resizing.shard,
    "while": Resizing.loop,
}
