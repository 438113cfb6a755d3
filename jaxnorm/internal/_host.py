"""Functions that run on the host, outside traced programs."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def host_only(
    instead: str = "",
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator that makes a function raise `TypeError` for traced arguments.

    Args:
      instead: The end of the error message, which says what to use under `jit`.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            if is_traced((args, options)):
                raise TypeError(
                    f"{function.__qualname__} runs on the host and cannot be traced: call it "
                    f"outside jit, vmap and grad{instead and ', or use '}{instead}"
                )
            return function(*args, **options)

        return checked

    return decorate


def is_traced(tree: Any) -> bool:
    """Whether a leaf of `tree` is traced, as inside jit, vmap or grad."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def check_on_host(name: str, *args: Any, instead: str) -> None:
    """Raise `TypeError` if an argument is traced; the message ends with `instead`."""
    if is_traced(args):
        raise TypeError(f"{name} runs on the host and takes no traced arguments; {instead}")
