"""Functions that check arguments, with error messages of one sentence."""

import inspect
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal._host import is_traced


def check_number(x: Any, name: str) -> None:
    """Raise `TypeError` unless `x` is a Python number or an array of floats."""
    if not isinstance(x, int | float):
        check_floating(x, name)


def check_floating(x: Any, name: str) -> None:
    """Raise `TypeError` unless `x` is an array of floats."""
    check_array(x, name)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be of a floating dtype; got {x.dtype}")


def check_array(x: Any, name: str) -> None:
    """Raise `TypeError` unless `x` is a JAX or NumPy array of numbers, not a list or a number.

    A layer of Flax is not accepted, although it has a dtype. A `jax.ShapeDtypeStruct` is not
    accepted, because it has no values.
    """
    if not hasattr(x, "dtype") or not hasattr(x, "shape") or isinstance(x, jax.ShapeDtypeStruct):
        raise TypeError(f"{name} must be an array; got {type(x).__name__}")
    if isinstance(x, np.ndarray | np.generic) and (x.dtype.kind in "OSUMm" or x.dtype.names):
        raise TypeError(f"{name} must hold numbers; got {x.dtype}")
    if isinstance(x, np.ndarray | np.generic) and not x.dtype.isnative:
        raise TypeError(
            f"{name} must have this machine's byte order; got {x.dtype.str}: convert by "
            f"{name}.astype('{x.dtype.newbyteorder('=').name}')"
        )


def check_range(x: Any, name: str, highest: float = math.inf) -> None:
    """Raise `ValueError` for a number outside [0, highest]; under `jit`, check only the type."""
    check_numeric(x, name)
    if not is_traced(x) and not 0 <= _value(x) <= highest:
        raise ValueError(f"{name} must lie in [0, {highest}]; got {x}")


def check_eps(eps: Any, name: str = "eps") -> Any:
    """The number `eps`; raise `ValueError` for a negative number, but not under `jit`.

    A Python number must also be finite, and is returned as a float.
    """
    check_range(eps, name)
    return _finite(eps, name)


def choose_eps(epsilon: Any, eps: Any) -> Any:
    """The number `eps` if it is not None, and otherwise `epsilon`; raise as `check_eps` does."""
    return check_eps(epsilon, "epsilon") if eps is None else check_eps(eps)


def check_positive(x: Any, name: str) -> Any:
    """The number `x`; raise `ValueError` unless `x` is positive, but not under `jit`.

    A Python number must also be finite, and is returned as a float.
    """
    check_numeric(x, name)
    if not is_traced(x) and not _value(x) > 0:
        raise ValueError(f"{name} must be positive; got {x}")
    return _finite(x, name)


def check_numeric(x: Any, name: str) -> None:
    """Raise if `x` is neither a real number nor an array of one number; "0.5" also raises."""
    if isinstance(x, bool) or not (isinstance(x, int | float) or hasattr(x, "dtype")):
        raise TypeError(f"{name} must be a number; got {x!r}")
    if isinstance(x, int | float):
        return
    check_array(x, name)
    if not jnp.isrealobj(x):
        raise TypeError(f"{name} must be real; got {x.dtype}")
    if x.size != 1:
        raise ValueError(f"{name} must be one number; got shape {x.shape}")


def _value(x: Any) -> int | float:
    """The Python number of a scalar `x` that is not traced.

    Inside a traced function, JAX would trace a comparison of arrays even if `x` is not traced.
    """
    return x if isinstance(x, int | float) else x.item()


def _finite(x: Any, name: str) -> Any:
    if not isinstance(x, int | float):
        return x
    if abs(x) > sys.float_info.max:
        raise ValueError(f"{name} must be finite; got {'inf' if x == math.inf else 'a larger int'}")
    return float(x)


def check_fits(x: int | float, name: str) -> None:
    """Raise `ValueError` for an integer that is too large for a float."""
    if sys.float_info.max < abs(x) < math.inf:
        raise ValueError(f"{name} must fit a float; got a number of {len(str(x))} digits")


