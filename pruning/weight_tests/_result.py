"""What every test returns."""

from typing import NamedTuple

from jaxtyping import Array, Float

Scalar = int | float | Float[Array, ""]


class TestResult(NamedTuple):
    """The statistic of a test, and the chance of one as extreme under its hypothesis."""

    __test__ = False  # not a test of pytest's

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]
