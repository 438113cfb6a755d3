"""The program of a network run on smaller arrays: its shapes adapted, its constants kept.

The network is traced at the widths that it was written for, and its program is evaluated on the
arrays that are left. A shape that it spells out becomes that of the channels that are left; numbers
that were read off a shape, such as 1/√width, remain what they were.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from jaxnorm._numerics import check_on_host
from pruning.channels._channel_ids import ChannelIds, is_free
from pruning.channels._coupling import united
from pruning.channels._groups import ChannelGroup, described
from pruning.channels._programs import (
    JITTED,
    STRAIGHT,
    called,
    entering,
    equation_ids,
    ids_of_constant,
    interpret,
    scan_ids,
    scan_parts,
    traced,
    while_ids,
    while_parts,
)
from pruning.channels._removal import Keep, check_keep, keep_masks
from pruning.channels._sizes import Sizes, first, fitted, large_tree, operand_axes


class Sized(NamedTuple):
    """A smaller array, the ids of the channels of the large one, and `removed` if not zero."""

    array: Any
    ids: ChannelIds
    fill: Callable[[int], Any] | None = None

    def removed(self, axis: int) -> Any:
        """What is at each channel removed along an axis, of size 1, where they are uniform."""
        if self.ids.axes[axis].size == 1 or is_free(self.ids.axes[axis]):
            return jax.lax.slice_in_dim(self.array, 0, 1, axis=axis)
        if self.ids.zero is not None:  # of a part, all channels may be gone
            shape = np.shape(self.array)
            return jnp.zeros((*shape[:axis], 1, *shape[axis + 1 :]), self.array.dtype)
        assert self.fill is not None  # they are not uniform
        return self.fill(axis)


def resized(
    apply: Callable[..., Any], groups: Sequence[ChannelGroup], keep: Keep
) -> Callable[..., Any]:
    """`apply` for the smaller tree: a function of what `remove_channels` returns, and of inputs.

    It is right where `apply` itself is not, or cannot be called: for `flax.linen`, written widths,
    depthwise convolutions, attention, norms over channels, and wherever a shape decides what is
    computed. To a sum over channels those that are removed add what they would. `apply` is traced
    at the old widths, without their arrays. It can be compiled, differentiated and batched;
    rules of differentiation by `jax.custom_vjp` give way to the derivative of what they compute.

    Args:
      apply: As in `coupled_channels`.
      groups: All or some of `coupled_channels`.
      keep: As in `remove_channels`, read on the host.

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
    check_on_host("resized", keep, instead="of a traced keep, use mask_channels")
    check_keep(groups, keep)
    masks = keep_masks(groups, list(map(np.asarray, keep)))

    def small_apply(params: Any, *inputs: Any) -> Any:
        tree = large_tree(params, groups)
        program, result = traced(apply, tree, inputs)
        channels = united(program, described(tree))
        resizing = Resizing(Sizes(channels, masks))
        arrays = jax.tree.leaves((params, inputs))
        outputs = resizing.run(program, list(map(Sized, arrays, channels.arguments)))
        return jax.tree.unflatten(jax.tree.structure(result), [y.array for y in outputs])

    return small_apply


