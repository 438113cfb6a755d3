"""What functions ask of their arguments: one sentence that names the argument where it is wrong."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import promote_to_float32


def floating(x: Any, name: str) -> Float[Array, "*shape"]:
    """`x` in at least float32, if it is an array of floats with one element at least."""
    x = jnp.asarray(promote_to_float32(x, name))
    if x.size == 0:
        raise ValueError(f"{name} must have at least one element; got shape {x.shape}")
    return x


def matrix(filters: Any) -> Float[Array, "filters dims"]:
    """`filters` in at least float32, if they are the rows of a matrix."""
    filters = floating(filters, "filters")
    if filters.ndim != 2:
        raise ValueError(
            f"filters must be a matrix (filters, dims), as filter_matrix makes of a kernel; got "
            f"shape {filters.shape}"
        )
    return filters


def vectors(**scores: Any) -> None:
    """Raise unless all are vectors of real numbers of one length."""
    real(**scores)
    shapes = [jnp.shape(x) for x in scores.values()]
    if len(shapes[0]) != 1 or len(set(shapes)) > 1:
        expected = "vectors of one length" if len(shapes) > 1 else "a vector"
        raise ValueError(
            f"{' and '.join(scores)} must be {expected}; got shape {' and '.join(map(str, shapes))}"
        )


def at_least(minimum: int, **numbers: Any) -> None:
    """Raise if one of the Python numbers is smaller, or one of the arrays is complex."""
    real(**numbers)
    for name, x in numbers.items():
        if isinstance(x, int | float) and x < minimum:
            raise ValueError(f"{name} must be at least {minimum}; got {x}")


def real(**numbers: Any) -> None:
    """Raise unless all are real numbers or arrays of them."""
    for name, x in numbers.items():
        if jnp.iscomplexobj(x):
            raise TypeError(f"{name} must be real; got {jnp.asarray(x).dtype}")
