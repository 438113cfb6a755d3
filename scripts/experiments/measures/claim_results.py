"""Verdicts about claims as they stand in results.json."""

from typing import Any

from geometry.claims import Verdict, function_of, name_of


def described(verdict: Verdict) -> dict[str, Any]:
    """A claim and its findings as they stand in results.json."""
    claim = verdict.claim
    return {
        "paper": claim.paper,
        "entry": claim.entry,
        "name": claim.name,
        "statement": claim.statement,
        "printed": claim.printed,
        "corrected": claim.corrected,
        "ledger": claim.verdict,
        "reason": claim.reason,
        "printed_holds": verdict.printed_holds,
        "corrected_holds": verdict.corrected_holds,
        "as_recorded": verdict.as_recorded,
        "verdict": verdict.text,
        "checks": [
            {
                "what": found.check.what,
                "form": found.check.form,
                "kind": found.check.kind,
                "source": f"{function_of(found.check).__module__}.{name_of(found.check)}",
                "estimate": found.estimate,
                "stderr": found.stderr,
                "prediction": found.predicted,
                "z": found.z,
                "p_value": found.p_value,
                "draws": found.draws,
                "holds": found.holds,
                "as_recorded": found.as_recorded,
                "power": found.power,
            }
            for found in verdict.findings
        ],
    }
