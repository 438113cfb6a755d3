"""What an argument must be, or an error in one sentence."""

import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal._host import is_traced


def check_number(x: Any, name: str) -> None:
    """Raise `TypeError` for what is neither a Python number nor an array of floats."""
    if not isinstance(x, int | float):
        check_floating(x, name)


def check_floating(x: Any, name: str) -> None:
    """Raise `TypeError` for what is no array of floats."""
    check_array(x, name)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be of a floating dtype; got {x.dtype}")


def check_array(x: Any, name: str) -> None:
    """Raise `TypeError` for what is no array that JAX reads, such as a list or a Python number."""
    if not hasattr(x, "dtype"):
        raise TypeError(f"{name} must be an array; got {type(x).__name__}")
    if isinstance(x, np.ndarray | np.generic) and not x.dtype.isnative:
        raise TypeError(
            f"{name} must have this machine's byte order; got {x.dtype.str}: give "
            f"{name}.astype('{x.dtype.newbyteorder('=').name}')"
        )


def check_range(x: Any, name: str, highest: float = math.inf) -> None:
    """Raise `ValueError` for a number outside [0, highest]; under `jit` nothing is checked."""
    if not is_traced(x) and not 0 <= x <= highest:
        raise ValueError(f"{name} must lie in [0, {highest}]; got {x}")


def check_eps(eps: Any, name: str = "eps") -> Any:
    """`eps`, if it is finite and not negative; a Python integer as a float, which all sizes fit."""
    check_range(eps, name)
    return _finite(eps, name)


def check_positive(x: Any, name: str) -> Any:
    """`x`, if it is positive and finite as far as Python can see; an integer as a float."""
    if not is_traced(x) and not x > 0:
        raise ValueError(f"{name} must be positive; got {x}")
    return _finite(x, name)


def _finite(x: Any, name: str) -> Any:
    if not isinstance(x, int | float):
        return x
    if abs(x) > sys.float_info.max:
        raise ValueError(f"{name} must be finite; got {'inf' if x == math.inf else 'more'}")
    return float(x)


def check_function(f: Any, name: str, example: str) -> None:
    """Raise unless `f` can be called: a name, say, is no function."""
    if not callable(f):
        raise TypeError(f"{name} must be a function, such as {example}; got {f!r}")


def check_key(key: Any, name: str = "key") -> None:
    """Raise `TypeError` unless `key` is one random key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.shape != ():
        got = type(key).__name__ if dtype is None else f"{dtype} of shape {key.shape}"
        raise TypeError(f"{name} must be one random key, such as jax.random.key(0); got {got}")


def check_whole(**numbers: Any) -> None:
    """Raise `TypeError` for a number that is neither an `int` nor None."""
    for name, number in numbers.items():
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(f"{name} must be an int; got {number!r}")


def check_finite(x: Array, name: str) -> None:
    """Raise `ValueError` unless every element of `x` is finite; under `jit` nothing is checked."""
    if is_traced(x):
        return
    with jax.ensure_compile_time_eval():  # so that the value is a constant inside a traced function
        bad = int(jnp.sum(~jnp.isfinite(x)))
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {x.size} elements are not")
