"""What a claim is, what checks it, and what a check finds.

A claim has checks of its printed form and, where that is wrong or far off, of a corrected one. Some
are computed, on thousands of random and of adversarial cases; others are sampled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from jaxtyping import Array, Float, Key

Form = Literal["printed", "rejected", "corrected"]
Number = float | Callable[[], Any]
Values = float | Sequence[Any] | np.ndarray | Array
"""One number for each case that a check computes, in arrays of any shape."""
Cases = Iterator[Any]
"""The same, yielded case by case."""
Statistics = Mapping[str, Float[Array, "..."]]
"""What a draw returns, by the name of the statistic."""
_P = ParamSpec("_P")
_C = TypeVar("_C")


@dataclass(frozen=True)
class Draws:
    """Random statistics, from which several checks may read.

    Attributes:
      draw: The statistics of one key by name, of shape () each, or (draws_per_key,).
      samples: Draws at precision 1.
      batch_size: Draws held in memory at a time.
      draws_per_key: Draws that one key gives, if it gives several.
    """

    draw: Callable[[Key[Array, ""]], Statistics]
    samples: int
    batch_size: int = 2000
    draws_per_key: int | None = None


class _OfOneForm:
    """Constructors of checks that are not of a printed form that holds."""

    @classmethod
    def rejected(cls: Callable[_P, _C], *args: _P.args, **fields: _P.kwargs) -> _C:
        """A check of a printed form, which must not hold."""
        return _with_form(cls(*args, **fields), "rejected")

    @classmethod
    def corrected(cls: Callable[_P, _C], *args: _P.args, **fields: _P.kwargs) -> _C:
        """A check of the corrected form."""
        return _with_form(cls(*args, **fields), "corrected")


def _with_form(check: _C, form: Form) -> _C:
    return replace(cast(Any, check), form=form)


@dataclass(frozen=True)
class Sampled(_OfOneForm):
    """A number that the mean or the variance of a statistic should have.

    Attributes:
      what: The statement, in one line.
      predicted: The number, or a function that gives it.
      draws: Where the statistic comes from.
      statistic: Its name in what `draws` gives.
      moment: The moment of it that is meant.
      side: How the moment stands to the number.
      form: "printed" and "corrected" forms must hold, "rejected" ones are printed and must not.
    """

    what: str
    predicted: Number
    draws: Draws
    statistic: str
    moment: Literal["mean", "variance"] = "mean"
    side: Literal["=", "≤", "≥"] = "="
    form: Form = "printed"

    @property
    def kind(self) -> str:
        if self.form == "rejected":
            return "must-reject"
        return f"Monte-Carlo {self.moment}" if self.side == "=" else "inequality"

    @property
    def source(self) -> Draws:
        return self.draws

    @property
    def function(self) -> Callable:
        return self.draws.draw


@dataclass(frozen=True)
class Computed(_OfOneForm):
    """Numbers that should be equal to one, or not above it, in every case.

    Attributes:
      what: The statement, in one line.
      values: The numbers, one for each case, of a key that decides the cases; arrays of them, of
        any shapes, or an iterator.
      relation: "identity" for values within `tolerance` of `predicted`, "limit" for the same of the
        exponent of an error, "inequality" for values not above `predicted` by more.
      predicted: The number.
      tolerance: What rounding, or the fit of an exponent, may take.
      form: "printed" and "corrected" forms must hold, "rejected" ones are printed and must not.
    """

    what: str
    values: Callable[[Key[Array, ""]], Any]
    relation: Literal["identity", "inequality", "limit"] = "identity"
    predicted: float = 0.0
    tolerance: float = 1e-9
    form: Form = "printed"

    @property
    def kind(self) -> str:
        if self.form == "rejected":
            return "must-reject"
        return "limit with a rate" if self.relation == "limit" else self.relation

    @property
    def source(self) -> Callable:
        return self.values

    @property
    def function(self) -> Callable:
        return self.values


Check = Sampled | Computed


@dataclass(frozen=True)
class Claim:
    """A numbered object of a paper, and what checks it.

    Attributes:
      paper: Short title.
      name: As printed, down to the number of the equation or theorem; unique within the paper.
      statement: In one line.
      verdict: What we say of it, in a word or two.
      checks: What is computed or drawn.
      printed: The printed form, as text, where it differs from the statement.
      corrected: The corrected form, as text; empty where the printed one stands.
      reason: Why nothing is checked, where there are no checks.
    """

    paper: str
    name: str
    statement: str
    verdict: str
    checks: tuple[Check, ...] = ()
    printed: str = ""
    corrected: str = ""
    reason: str = ""


def claims_of(paper: str) -> Callable[..., Claim]:
    """The constructor of the claims of one paper.

    It takes the name, the statement, the verdict and the checks of a claim, and by keyword its
    printed and its corrected form, or the reason why there are no checks.
    """

    def claim(
        name: str,
        statement: str,
        verdict: str,
        *checks: Check,
        printed: str = "",
        corrected: str = "",
        reason: str = "",
    ) -> Claim:
        return Claim(paper, name, statement, verdict, checks, printed, corrected, reason)

    return claim


def claims_in(*sections: ModuleType) -> tuple[Claim, ...]:
    """All claims that the modules define, in their order."""
    return tuple(x for section in sections for x in vars(section).values() if isinstance(x, Claim))


class Measurement(NamedTuple):
    """What a source of checks gave.

    Attributes:
      mean: Means of the statistics of a draw, by name; or the values of the cases of a function.
      samples: Number of draws, or of cases.
      mean_stderr: Standard errors of the means; empty for a function.
      variance: Variances of the statistics; empty for a function.
      variance_stderr: Standard errors of the variances; empty for a function.
    """

    mean: Mapping[str, float] | Sequence[float]
    samples: int
    mean_stderr: Mapping[str, float] = {}
    variance: Mapping[str, float] = {}
    variance_stderr: Mapping[str, float] = {}


class Finding(NamedTuple):
    """What a check found.

    Attributes:
      check: The check.
      estimate: The moment, or the value of the worst case.
      stderr: Of the moment; 0 for computed values.
      predicted: The number it was compared with.
      z: Their distance in standard errors; of computed values NaN.
      p_value: Adjusted by Holm for all checks that were decided together; of computed values NaN.
      draws: Number of draws or of cases.
      holds: Whether the statement was not rejected.
      power: Chance to notice that the predicted number is wrong by 10 %; of computed values NaN.
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
        return self.holds != (self.check.form == "rejected")


class Verdict(NamedTuple):
    """What the checks of a claim say together.

    `printed_holds` and `corrected_holds` are None where no check is of that form. `text` is the
    verdict in words.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    printed_holds: bool | None
    corrected_holds: bool | None
    as_recorded: bool
    text: str
