"""Run the random checks with many keys, and count how often true claims are rejected by chance.

    python -m tools.false_alarms --keys 200 --precision 2 --processes 2

For each key, all checks that draw random numbers run once, and one multiple test gives all their
verdicts. By design, at most one run in 500 rejects a true statement (`geometry.claims.LEVEL`). A
prediction with a small error can pass the check at every key, although the error shifts each
z-score. Therefore the tool also tests whether the mean z-score of each check over all keys is zero,
with a correction for the number of checks. The last line is one JSON object.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.progress import track
from scipy import stats

from claims import ALL
from geometry import claims
from geometry.claims import LEVEL, Check, Claim, Finding, Sampled
from geometry.claims._types import MUST_FAIL


def draw_checks(of: Iterable[Claim]) -> list[Claim]:
    """The claims with only their checks that draw random numbers; others are omitted."""
    trimmed = (
        replace(claim, checks=tuple(part for part in claim.checks if isinstance(part, Sampled)))
        for claim in of
    )
    return [claim for claim in trimmed if claim.checks]


class Run(NamedTuple):
    """The true statements that a run rejected, and the z-scores of its checks of exact equality."""

    rejected: list[str]
    z: dict[str, float]


def run(seed: int, precision: float) -> Run:
    """Run all checks that draw random numbers, with one key."""
    of, key = draw_checks(ALL), jax.random.key(seed)
    found = _true_statements(claims.check_all(of, key, precision=precision))
    return Run(
        [name for name, finding in found.items() if not finding.holds],
        {name: finding.z for name, finding in found.items() if _is_exact(finding.check)},
    )


def false_alarms(seeds: Iterable[int], precision: float, processes: int) -> dict[str, Any]:
    """The seeds that rejected a true statement, and the checks whose mean z-score is far from 0."""
    seeds = list(seeds)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        one = partial(run, precision=precision)
        runs = list(track(pool.map(one, seeds), "drawing", total=len(seeds)))
    alarms = {seed: found.rejected for seed, found in zip(seeds, runs, strict=True)}
    z_scores = {name: [found.z[name] for found in runs] for name in runs[0].z}
    return {
        "alarms": {seed: rejected for seed, rejected in alarms.items() if rejected},
        "off": _off(z_scores),
        "equalities": len(z_scores),
    }


def _true_statements(verdicts: Iterable[claims.Verdict]) -> dict[str, Finding]:
    return {
        f"{verdict.claim.name}: {finding.check.what}": finding
        for verdict in verdicts
        for finding in verdict.findings
        if finding.check.form not in MUST_FAIL
    }


def _is_exact(part: Check) -> bool:
    """Whether a check tests an equality without tolerance, so that its mean z-score should be 0."""
    return isinstance(part, Sampled) and part.side == "=" and not claims.number(part.within)


def _off(z_scores: dict[str, list[float]]) -> dict[str, float]:
    """√n times the mean z-score over n keys, for checks whose mean differs significantly from 0."""
    means = {
        name: math.fsum(z) / math.sqrt(len(z))
        for name, z in z_scores.items()
        if np.isfinite(z).all()
    }
    critical = stats.norm.isf(LEVEL / 2 / max(len(means), 1))
    return {name: mean for name, mean in means.items() if abs(mean) > critical}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=200, help="number of keys, at least 1")
    parser.add_argument("--precision", type=float, default=2.0, help="factor of standard errors")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first key")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    began = time.perf_counter()
    seeds = range(options.seed, options.seed + options.keys)
    found = false_alarms(seeds, options.precision, options.processes)
    seconds = round(time.perf_counter() - began)
    print(json.dumps(vars(options) | found | {"seconds": seconds}))


if __name__ == "__main__":
    main()
