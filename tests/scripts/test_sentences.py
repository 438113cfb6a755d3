"""Numbers in sentences of the pages, compared with values computed by hand."""

import pytest

from experiments.measures.networks import mean as over_seeds
from experiments.pages import sentences


@pytest.mark.parametrize(
    ("scale", "text"),
    [(1, "0.500\xa0±\xa00.010"), (100, "50.0\xa0±\xa01.0"), (10, "5.00\xa0±\xa00.10")],
)
def test_a_scaled_mean_has_a_scaled_standard_error(scale, text):
    assert sentences.mean(over_seeds([0.49, 0.51]), scale=scale) == text
    alone = sentences.mean(over_seeds([0.5]), scale=scale)
    assert float(alone.removesuffix(" (one seed)")) == 0.5 * scale


def test_shares_and_their_standard_errors_are_in_percent():
    assert sentences.percent(over_seeds([0.4877, 0.5123])) == "50.00\xa0±\xa01.23"
