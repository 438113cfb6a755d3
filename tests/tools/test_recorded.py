"""The comparison of a result with its record."""

import numpy as np
import pytest

from tests.support import recorded

OLD = {"a": [1.0, 2.0], "text": "loss 0.51 after 3 epochs", "flag": True, "none": None}


@pytest.mark.parametrize(
    "change",
    [
        {"a": [1.00001, 2.0]},
        {"text": "loss 0.52 after 3 epochs"},  # the last digit of 0.51 changes by one
        {"a": [1, 2.0]},
    ],
)
def test_rounding_is_no_difference(change):
    assert not recorded.difference(OLD | change, OLD, 1e-4, 1e-7)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"a": [1.0, 2.1]}, "['a'][1] is 2.1, was 2.0"),
        ({"a": [1.0]}, "['a'] is [1.0], was [1.0, 2.0]"),
        ({"a": [True, 2.0]}, "['a'][0] is True, was 1.0"),
        ({"text": "loss 0.53 after 3 epochs"}, "['text'] is 'loss 0.53"),
        ({"text": "loss 0.51 after 4 epochs"}, "['text'] is 'loss 0.51 after 4"),
        ({"text": "gain 0.51 after 3 epochs"}, "['text'] is 'gain"),
        ({"flag": 1}, "['flag'] is 1, was True"),
        ({"none": 0.0}, "['none'] is 0.0, was None"),
    ],
)
def test_a_difference_is_named_with_its_place(change, place):
    assert recorded.difference(OLD | change, OLD, 1e-4, 1e-7).startswith(place)


def test_another_order_of_names_is_a_difference():
    assert recorded.difference({"b": 1, "a": 2}, {"a": 2, "b": 1}, 1e-4, 1e-7)


def test_a_condensed_result_has_no_times_and_the_moments_of_long_arrays():
    x = np.random.default_rng(0).normal(3, 2, (4, 10))
    found = recorded.condense(
        {"rows": [{"seconds": 1.0, "name": "a", "x": x, "own": 1}], "few": [1.0, 2.0]}, "own"
    )
    (row,) = found.pop("rows")
    assert found == {"few": [1.0, 2.0]}
    assert row.keys() == {"name", "x"}
    assert row["x"]["shape"] == [4, 10]
    weights = np.cos([[1 + 10 * i + j for j in range(10)] for i in range(4)])
    expected = [x.mean(), x.std(), ((x - x.mean()) * weights).mean()]
    np.testing.assert_allclose(row["x"]["moments"], expected)
    other = recorded.condense({"x": x[:, ::-1]})["x"]["moments"]
    assert recorded.difference(other[:2], expected[:2], 1e-9, 0) == ""
    assert recorded.difference(other, expected, 1e-2, 1e-3)
