"""Numeric options have ranges, which `--help` shows and commands enforce."""

import contextlib
import dataclasses
import importlib
import io
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tyro

import covariate_shift
import reproduce
import reproduce_geometry
import train
from experiments import options, recipes
from experiments.cli import InputError
from experiments.recipes import PRESETS, Recipe

NUMBER = re.compile(r"--([a-z-]+) [^\n]*?\b(INT|FLOAT)\b(?! (at least|above|in [(\[]) ?\d)")
COMMANDS = sorted(path.stem for path in Path(train.__file__).parent.glob("*.py"))
REQUIRED = {"analyze": ["weights.npz"]}
NO_NUMBERS = ("atlas_traffic", "bench_compiled", "filter_models", "odd_states")
OUTSIDE = (-1, 0, 2, 2.5, -math.inf, math.nan, math.inf)


def entry(command):
    module = importlib.import_module(command)
    return module.Arguments if command == "train" else module.main


def default(command) -> dict[str, Any]:
    return {"default": train.Arguments(Recipe())} if command == "train" else {}


def numbers(hint, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of names and the type of every number inside a type hint."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if inner in (int, float):
        yield path, hint
    elif isinstance(inner, types.FunctionType) or dataclasses.is_dataclass(inner):
        for name, part in get_type_hints(inner, include_extras=True).items():
            yield from numbers(part, (*path, name))
    elif get_origin(inner) is not Literal:
        for part in get_args(inner):
            yield from numbers(part, path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_of_every_command_has_a_range(command):
    found = dict(numbers(entry(command)))
    assert found or command in NO_NUMBERS
    assert [path for path, hint in found.items() if not any(options.ranges(hint))] == []


def test_a_number_without_a_range_is_found():
    def main(a: int, b: tuple[float, ...] | None, c: options.Natural, d: bool, e: str): ...

    assert dict(numbers(main)) == {("a",): int, ("b",): float, ("c",): options.Natural}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_range_of_every_number(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as end:
        tyro.cli(entry(command), args=["--help"], **default(command))
    assert end.value.code == 0
    assert re.search("(INT|FLOAT) (at least|in)", said.getvalue()) or command in NO_NUMBERS
    assert not NUMBER.findall(said.getvalue())
    assert NUMBER.findall("│ --steps INT   number")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_no_line_before_a_number_or_a_quote(command, monkeypatch):
    """tyro breaks a help text before each line that does not begin with a letter."""
    monkeypatch.setenv("COLUMNS", "2000")
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
        tyro.cli(entry(command), args=["--help"], **default(command))
    assert "(default: " in said.getvalue()
    assert re.findall(r"(?: {4}|\n) *([\d`\"'].*?)(?:  |\n)", said.getvalue()) == []


LIMITS = {
    name: next(options.ranges(hint))
    for name, hint in vars(options).items()
    if get_origin(hint) is Annotated and get_args(hint)[0] in (int, float)
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_range_has_the_ends_that_it_shows(name):
    said, holds = LIMITS[name].metavar, LIMITS[name].is_instance
    least = re.fullmatch(r"\w+ (at least|above) (\d)", said)
    if least:
        assert holds(int(least[2])) == (least[1] == "at least")
        assert (holds(int(least[2]) - 1), holds(int(least[2]) + 1)) == (False, True)
        return
    shown = re.fullmatch(r"(?:FLOAT|INT) in ([(\[])(\d), (\d+)([)\]])", said)
    assert shown is not None
    opens, low, high, closes = shown[1], int(shown[2]), int(shown[3]), shown[4]
    assert (holds(low), holds(high)) == (opens == "[", closes == "]")
    middle = (low + high) // 2 if said.startswith("INT") else (low + high) / 2
    assert (holds(low - 1), holds(middle), holds(high + 1)) == (False, True, False)


def run(command, *args):
    """Parse the arguments `args` of a command, and run only its checks of options."""
    arguments = tyro.cli(
        entry(command), args=[*args, *REQUIRED.get(command, ())], **default(command)
    )
    train.check(arguments.recipe, arguments.run)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_out_of_its_range_is_refused(command):
    found = list(numbers(entry(command)))
    for path, hint in found:
        option, (limits,) = path[-1].replace("_", "-"), options.ranges(hint)
        values = [x for x in OUTSIDE if get_args(hint)[0] is float or isinstance(x, int)]
        outside = [value for value in values if not limits.is_instance(value)]
        assert outside
        for value in outside:
            with pytest.raises(InputError, match=f"--{option} must (be|lie) .*; got "):
                run(command, f"--{option}", *[f"{value}"] * found.count((path, hint)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 2])
@pytest.mark.parametrize("name", ["running_momentum", "momentum"])
def test_numbers_out_of_a_range_are_refused(name, value):
    option = name.replace("_", "-")
    with pytest.raises(InputError, match=rf"--{option} must lie in \[0, 1.; got {value}"):
        recipes.check(dataclasses.replace(Recipe(), **{name: value}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": math.inf}, "--learning-rate must be a finite number; got inf"),
        ({"drop_factor": 0.0}, "--drop-factor must be above 0; got 0"),
        ({"drop_factor": -2.0}, "--drop-factor must be above 0; got -2"),
        ({"drop_factor": math.nan}, "--drop-factor must be a finite number; got nan"),
        ({"drops": (0.5, -3.0)}, r"--drops must lie in \(0, 1\); got -3"),
        ({"weight_decay": math.inf}, "--weight-decay must be a finite number; got inf"),
        ({"norm_groups": -1}, "--norm-groups must be at least 0; got -1"),
        ({"norm_groups": 2.5}, "--norm-groups must be a whole number; got 2.5"),
    ],
)
def test_recipes_that_mean_nothing_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        recipes.check(dataclasses.replace(Recipe(), **changes))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_in_range(name):
    options.check(PRESETS[name][1])


def test_arguments_of_functions_are_checked_like_fields():
    with pytest.raises(InputError, match="--epochs must be at least 2; got 1"):
        covariate_shift.main(epochs=1)
    with pytest.raises(InputError, match=r"--seeds must lie in \[1, 10000\]; got 0"):
        reproduce.main(seeds=0)
    with pytest.raises(InputError, match="--seed must be at least 0; got -1"):
        reproduce_geometry.main(seed=-1)


@dataclasses.dataclass(frozen=True)
class Kinds:
    """One option of each kind: text, flag, tuple, list, number and choice."""

    name: str = "a"
    fast: bool = False
    pair: tuple[str, str] = ("a", "b")
    several: tuple[options.Natural, ...] = ()
    count: options.Natural = 1
    limit: options.Natural | None = None
    choice: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": 3}, "--name must be text; got 3"),
        ({"fast": 1}, "--fast must be true or false; got 1"),
        ({"pair": ("a",)}, "--pair must be 2 values; got ('a',)"),
        ({"pair": ("a", "b", "c")}, "--pair must be 2 values; got ('a', 'b', 'c')"),
        ({"pair": ["a", "b"]}, "--pair must be 2 values; got ['a', 'b']"),
        ({"several": 3}, "--several must be a list; got 3"),
        ({"several": (3, -1)}, "--several must be at least 0; got -1"),
        ({"count": None}, "--count must be a whole number; got None"),
        ({"limit": -1}, "--limit must be at least 0; got -1"),
        ({"choice": "c"}, "--choice must be one of a, b; got c"),
    ],
)
def test_a_value_of_another_kind_is_refused(changes, sentence):
    options.check(Kinds(pair=("c", "d"), several=(1, 2, 3), choice="b"))
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        options.check(Kinds(**changes))


def test_arguments_of_a_checked_function_are_in_their_ranges():
    @options.checked
    def main(folder: str, *, count: options.Positive, share: options.Share | None = None):
        return folder, count, share

    assert main("a", count=1) == ("a", 1, None)
    assert main("a", count=3, share=1.0) == ("a", 3, 1.0)
    with pytest.raises(InputError, match=r"^--count must be at least 1; got 0$"):
        main("a", count=0)
    with pytest.raises(InputError, match=r"^--share must lie in \(0, 1\]; got 0\.0$"):
        main("a", count=1, share=0.0)
