"""Numbers and lines in written results, and the reading of missing files."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import files
from experiments.files import CURVE, WIDTH

NUMBER = 0.123456789123


@pytest.mark.parametrize(("count", "digits"), [(CURVE - 1, 9), (CURVE, 6)])
def test_the_numbers_of_a_curve_have_six_digits(count, digits):
    assert files.rounded([NUMBER] * count) == [round(NUMBER, digits)] * count


def test_the_numbers_of_a_table_in_a_curve_have_nine_digits():
    rows = [{"loss": NUMBER, "steps": 3.0}] * CURVE
    assert files.rounded(rows) == [{"loss": round(NUMBER, 9), "steps": 3.0}] * CURVE


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(number):
    results = {"one": number, "arrays": [np.array([1.5, number]), jnp.array(number)]}
    found = json.loads(files.results_text(results))
    assert found == {"one": None, "arrays": [[1.5, None], None]}


@pytest.mark.parametrize("digits", range(WIDTH - 14, WIDTH - 4))
def test_lines_with_their_margins_are_at_most_as_wide_as_allowed(digits):
    results = {"a": [[[1], int("9" * 50)], [[1], int("9" * digits)]]}
    text = files.results_text(results)
    assert json.loads(text) == results
    assert max(map(len, text.splitlines())) <= WIDTH


def test_only_a_missing_file_counts_as_missing(tmp_path):
    assert files.read_bytes(tmp_path / "missing") is None
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path)


def test_what_a_killed_command_left_of_a_file_does_not_hinder_the_next(tmp_path):
    (tmp_path / ".a.json.part").write_text("half of a")
    files.write(tmp_path / "a.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "whole"
