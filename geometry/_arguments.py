"""What the functions of this package ask of their arguments."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxnorm._statistics import widen

P = ParamSpec("P")
R = TypeVar("R")


def samples(
    x: Float[Array, "n d"], *, least: int = 1, columns: int | None = None, name: str = "x"
) -> Float[Array, "n d"]:
    """`x` in at least float32, if it is a matrix of at least so many rows; finite outside `jit`."""
    array(x, name)
    if x.ndim != 2 or x.size == 0 or columns not in (None, x.shape[1]):
        features = "features" if columns is None else columns
        raise ValueError(f"{name} must have shape (samples, {features}); got {x.shape}")
    _check(x, name, least)
    return widen(x)


def square(gram: Float[Array, "n n"], *, least: int = 1) -> Float[Array, "n n"]:
    """`gram` in at least float32, if it is square and large enough; finite outside `jit`."""
    array(gram, "a Gram matrix")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.size == 0:
        raise ValueError(f"a Gram matrix must have shape (samples, samples); got {gram.shape}")
    _check(gram, "a Gram matrix", least)
    return widen(gram)


def vector(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """`x` in at least float32, if it is a vector."""
    array(x)
    if x.ndim != 1:
        raise ValueError(f"x must have shape (samples,); got {x.shape}")
    return widen(x)


def array(x: Any, name: str = "x") -> None:
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be an array; got {type(x).__name__}")


def floating(x: int | float | Array) -> Array:
    """`x` itself, or a Python number as an array of the default floating dtype."""
    return jnp.asarray(x, float) if isinstance(x, int | float) else x


def host_only(instead: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of values that Python must see: `TypeError` for traced ones, as under `jit`.

    Args:
      instead: What can be traced in its place, as the end of the message.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                raise TypeError(
                    f"{function.__name__} runs on the host and cannot be traced: call it outside "
                    f"jit, vmap and grad{instead and ', or use '}{instead}"
                )
            return function(*args, **kwargs)

        return checked

    return decorate


def _check(x: Array, name: str, least: int) -> None:
    if len(x) < least:
        raise ValueError(f"{name} must have at least {least} samples; got {len(x)}")
    if isinstance(x, Tracer):
        return
    with jax.ensure_compile_time_eval():  # a constant within a traced function
        bad = int(jnp.sum(~jnp.isfinite(x)))
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {x.size} numbers are not")
