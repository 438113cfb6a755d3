"""Checks arguments; each error is one sentence that names the wrong argument.

The function `in_largest` divides an array by its largest absolute value. If a result does not
depend on the unit of the array, the array is divided before the computation, which avoids overflow.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm.internal import (
    check_array,
    check_fits,
    check_numeric,
    is_traced,
    promote_to_float32,
    show,
    unit_of,
)


def floating(x: Any, name: str) -> Float[Array, "*shape"]:
    """The checked array `x`, converted to at least float32.

    The function raises an error unless `x` is an array of floats with at least one element.
    """
    x = jnp.asarray(promote_to_float32(x, name))
    if x.size == 0:
        raise ValueError(f"{name} must have at least one element; got shape {x.shape}")
    return x


def matrix(filters: Any) -> Float[Array, "filters dims"]:
    """The checked matrix `filters`, converted to at least float32.

    The function raises an error unless `filters` is a matrix, with one filter in each row.
    """
    filters = floating(filters, "filters")
    if filters.ndim != 2:
        raise ValueError(
            "filters must be a matrix (filters, dims), such as filter_matrix(kernel); got shape "
            f"{filters.shape}"
        )
    return filters


def vectors(**scores: Any) -> None:
    """Raise unless all arguments are vectors of real numbers with equal lengths."""
    real(**scores)
    shapes = [jnp.shape(x) for x in scores.values()]
    if len(shapes[0]) != 1 or len(set(shapes)) > 1:
        expected = "vectors of the same length" if len(shapes) > 1 else "a vector"
        raise ValueError(
            f"{' and '.join(scores)} must be {expected}; got shape {' and '.join(map(str, shapes))}"
        )


def at_least(minimum: float, **numbers: Any) -> None:
    """Raise if a Python or NumPy number is below `minimum`, or if a number is complex."""
    real(**numbers)
    for name, x in numbers.items():
        if isinstance(x, int | float | np.generic) and float(x) < minimum:
            raise ValueError(f"{name} must be at least {minimum}; got {x}")


def real(**numbers: Any) -> None:
    """Raise unless all arguments are real numbers or arrays of real numbers."""
    for name, x in numbers.items():
        if not isinstance(x, int | float):
            check_array(x, name)
            if jnp.iscomplexobj(x):
                raise TypeError(f"{name} must be real; got {x.dtype}")
        else:
            check_fits(x, name)


def parameters(minimum: float = -math.inf, /, **numbers: Any) -> tuple[Any, ...]:
    """The arguments as Python floats, or as arrays of at least float32.

    Numbers of Python and NumPy become Python floats, because Python floats do not change the dtype
    of arrays. If a Python or NumPy number is below `minimum`, the function raises an error. If an
    element of an array is below `minimum`, the element becomes NaN.
    """
    at_least(minimum, **numbers)

    def form(x: Any, name: str) -> Any:
        if isinstance(x, int | float | np.generic):
            return float(x)
        array = jnp.asarray(promote_to_float32(x, name))
        return jnp.where(array >= minimum, array, jnp.nan)

    return tuple(form(x, name) for name, x in numbers.items())


def positive_number(x: Any, name: str) -> None:
    """Raise `ValueError` unless a number is positive and finite.

    Traced numbers, and arrays with at least one axis, are not checked.
    """
    real(**{name: x})
    if not is_traced(x) and np.ndim(x) == 0 and not 0 < float(x) < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {x}")


def scalar(x: Any, name: str, dtype: np.dtype) -> Float[Array, ""]:
    """The positive number `x` as an array of shape ().

    The function raises an error unless `x` is one positive, finite number. Under `jit`, a number
    that is not positive becomes NaN.
    """
    real(**{name: x})
    if np.size(x) != 1:
        raise ValueError(f"{name} must be one number; got shape {np.shape(x)}")
    positive_number(np.reshape(x, ()), name)
    number = jnp.asarray(x, dtype).reshape(())
    return jnp.where(number > 0, number, jnp.nan) if is_traced(x) else number


def fraction(ratio: Any) -> float:
    """`ratio` as a Python number; raise unless `ratio` lies in (0, 1]."""
    check_numeric(ratio, "ratio")
    if is_traced(ratio):
        raise TypeError(f"ratio must be a Python number; got {show(ratio)}")
    # Inside `jit`, JAX traces the comparison of an array even if the array's value is known.
    ratio = np.asarray(ratio).item()
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio must lie in (0, 1]; got {ratio}")
    return ratio


def inside_unit_interval(x: Float[Array, "*shape"], name: str) -> None:
    """Raise `ValueError` for an element outside [0, 1].

    NaN raises no error. Under `jit`, no element is checked.
    """
    if is_traced(x):
        return
    with jax.ensure_compile_time_eval():
        outside = int(((x < 0) | (x > 1)).sum())
    if outside:
        raise ValueError(f"{name} must lie in [0, 1]; {outside} of {x.size} do not")


def in_largest(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, ""]]:
    """The array `x` divided by its largest absolute value, and the divisor.

    If all elements are zero, the divisor is 1. The divisor is at most a 64th of the largest float.
    After the division, sums of squares neither overflow nor underflow to zero. If an element of `x`
    is NaN or infinite, the divisor is NaN.
    """
    unit = unit_of(jnp.abs(x).max())
    return x / unit, unit


def check_names(names: Any, name: str) -> None:
    """Raise `TypeError` if `names` is a string, because its letters would be read as names."""
    if isinstance(names, str):
        raise TypeError(f"{name} must be a tuple of names, such as ({names!r},); got {names!r}")


def check_tuple(inputs: Any, name: str) -> None:
    """Raise `TypeError` unless `inputs` is a tuple or a list.

    If `inputs` were an array or a dictionary, its rows or keys would become separate arguments of
    `apply`.
    """
    if not isinstance(inputs, tuple | list):
        got = "an array" if hasattr(inputs, "shape") else type(inputs).__name__
        raise TypeError(f"{name} must be a tuple of arguments of apply, such as (x,); got {got}")


def quote(error: Exception) -> str:
    """The type and the message of an error in one line, without a full stop.

    The message is cut to at most 200 characters.
    """
    text = " ".join(str(error).split())
    short = text if len(text) <= 200 else f"{text[:199]}…"
    return f"{type(error).__name__}: {short}".rstrip(".")


def check_values(name: str, *args: Any) -> None:
    """Raise if an argument contains shapes instead of arrays, like a result of `jax.eval_shape`."""
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)):
        raise TypeError(
            f"{name} needs arrays with values; got a jax.ShapeDtypeStruct, which has none"
        )
