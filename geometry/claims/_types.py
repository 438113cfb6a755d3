"""Claims, and the checks of a claim.

A claim has checks of its printed form. If the printed form is wrong or inexact, the claim also has
checks of a corrected form. A check computes numbers in thousands of random and adversarial cases,
or estimates a number by Monte Carlo. Some checks are about over-readings, which are false
conclusions that a reader might draw from a true statement. A check of an over-reading must fail.
This failure does not contradict the true statement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Array, Float, Key

from jaxnorm.internal import (
    check_call,
    check_eps,
    check_function,
    check_numeric,
    check_range,
    check_whole,
)

Form = Literal["printed", "rejected", "corrected", "overread"]
"""The form of a statement that a check is about.

Checks of printed and corrected forms must hold. Rejected forms are printed forms whose check must
fail. Overread forms are false conclusions from a printed form; their checks must fail, too."""
Fault = Literal["misprint", "false in a case", "false"]
"""The kind of error in a printed statement.

A misprint is an error of the print only: the paper uses the corrected form, or does not use the
printed form. A statement that is false in a case fails only in a case that its hypotheses allow,
such as a null set or an approximation beyond its range."""
Standing = Literal["true", "misprint", "false in a case", "false", "not tested"]
"""The verdict that is recorded for a statement as printed."""
Relation = Literal["identity", "inequality", "limit"]
Moment = Literal["mean", "variance"]
Side = Literal["=", "≤", "≥"]
MUST_FAIL = frozenset({"rejected", "overread"})
Number = float | Callable[[], Any]
Values = float | Sequence[Any] | np.ndarray | Array
"""One number for each case that a check computes, in arrays of any shape."""
Cases = Iterator[Any]
"""The numbers that a check computes, yielded case by case."""
Statistics = Mapping[str, Float[Array, "..."]]
"""The statistics that a draw returns, by name."""


@dataclass(frozen=True)
class Draws:
    """Random statistics, which several checks may use.

    Attributes:
      draw: The function of a key that returns the statistics by name. Each statistic has the shape
        () or (draws_per_key,).
      samples: The number of draws if the `precision` of `measure` is 1.
      batch_size: The number of draws that are in memory at a time.
      draws_per_key: The number of draws from one key, if one key gives several draws.
    """

    draw: Callable[[Key[Array, ""]], Statistics]
    samples: int
    batch_size: int = 2000
    draws_per_key: int | None = None

    def __post_init__(self):
        example = "lambda key: {'x': jax.random.normal(key)}"
        check_call(self.draw, "draw", example, "a random key", None)
        check_whole(samples=self.samples)
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2; got {self.samples}")


@dataclass(frozen=True)
class Sampled:
    """A check that the mean or the variance of a statistic is a given number.

    The standard error is estimated from the draws. Use at least 100 draws, and many more to check
    the variance of a statistic with heavy tails. With fewer draws, true statements are rejected
    more often than `LEVEL`.

    Attributes:
      what: The statement that is checked, in one line.
      predicted: The predicted number, or a function that returns the predicted number.
      draws: The draws that contain the statistic.
      statistic: The name of the statistic in the results of `draws`.
      moment: The moment of the statistic, "mean" or "variance".
      side: The relation between the moment and the number, such as "≤".
      within: The allowed deviation of the moment, such as the next term if the prediction is of
        first order.
      against: A wrong number that the check should be able to reject, by default 1.1 times
        `predicted`. If `predicted` is 0 and `against` is not given, the power of the check is NaN.
      form: The form of the statement that the check is about; see `Form`.
    """

    what: str
    predicted: Number
    draws: Draws
    statistic: str
    moment: Moment = "mean"
    side: Side = "="
    within: Number = 0.0
    against: Number | None = None
    form: Form = "printed"

    def __post_init__(self):
        _hold_numbers(self, "predicted", "within", "against")

    @property
    def kind(self) -> str:
        if self.form in MUST_FAIL:
            return "must-reject"
        return f"Monte-Carlo {self.moment}" if self.side == "=" else "inequality"

    @property
    def source(self) -> Draws:
        return self.draws

    @property
    def function(self) -> Callable:
        return self.draws.draw


@dataclass(frozen=True)
class Computed:
    """A check that all computed numbers are equal to a given number, or are at most that number.

    Attributes:
      what: The statement that is checked, in one line.
      values: A function that returns the numbers, one for each case, as arrays of any shapes or as
        an iterator. The function has no argument, or a key from which the function draws the cases.
      relation: "identity" or "limit" if the values must be within `tolerance` of `predicted`, where
        "limit" is for the fitted exponent of an error. "inequality" if the values must not exceed
        `predicted` by more than `tolerance`.
      predicted: The number with which the values are compared.
      tolerance: The allowed error from rounding, or from the fit of an exponent.
      form: The form of the statement that the check is about; see `Form`.
    """

    what: str
    values: Callable[..., Any]
    relation: Relation = "identity"
    predicted: float = 0.0
    tolerance: float = 1e-9
    form: Form = "printed"

    def __post_init__(self):
        _hold_numbers(self, "predicted", "tolerance")

    @property
    def kind(self) -> str:
        if self.form in MUST_FAIL:
            return "must-reject"
        return "limit with a rate" if self.relation == "limit" else self.relation

    @property
    def source(self) -> Callable:
        return self.values

    @property
    def function(self) -> Callable:
        return self.values


Check = Sampled | Computed
"""A check of a claim, sampled or computed."""


class Remark(NamedTuple):
    """A note on a fault of a statement, or on a conclusion that does not follow from the statement.

    Attributes:
      kind: "loose" for a bound that is not sharp, "unit" for a wrong unit, "hypothesis" if a
        hypothesis is missing or not needed, or "over-reading" for a false conclusion.
      text: The note, in a few sentences.
    """

    kind: Literal["loose", "unit", "hypothesis", "over-reading"]
    text: str


class Result(NamedTuple):
    """Our number from trained networks, for comparison with the paper's number.

    Attributes:
      ours: A sentence with our number, its uncertainty and the number of runs, or a function that
        makes the sentence from the contents of `page`.
      printed: The number that the paper prints.
      page: The JSON file with our numbers, as a path from the root of the repository.
    """

    ours: str | Callable[[Any], str]
    printed: str
    page: str


@dataclass(frozen=True, eq=False)
class Claim:
    """A statement with its checks.

    The methods `equal`, `at_most`, `rate`, `mean` and `variance` add checks to the claim. `equal`,
    `at_most` and `rate` are decorators of the function that computes the numbers.

    Attributes:
      paper: Short title of the paper.
      name: The printed name with the number of the equation or theorem; unique within the paper.
      statement: The statement in one line.
      checks: The checks, each a `Computed` or a `Sampled`.
      covers: The numbers of the definitions and proof steps that belong to the claim.
      printed: The statement as printed in the paper, with the place in the paper and the
        hypotheses.
      corrected: The corrected form, as text; empty if the printed form is right.
      fault: The class of the error in the printed form; None if the printed form is right.
      remark: A further note for the reader.
      why: The proof or the counter-example, in a few sentences.
      results: Numbers from trained or measured networks.
      reason: The reason why the claim has no checks, if there are no checks.

    Raises:
      TypeError: An element of `checks` is not a check.
      ValueError: `fault` or the form of a check is unknown.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from geometry.claims import check
      >>> claim = Claim("notes", "Eq. 1", "The mean of a square is at least the square of the mean")
      >>> @claim.at_most("E[x]² − E[x²] ≤ 0, of 100 batches")
      ... def _(key):
      ...     x = jax.random.normal(key, (100, 20))
      ...     return x.mean(1) ** 2 - (x**2).mean(1)
      >>> print(check(claim, jax.random.key(0)).text)
      true
    """

    paper: str
    name: str
    statement: str
    checks: Sequence[Check] = ()
    covers: str = ""
    printed: str = ""
    corrected: str = ""
    fault: Fault | None = None
    remark: Remark | None = None
    why: str = ""
    results: tuple[Result, ...] = ()
    reason: str = ""

    def __post_init__(self):
        if not isinstance(self.checks, Iterable):
            raise TypeError(f"checks must be a list of checks; got {self.checks!r}")
        object.__setattr__(self, "checks", list(self.checks))
        for check in self.checks:
            _must_be_a_check(check)
        if self.fault is not None:
            _must_be_one_of("fault", self.fault, Fault)

    def add(self, check: Check) -> None:
        """Add a check to the claim."""
        _must_be_a_check(check)
        checks: Any = self.checks
        checks.append(check)

    def equal(
        self, what: str, number: float = 0.0, *, tolerance: float = 1e-9, form: Form = "printed"
    ) -> Callable[[Callable], Callable]:
        """Check that every number of the decorated function is within `tolerance` of `number`."""
        return self._computed(what, "identity", number, tolerance, form)

    def at_most(
        self, what: str, limit: float = 0.0, *, tolerance: float = 1e-9, form: Form = "printed"
    ) -> Callable[[Callable], Callable]:
        """Check that no number of the decorated function is above `limit` + `tolerance`."""
        return self._computed(what, "inequality", limit, tolerance, form)

    def rate(
        self, what: str, exponent: float, *, tolerance: float = 0.1, form: Form = "printed"
    ) -> Callable[[Callable], Callable]:
        """Check that the fitted exponent of an error, such as −1 for an error ∝ 1/k, is `exponent`.

        The decorated function returns the exponent, which may differ from `exponent` by at most
        `tolerance`.
        """
        return self._computed(what, "limit", exponent, tolerance, form)

    def mean(
        self, what: str, predicted: Number, draws: Draws, statistic: str, **options: Any
    ) -> None:
        """Check that the mean of a statistic is `predicted`; for the options see `Sampled`."""
        self.add(Sampled(what, predicted, draws, statistic, **options))

    def variance(
        self, what: str, predicted: Number, draws: Draws, statistic: str, **options: Any
    ) -> None:
        """Check that the variance of a statistic is `predicted`; for the options see `Sampled`."""
        self.add(Sampled(what, predicted, draws, statistic, "variance", **options))

    def _computed(
        self, what: str, relation: Any, number: float, tolerance: float, form: Form
    ) -> Callable[[Callable], Callable]:
        if not isinstance(what, str):
            raise TypeError(
                "what must be the text of the check, as in @claim.at_most('E max ≤ 1', 1.0); got "
                f"{type(what).__name__}"
            )

        def add(values: Callable) -> Callable:
            self.add(Computed(what, values, relation, number, tolerance, form))
            return values

        return add

    @property
    def standing(self) -> Standing:
        """The recorded verdict: true, misprint, false in a case, false, or not tested."""
        if not self.checks:
            return "not tested"
        return self.fault or "true"


def _must_be_a_check(check: Check) -> None:
    if not isinstance(check, Sampled | Computed):
        raise TypeError(f"checks must be Sampled or Computed; got {check!r}")
    if isinstance(check, Sampled) and not isinstance(check.draws, Draws):
        raise TypeError(f"draws must be Draws, such as Draws(draw, 1000); got {check.draws!r}")
    if isinstance(check, Computed):
        check_function(check.values, "values", "one of a random key, or of nothing")
        _must_be_one_of("relation", check.relation, Relation)
        check_numeric(check.predicted, "the number of a check")
        check_eps(check.tolerance, "tolerance")
    else:
        if not callable(check.predicted):
            check_numeric(check.predicted, "predicted")
            if not np.isfinite(check.predicted):
                raise ValueError(f"predicted must be finite; got {check.predicted}")
        if not callable(check.within):
            check_range(check.within, "within")
        if not callable(check.against) and check.against is not None:
            check_numeric(check.against, "against")
            if np.isnan(check.against):
                raise ValueError("against must be a number or None; got nan")
        _must_be_one_of("moment", check.moment, Moment)
        _must_be_one_of("side", check.side, Side)
    _must_be_one_of("form", check.form, Form)


def _hold_numbers(check: Any, *names: str) -> None:
    """Replace arrays of one number by Python numbers, because arrays cannot be hashed."""
    for name in names:
        value = getattr(check, name)
        if getattr(value, "size", 0) == 1:
            object.__setattr__(check, name, value.item())


def _must_be_one_of(name: str, text: str, choices: Any) -> None:
    if text not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}; got {text!r}")
