"""Chains of scales and shifts after a convolution or a product, such as batch norm in evaluation.

A chain begins with a kernel and goes on as long as each channel is multiplied by a number of its
own, made of parameters and constants alone, or one is added to it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pruning.channels._coupling.rules import ELEMENTWISE

SUMS = {"add", "add_any", "sub"}
SCALES = {"mul", "div"}
STRUCTURAL = {"broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose"}


class Value(NamedTuple):
    """An array of a program, computed when it is asked for.

    Attributes:
      array: Computes it, once.
      given: Whether it is made of parameters and constants alone.
      leaves: The parameters that it is made of, by number, if it is given.
      varies: The axes along which elements may differ, if it is given.
      leaf: The parameter that it is, but for shape and dtype.
      chain: What gives it, if that is a chain.
    """

    array: Callable[[], Any]
    given: bool = False
    leaves: frozenset[int] = frozenset()
    varies: frozenset[int] = frozenset()
    leaf: int | None = None
    chain: "Chain | None" = None


class Link(NamedTuple):
    """An equation of a chain, which goes on with operand `side`; `axis` is that of the channels."""

    eqn: Any
    values: Sequence[Value]
    side: int
    axis: int


class Chain(NamedTuple):
    """A product with a kernel, what scales and shifts it, and what changes shapes between.

    Attributes:
      links: In order; of the first, `side` is the kernel.
      kernel_axis: The axis of the kernel's outputs.
      scaled: Whether parameters scale it.
    """

    links: tuple[Link, ...]
    kernel_axis: int
    scaled: bool = False


def started(eqn: Any, values: Sequence[Value]) -> Chain | None:
    """The chain that an equation begins: one of activations and a kernel with one output axis."""
    for side, kernel_axis, axis in _kernels(eqn):
        kernel, other = values[side], values[1 - side]
        if kernel.leaves and not other.given and _floating(eqn):
            return Chain((Link(eqn, values, side, axis),), kernel_axis)
    return None


def extended(eqn: Any, values: Sequence[Value]) -> Chain | None:
    """The chain of an operand and this equation, if it goes on with it."""
    sides = [k for k, value in enumerate(values) if value.chain is not None]
    if len(sides) != 1 or not _floating(eqn):
        return None
    (side,), name = sides, eqn.primitive.name
    chain = values[side].chain
    assert chain is not None
    axis, scaled = chain.links[-1].axis, chain.scaled
    if name in STRUCTURAL:
        axis = _axis_after(eqn, axis)
    elif name in SUMS | SCALES and not (name == "div" and side == 1):
        other = values[1 - side]
        same = eqn.outvars[0].aval.shape == eqn.invars[side].aval.shape
        if not (same and other.given and other.varies <= {axis}):
            return None
        scaled = scaled or (name in SCALES and bool(other.leaves))
    elif name != "neg":
        return None
    if axis is None:
        return None
    return Chain((*chain.links, Link(eqn, values, side, axis)), chain.kernel_axis, scaled)


def folded(
    chain: Chain, kernel: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, " channels"]]:
    """The kernel that scales as the chain does, and the shift of each channel."""
    dtype = np.promote_types(kernel.dtype, np.float32)
    count = kernel.shape[chain.kernel_axis]
    scale, shift = jnp.ones(count, dtype), jnp.zeros(count, dtype)
    for link in chain.links[1:]:
        name = link.eqn.primitive.name
        if name == "neg":
            scale, shift = -scale, -shift
        elif name not in STRUCTURAL:
            number = _numbers(jnp.asarray(link.values[1 - link.side].array()), link.axis)
            number = number.astype(dtype)
            if name == "mul":
                scale, shift = scale * number, shift * number
            elif name == "div":
                scale, shift = scale / number, shift / number
            elif name == "sub" and link.side == 1:
                scale, shift = -scale, number - shift
            else:
                shift = shift - number if name == "sub" else shift + number
    scale = along_axis(scale, chain.kernel_axis, kernel.ndim)
    return (kernel.astype(dtype) * scale).astype(kernel.dtype), shift.astype(kernel.dtype)


def along_axis(vector: Array, axis: int, ndim: int) -> Array:
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])


def varying(eqn: Any, values: Sequence[Value]) -> frozenset[int]:
    """The axes along which the first result of given values may vary."""
    name, axes = eqn.primitive.name, [value.varies for value in values]
    shape = eqn.outvars[0].aval.shape
    if name in ELEMENTWISE.split():
        return frozenset().union(*axes)
    if name == "transpose":
        return frozenset(k for k, j in enumerate(eqn.params["permutation"]) if j in axes[0])
    if name == "broadcast_in_dim":
        return frozenset(int(eqn.params["broadcast_dimensions"][k]) for k in axes[0])
    if name in ("reshape", "squeeze"):
        before = eqn.invars[0].aval.shape
        pairs = list(zip(nontrivial(before), nontrivial(shape), strict=False))
        if [before[i] for i in nontrivial(before)] == [shape[j] for j in nontrivial(shape)]:
            return frozenset(j for i, j in pairs if i in axes[0])
    return frozenset(nontrivial(shape))


def nontrivial(shape: Sequence[int]) -> list[int]:
    """The axes of a size other than 1."""
    return [k for k, n in enumerate(shape) if n != 1]


def _kernels(eqn: Any) -> list[tuple[int, int, int]]:
    """Operands that may be kernels, with the axis of their outputs, there and in the result."""
    if eqn.primitive.name == "conv_general_dilated":
        numbers = eqn.params["dimension_numbers"]
        found = [(1, int(numbers.rhs_spec[0]), int(numbers.out_spec[1]))]
        return found if eqn.params["batch_group_count"] == 1 else []
    if eqn.primitive.name != "dot_general":
        return []
    contracted, batch = eqn.params["dimension_numbers"]
    free = [
        [k for k in range(v.aval.ndim) if k not in (*contracted[i], *batch[i])]
        for i, v in enumerate(eqn.invars)
    ]
    axes = (len(batch[0]), eqn.outvars[0].aval.ndim - 1)
    return [(side, free[side][0], axes[side]) for side in (1, 0) if len(free[side]) == 1]


def _axis_after(eqn: Any, axis: int) -> int | None:
    """Where an axis is once shapes are changed, None where it is no axis of its own."""
    params, name = eqn.params, eqn.primitive.name
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if name == "transpose":
        return params["permutation"].index(axis)
    if name == "broadcast_in_dim":
        dimensions = params["broadcast_dimensions"]
        stretched = len(nontrivial(before)) != len(nontrivial(after))
        return None if stretched else int(dimensions[axis])
    if name in ("reshape", "squeeze"):
        front = math.prod(before[:axis])
        same = (
            k for k, n in enumerate(after) if n == before[axis] and math.prod(after[:k]) == front
        )
        return next(same, None)
    return axis


def _numbers(x: Array, axis: int) -> Array:
    """What varies along one axis at most, as a vector or a number."""
    return x[tuple(slice(None) if k == axis else 0 for k in range(x.ndim))] if x.ndim else x


def _floating(eqn: Any) -> bool:
    return all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars)
