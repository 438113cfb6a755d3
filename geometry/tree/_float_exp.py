"""Numbers of any size, stored as a floating-point mantissa and an integer exponent of two.

The value of a number is mantissa · 2**exponent. An array has one exponent for all elements, or
exponents that broadcast to its shape. Multiplication by powers of two is exact. Only operations on
mantissas round. Derivatives treat exponents as constants.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# The exponent of an array of zeros. The sum of two such exponents fits into a 32-bit integer.
_LOWEST = -(2**30)


class FloatExp(NamedTuple):
    """A number or an array of numbers with the value mantissa · 2**exponent."""

    mantissa: Float[Array, "*shape"]
    exponent: Int[Array, "*ones"]


def multiply(a: FloatExp, b: FloatExp) -> FloatExp:
    """The product of two numbers, element by element.

    Example:
      >>> a = FloatExp(jnp.array([0.5, 3.0]), jnp.array(1000))
      >>> mantissa, exponent = multiply(a, a)
      >>> print(mantissa, exponent)
      [0.25 9.  ] 2000
    """
    return FloatExp(a.mantissa * b.mantissa, a.exponent + b.exponent)


def add(a: FloatExp, b: FloatExp) -> FloatExp:
    """The sum of two numbers, element by element.

    The exponent of the sum is the largest exponent of a nonzero element.
    """
    top = jnp.maximum(top_exponent(a), top_exponent(b))
    return FloatExp(at_exponent(a, top) + at_exponent(b, top), top)


def renormalize(a: FloatExp, *, axis: int | None = None, where: Array | bool = True) -> FloatExp:
    """The numbers `a` with new exponents, so that the largest |mantissa| along `axis` is in [½, 1).

    Only the exponents that `where` selects change. Zeros keep their exponent.
    """
    largest = jnp.max(jnp.abs(a.mantissa), axis, keepdims=axis is not None)
    largest = jax.lax.stop_gradient(largest)
    _, shift = jnp.frexp(jnp.where(where, largest, 0))
    return FloatExp(jnp.ldexp(a.mantissa, -shift), a.exponent + shift)


def top_exponent(a: FloatExp) -> Int[Array, ""]:
    """The largest exponent of a nonzero element."""
    return jnp.max(jnp.where(a.mantissa != 0, a.exponent, _LOWEST))


def at_exponent(a: FloatExp, exponent: Int[Array, ""]) -> Float[Array, "*shape"]:
    """The mantissas of `a` for a new exponent, which must be at least `top_exponent(a)`.

    Tiny mantissas become 0.
    """
    # A mantissa of zero can have an exponent above `exponent`. Without the minimum, this mantissa
    # would be multiplied by a power of two that can be ∞, and 0 times ∞ is NaN.
    shift = jnp.minimum(a.exponent - exponent, 0)
    return jnp.ldexp(a.mantissa, shift)
