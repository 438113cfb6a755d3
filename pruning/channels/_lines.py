"""The lines of a model that equations and errors come from."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.extend.source_info_util import summarize

LIBRARIES = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    str(Path(__file__).parent),
)


def line_of(equations: Sequence[Any]) -> str:
    """The line that makes the last of these equations, or else the one that it is inside of.

    The innermost outside of libraries, if there is one.
    """
    for eqn in reversed(equations):
        frames = eqn.source_info.traceback.frames if eqn.source_info.traceback else ()
        for frame in frames:
            if not _of_library(frame.file_name):
                return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return next(filter(None, (summarize(eqn.source_info) for eqn in reversed(equations))), "")


def line_of_error(error: Exception) -> str:
    """The innermost line outside of libraries that an error was raised in; none if all are."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _of_library(frame.filename):
            return f"{frame.filename}:{frame.lineno} ({frame.name})"
    return ""


def at(line: str) -> str:
    """The end of a sentence."""
    return f" at {line}" if line else ""


def _of_library(filename: str) -> bool:
    return filename.startswith(LIBRARIES)
