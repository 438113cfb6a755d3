"""Measures the numbers of claims, and decides whether the claims hold.

The outcomes of all sampled checks are decided together. Holm's correction keeps the probability of
at least one false alarm below `LEVEL`. Computations are in float64, unless the function of a check
or of draws uses a different dtype.
"""

import inspect
import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Key

from geometry.claims._findings import Finding, Measurement, Verdict
from geometry.claims._types import (
    MUST_FAIL,
    Check,
    Claim,
    Computed,
    Draws,
    Form,
    Number,
    Sampled,
    Statistics,
)
from geometry.sampling import monte_carlo_moments
from geometry.sampling._streams import default_devices
from jaxnorm.internal import check_array, check_key, check_numeric, check_whole

LEVEL = 0.002
"""The largest probability that a run rejects at least one true statement."""
ROUNDING = 1e-12
"""The largest relative difference between a constant and a mean of draws that counts as rounding.

The standard error of draws that are all equal has no meaning, because it is itself rounding.
"""


def check(claim: Claim, key: Key[Array, ""], *, precision: float = 1.0) -> Verdict:
    """The verdict on a single claim.

    The options are the same as for `check_all`. With the same key, `check` and `check_all` measure
    the same numbers for the claim, if the functions of all draws have different names.

    Raises:
      TypeError: `claim` is not a claim.
    """
    if not isinstance(claim, Claim):
        cure = ": for several claims use check_all" if isinstance(claim, list | tuple) else ""
        raise TypeError(f"claim must be a `Claim`; got {type(claim).__name__}{cure}")
    return check_all((claim,), key, precision=precision)[0]


def check_all(
    claims: Iterable[Claim], key: Key[Array, ""], *, precision: float = 1.0
) -> list[Verdict]:
    """Measure every check of every claim once, and decide about all claims together.

    With the same key, the numbers of a claim do not depend on the other claims, if the functions of
    all draws have different names. Two lambdas often have the same name. Holm's correction covers
    all given claims. `check_all` cannot be traced, because its results are Python numbers.
    Arguments and errors are the same as for `measure`.
    """
    claims = _as_claims(claims)
    return decide(claims, measure(claims, key, precision=precision))


def measure(
    claims: Iterable[Claim],
    key: Key[Array, ""],
    *,
    precision: float = 1.0,
    devices: Sequence[Any] | None = None,
    threads: int = 1,
    measured_before: Mapping[str, Measurement] | None = None,
    on_done: Callable[[str, Measurement], None] = lambda name, measurement: None,
) -> dict[str, Measurement]:
    """Measure the moments of the claims' draws and the values of their computed checks, by name.

    Args:
      claims: The claims to measure; if several claims use the same draws, the draws are made once.
      key: Random key of the whole run.
      precision: The factor by which standard errors are multiplied. With `precision` ½, each number
        has four times as many draws as with 1.
      devices: Devices that share the draws, as for `monte_carlo`.
      threads: Number of functions that are measured at the same time, so that one function can draw
        while another function compiles. The number of threads does not change results. Context
        managers of JAX around `measure` do not apply in threads.
      measured_before: The measurements of an earlier run of `measure` with the same key and
        precision.
      on_done: A function that is called with every new measurement, in the thread of the caller.

    Raises:
      TypeError: `claims` has an element that is not a claim, or `key` is not a random key.
      ValueError: A claim has neither a check nor a reason. The function of a check returns no
        number. `precision` is not in (0, 2]; with a `precision` above 2, checks may miss a wrong
        number. `threads` is below 1. There are both several threads and several devices. On a CPU,
        `threads` is above 1 and at least the number of XLA's threads, so programs could wait for
        each other.
    """
    check_key(key)
    check_numeric(precision, "precision")
    check_whole(threads=threads)
    if threads < 1:
        raise ValueError(f"threads must be at least 1; got {threads}")
    if not 0 < precision <= 2:
        raise ValueError(f"precision must lie in (0, 2]; got {precision}")
    claims = _as_claims(claims)
    count = len(default_devices() if devices is None else devices)
    if threads > 1 < count:
        raise ValueError(
            f"threads must be 1 if several devices are used; got {threads} threads and {count} "
            "devices"
        )
    _check_waits(threads)
    measured = dict(measured_before or {})
    tasks = {
        name: partial(_in_full_precision, name, source, key, precision, devices)
        for name, source in sources(claims).items()
        if name not in measured
    }
    for name, measurement in _complete(tasks, threads):
        measured[name] = measurement
        on_done(name, measurement)
    return measured


