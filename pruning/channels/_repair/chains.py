"""Finds chains of equations that scale and shift the outputs of a kernel, such as batch norm.

A chain begins with a product of activations and a kernel. Each further equation multiplies each
channel by a number, adds a number to each channel, or changes the shape. The numbers must be
computed only from parameters and constants.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pruning.channels._coupling.rules import corresponding_axes, rule_of
from pruning.channels._program.calls import Equation, Leaf, evaluate_equation, makes_reals, shape_of
from pruning.channels._removal.removal import along_axis


class Value(NamedTuple):
    """An array of a program that is computed only when it is needed.

    Attributes:
      array: A function that returns the array, and first computes the array if necessary.
      given: Whether the array is computed only from parameters and constants.
      leaves: If `given` is true, the indices of the parameters from which the array is computed.
      varies: If `given` is true, the axes along which elements of the array may differ.
      leaf: The index of the parameter that the array equals, up to shape and dtype, or None.
      chain: The chain of equations that computes the array, or None.
    """

    array: Callable[[], Leaf]
    given: bool = False
    leaves: frozenset[int] = frozenset()
    varies: frozenset[int] = frozenset()
    leaf: int | None = None
    chain: "Chain | None" = None


class Link(NamedTuple):
    """An equation of a chain.

    Operand `side` is the result of the previous link. The channels of the equation's result are on
    `axis`.
    """

    eqn: Equation
    values: Sequence[Value]
    side: int
    axis: int


class Chain(NamedTuple):
    """A product with a kernel, and the scales, shifts and changes of shape that follow it.

    Attributes:
      links: The equations of the chain in order. In the first link, operand `side` is the kernel.
      kernel_axis: The axis of the kernel's outputs.
      scaled: Whether parameters scale the outputs of the kernel.
    """

    links: tuple[Link, ...]
    kernel_axis: int
    scaled: bool = False


def start_chain(eqn: Equation, values: Sequence[Value]) -> Chain | None:
    """The chain that an equation starts, or None.

    A chain starts at a product of real activations and a kernel with one axis of outputs.
    """
    linear_of = rule_of(eqn).linear
    if linear_of is None or not makes_reals(eqn):
        return None
    for side in (1, 0):
        linear = linear_of(eqn, side)
        if linear is None or not values[side].leaves:
            continue
        of_kernel, of_result = linear.output_axes()
        if len(of_kernel) == 1:
            return Chain((Link(eqn, values, side, of_result[0]),), of_kernel[0])
    return None


def extend_chain(eqn: Equation, values: Sequence[Value]) -> Chain | None:
    """The chain of an operand, extended by the equation.

    The result is None if the equation cannot be a link of the chain.
    """
    sides = [k for k, value in enumerate(values) if value.chain is not None]
    if len(sides) != 1 or len(eqn.outvars) != 1 or not makes_reals(eqn):
        return None
    (side,), rule = sides, rule_of(eqn)
    chain = values[side].chain
    assert chain is not None
    axis = corresponding_axes(eqn)[side][chain.links[-1].axis]
    others = [value for k, value in enumerate(values) if k != side]
    linear = rule.rearranges or side in rule.scaled or bool(rule.signs)
    same = rule.rearranges or shape_of(eqn.outvars[0]) == shape_of(eqn.invars[side])
    if axis is None or not linear or not same:
        return None
    if any(not other.given or not other.varies <= {axis} for other in others):
        return None
    scaled = chain.scaled or bool(rule.scaled and others[0].leaves)
    return Chain((*chain.links, Link(eqn, values, side, axis)), chain.kernel_axis, scaled)


def fold_chain(
    chain: Chain, kernel: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, " channels"]]:
    """The kernel times all scales of the chain, and the total shift of each channel."""
    dtype = np.promote_types(kernel.dtype, np.float32)
    count = kernel.shape[chain.kernel_axis]
    shift, scale = jnp.zeros(count, dtype), jnp.ones(count, dtype)
    for link in chain.links[1:]:
        if not rule_of(link.eqn).layout:
            shift, scale = jax.jvp(partial(_apply_link, link), (shift,), (scale,))
    scale = along_axis(scale, chain.kernel_axis, kernel.ndim)
    return (kernel.astype(dtype) * scale).astype(kernel.dtype), shift.astype(kernel.dtype)


def _apply_link(link: Link, y: Array) -> Array:
    """The value of each channel after a link, from the values `y` before the link."""

    def operand(k: int, value: Value) -> Array:
        if k == link.side:
            return y
        x = jnp.asarray(value.array())
        along = x[tuple(slice(None) if i == link.axis else 0 for i in range(x.ndim))]
        return jnp.broadcast_to(along, y.shape).astype(y.dtype)

    (result,) = evaluate_equation(link.eqn, [operand(k, v) for k, v in enumerate(link.values)])
    return result


def varying(eqn: Equation, values: Sequence[Value]) -> frozenset[int]:
    """The axes along which elements of the first result of an equation may differ."""
    rule, every = rule_of(eqn), frozenset(nontrivial(shape_of(eqn.outvars[0])))
    if not (rule.elementwise or rule.layout):
        return every
    pairs = zip(values, corresponding_axes(eqn), strict=True)
    found = [axes[k] for value, axes in pairs for k in value.varies]
    return every if None in found else frozenset(k for k in found if k is not None)


def nontrivial(shape: Sequence[int]) -> list[int]:
    """The axes whose size is not 1."""
    return [k for k, n in enumerate(shape) if n != 1]
