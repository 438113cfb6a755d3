"""What a claim is, and what checks it.

A claim has checks of its printed form and, where that is wrong or far off, of a corrected one. Some
are computed, on thousands of random and of adversarial cases; others are sampled. What a reader
might take from a statement, and must not, is checked too, and says nothing against the statement.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from jaxtyping import Array, Float, Key

Form = Literal["printed", "rejected", "corrected", "overread"]
"""Printed and corrected forms must hold. Rejected ones are printed, and must fail; so must overread
ones, which are not printed."""
Standing = Literal[
    "holds as printed",
    "holds, with a remark",
    "wrong as printed, holds corrected",
    "not tested here",
]
"""What a verdict says of a statement as printed."""
MUST_FAIL = frozenset({"rejected", "overread"})
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
    def overread(cls: Callable[_P, _C], *args: _P.args, **fields: _P.kwargs) -> _C:
        """A check of what a reader might take from the printed form, which must not hold."""
        return _with_form(cls(*args, **fields), "overread")

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
      within: Size of the next term of a prediction to first order, which the moment may be off by.
      against: A wrong number from which this one is to be told; by default one 10 % off.
      form: What the check says of the printed statement.
    """

    what: str
    predicted: Number
    draws: Draws
    statistic: str
    moment: Literal["mean", "variance"] = "mean"
    side: Literal["=", "≤", "≥"] = "="
    within: Number = 0.0
    against: Number | None = None
    form: Form = "printed"

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
      form: What the check says of the printed statement.
    """

    what: str
    values: Callable[[Key[Array, ""]], Any]
    relation: Literal["identity", "inequality", "limit"] = "identity"
    predicted: float = 0.0
    tolerance: float = 1e-9
    form: Form = "printed"

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
"""Either kind of check."""


class Remark(NamedTuple):
    """What a true statement lacks, or must not be taken for.

    Attributes:
      kind: "loose" bounds, a wrong "unit", a missing or idle "hypothesis", or an "over-reading".
      text: In one or two sentences.
    """

    kind: Literal["loose", "unit", "hypothesis", "over-reading"]
    text: str


class Result(NamedTuple):
    """What training or measuring networks gave, beside the number that the paper prints.

    Attributes:
      ours: With its uncertainty, and of how many runs.
      printed: The paper's.
      page: Where it stands, from the root of the repository.
    """

    ours: str
    printed: str
    page: str


@dataclass(frozen=True)
class Claim:
    """A numbered object of a paper, and what checks it.

    Attributes:
      paper: Short title.
      name: As printed, down to the number of the equation or theorem; unique within the paper.
      statement: In one line.
      checks: What is computed or drawn.
      covers: Numbers of the definitions and steps of the proof that belong to it.
      printed: The printed form with its place and its hypotheses.
      corrected: The corrected form, as text; empty where the printed one stands.
      remark: What a reader of a true statement should know.
      why: Two or three sentences: the proof, or the counter-example.
      results: Of networks that were trained or measured.
      reason: Why nothing is checked, where there are no checks.
    """

    paper: str
    name: str
    statement: str
    checks: tuple[Check, ...] = ()
    covers: str = ""
    printed: str = ""
    corrected: str = ""
    remark: Remark | None = None
    why: str = ""
    results: tuple[Result, ...] = ()
    reason: str = ""

    @property
    def standing(self) -> Standing:
        """What is recorded of it."""
        forms = {check.form for check in self.checks}
        if not self.checks:
            return "not tested here"
        if "rejected" in forms:
            return "wrong as printed, holds corrected"
        return "holds, with a remark" if self.remark else "holds as printed"


def claims_of(paper: str) -> Callable[..., Claim]:
    """The constructor of the claims of one paper: name, statement and checks; others by keyword."""

    def claim(name: str, statement: str, *checks: Check, **fields: Any) -> Claim:
        return Claim(paper, name, statement, checks, **fields)

    return claim


def claims_in(*sections: ModuleType) -> tuple[Claim, ...]:
    """All claims that the modules define, in their order."""
    return tuple(x for section in sections for x in vars(section).values() if isinstance(x, Claim))
