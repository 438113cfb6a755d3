"""What the numbers of a run say, in plain English.

Every sentence chooses its words by the numbers. A mean over seeds is a dictionary with `mean`,
`stderr` (None when there was one seed) and `values`; ± is always one standard error.
"""

import math
from collections.abc import Iterable, Sequence

from scipy.stats import t as student

from experiments.pages.reproduce_plots import ARMS, CRITERIA, pair_label


def number(value: float | None, digits: int = 4) -> str:
    """`value` with so many significant digits, and a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}g}"
    mantissa, _, power = text.partition("e")
    return _minus(mantissa) + (_power(int(power)) if power else "")


def measured(value: float | None, stderr: float | None, *, digits: int = 4) -> str:
    """`value ± stderr`, with the decimals that the standard error makes sense of."""
    if value is None or stderr is None or not math.isfinite(value) or not 0 < stderr < math.inf:
        return number(value, digits) + (" ± 0" if stderr == 0 and value is not None else "")
    size = max(abs(value), stderr)
    if not 1e-3 <= size < 1e6:
        power = math.floor(math.log10(size))
        return f"({measured(value / 10**power, stderr / 10**power)}){_power(power)}"
    decimals = max(0, 1 - math.floor(math.log10(stderr)))
    return _minus(f"{value:.{decimals}f} ± {stderr:.{decimals}f}")


def mean(result: dict, *, scale: float = 1, digits: int = 4) -> str:
    """A mean over seeds with its standard error, or with the remark that there was one seed."""
    value = None if result["mean"] is None else scale * result["mean"]
    if result["stderr"] is None:
        return f"{number(value, digits)} (one seed)"
    return measured(value, scale * result["stderr"], digits=digits)


def duration(seconds: float) -> str:
    """A time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def percent(result: dict, *, sign: str = "") -> str:
    """A share in percent, or a difference of two in points, to a hundredth."""
    if result["mean"] is None:
        return "–"
    value = round(100 * result["mean"], 2)
    text = f"{value:{sign}.2f}" if value else "0.00"
    if result["stderr"] is None:
        return _minus(f"{text} (one seed)")
    return _minus(f"{text} ± {100 * result['stderr']:.2f}")


def likeness(result: dict) -> str:
    """A rank correlation or an overlap, to a ten-thousandth."""
    value, stderr = result["mean"], result["stderr"]
    if value is None:
        return "–"
    if stderr is None:
        return _minus(f"{value:.4f} (one seed)")
    return _minus(f"{value:.4f} ± ") + (f"{stderr:.4f}" if stderr >= 5e-5 else "<0.0001")


def over_seeds(values: Iterable[float | None]) -> dict:
    """Mean and standard error of one value a seed; nothing where a seed has none."""
    values = list(values)
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known or len(known) < len(values):
        return {"mean": None, "stderr": None, "values": values}
    average, n = sum(known) / len(known), len(known)
    if n == 1:
        return {"mean": average, "stderr": None, "values": values}
    variance = sum((v - average) ** 2 for v in known) / (n - 1)
    return {"mean": average, "stderr": (variance / n) ** 0.5, "values": values}


