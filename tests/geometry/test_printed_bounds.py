import numpy as np
import pytest

from claims.bn_decomposed.tree_angles import printed_end_bounds


@pytest.mark.parametrize(
    ("n", "ratio", "angle"),
    [(3, 3, None), (4, 1.5, None), (5, 1, 5.2), (6, 0.75, 26.4), (8, 0.5, 47.6)],
)
def test_printed_constants_of_theorem_11(n, ratio, angle):
    printed = printed_end_bounds(n)
    assert printed.norm_ratio == ratio
    if angle is None:
        assert printed.angle < 0
    else:
        assert abs(np.degrees(printed.angle) - angle) < 0.06


def test_printed_constants_need_three_samples():
    with pytest.raises(ValueError, match=r"n must be at least 3, .*; got 2"):
        printed_end_bounds(2)
