"""Describe findings of checks, forms of statements and verdicts on claims in words.

Checks are in the format of results.json.
"""

from experiments.pages.sentences import number, value_with_error

STANDINGS = {
    "true": "Every check of the printed form passed.",
    "misprint": "The quoted form fails a check, but the paper uses the corrected form, or no "
    "result of the paper depends on the quoted form. The corrected form passes all checks.",
    "false in a case": "The quoted form fails in a case that the hypotheses of the statement "
    "allow. For example, a hypothesis is missing, the case has measure zero, or an approximation "
    "is used outside its range. The corrected form passes all checks.",
    "false": "The quoted form fails a check. The corrected form passes all checks.",
    "not tested": "The entry gives the reason, and the result of our trained networks if there is "
    "one.",
}
"""The meaning of each verdict."""
FAULTS = ("misprint", "false in a case", "false")
FORMS = {
    "printed": "printed form",
    "rejected": "printed form, which must fail",
    "corrected": "corrected form",
    "overread": "not printed: an over-reading, which must fail",
}
MUST_FAIL = ("rejected", "overread")
ROUNDING = 1e-8  # the rounding error of float64 after some thousand operations


def outcome(check: dict) -> str:
    """A text that says whether a check's statement holds, and whether this was expected."""
    if not check["as_recorded"]:
        return "holds, which is not as recorded" if check["holds"] else "fails: not as recorded"
    return "holds" if check["holds"] else "fails, as recorded"


def describe_finding(check: dict) -> str:
    """A text with the number that a check found, and with the predicted number."""
    return _sampled(check) if check["side"] else _computed(check)


def _sampled(check: dict) -> str:
    relation = {"=": "", "≤": "at most ", "≥": "at least "}[check["side"]]
    text = (
        f"{value_with_error(check['estimate'], check['stderr'])} in {check['draws']:,} draws; "
        f"predicted {relation}{number(check['prediction'])}"
    )
    if check["tolerance"]:
        text += f" to within {number(check['tolerance'])}"
    z = check["z"]
    if z is not None:
        text += f", {abs(z):,.{0 if abs(z) >= 10 else 1}f} standard errors away"
    return text


def power(check: dict) -> str:
    """A text with the probability that a check rejects a wrong number; empty if undefined."""
    chance = check["power"]
    if chance is None:
        return ""
    text = "above 0.9999" if chance > 0.9999 else f"{chance:.{4 if chance > 0.99 else 2}g}"
    return f" (chance to notice {number(check['against'])} instead: {text})"


def _computed(check: dict) -> str:
    value, predicted = check["estimate"], check["prediction"]
    cases = "one case" if check["draws"] == 1 else f"{check['draws']:,} cases"
    if value is None:
        return f"no number in {cases}"
    excess = value - predicted
    exact = abs(excess) <= ROUNDING * max(1, abs(predicted))
    goal = "0" if predicted == 0 else number(predicted)
    worst = "in the one case" if check["draws"] == 1 else f"in the worst of {cases}"
    if check["relation"] == "inequality":
        if exact:
            return f"at most {goal} in {cases}, and attained there to rounding"
        if excess < 0:
            return f"at most {number(value)} in {cases}, where {goal} is allowed"
        return f"{number(value)} {worst}, where at most {goal} is allowed"
    if exact:
        return f"equal to {goal}, to rounding, in {cases}"
    return f"{number(value)} {worst}, where {goal} is expected within " + _tolerance(
        check["tolerance"]
    )


def _tolerance(tolerance: float) -> str:
    return "rounding" if tolerance <= ROUNDING else number(tolerance)