def _check_waits(threads: int) -> None:
    """Raise if all threads of a CPU could wait for each other in LAPACK, as in `monte_carlo`."""
    devices = jax.devices()
    workers = max(int(os.environ.get("NPROC") or os.cpu_count() or 1), len(devices))
    if devices[0].platform == "cpu" and 1 < threads >= workers:
        raise ValueError(
            f"threads must be below {workers}, the number of XLA's threads; got {threads}: start "
            f"Python with the environment variable NPROC={2 * threads}"
        )


def _complete(
    tasks: Mapping[str, Callable[[], Measurement]], threads: int
) -> Iterator[tuple[str, Measurement]]:
    """The results of the tasks by name, in the order in which the tasks end."""
    if threads == 1:
        yield from ((name, task()) for name, task in tasks.items())
        return
    pool = ThreadPoolExecutor(threads)
    try:
        running = {pool.submit(task): name for name, task in tasks.items()}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def sources(claims: Iterable[Claim]) -> dict[str, Draws | Callable]:
    """By name, the draws and computed functions from which checks of the claims get their numbers.

    The name of draws is the name of their function. The name of a computed number consists of the
    names of its claim and its check.
    """
    claims = _list_of_claims(claims)
    name_of: dict[Draws | Callable, str] = {}
    for claim in claims:
        for part in claim.checks:
            if part.source not in name_of:
                name_of[part.source] = _name(claim, part, set(name_of.values()))
    return {name: source for source, name in name_of.items()}


def _name(claim: Claim, part: Check, taken: set[str]) -> str:
    """The name of a source, with a number appended if another source has the same name."""
    drawn = isinstance(part, Sampled)
    plain = part.function.__qualname__ if drawn else f"{claim.paper}, {claim.name}: {part.what}"
    numbered = (f"{plain} ({i})" for i in itertools.count(2))
    names = itertools.chain([plain], numbered)
    return next(name for name in names if name not in taken)


def decide(claims: Sequence[Claim], measured: Mapping[str, Measurement]) -> list[Verdict]:
    """The verdicts on claims, computed from the result of `measure`.

    Raises:
      TypeError: An element of `claims` is not a claim.
      ValueError: `measured` lacks a measurement that a check needs.
    """
    claims = _list_of_claims(claims)
    name_of = {source: name for name, source in sources(claims).items()}
    if missing := set(name_of.values()) - set(measured):
        raise ValueError(f"measured must be the result of measure; it lacks {min(missing)!r}")
    checks = dict.fromkeys(part for claim in claims for part in claim.checks)
    sampled = [part for part in checks if isinstance(part, Sampled)]
    findings: dict[Check, Finding] = {
        part: _computed_finding(part, measured[name_of[part.source]])
        for part in checks
        if isinstance(part, Computed)
    }
    drawn = [measured[name_of[part.source]] for part in sampled]
    findings |= zip(sampled, _sampled_findings(sampled, drawn), strict=True)
    return [_verdict(claim, tuple(findings[part] for part in claim.checks)) for claim in claims]


