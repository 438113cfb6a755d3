"""Functions that check samples and reshape samples to vectors."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    check_array,
    check_finite,
    check_floating,
    flat_rows,
    is_traced,
    norm,
    promote_to_float32,
)


def check_pair(
    x: Float[Array, "n *features"],
    y: Float[Array, "m *features"],
    *,
    names: tuple[str, str] = ("x", "y"),
) -> None:
    """Raise unless both samples are nonempty, finite (outside `jit`) and have the same features."""
    for name, sample in zip(names, (x, y), strict=True):
        check_samples(sample, name)
        check_finite(sample, name)
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same features; "
            f"got {x.shape[1:]} and {y.shape[1:]}"
        )


def check_samples(x: Float[Array, "n *features"], name: str) -> None:
    """Raise unless `x` is a nonempty real array with samples on its first axis."""
    check_array(x, name)
    if not jnp.isrealobj(x):
        raise TypeError(f"{name} must be real; got {x.dtype}")
    if x.size == 0:
        raise ValueError(
            f"{name} must have at least one sample and one feature; got shape {x.shape}"
        )
    if x.ndim == 0:
        raise ValueError(
            f"{name} must have an axis of samples and an axis of features; got shape {x.shape}"
        )


def check_weights(weights: Array | None, x: Array, name: str) -> None:
    """Raise unless `weights` is None or has one number per sample.

    Outside `jit`, weights must be finite and not negative.
    """
    if weights is None:
        return
    check_array(weights, name)
    if not jnp.isrealobj(weights):
        raise TypeError(f"{name} must be real; got {weights.dtype}")
    if jnp.shape(weights) != x.shape[:1]:
        raise ValueError(
            f"{name} must have shape {x.shape[:1]}, one number per sample; got {jnp.shape(weights)}"
        )
    check_finite(weights, name)
    check_not_negative(weights, name)


def check_not_negative(x: Array, name: str) -> None:
    """Raise `ValueError` for a negative element; under `jit`, check nothing."""
    if is_traced(x):
        return
    with jax.ensure_compile_time_eval():
        lowest = float(jnp.min(x))
    if lowest < 0:
        raise ValueError(f"{name} must not be negative; the lowest is {lowest:g}")


def same_length(**vectors: Float[Array, " d"]) -> tuple[Float[Array, " d"], ...]:
    """Convert all vectors to at least float32; raise an error if their lengths differ."""
    for name, vector in vectors.items():
        check_floating(vector, name)
        if vector.ndim != 1 or vector.size == 0:
            raise ValueError(f"{name} must be a vector; got shape {vector.shape}")
    if len({vector.shape for vector in vectors.values()}) > 1:
        lengths = ", ".join(str(len(vector)) for vector in vectors.values())
        raise ValueError(f"{', '.join(vectors)} must have the same length; got {lengths}")
    return tuple(promote_to_float32(jnp.asarray(vector)) for vector in vectors.values())


def vectors(x: Float[Array, "n *features"]) -> Float[Array, "n d"]:
    """Each sample of `x` as a vector, in at least float32."""
    return promote_to_float32(flat_rows(x))


def length(x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """The norm of each vector, in at least float32; the gradient at the origin is zero."""
    return norm(promote_to_float32(x), -1)[..., 0]
