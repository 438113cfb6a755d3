"""Finds the normalization layers of the package, so that a new layer needs no line in a table."""

import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jaxnorm


def layer_functions() -> dict[Callable[..., Any], int]:
    """The functions of layers with statistics, and the number of their parameters per channel."""
    return {
        function: len(positional) - 2
        for function in vars(jaxnorm).values()
        if inspect.isfunction(inspect.unwrap(function))
        and {"x", "statistics"} <= set(positional := _positional(function))
    }


def layer_classes(module: ModuleType) -> list[str]:
    """The names of the layers with running statistics in `jaxnorm.nnx` or `jaxnorm.linen`."""
    return [name for name in vars(module) if re.fullmatch(r"[A-Z]\w*([Nn]orm)", name)]


def _positional(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
