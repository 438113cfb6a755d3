"""What the functions of this package ask of a batch or of a Gram matrix."""

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxnorm._statistics import widen


def samples(
    x: Float[Array, "n d"], *, least: int = 1, columns: int | None = None
) -> Float[Array, "n d"]:
    """`x` in at least float32, if it is a matrix of at least so many rows; finite outside `jit`."""
    if x.ndim != 2 or x.size == 0 or columns not in (None, x.shape[1]):
        features = "features" if columns is None else columns
        raise ValueError(f"x must have shape (samples, {features}); got {x.shape}")
    _check(x, "x", least)
    return widen(x)


def square(gram: Float[Array, "n n"], *, least: int = 1) -> Float[Array, "n n"]:
    """`gram` in at least float32, if it is square and large enough; finite outside `jit`."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.size == 0:
        raise ValueError(f"a Gram matrix must have shape (samples, samples); got {gram.shape}")
    _check(gram, "a Gram matrix", least)
    return widen(gram)


def _check(x: Array, name: str, least: int) -> None:
    if len(x) < least:
        raise ValueError(f"{name} must have at least {least} samples; got {len(x)}")
    if isinstance(x, Tracer):
        return
    with jax.ensure_compile_time_eval():  # a constant within a traced function
        bad = int(jnp.sum(~jnp.isfinite(x)))
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {x.size} numbers are not")
