"""Ranges of numeric options, declared with their types: `--help` shows them, `check` holds them.

Options that are paths say in their types whether they may be of a bucket.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec as Spec

from experiments import storage
from experiments.cli import InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def number(kind: type, limits: str, holds: Callable[[Any], bool]) -> Spec:
    """A finite number for which `holds`, with `limits` that follow "must be" or "must lie"."""
    return Spec(
        nargs=1,
        metavar=f"{kind.__name__.upper()} {limits}",
        instance_from_str=lambda texts: kind(texts[0]),
        is_instance=lambda x: isinstance(x, (int, float)) and math.isfinite(x) and holds(x),
        str_from_instance=lambda x: [str(x)],
    )


def at_least(minimum: int) -> Spec:
    """A whole number from a minimum on."""
    return number(int, f"at least {minimum}", lambda x: x >= minimum)


Natural = Annotated[int, at_least(0)]
Positive = Annotated[int, at_least(1)]
AtLeastTwo = Annotated[int, at_least(2)]
NonNegative = Annotated[float, number(float, "at least 0", lambda x: x >= 0)]
Above = Annotated[float, number(float, "above 0", lambda x: x > 0)]
Fraction = Annotated[float, number(float, "in (0, 1)", lambda x: 0 < x < 1)]
BelowOne = Annotated[float, number(float, "in [0, 1)", lambda x: 0 <= x < 1)]
Share = Annotated[float, number(float, "in (0, 1]", lambda x: 0 < x <= 1)]
Unit = Annotated[float, number(float, "in [0, 1]", lambda x: 0 <= x <= 1)]


def _path(metavar: str, of_text: Callable[[str], Path]) -> Spec:
    return Spec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: of_text(texts[0]),
        is_instance=lambda x: isinstance(x, PurePath),
        str_from_instance=lambda x: [str(x)],
    )


Location = Annotated[Path, _path("PATH|gs://…", storage.location)]
LocalPath = Annotated[Path, _path("PATH", storage.local)]


def check(options: Any) -> None:
    """Refuse a dataclass of options, or one inside it, of which a number is out of its range.

    Raises:
      InputError: The message names the option.
    """
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        _check_value(name, hint, getattr(options, name))


def checked(main: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`main`, which refuses arguments as `check` does before it begins."""
    hints = get_type_hints(main, include_extras=True)

    @functools.wraps(main)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for name, value in inspect.signature(main).bind(*args, **kwargs).arguments.items():
            _check_value(name, hints[name], value)
        return main(*args, **kwargs)

    return call


def _check_value(name: str, hint: Any, value: Any) -> None:
    if dataclasses.is_dataclass(value):
        check(value)
    for spec in ranges(hint):
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not spec.is_instance(number):
                limits = spec.metavar.partition(" ")[2]
                verb = "lie" if limits.startswith("in ") else "be"
                option = name.replace("_", "-")
                raise InputError(f"--{option} must {verb} {limits}; got {number}")


def ranges(hint: Any) -> Iterator[Spec]:
    """The ranges in a type, such as that of the elements of a tuple."""
    for part in get_args(hint):
        if isinstance(part, Spec):
            yield part
        else:
            yield from ranges(part)
