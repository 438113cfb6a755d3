"""Finds the line of a model's code from which an equation or an error comes."""

import sys
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jax.extend.source_info_util import summarize

from pruning.channels._program.calls import Equation

FRAMEWORKS = """
    jax jaxlib flax equinox keras haiku optax einops chex numpy scipy jaxtyping beartype
"""
"""Packages whose lines are not reported as lines of a model.

Any other package may contain the model.
"""


def line_of(equations: Sequence[Equation]) -> str:
    """The line of the model's code from which the last equation comes.

    The result is the innermost line outside Python's standard library, `pruning.channels` and the
    `FRAMEWORKS`. If the last equation has no line of the model, the result is the line of an
    earlier equation that contains the last equation. If no equation has a line of the model, the
    result is a line of a framework, or an empty string.
    """
    for eqn in reversed(equations):
        frames = eqn.source_info.traceback.frames if eqn.source_info.traceback else ()
        for frame in frames:
            if not _of_library(frame.file_name):
                return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return next(filter(None, (summarize(eqn.source_info) for eqn in reversed(equations))), "")


def line_of_error(error: Exception) -> str:
    """The innermost line of the model's code in the traceback of an error, or an empty string."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _of_library(frame.filename):
            return f"{frame.filename}:{frame.lineno} ({frame.name})"
    return ""


def at(line: str) -> str:
    """The text " at LINE", or an empty text if `line` is empty."""
    return f" at {line}" if line else ""


def _of_library(filename: str) -> bool:
    installed = "site-packages" in filename or "dist-packages" in filename
    of_python = filename.startswith(f"{sysconfig.get_path('stdlib')}/") and not installed
    return of_python or filename.startswith(("<frozen", "<@beartype", *_folders(len(sys.modules))))


@cache
def _folders(modules: int) -> tuple[str, ...]:
    """The folders of `pruning.channels` and of the loaded frameworks.

    The argument `modules` is the number of loaded modules. Because the result is cached for each
    number, it is computed again after an import of a framework.
    """
    loaded = (sys.modules.get(name) for name in FRAMEWORKS.split())
    files = (getattr(module, "__file__", None) for module in loaded)
    return (f"{Path(__file__).parents[1]}/", *(f"{Path(file).parent}/" for file in files if file))