def _as_claims(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims as a tuple; raise unless each claim has a check or a reason."""
    claims = _list_of_claims(claims)
    if empty := [claim.name for claim in claims if not claim.checks and not claim.reason]:
        raise ValueError(
            f"a claim must have a check, such as one that claim.mean adds, or a reason why it has "
            f"none; {empty[0]} has neither"
        )
    return claims


def _list_of_claims(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims as a tuple; raise unless `claims` is a sequence of claims."""
    if isinstance(claims, Claim):
        raise TypeError(
            f"claims must be a list of `Claim`; got the single claim {claims.name}: use check"
        )
    if not isinstance(claims, Iterable):
        raise TypeError(f"claims must be a list of `Claim`; got {claims!r}")
    claims = tuple(claims)
    if strange := [claim for claim in claims if not isinstance(claim, Claim)]:
        raise TypeError(f"claims must be a list of `Claim`; got {strange[0]!r}")
    return claims


def number(predicted: Number) -> float:
    """A prediction as a Python number, computed in float64; NaN raises `ValueError`."""
    with jax.enable_x64(True):
        value: Any = predicted() if callable(predicted) else predicted
        check_numeric(value, "a prediction")
        value = float(value.item() if hasattr(value, "dtype") else value)
    if math.isnan(value):
        raise ValueError("a prediction must not be NaN; a function of a check returned NaN")
    return value


def _in_full_precision(
    name: str, source: Draws | Callable, key: Key[Array, ""], *options: Any
) -> Measurement:
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return _measure(source, jax.random.fold_in(key, zlib.crc32(name.encode())), *options)


def _measure(
    source: Draws | Callable, key: Key[Array, ""], precision: float, devices: Sequence[Any] | None
) -> Measurement:
    if not isinstance(source, Draws):
        found = source(key) if inspect.signature(source).parameters else source()
        values = _numbers(found)
        return Measurement(values.tolist(), len(values))
    draws_per_key = source.draws_per_key or 1
    samples = max(2, math.ceil(source.samples / draws_per_key / precision**2)) * draws_per_key
    moments = monte_carlo_moments(
        _stack(source.draw),
        key,
        samples,
        batch_size=source.batch_size,
        draws_per_key=source.draws_per_key,
        devices=devices,
    )
    names = sorted(jax.eval_shape(source.draw, key))
    if np.shape(moments.mean) != (len(names),):
        got = np.shape(moments.mean)[:-1]
        raise ValueError(f"draw must return one number for each statistic; got shape {got}")
    mean, mean_stderr, variance, variance_stderr = (
        dict(zip(names, np.asarray(moment).astype(float).tolist(), strict=True))
        for moment in moments[:4]
    )
    return Measurement(mean, samples, mean_stderr, variance, variance_stderr)


def _numbers(found: Any) -> np.ndarray:
    """All numbers from the function of a check, as one vector."""
    parts = jax.tree.leaves([*found] if isinstance(found, Iterator) else found)
    kinds = {np.asarray(part).dtype.kind for part in parts}
    if not kinds or not kinds <= set("biufV"):  # bfloat16 has the kind V in NumPy
        raise TypeError(f"the function of a check must return real numbers; got {found!r}")
    numbers = np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in parts])
    if not numbers.size:
        raise ValueError("the function of a check must return at least one number; got none")
    return numbers


@cache
def _stack(draw: Callable[[Key[Array, ""]], Statistics]) -> Callable[..., Float[Array, "..."]]:
    """The function `draw` with its statistics stacked on the last axis, sorted by name.

    Every call with the same `draw` returns the same function object, because `monte_carlo` compiles
    again for each new function object.
    """

    def stacked(key: Key[Array, ""]) -> Float[Array, "..."]:
        statistics = draw(key)
        if not isinstance(statistics, Mapping):
            kind = type(statistics).__name__
            raise TypeError(f"draw must return a dictionary from names to statistics; got {kind}")
        if not statistics:
            raise ValueError("draw must return at least one statistic; got an empty dictionary")
        for name, value in statistics.items():
            if not isinstance(value, int | float):
                check_array(value, f"the statistic {name} of draw")
        return jnp.stack([statistics[name] for name in sorted(statistics)], -1)

    return stacked


def _sampled_findings(checks: Sequence[Sampled], measured: Sequence[Measurement]) -> list[Finding]:
    """The findings of sampled checks, which are decided together."""
    critical = float(scipy.stats.norm.isf(LEVEL / 2 / max(len(checks), 1)))
    alone = [
        _sampled_finding(part, measurement, critical)
        for part, measurement in zip(checks, measured, strict=True)
    ]
    adjusted = _holm(np.array([finding.p_value for finding in alone]))
    return [
        finding._replace(p_value=float(p), holds=bool(p >= LEVEL))
        for finding, p in zip(alone, adjusted, strict=True)
    ]


