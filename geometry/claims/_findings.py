"""Measurements of checks, their results ("findings"), and the verdict on a claim."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from geometry.claims._types import MUST_FAIL, Check, Claim


class Measurement(NamedTuple):
    """The moments of draws, or the values of a computed function.

    Attributes:
      mean: The means of the statistics of a draw, by name. For a `Computed` check, the value of its
        function in each case.
      samples: The number of draws, or of cases.
      mean_stderr: The standard errors of the means; empty for a computed function.
      variance: The variances of the statistics; empty for a computed function.
      variance_stderr: The standard errors of the variances; empty for a computed function.
    """

    mean: Mapping[str, float] | Sequence[float]
    samples: int
    mean_stderr: Mapping[str, float] = {}
    variance: Mapping[str, float] = {}
    variance_stderr: Mapping[str, float] = {}


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
      check: The check that was made.
      estimate: The estimated moment of a statistic, or the computed value in the worst case.
      stderr: The standard error of the moment; 0 for computed values.
      predicted: The number with which `estimate` is compared.
      z: The part of the distance between estimate and prediction that exceeds the check's `within`,
        in standard errors; NaN for computed values.
      p_value: The p-value, adjusted by Holm's method for all checks that were decided together; NaN
        for computed values. If the check predicts the mean of draws that are all 0 or 1, the test
        is a binomial test, which is exact for rare events. Otherwise the test is a t test.
      draws: The number of draws or of cases.
      holds: Whether the statement was not rejected.
      power: The probability that the check rejects `against`, a number that is wrong on purpose.
        The power is NaN for computed values, for forms that must fail, and for a prediction of 0
        without `against`.
    """

    check: Check
    estimate: float
    stderr: float
    predicted: float
    z: float
    p_value: float
    draws: int
    holds: bool
    power: float

    @property
    def as_recorded(self) -> bool:
        """Whether the check has the outcome that its form requires; false if a number is NaN."""
        return not self.is_nan and self.holds != (self.check.form in MUST_FAIL)

    @property
    def is_nan(self) -> bool:
        """Whether the estimate or its standard error is NaN."""
        return math.isnan(self.estimate + self.stderr)

    @property
    def name(self) -> str:
        """The statement that was checked, with a note if the estimate is NaN."""
        return self.check.what + (" (the estimate is NaN)" if self.is_nan else "")


class Verdict(NamedTuple):
    """The joint result of the checks of a claim.

    Attributes:
      claim: The claim that was checked.
      findings: The findings of the claim's checks, in the order of the checks.
      printed_holds: Whether all printed forms hold; None if no check is about the printed form.
      corrected_holds: Whether all corrected forms hold; None if no check is about a corrected form.
      as_recorded: Whether every check has the outcome that its form requires.
      text: The recorded class of the claim, or "false" if a printed form fails and the claim has no
        `fault`. If a check does not have the outcome that its form requires, `text` names the
        check.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    printed_holds: bool | None
    corrected_holds: bool | None
    as_recorded: bool
    text: str
