"""Checks of the samples that a distance takes, and their form as vectors."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import flat_rows, is_traced, norm, promote_to_float32


def check_pair(x: Float[Array, "n *features"], y: Float[Array, "m *features"]) -> None:
    """Two samples of the same features, neither empty; outside `jit`, finite too."""
    for name, sample in (("x", x), ("y", y)):
        if sample.ndim == 0 or sample.size == 0:
            raise ValueError(f"{name} must hold samples and features; got shape {sample.shape}")
        if is_traced(sample):
            continue
        with jax.ensure_compile_time_eval():  # a constant within a traced function
            bad = int(jnp.sum(~jnp.isfinite(sample)))
        if bad:
            raise ValueError(f"{name} must be finite; {bad} of {sample.size} numbers are not")
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"x and y must have the same features; got {x.shape[1:]} and {y.shape[1:]}"
        )


def check_positive(name: str, value: int | float | Float[Array, ""]) -> None:
    if not is_traced(value) and not value > 0:
        raise ValueError(f"{name} must be positive; got {value}")


def vectors(x: Float[Array, "n *features"]) -> Float[Array, "n d"]:
    """Each sample as one vector, in at least float32."""
    return promote_to_float32(flat_rows(x))


def length(x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Norm of every vector, in at least float32; its gradient at the origin is zero."""
    return norm(promote_to_float32(x), -1)[..., 0]