def average(values: Iterable[float | None]) -> float | None:
    """Mean of the values there are."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def judged(difference: dict, *, more: str = "higher", less: str = "lower") -> str:
    """What a difference, paired by seed, lets one say at a level of 5 % (Student's t)."""
    value, stderr, seeds = difference["mean"], difference["stderr"], len(difference["values"])
    if value is None:
        return "there is nothing to compare"
    word = more if value > 0 else less
    if not any(difference["values"]):
        return "no difference at all"
    if stderr is None:
        return f"{word} in the one seed there is, which may be chance"
    if abs(value) <= stderr:
        return "within one standard error: no difference seen"
    if abs(value) <= student.ppf(0.975, seeds - 1) * stderr:
        return f"{word}, but not significantly (t test at 5 %, {seeds} seeds)"
    return f"significantly {word} (t test at 5 %, {seeds} seeds)"


def accuracy(results: dict) -> str:
    training, test = results["training"], results["data"]["test"]
    whole, unitized = (percent(training[arm]["accuracy"]) for arm in ARMS)
    return (
        f"Batch norm ends at {whole} % of the test images and unitized batch norm at {unitized} %; "
        f"paired by seed, unitized minus batch norm is "
        f"{percent(training['difference'], sign='+')} points: {judged(training['difference'])} "
        f"(one of the {test:,} test images is {100 / test:.2g} points)."
    )


def alpha(training: dict) -> str:
    found = training["unitized"]["alpha"]
    share = found["outside"]
    reach = "inside [0, 1], where the paper's theory holds"
    if share > 0:
        reach = (
            "and the paper's theory asks for [0, 1]: "
            f"{100 * share:.3g} % of the entries ended outside it"
        )
    low, high = number(found["min"], 3), number(found["max"], 3)
    return f"Trained freely, the α of unitized batch norm ended between {low} and {high}, {reach}."


def moments(results: dict) -> str:
    change = results["moments"]["change"]

    def said(quantity: str) -> str:
        whole, unitized = (mean(change[quantity][arm]) for arm in ARMS)
        verdict = judged(change[quantity]["difference"], more="less steady", less="steadier")
        return f"{quantity} moves by {whole} under batch norm and {unitized} unitized: {verdict}"

    return (
        "From one epoch to the next, after the first quarter of training, "
        f"{said('skewness')}; {said('kurtosis')}."
    )


def distances(results: dict) -> str:
    training = results["training"]
    drops = [d for d in training["drops"] if 1 < d <= len(training["learning_rate"])]
    if not drops:
        return "The learning rate never fell, so nothing shows what the distance follows."
    rates = training["learning_rate"]
    factor = rates[drops[0] - 2] / rates[drops[0] - 1]
    left = [_kept(results["distances"][arm], drops[0]) for arm in ARMS]
    if any(share is None for share in left):
        return "The distances around the first drop of the learning rate are not finite."
    falls = [share is not None and share < 0.8 for share in left]
    verdict = "does not fall with the step size in both arms alike"
    if all(falls):
        verdict = "follows the step size in both arms"
    return (
        f"When the learning rate is first divided by {factor:.3g}, the distance goes to "
        f"{number(left[0], 2)} of what it was under batch norm and to {number(left[1], 2)} under "
        f"unitized batch norm: it {verdict}."
    )


def ranks(pruning: dict, quantity: str, arm: str) -> dict[str, dict]:
    """For each pair of criteria the mean over layers, averaged over seeds."""
    runs = pruning[arm][quantity]
    return {pair: over_seeds(average(layers) for layers in runs[pair]) for pair in pruning["pairs"]}


def alike(pruning: dict, quantity: str, arm: str = "batch_norm") -> str:
    """Which criteria agree least and which most."""
    known = {p: m for p, m in ranks(pruning, quantity, arm).items() if m["mean"] is not None}
    if not known:
        return "no layer has a ranking to compare"
    least, most = (pick(known, key=lambda p: known[p]["mean"]) for pick in (min, max))
    return (
        f"{pair_label(least)} agree least ({likeness(known[least])}), "
        f"{pair_label(most)} most ({likeness(known[most])})"
    )


def spearman(pruning: dict) -> str:
    expected = {p: average(pruning["expected_spearman"][p]) for p in pruning["pairs"]}
    found = {p: m["mean"] for p, m in ranks(pruning, "spearman", "batch_norm").items()}
    gaps = {p: abs(found[p] - e) for p, e in expected.items() if None not in (found[p], e)}
    said = f"Averaged over layers, under batch norm, {alike(pruning, 'spearman')}"
    if not gaps:
        return said + "."
    widest = max(gaps, key=lambda p: gaps[p])
    return (
        f"{said}; no pair is farther than {number(gaps[widest], 2)} from what Gaussian filters "
        f"would give ({pair_label(widest)}: {number(expected[widest])})."
    )


def overlap(pruning: dict) -> str:
    percent = f"{100 * pruning['overlap_ratio']:.3g} %"
    return (
        f"Of the {percent} of filters that a criterion would remove first, the share that another "
        f"would remove as well: under batch norm {alike(pruning, 'overlap')}."
    )


def masking(pruning: dict, arm: str, kind: str) -> str:
    ratio = max(pruning[arm][kind]["l1"], key=float)
    left = {name: pruning[arm][kind][name][ratio] for name in CRITERIA}
    worst, best = (pick(left, key=lambda c: left[c]["mean"]) for pick in (min, max))
    return (
        f"of {percent(pruning[arm]['unmasked'])} %, {ARMS[arm].label} keeps between "
        f"{percent(left[worst])} % ({CRITERIA[worst].label}) and "
        f"{percent(left[best])} % ({CRITERIA[best].label}) "
        f"after masking {100 * float(ratio):.3g} %"
    )


def histograms(layers: Sequence[dict]) -> str:
    departing = sum(layer["ks"] > 1.358 / layer["weights"] ** 0.5 for layer in layers)
    largest = max(layers, key=lambda layer: layer["ks"])
    return (
        f"The Kolmogorov-Smirnov distance (KS) to the fitted Gaussian is at most "
        f"{largest['ks']:.3f} ({largest['layer']}); {departing} of {len(layers)} layers lie "
        "farther from it than 95 % of Gaussian samples of n weights would (1.36/√n)."
    )


def claims(results: Sequence[dict]) -> str:
    printed = sum(claim["printed_holds"] is True for claim in results)
    corrected = sum(claim["corrected_holds"] is True for claim in results)
    return (
        f"Of {len(results)} claims, {printed} agree with the draws as printed and {corrected} as "
        "corrected in our ledger."
    )


def odd_point(results: dict) -> str:
    network, tree = results["network"], results["tree"]
    ratio = number(network["norm_ratio"][-1], 3)
    angle, spread = (number(network[f"{key}_degrees"], 3) for key in ("angle", "spread"))
    state = "one point has become odd" if network["is_odd"] else "no point has become odd"
    right = abs(tree["angle_ends_degrees"] - 90) < 0.5
    ends = (
        "at a right angle, as Theorem 11 says" if right else "not at the right angle of Theorem 11"
    )
    return (
        f"After {network['depth']} layers {state}: the longest is {ratio} times as long as the "
        f"mean of the others and {angle}° away from them, while they lie {spread}° apart; in the "
        f"tree the ratio is {number(tree['norm_ratio'], 3)} and the two ends stand "
        f"{number(tree['angle_ends_degrees'], 4)}° apart, {ends}."
    )


def _kept(runs: Sequence[Sequence[float | None]], drop: int) -> float | None:
    """Distance in up to three epochs from `drop` on, over that in the three before; seeds' mean."""
    before = average(x for run in runs for x in run[max(0, drop - 4) : drop - 1])
    after = average(x for run in runs for x in run[drop - 1 : drop + 2])
    return None if before is None or after is None or before == 0 else after / before


def _power(exponent: int) -> str:
    return " × 10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
