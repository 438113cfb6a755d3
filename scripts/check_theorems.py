"""Says of every numbered object of three papers whether it holds, with a number.

    python scripts/check_theorems.py                    # everything, in a few minutes on 2 cores
    python scripts/check_theorems.py --paper cwda --claim "Theorem 1" --precision 0.5

The page is OUT/index.html, every number is in OUT/results.json beside it. The status is 1 if any
outcome differs from what is recorded. Measurements are saved in OUT/measured.json: an
interrupted run resumes from there and ends with the same numbers. A second run compiles nothing
again (OUT/compiled).
"""

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from experiments import cli
from experiments.cli import InputError
from experiments.measures import claims as claim_measures
from experiments.pages import theorem_plots
from experiments.pages import theorems as theorem_page
from experiments.pages.page import write
from geometry import claims
from geometry.claims import Verdict


def main(
    paper: str | None = None,
    claim: str | None = None,
    precision: float = 1.0,
    seed: int = 0,
    devices: int | None = None,
    out: Path = Path("out/theorems"),
) -> None:
    """Check the claims of three papers and write OUT/index.html.

    Args:
      paper: unitization, cwda or bn-decomposed; by default all three.
      claim: An object of a paper, such as "Theorem 1", or part of a claim's name.
      precision: Factor on all standard errors, in (0, 2]: 0.5 takes four times the draws.
      seed: Of all draws.
      devices: Number of devices over which draws are spread, made of the CPU where there is no
        other; by default all.
      out: Folder for the page and its numbers.
    """
    selected = claim_measures.select(paper, claim)
    if not 0 < precision <= 2:
        raise InputError(f"--precision must lie in (0, 2]; got {precision}")
    claim_devices = first_devices(devices)
    cli.check_writable(out)
    cli.compiled_in(out / "compiled")
    start = time.perf_counter()
    path = out / "measured.json"
    measured = claim_measures.measure(selected, precision, seed, claim_devices, path)
    verdicts = claims.decide(selected, measured)
    Console(width=max(120, Console().width)).print(table(verdicts))
    results = cli.provenance(__file__) | {
        "seed": seed,
        "precision": precision,
        "level": claims.LEVEL,
        "devices": len(claim_devices),
        "claims": [claim_measures.result(verdict) for verdict in verdicts],
        "curves": theorem_plots.curves() if paper is None and claim is None else {},
    }
    results |= {"seconds": time.perf_counter() - start}
    with claim_measures.writing(out, "the table above and measured.json have what was measured"):
        write(results, theorem_page.render(results, out), out)
    print(f"Open {out / 'index.html'}")
    unexpected = [verdict.claim for verdict in verdicts if not verdict.as_recorded]
    if unexpected:
        names = "; ".join(f"{claim.paper}, {claim.name}" for claim in unexpected)
        print(f"not as recorded: {names}", file=sys.stderr)
        sys.exit(1)


def first_devices(number: int | None) -> Sequence[Any]:
    """The first `number` devices: on a CPU they are made, if nothing has run yet."""
    if number is not None:
        cli.at_least(1, devices=number)
        with contextlib.suppress(RuntimeError):  # they exist already
            jax.config.update("jax_num_cpu_devices", number)
    devices = jax.devices()
    if number is not None and number > len(devices):
        raise InputError(f"--devices must be at most {len(devices)}, those there are; got {number}")
    return devices[:number]


def table(verdicts: Iterable[Verdict]) -> Table:
    """A row for each check of each claim."""
    rows = Table(title="What three papers claim, and what holds")
    for column in ("claim", "printed", "corrected", "check"):
        rows.add_column(column, overflow="fold")
    for column in ("estimate", "prediction", "z", "draws"):
        rows.add_column(column, justify="right", no_wrap=True)
    outcome = {True: "holds", False: "fails", None: "–"}
    for verdict in verdicts:
        first = [
            f"{verdict.claim.paper}: {verdict.claim.name}",
            outcome[verdict.printed_holds],
            outcome[verdict.corrected_holds],
        ]
        if not verdict.findings:
            rows.add_row(*first, verdict.claim.reason)
        for finding in verdict.findings:
            mark = "" if finding.as_recorded else "  [red]not as recorded[/red]"
            error = f" ± {finding.stderr:.1g}" if finding.stderr else ""
            rows.add_row(
                *first,
                f"{finding.check.what}{mark}",
                f"{finding.estimate:.5g}{error}",
                f"{finding.predicted:.5g}",
                "" if math.isnan(finding.z) else f"{finding.z:.1f}",
                f"{finding.draws:,}",
            )
            first = ["", "", ""]
    return rows


if __name__ == "__main__":
    cli.run(main, again="start again to resume from what was measured")
