"""Numbers in sentences of the pages, by hand."""

import pytest

from experiments.pages import sentences


@pytest.mark.parametrize(
    ("scale", "text"), [(1, "0.500 ± 0.010"), (100, "50.0 ± 1.0"), (10, "5.00 ± 0.10")]
)
def test_a_scaled_mean_has_a_scaled_standard_error(scale, text):
    assert sentences.mean({"mean": 0.5, "stderr": 0.01}, scale=scale) == text
    assert sentences.mean({"mean": 0.5, "stderr": None}, scale=scale).endswith(" (one seed)")


def test_shares_and_their_standard_errors_are_in_percent():
    assert sentences.percent({"mean": 0.5, "stderr": 0.0123}) == "50.00 ± 1.23"
