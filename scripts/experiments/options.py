"""Types of options; `--help` shows their ranges, and `check` raises an error for wrong values.

The type of a path option says whether a path in a bucket is allowed.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec as Spec

from experiments import storage
from experiments.cli import InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Options = TypeVar("Options")

Flat = Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")]
"""A class whose fields are the options of a command, without a prefix."""


def number(kind: type, limits: str, holds: Callable[[Any], bool]) -> Spec:
    """The option type for finite numbers in a range.

    The function `holds` returns whether a number is in the range. `--help` and error messages show
    the text `limits`.
    """
    return Spec(
        nargs=1,
        metavar=f"{kind.__name__.upper()} {limits}",
        instance_from_str=lambda texts: kind(texts[0]),
        is_instance=lambda x: is_number(x, kind) and math.isfinite(x) and holds(x),
        str_from_instance=lambda x: [str(x)],
    )


def is_number(value: Any, kind: type) -> bool:
    """Whether a value is a number of type `kind`.

    An integer counts as a float. A boolean counts neither as an integer nor as a float.
    """
    return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)


def at_least(minimum: int) -> Spec:
    """The option type for integers that are at least `minimum`."""
    return number(int, f"at least {minimum}", lambda x: x >= minimum)


MAX_SEEDS = 10_000  # more seeds would fill the memory before training starts
Natural = Annotated[int, at_least(0)]
Positive = Annotated[int, at_least(1)]
Seeds = Annotated[int, number(int, f"in [1, {MAX_SEEDS}]", lambda x: 1 <= x <= MAX_SEEDS)]
SeveralSeeds = Annotated[int, number(int, f"in [2, {MAX_SEEDS}]", lambda x: 2 <= x <= MAX_SEEDS)]
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
    """Raise an error if a value in a dataclass of options has a wrong type or is out of range.

    Nested dataclasses are checked too.

    Raises:
      InputError: A value has a wrong type or is out of range. The message names the option.
    """
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        _check_value(name, hint, getattr(options, name))


def checked(main: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function that checks its arguments, as `check` does, and then calls `main`."""
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
    option = name.replace("_", "-")
    if (kinds := _kinds(hint)) and not _fits(hint, value):
        raise InputError(f"--{option} must be {kinds}; got {value}")
    for spec in ranges(hint):
        alone = get_origin(hint) is Annotated and get_args(hint)[0] in (int, float)
        for number in value if isinstance(value, tuple) and not alone else (value,):
            if (number is not None or alone) and not spec.is_instance(number):
                kind, _, limits = spec.metavar.partition(" ")
                verb = "lie" if limits.startswith("in ") else "be"
                if kind == "INT" and not is_number(number, int):
                    verb, limits = "be", "a whole number"
                elif verb == "be" and isinstance(number, float) and not math.isfinite(number):
                    limits = "a finite number"
                raise InputError(f"--{option} must {verb} {limits}; got {number}")


def _kinds(hint: Any) -> str:
    """A text about the values that a type without ranges allows; "" for types that need no text."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        count = get_args(hint)
        return "a list" if ... in count else f"{len(count)} values"
    return {str: "text", bool: "true or false"}.get(hint, "")


def _fits(hint: Any, value: Any) -> bool:
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return value in arguments
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and (... in arguments or len(value) == len(arguments))
    return isinstance(value, hint)


def ranges(hint: Any) -> Iterator[Spec]:
    """Yield the ranges inside a type, such as the range of a tuple's elements."""
    for part in get_args(hint):
        if isinstance(part, Spec):
            yield part
        else:
            yield from ranges(part)