def check_dtype(dtype: Any, name: str) -> None:
    """Raise `TypeError` unless `dtype` is a floating-point dtype."""
    try:
        floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise TypeError(f"{name} must be a floating dtype, such as jnp.bfloat16; got {dtype!r}")


def check_function(f: Any, name: str, example: str) -> None:
    """Raise `TypeError` unless `f` can be called; the name of a function is not accepted."""
    if not callable(f):
        got = repr(f) if isinstance(f, str | int | float | None) else type(f).__name__
        raise TypeError(f"{name} must be a function, such as {example}; got {got}")


def check_call(f: Any, name: str, example: str, like: str, /, *args: Any, **options: Any) -> None:
    """Raise `TypeError` unless `f` is a function that accepts the arguments `args` and `options`.

    Args:
      f: The function that a user passed.
      name: The name of the user's argument.
      example: A function that would be right, such as "jnp.max".
      like: The arguments of the function in words, such as "a key".
      args: The arguments that `f` would get, or the same number of other arguments.
      options: The arguments that `f` would get by name.
    """
    check_function(f, name, example)
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        own = getattr(f, "__name__", type(f).__name__)
        names = ", ".join(signature.parameters)
        needed = ", ".join(
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
            and parameter.name not in options
        )
        cure = f": set {needed} by functools.partial" if needed else ""
        raise TypeError(f"{name} must be a function of {like}; got {own}({names}){cure}") from error


def check_batches(batches: Any) -> None:
    """Raise unless `batches` is a list or an iterator, not a dictionary or one array."""
    if isinstance(batches, jax.Array | np.ndarray):
        raise TypeError(
            f"batches must be a list or an iterator of batches; got one array of {batches.shape}"
        )
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        got = type(batches).__name__
        raise TypeError(f"batches must be a list or an iterator of batches; got {got}")


def as_path(path: Any, name: str) -> Path:
    """`path` as a `Path`; raise `TypeError` unless `path` is a string or a path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be a path, such as 'out/net'; got {type(path).__name__}")
    return Path(path)


def check_key(key: Any, name: str = "key") -> None:
    """Raise `TypeError` unless `key` is one random key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.shape != ():
        got = type(key).__name__ if dtype is None else f"{dtype} of shape {key.shape}"
        raise TypeError(f"{name} must be one random key, such as jax.random.key(0); got {got}")


def check_whole(**numbers: Any) -> None:
    """Raise `TypeError` unless each number is an `int`; a bool is not accepted."""
    for name, number in numbers.items():
        if not _is_whole(number):
            raise TypeError(f"{name} must be an int; got {show(number)}")


def check_axes(axes: tuple[Any, ...], shape: tuple[int, ...], axis: Any) -> None:
    """Raise unless `axes` are different axes of an array with the shape `shape`.

    The error message shows the axes as the caller gave them in `axis`.
    """
    if not all(map(_is_whole, axes)):
        raise TypeError(f"axis must be an int or a tuple of them; got {axis!r}")
    n = len(shape)
    if not axes or not all(-n <= i < n for i in axes):
        raise ValueError(f"axis must name axes of an array of shape {shape}; got {axis}")
    if len({i % n for i in axes}) < len(axes):
        raise ValueError(f"axis must name each axis once; got {axis} for shape {shape}")


def _is_whole(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def check_flags(**options: Any) -> None:
    """Raise `TypeError` unless each option is True or False; a string such as "no" raises too."""
    for name, option in options.items():
        if not isinstance(option, bool | np.bool_):
            raise TypeError(f"{name} must be True or False; got {show(option)}")


def show(x: Any) -> str:
    """The option `x` as a text for the end of an error message.

    For a traced option, the text says that the option must be static.
    """
    return "a traced value: make it a static argument of jit" if is_traced(x) else repr(x)


def check_finite(x: Array, name: str) -> None:
    """Raise `ValueError` unless all elements of `x` are finite; under `jit`, check nothing."""
    if is_traced(x):
        return
    # Even if a caller is traced, `ensure_compile_time_eval` computes the number that `int` needs.
    with jax.ensure_compile_time_eval():
        bad = int(jnp.sum(~jnp.isfinite(x)))
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {x.size} elements are not")
