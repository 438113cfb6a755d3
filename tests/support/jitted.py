"""Compiles a function as one program.

One program per operation would take most of a test's time.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jax

TRACED = object()


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under `jit`, in which arrays are traced, and all other arguments are constants.

    `tests/test_contract.py` checks that `jit` changes no result.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, options))
        fixed = tuple(TRACED if hasattr(x, "shape") else (type(x), x) for x in leaves)
        return _program(function, tree, fixed)([x for x in leaves if hasattr(x, "shape")])

    return call


@cache
def _program(function: Callable[..., Any], tree: Any, fixed: tuple[Any, ...]) -> Any:
    @jax.jit
    def program(arrays: list[jax.Array]) -> Any:
        given = iter(arrays)
        leaves = [next(given) if x is TRACED else x[1] for x in fixed]
        args, options = jax.tree.unflatten(tree, leaves)
        return function(*args, **options)

    return program
