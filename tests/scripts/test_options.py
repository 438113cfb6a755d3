"""Numbers on the command line have ranges, which `--help` shows and the commands hold."""

import contextlib
import dataclasses
import io
import math
import re
from typing import Any

import pytest
import tyro

import covariate_shift
import prune
import reproduce
import reproduce_geometry
import train
from experiments import options
from experiments.cli import InputError
from experiments.training import recipes
from experiments.training.recipes import PRESETS, Recipe

NUMBER = re.compile(r"--([a-z-]+) [^\n]*?\b(INT|FLOAT)\b(?! (at least|above|in [(\[]) ?\d)")


@pytest.mark.parametrize(
    "command",
    [
        train.Arguments,
        prune.main,
        covariate_shift.main,
        reproduce.main,
        reproduce_geometry.main,
    ],
)
def test_help_shows_the_range_of_every_number(command):
    said = io.StringIO()
    arguments: dict[str, Any] = (
        {"default": train.Arguments(Recipe())} if command is train.Arguments else {}
    )
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        tyro.cli(command, args=["--help"], **arguments)
    assert "INT at least" in said.getvalue()
    assert not NUMBER.findall(said.getvalue())
    assert NUMBER.findall("│ --steps INT   number")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 2])
@pytest.mark.parametrize("name", ["running_momentum", "momentum"])
def test_numbers_out_of_a_range_are_refused(name, value):
    option = name.replace("_", "-")
    with pytest.raises(InputError, match=rf"--{option} must lie in \[0, 1.; got {value}"):
        recipes.check(dataclasses.replace(Recipe(), **{name: value}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": math.inf}, "--learning-rate must be at least 0; got inf"),
        ({"drop_factor": 0.0}, "--drop-factor must be above 0; got 0"),
        ({"drop_factor": -2.0}, "--drop-factor must be above 0; got -2"),
        ({"drop_factor": math.nan}, "--drop-factor must be above 0; got nan"),
        ({"drops": (5, -3)}, "--drops must be at least 1; got -3"),
        ({"weight_decay": math.inf}, "--weight-decay must be at least 0; got inf"),
        ({"norm_groups": -1}, "--norm-groups must be at least 0; got -1"),
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
    with pytest.raises(InputError, match="--seeds must be at least 1; got 0"):
        reproduce.main(reproduce.Options(seeds=0))
    with pytest.raises(InputError, match="--seed must be at least 0; got -1"):
        reproduce_geometry.main(reproduce_geometry.Options(seed=-1))
