"""Write results as text; the number of digits and the conclusions depend on standard errors.

If there was only one seed, the `stderr` of a mean over seeds is None. The sign ± always precedes
one standard error.
"""

import math
from collections.abc import Iterable

from scipy.stats import t as student

from experiments.measures.networks import OverSeeds


def number(value: float | None, digits: int = 4) -> str:
    """The text of `value` with `digits` significant digits, or a dash if there is no value."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}g}"
    mantissa, _, power = text.partition("e")
    return _minus(mantissa) + (_power(int(power)) if power else "")


def value_with_error(value: float | None, stderr: float | None, *, digits: int = 4) -> str:
    """The text `value ± stderr`, with as many decimals as the standard error allows."""
    if value is None or stderr is None or not math.isfinite(value) or not 0 < stderr < math.inf:
        return number(value, digits) + (" ± 0" if stderr == 0 and value is not None else "")
    size = max(abs(value), stderr)
    if not 1e-3 <= size < 1e6:
        power = math.floor(math.log10(size))
        return f"({value_with_error(value / 10**power, stderr / 10**power)}){_power(power)}"
    decimals = max(0, 1 - math.floor(math.log10(stderr)))
    return _minus(f"{value:.{decimals}f} ± {stderr:.{decimals}f}")


def mean(result: OverSeeds, *, scale: float = 1, digits: int = 4) -> str:
    """The text of a mean over seeds and its standard error, or a note that there was one seed."""
    value = None if result["mean"] is None else scale * result["mean"]
    if result["stderr"] is None:
        return f"{number(value, digits)} (one seed)"
    return value_with_error(value, scale * result["stderr"], digits=digits)


def duration(seconds: float) -> str:
    """The text of a duration, in minutes and seconds or only in seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def percent(result: OverSeeds, *, sign: str = "") -> str:
    """The text of a share in percent, or of a difference in points, with two decimals."""
    if result["mean"] is None:
        return "–"
    if result["stderr"] is None:
        return f"{hundredths(result['mean'], sign)} (one seed)"
    return f"{hundredths(result['mean'], sign)} ± {100 * result['stderr']:.2f}"


def hundredths(share: float, sign: str = "") -> str:
    """The text of a share in percent with two decimals; a zero has no minus sign."""
    value = round(100 * share, 2)
    return _minus(f"{value:{sign}.2f}") if value else "0.00"


def likeness(result: OverSeeds) -> str:
    """The text of a rank correlation or an overlap, with four decimals."""
    value, stderr = result["mean"], result["stderr"]
    if value is None:
        return "–"
    if stderr is None:
        return _minus(f"{value:.4f} (one seed)")
    return _minus(f"{value:.4f} ± ") + (f"{stderr:.4f}" if stderr >= 5e-5 else "<0.0001")


def average(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not missing."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def judge(difference: OverSeeds, *, more: str = "higher", less: str = "lower") -> str:
    """The conclusion from a paired t test over seeds at the 5 % level, to be read after "is"."""
    value, stderr, seeds = difference["mean"], difference["stderr"], len(difference["values"])
    if value is None:
        return "unknown, because there is nothing to compare"
    word = more if value > 0 else less
    if not any(difference["values"]):
        return "exactly equal in every seed"
    if stderr is None:
        return f"{word} in the only seed, which may be chance"
    if abs(value) <= stderr:
        return "equal to within one standard error"
    if abs(value) <= student.ppf(0.975, seeds - 1) * stderr:
        return f"{word}, but not significantly (paired t test at the 5 % level, {seeds} seeds)"
    return f"significantly {word} (paired t test at the 5 % level, {seeds} seeds)"


def _power(exponent: int) -> str:
    return " × 10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
