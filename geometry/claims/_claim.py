"""What a claim is, how it is measured, and how chance decides about it.

A claim has checks of its printed form and, where that is wrong or far off, of a corrected one.
Some are computed, on thousands of random and of adversarial cases; others are sampled, and decided
together: Holm's correction over all of them keeps the chance of any false alarm below `LEVEL`.
Everything is computed in float64 and drawn in float32.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Key

from geometry._monte_carlo import monte_carlo_moments
from pruning import holm

LEVEL = 0.002
"""Chance that Holm's correction leaves for any true statement of a run to be rejected."""

Form = Literal["printed", "rejected", "corrected"]
Number = float | Callable[[], Any]
Values = float | Sequence[Any] | np.ndarray | Array
"""One number for each case that a check computes."""


@dataclass(frozen=True)
class Draws:
    """Random statistics, from which several checks may read.

    Attributes:
      draw: The statistics of one key, (statistics,), or (block, statistics).
      samples: Draws at precision 1.
      batch_size: Draws held in memory at a time.
      block: Draws that one key gives, if it gives several.
    """

    draw: Callable[[Key[Array, ""]], Float[Array, "..."]]
    samples: int
    batch_size: int = 2000
    block: int | None = None


@dataclass(frozen=True)
class Sampled:
    """A number that the mean or the variance of a statistic should have.

    Attributes:
      what: The statement, in one line.
      predicted: The number, or a function that gives it.
      draws: Where the statistic comes from.
      index: Which one it is.
      moment: Which moment of it.
      side: How the moment stands to the number.
      form: "printed" and "corrected" forms must hold, "rejected" ones are printed and must not.
    """

    what: str
    predicted: Number
    draws: Draws
    index: int = 0
    moment: Literal["mean", "variance"] = "mean"
    side: Literal["=", "≤", "≥"] = "="
    form: Form = "printed"

    @property
    def kind(self) -> str:
        if self.form == "rejected":
            return "must-reject"
        return f"Monte-Carlo {self.moment}" if self.side == "=" else "inequality"


@dataclass(frozen=True)
class Computed:
    """Numbers that should be equal to one, or not above it, in every case.

    Attributes:
      what: The statement, in one line.
      values: The numbers, one for each case, of a key that decides the cases.
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


Check = Sampled | Computed


@dataclass(frozen=True)
class Claim:
    """A numbered object of a paper, and what checks it.

    Attributes:
      paper: Short title.
      entry: Where our ledger treats it.
      name: As printed, down to the number of the equation or theorem.
      statement: In one line.
      printed: The printed form, as text, where it differs from the statement.
      corrected: The corrected form, as text; empty where the printed one stands.
      verdict: What the ledger says, in a word or two.
      checks: What is computed or drawn.
      reason: Why nothing is, where there are no checks.
    """

    paper: str
    entry: str
    name: str
    statement: str
    verdict: str
    printed: str = ""
    corrected: str = ""
    checks: tuple[Check, ...] = ()
    reason: str = ""


class Measurement(NamedTuple):
    """Moments of the statistics of `samples` draws; or, as `mean`, values of so many cases."""

    mean: Sequence[float]
    samples: int
    mean_stderr: Sequence[float] = ()
    variance: Sequence[float] = ()
    variance_stderr: Sequence[float] = ()


class Finding(NamedTuple):
    """What a check found.

    Attributes:
      check: Which one.
      estimate: The moment, or the value of the worst case.
      stderr: Of the moment; 0 for computed values.
      predicted: The number it was compared with.
      z: Their distance in standard errors; of computed values NaN.
      p_value: Adjusted by Holm for all checks that were decided together; of computed values NaN.
      draws: How many, or the number of cases.
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


def check(claim: Claim, key: Key[Array, ""], *, precision: float = 1.0) -> Verdict:
    """`check_all` of one claim: its numbers are those of a run of all with the same key."""
    return check_all((claim,), key, precision=precision)[0]


def check_all(
    claims: Iterable[Claim],
    key: Key[Array, ""],
    *,
    precision: float = 1.0,
    devices: Sequence[Any] | None = None,
) -> list[Verdict]:
    """Measure every check of every claim once, and decide about all together.

    The same key gives the same numbers, whatever claims are chosen; Holm's correction is for those
    that are. Not to be traced: results are Python numbers. Arguments and errors are those of
    `measure`.
    """
    claims = tuple(claims)
    return decide(claims, measure(claims, key, precision=precision, devices=devices))


def measure(
    claims: Iterable[Claim],
    key: Key[Array, ""],
    *,
    precision: float = 1.0,
    devices: Sequence[Any] | None = None,
    known: Mapping[str, Measurement] | None = None,
    on_done: Callable[[str, Measurement], None] = lambda name, found: None,
) -> dict[str, Measurement]:
    """The moments of all draws of the claims, and the values of all functions, by name.

    Args:
      claims: Such as `ALL`.
      key: Of the whole run.
      precision: Factor on the standard errors: ½ takes four times the draws.
      devices: Over which draws are spread; by default all, of all hosts.
      known: What an earlier call with this key and precision measured.
      on_done: Called with every new measurement.

    Raises:
      ValueError: `precision` is not in (0, 2], beyond which a wrong number may stay unseen.
    """
    if not 0 < precision <= 2:
        raise ValueError(f"precision must lie in (0, 2]; got {precision}")
    measured = dict(known or {})
    with jax.enable_x64(True):
        for name, what in sources(claims).items():
            if name not in measured:
                own = jax.random.fold_in(key, zlib.crc32(name.encode()))
                measured[name] = _measured(what, own, precision, devices)
                on_done(name, measured[name])
    return measured