class Resizing:
    """Evaluates a program on smaller arrays."""

    def __init__(self, sizes: Sizes):
        self.sizes, self.sets = sizes, sizes.sets

    def run(self, program: Any, values: Sequence[Sized]) -> list[Sized]:
        """The results of `program`."""
        return interpret(program, values, lambda x: Sized(x, ids_of_constant(x)), self.step)

    def step(self, eqn: Any, values: Sequence[Sized]) -> Sequence[Sized]:
        """The results of an equation."""
        arrays, ids = [v.array for v in values], entering(eqn, [v.ids for v in values])
        values = [v._replace(ids=i) for v, i in zip(values, ids, strict=True)]
        if all(np.shape(a) == v.aval.shape for a, v in zip(arrays, eqn.invars, strict=True)):
            ids, results = self.ids(eqn, values), bound(eqn, arrays, eqn.params)
        elif (inner := called(eqn)) is not None:
            return self.call(eqn, inner, values)
        elif eqn.primitive.name == "scan":
            return self.scan(eqn, values)
        elif eqn.primitive.name == "while":
            return self.loop(eqn, values)
        else:
            ids = self.ids(eqn, values)
            if eqn.primitive.name == "cond":
                results = self.branch(eqn, values, ids)
            else:
                params = self.sizes.params(eqn, [v.ids for v in values], ids)
                arrays = self.sizes.tables(eqn, arrays, [v.ids for v in values])
                results = bound(eqn, fitted(eqn, arrays, self.sizes.shape(ids[0])), params)
            if eqn.primitive.name in STRAIGHT and ids[0].zero is None:
                return [Sized(results[0], ids[0], partial(self.removed, eqn, values))]
            if eqn.primitive.name == "reduce_sum":
                results[0] = results[0] + self.removed_sum(eqn, values[0])
        return list(map(Sized, results, ids))

    def removed(self, eqn: Any, values: Sequence[Sized], axis: int) -> Any:
        """What an equation gives at each of the channels removed along an axis of its result."""
        axes = zip(values, operand_axes(eqn, axis), strict=True)
        operands = [v.array if k is None else v.removed(k) for v, k in axes]
        shape = list(self.sizes.shape(self.ids(eqn, values)[0]))
        shape[axis] = 1
        return bound(eqn, fitted(eqn, operands, tuple(shape)), eqn.params)[0]

    def removed_sum(self, eqn: Any, value: Sized) -> Any:
        """What removed channels add to a sum over channels, all of them the same."""
        for axis in map(int, eqn.params["axes"] if value.ids.zero is None else ()):
            count = value.ids.axes[axis].size - value.array.shape[axis]
            if count:
                return count * bound(eqn, [value.removed(axis)], eqn.params)[0]
        return 0

    def ids(self, eqn: Any, values: Sequence[Sized]) -> list[ChannelIds]:
        return equation_ids(self.sets, eqn, [v.ids for v in values])

    def call(self, eqn: Any, inner: Any, values: Sequence[Sized]) -> list[Sized]:
        """A call, with its checkpoint or its derivative."""
        if eqn.primitive.name in JITTED:
            return self.run(inner, values)
        operands = [v.ids for v in values]

        def function(*arrays: Any) -> list[Any]:
            return [r.array for r in self.run(inner, list(map(Sized, arrays, operands)))]

        if eqn.primitive.name in ("checkpoint", "remat2"):
            policy, prevent_cse = eqn.params["policy"], eqn.params["prevent_cse"]
            function = jax.checkpoint(function, policy=policy, prevent_cse=prevent_cse)
        elif eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(function)
            function.defjvp(partial(self.derivative, eqn, operands))
        return list(map(Sized, function(*(v.array for v in values)), self.ids(eqn, values)))

    def derivative(
        self, eqn: Any, ids: list[ChannelIds], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The rule of `jax.custom_jvp`, on smaller arrays."""
        zeros = [t.dtype == jax.dtypes.float0 for t in tangents]
        program, constants, no_tangent = eqn.params["jvp_jaxpr_fun"].call_wrapped(*zeros)
        nonzero = [Sized(t, i) for t, i, zero in zip(tangents, ids, zeros, strict=True) if not zero]
        values = [*map(Sized, primals, ids), *nonzero]
        results = [v.array for v in self.run(ClosedJaxpr(program, constants), values)]
        count = len(no_tangent)
        outputs, rest = results[:count], iter(results[count:])
        return outputs, [
            jnp.zeros_like(y) if none else next(rest)
            for y, none in zip(outputs, no_tangent, strict=True)
        ]

    def branch(self, eqn: Any, values: Sequence[Sized], ids: Sequence[ChannelIds]) -> list[Any]:
        index, *operands = values

        def taken(program: Any, *arrays: Any) -> list[Any]:
            pairs = zip(arrays, operands, strict=True)
            results = self.run(program, [Sized(a, v.ids) for a, v in pairs])
            return [first(r.array, self.sizes.shape(i)) for r, i in zip(results, ids, strict=True)]

        branches = [partial(taken, program) for program in eqn.params["branches"]]
        return jax.lax.switch(index.array, branches, *(v.array for v in operands))

    def scan(self, eqn: Any, values: Sequence[Sized]) -> list[Sized]:
        (inner,), results = scan_ids(self.sets, eqn, [v.ids for v in values])
        count, carried = scan_parts(eqn)
        arrays = [v.array for v in values]
        constants, stacked = arrays[:count], arrays[count + carried :]
        shapes = list(map(self.sizes.shape, results[:carried]))

        def body(carry: list[Any], layer: list[Any]) -> tuple[list[Any], list[Any]]:
            operands = list(map(Sized, [*constants, *carry, *layer], inner))
            outputs = [v.array for v in self.run(eqn.params["jaxpr"], operands)]
            return list(map(first, outputs[:carried], shapes)), outputs[carried:]

        start = list(map(first, arrays[count : count + carried], shapes))
        options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        end, layers = jax.lax.scan(body, start, stacked, **options)
        return list(map(Sized, [*end, *layers], results))

    def loop(self, eqn: Any, values: Sequence[Sized]) -> list[Sized]:
        (of_body, of_condition), results = while_ids(self.sets, eqn, [v.ids for v in values])
        condition, constants, start = while_parts(eqn, [v.array for v in values])
        shapes = list(map(self.sizes.shape, results))

        def body(carry: list[Any]) -> list[Any]:
            operands = list(map(Sized, [*constants, *carry], of_body))
            outputs = self.run(eqn.params["body_jaxpr"], operands)
            return [first(v.array, shape) for v, shape in zip(outputs, shapes, strict=True)]

        def goes_on(carry: list[Any]) -> Any:
            operands = list(map(Sized, [*condition, *carry], of_condition))
            return self.run(eqn.params["cond_jaxpr"], operands)[0].array

        end = jax.lax.while_loop(goes_on, body, list(map(first, start, shapes)))
        return list(map(Sized, end, results))


def bound(eqn: Any, arrays: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The results of a primitive."""
    results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(params))
    return list(results) if eqn.primitive.multiple_results else [results]
