"""Functions that check arguments and promote them to at least float32."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    check_array,
    check_finite,
    is_traced,
    promote_to_float32,
    replicate,
    show,
)

# The tolerance of |gᵢⱼ − gⱼᵢ| in a Gram matrix, relative to the largest element of the matrix, and
# the tolerance of |cosine| − 1. The relative rounding error of bfloat16 is 0.004.
_ROUNDING = 0.01


def as_samples(
    x: Float[Array, "n d"], *, min_samples: int = 1, columns: int | None = None, name: str = "x"
) -> Float[Array, "n d"]:
    """The checked samples `x`, converted to at least float32.

    The function raises an error unless `x` is a matrix with enough rows and, outside `jit`, finite.
    """
    check_array(x, name)
    if x.ndim != 2 or x.size == 0 or columns not in (None, x.shape[1]):
        features = "features" if columns is None else columns
        raise ValueError(f"{name} must have shape (samples, {features}); got {x.shape}")
    _check_length(x, name, min_samples)
    check_finite(x, name)
    return promote_to_float32(x)


def as_gram(gram: Float[Array, "n n"], *, min_samples: int = 1) -> Float[Array, "n n"]:
    """The checked Gram matrix `gram`, converted to at least float32.

    The function raises an error unless `gram` is square and, outside `jit`, finite and symmetric
    with no negative diagonal element.
    """
    check_array(gram, "gram")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.size == 0:
        raise ValueError(f"gram must have shape (samples, samples); got {gram.shape}")
    _check_length(gram, "gram", min_samples)
    check_finite(gram, "gram")
    _check_symmetric(gram)
    return promote_to_float32(gram)


def as_vector(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """The checked vector `x`, converted to at least float32.

    The function raises an error unless `x` is a vector and, outside `jit`, finite.
    """
    check_array(x, "x")
    if x.ndim != 1:
        raise ValueError(f"x must have shape (samples,); got {x.shape}")
    check_finite(x, "x")
    return promote_to_float32(x)


def as_cosine(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` in at least float32, with NaN for elements outside [−1, 1].

    An excess of at most 0.01 counts as rounding.
    """
    rho = promote_to_float32(x)
    return jnp.where(jnp.abs(rho) > 1 + _ROUNDING, jnp.nan, rho)


def whole_number(n: Any, name: str) -> int:
    """The whole number `n` as a Python `int`.

    The function raises an error unless `n` is an integer in [−2**53, 2**53].
    """
    if getattr(n, "shape", None) == () and not is_traced(n):
        n = n.item()  # `n` is an array of one number
    if isinstance(n, bool) or not isinstance(n, int | float):
        raise TypeError(f"{name} must be an int; got {show(n)}")
    if not (abs(n) <= 2**53 and n == int(n)):
        shown = n if isinstance(n, float) or abs(n) < 2**64 else "more"
        raise ValueError(f"{name} must be a whole number of at most 2**53; got {shown}")
    return int(n)


def _check_length(x: Array, name: str, min_samples: int) -> None:
    if len(x) < min_samples:
        raise ValueError(f"{name} must have at least {min_samples} samples; got {len(x)}")


def _check_symmetric(gram: Float[Array, "n n"]) -> None:
    if is_traced(gram):
        return
    with jax.ensure_compile_time_eval():
        g = replicate(jnp.asarray(gram))
        asymmetric = bool(jnp.abs(g - g.T).max() > _ROUNDING * jnp.abs(g).max())
        lowest = float(jnp.diagonal(g).min())
    if asymmetric:
        raise ValueError("gram must be symmetric; for a batch x, pass its Gram matrix gram(x)")
    if lowest < 0:
        raise ValueError(f"gram must have no negative square on its diagonal; got {lowest:g}")