def sources(claims: Iterable[Claim]) -> dict[str, Draws | Callable]:
    """What the checks of the claims read, by name."""
    checks = (part for claim in claims for part in claim.checks)
    return {name_of(part): source(part) for part in checks}


def source(part: Check) -> Draws | Callable:
    return part.draws if isinstance(part, Sampled) else part.values


def function_of(part: Check) -> Callable:
    """What draws or computes."""
    return part.draws.draw if isinstance(part, Sampled) else part.values


def name_of(part: Check) -> str:
    return function_of(part).__name__


def decide(claims: Sequence[Claim], measured: Mapping[str, Measurement]) -> list[Verdict]:
    """Verdicts from what `measure` returned."""
    sampled = [part for claim in claims for part in claim.checks if isinstance(part, Sampled)]
    raw = {part: _compared(part, measured[name_of(part)]) for part in sampled}
    p_values = np.array([found[3] for found in raw.values()])
    adjusted = np.asarray(holm(jnp.asarray(p_values))) if len(p_values) else p_values
    critical = scipy.stats.norm.isf(LEVEL / 2 / max(len(p_values), 1))
    found: dict[Check, Finding] = {}
    for (part, (estimate, stderr, predicted, _, z, draws)), p in zip(
        raw.items(), adjusted, strict=True
    ):
        seen = 0.1 * abs(predicted) / stderr if stderr else math.inf
        power = float(scipy.stats.norm.cdf(seen - critical))
        holds = not p < LEVEL
        found[part] = Finding(part, estimate, stderr, predicted, z, float(p), draws, holds, power)
    verdicts = []
    for claim in claims:
        findings = tuple(
            found[part]
            if isinstance(part, Sampled)
            else _judged(part, measured[name_of(part)].mean)
            for part in claim.checks
        )
        verdicts.append(_verdict(claim, findings))
    return verdicts


def normal(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    """Standard normal numbers in float32."""
    # XLA compiles a draw of several axes in many times the time of one that is reshaped.
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def generator(key: Key[Array, ""]) -> np.random.Generator:
    """NumPy's random numbers, decided by the key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def exponent(sizes: Any, errors: Any) -> float:
    """Slope of log |error| over log size."""
    return float(np.polyfit(np.log(sizes), np.log(np.abs(np.asarray(errors, float))), 1)[0])


def _measured(
    what: Draws | Callable, key: Key[Array, ""], precision: float, devices: Sequence[Any] | None
) -> Measurement:
    if not isinstance(what, Draws):
        values = np.ravel(np.asarray(what(key), np.float64))
        return Measurement(values.tolist(), len(values))
    rows = what.block or 1
    samples = max(2, math.ceil(what.samples / rows / precision**2)) * rows
    found = monte_carlo_moments(
        what.draw, key, samples, batch_size=what.batch_size, block=what.block, devices=devices
    )
    parts = (np.ravel(part).astype(float).tolist() for part in found[:4])
    mean, mean_stderr, variance, variance_stderr = parts
    return Measurement(mean, samples, mean_stderr, variance, variance_stderr)


def _compared(part: Sampled, found: Measurement) -> tuple[float, float, float, float, float, int]:
    """Estimate, standard error, prediction, p-value, z-score and number of draws."""
    names = ("mean", "mean_stderr") if part.moment == "mean" else ("variance", "variance_stderr")
    estimate, stderr = (float(getattr(found, name)[part.index]) for name in names)
    predicted = number(part.predicted)
    z = _distance(estimate - predicted, stderr)
    tail = scipy.stats.t(found.samples - 1)
    p = {"=": 2 * tail.sf(abs(z)), "≤": tail.sf(z), "≥": tail.cdf(z)}[part.side]
    return estimate, stderr, predicted, float(p), z, found.samples


def number(predicted: Number) -> float:
    """A prediction as a Python number, computed in float64."""
    with jax.enable_x64(True):
        return float(predicted() if callable(predicted) else predicted)


def _judged(part: Computed, found: Sequence[float]) -> Finding:
    values = np.array(found)
    apart = values - part.predicted
    if part.relation != "inequality":
        apart = np.abs(apart)
    # What is not a number holds of nothing.
    worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
    holds = bool(apart[worst] <= part.tolerance)
    value = float(values[worst])
    return Finding(
        part, value, 0.0, part.predicted, math.nan, math.nan, len(values), holds, math.nan
    )


def _verdict(claim: Claim, findings: tuple[Finding, ...]) -> Verdict:
    printed = [found.holds for found in findings if found.check.form != "corrected"]
    corrected = [found.holds for found in findings if found.check.form == "corrected"]
    printed_holds = all(printed) if printed else None
    corrected_holds = all(corrected) if corrected else None
    words = [
        f"{form} form {'holds' if holds else 'is rejected'}"
        for form, holds in (("printed", printed_holds), ("corrected", corrected_holds))
        if holds is not None
    ]
    return Verdict(
        claim,
        findings,
        printed_holds,
        corrected_holds,
        all(found.as_recorded for found in findings),
        ", ".join(words) or f"not computed: {claim.reason}",
    )


def _distance(difference: float, stderr: float) -> float:
    """`difference` in standard errors; without any spread 0 or infinite."""
    if stderr == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / stderr
