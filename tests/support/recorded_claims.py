"""Compares the findings of checks with the recorded findings."""

import json
import math
from functools import cache
from typing import Any

from geometry.claims import Claim, Computed
from geometry.claims._findings import Finding
from tools.results import ROOT

STANDARD_ERRORS = 6.0  # The tolerance, in standard errors of the difference of two estimates.
ROUNDING = 1e-3  # The relative tolerance of computed values. Many values are float32.


@cache
def recorded() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The recorded numbers of seed 0, by paper, claim and checked quantity."""
    path = ROOT / "docs" / "results" / "theorems" / "results.json"
    return {
        (claim["paper"], claim["name"], check["what"]): check
        for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]
        for check in claim["checks"]
    }


def difference(claim: Claim, found: Finding) -> str:
    """The numbers of a finding that differ from the record, or "" if there are none."""
    row = recorded()[claim.paper, claim.name, found.check.what]
    pairs = {"estimate": (found.estimate, row["estimate"], allowed(found, row["stderr"]))}
    pairs["prediction"] = (found.predicted, row["prediction"], ROUNDING * abs(row["prediction"]))
    if isinstance(found.check, Computed):
        pairs["tolerance"] = (found.check.tolerance, row["tolerance"], 0.0)
        pairs["cases"] = (found.draws, row["draws"], 0)
    return "; ".join(
        f"{name} {now:g}, was {before:g}"
        for name, (now, before, most) in pairs.items()
        if not math.isclose(now, before, rel_tol=0.0, abs_tol=most)
    )


def allowed(found: Finding, stderr: float) -> float:
    """The allowed difference from a recorded estimate with the standard error `stderr`."""
    if isinstance(found.check, Computed):
        return found.check.tolerance + ROUNDING * abs(found.estimate)
    return STANDARD_ERRORS * math.hypot(found.stderr, stderr)
