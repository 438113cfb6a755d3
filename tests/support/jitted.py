"""One compiled program in place of one for every operation, which is what takes the time."""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import jax


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under `jit`, where `tests/test_contract.py` finds it the same.

    Options that hold arrays are traced, all others fixed.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        traced = {name: value for name, value in options.items() if _holds_arrays(value)}
        fixed = tuple((name, options[name]) for name in options if name not in traced)
        return _program(function, fixed)(*args, **traced)

    return call


def _holds_arrays(value: Any) -> bool:
    return any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(value))


@cache
def _program(function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(partial(function, **dict(options)))