def _holm(p_values: np.ndarray) -> np.ndarray:
    """The p-values corrected for multiple tests by Holm (1979)."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * p_values[order]))
    return adjusted


def _sampled_finding(part: Sampled, measurement: Measurement, critical: float) -> Finding:
    """The finding of one sampled check.

    The power of the check is computed for the z-score `critical`.
    """
    if part.statistic not in measurement.mean:
        known = ", ".join(map(str, measurement.mean))
        raise ValueError(
            f"statistic must be one of {known}, which draws return; got {part.statistic!r}"
        )
    names = ("mean", "mean_stderr") if part.moment == "mean" else ("variance", "variance_stderr")
    estimate, stderr = (float(getattr(measurement, name)[part.statistic]) for name in names)
    predicted = number(part.predicted)
    difference = estimate - predicted
    means: Any = measurement.mean
    rounding = ROUNDING * abs(means[part.statistic])
    rounding = rounding if part.moment == "mean" else rounding**2
    allowed = abs(difference) if abs(difference) <= rounding else number(part.within)
    within = min(abs(difference), allowed)
    z = _distance(difference - math.copysign(within, difference), stderr)
    if _is_rate(part, measurement, predicted):
        p, power = _rate_test(part, estimate, measurement.samples, predicted, critical)
    else:
        tail = scipy.stats.t(measurement.samples - 1)
        p = {"=": 2 * tail.sf(abs(z)), "≤": tail.sf(z), "≥": tail.cdf(z)}[part.side]
        power = _power(part, predicted, stderr, critical)
    return Finding(
        part, estimate, stderr, predicted, z, float(p), measurement.samples, bool(p >= LEVEL), power
    )


def _is_rate(part: Sampled, measurement: Measurement, predicted: float) -> bool:
    """Whether the check predicts the mean of draws that are all 0 or 1.

    Among draws of mean m in [0, 1], the variance m (1 − m) shows that all draws are 0 or 1.
    """
    means: Any = measurement.mean
    mean, n = means[part.statistic], measurement.samples
    square = (n - 1) / n * measurement.variance.get(part.statistic, math.nan)
    in_unit_interval = 0 <= min(mean, predicted) <= max(mean, predicted) <= 1
    is_binary = math.isclose(square, mean * (1 - mean), rel_tol=1e-6)
    return part.moment == "mean" and in_unit_interval and is_binary


def _rate_test(
    part: Sampled, rate: float, n: int, predicted: float, critical: float
) -> tuple[float, float]:
    """The exact p-value and power of a check that predicts the rate of an event.

    If events are rare, the measured standard error is too inaccurate for a t test. Without any
    event, the standard error is 0.
    """
    binomial, count, within = scipy.stats.binom, round(rate * n), number(part.within)
    above = binomial.sf(count - 1, n, min(1, predicted + within))
    below = binomial.cdf(count, n, max(0, predicted - within))
    p = {"=": min(1, 2 * min(above, below)), "≤": above, "≥": below}[part.side]
    wrong = _wrong(part, predicted)
    if math.isnan(wrong):
        return float(p), math.nan
    level = scipy.stats.norm.sf(critical)
    if wrong > predicted:
        # `first` is the lowest count that the test does not reject.
        first = binomial.ppf(level, n, min(1, max(predicted, wrong - within)))
        return float(p), float(binomial.cdf(first - 1, n, predicted))
    last = binomial.isf(level, n, max(0, min(predicted, wrong + within)))
    return float(p), float(binomial.sf(last, n, predicted))


def _wrong(part: Sampled, predicted: float) -> float:
    """The wrong prediction that the check should reject; NaN if the power has no meaning."""
    wrong = 1.1 * predicted if part.against is None else number(part.against)
    return math.nan if part.form in MUST_FAIL or wrong == predicted else wrong


def _power(part: Sampled, predicted: float, stderr: float, critical: float) -> float:
    """The probability that the check would reject the wrong prediction `part.against`."""
    wrong = _wrong(part, predicted)
    if math.isnan(wrong):
        return math.nan
    visible = max(abs(wrong - predicted) - number(part.within), 0.0)
    return float(scipy.stats.norm.cdf(_distance(visible, stderr) - critical))


def _distance(difference: float, stderr: float) -> float:
    """The `difference` divided by the standard error.

    If the standard error is zero, the result is 0, ∞ or −∞.
    """
    if stderr == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / stderr


def _computed_finding(part: Computed, measurement: Measurement) -> Finding:
    values = np.array(measurement.mean)
    excess = values - part.predicted
    if part.relation != "inequality":
        excess = np.abs(excess)
    # a NaN counts as the largest excess
    worst = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    holds = bool(excess[worst] <= part.tolerance)
    value = float(values[worst])
    return Finding(
        part, value, 0.0, part.predicted, math.nan, math.nan, len(values), holds, math.nan
    )


def _verdict(claim: Claim, findings: tuple[Finding, ...]) -> Verdict:
    def all_hold(*forms: Form) -> bool | None:
        outcomes = [finding.holds for finding in findings if finding.check.form in forms]
        return all(outcomes) if outcomes else None

    printed_holds = all_hold("printed", "rejected")
    text = "false" if printed_holds is False and not claim.fault else claim.standing
    surprises = [finding.name for finding in findings if not finding.as_recorded]
    if claim.fault and printed_holds and all_hold("rejected", "corrected") is None:
        surprises.append("no check rejects the printed form")
    if surprises:
        text = f"not as recorded: {'; '.join(surprises)}"
    return Verdict(claim, findings, printed_holds, all_hold("corrected"), not surprises, text)
