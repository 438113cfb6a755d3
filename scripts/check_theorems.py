"""Says of every numbered object of three papers whether it holds, with a number.

    python scripts/check_theorems.py                    # everything, in a few minutes on 2 cores
    python scripts/check_theorems.py --paper cwda --claim "Theorem 1" --precision 0.5

The page is OUT/index.html, every number is in OUT/results.json beside it. The status is 1 if any
outcome differs from what is recorded. What has been measured is kept in OUT/measured.json: a run
that was stopped goes on from there and ends with the same numbers. A second run compiles nothing
anew (OUT/compiled).
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import jaxnorm
from experiments import cli
from experiments.cli import InputError
from experiments.measures import claim_results
from experiments.pages import theorem_plots
from experiments.pages import theorems as theorem_page
from experiments.pages.page import write
from geometry import claims
from geometry.claims import Claim, Measurement, Verdict


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
      claim: Part of a claim's name or of its entry in the ledger, such as "Theorem 1" or U16.
      precision: Factor on all standard errors, in (0, 2]: 0.5 takes four times the draws.
      seed: Of all draws.
      devices: Over which draws are spread: on a CPU so many are made of it; by default all.
      out: Folder for the page and its numbers.
    """
    chosen = select(paper, claim)
    if not 0 < precision <= 2:
        raise InputError(f"--precision must lie in (0, 2]; got {precision}")
    used = claim_devices(devices)
    folder(out)
    cli.compiled_in(out / "compiled")
    start = time.perf_counter()
    measured = measure(chosen, precision, seed, used, out)
    verdicts = claims.decide(chosen, measured)
    Console(width=max(120, Console().width)).print(table(verdicts))
    results = cli.provenance(__file__) | {
        "seed": seed,
        "precision": precision,
        "level": claims.LEVEL,
        "devices": len(used),
        "claims": [claim_results.described(verdict) for verdict in verdicts],
        "curves": theorem_plots.curves() if paper is None and claim is None else {},
    }
    results |= {"seconds": time.perf_counter() - start}
    keep(results, out)
    print(f"Open {out / 'index.html'}")
    wrong = [verdict.claim for verdict in verdicts if not verdict.as_recorded]
    if wrong:
        names = ", ".join(f"{claim.entry} ({claim.name})" for claim in wrong)
        print(f"not as recorded: {names}", file=sys.stderr)
        sys.exit(1)


def select(paper: str | None, pattern: str | None) -> tuple[Claim, ...]:
    """The claims of a paper whose name or entry contains `pattern`."""
    if paper is not None and paper not in claims.PAPERS:
        raise InputError(f"--paper must be one of {', '.join(claims.PAPERS)}; got {paper}")
    those = claims.ALL if paper is None else claims.PAPERS[paper]
    part = (pattern or "").casefold()
    chosen = tuple(each for each in those if part in f"{each.entry}\n{each.name}".casefold())
    if not chosen:
        examples = ", ".join(each.entry for each in those[:3])
        raise InputError(
            f"--claim must be part of the name or entry of a claim, such as {examples}; "
            f"got {pattern}"
        )
    return chosen


def claim_devices(number: int | None) -> list[Any]:
    """So many devices: on a CPU they are made, if nothing has run yet."""
    if number is not None:
        cli.at_least(1, devices=number)
        with contextlib.suppress(RuntimeError):  # they exist already
            jax.config.update("jax_num_cpu_devices", number)
    found = jax.devices()
    if number is not None and number > len(found):
        raise InputError(f"--devices must be at most {len(found)}, those there are; got {number}")
    return found[:number]


def folder(out: Path) -> None:
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"the output path must be a folder; {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"the output folder must be writable; {nearest} is not")


def measure(
    chosen: tuple[Claim, ...], precision: float, seed: int, devices: list[Any], out: Path
) -> dict[str, Measurement]:
    """Everything that the chosen claims read; what an earlier run measured is not done again."""
    mark = fingerprint(precision, seed)
    measured = read(out / "measured.json", mark)
    missing = claims.sources(chosen).keys() - measured.keys()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=len(missing))

        def done(name: str, found: Measurement) -> None:
            measured[name] = found
            progress.update(task, advance=1, description=name.replace("_", " "))
            save(measured, mark, out / "measured.json")

        return claims.measure(
            chosen,
            jax.random.key(seed),
            precision=precision,
            devices=devices,
            known=dict(measured),
            on_done=done,
        )


def fingerprint(precision: float, seed: int) -> str:
    """Of all that decides the numbers: code, versions, machine, seed and precision."""
    root = Path(jaxnorm.__file__).parent.parent
    digest = hashlib.sha256(
        json.dumps([precision, seed, cli.versions(), platform.machine()]).encode()
    )
    for package in ("jaxnorm", "pruning", "geometry"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read(path: Path, mark: str) -> dict[str, Measurement]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if kept.get("of") != mark:
        return {}
    return {name: Measurement(**parts) for name, parts in kept["measured"].items()}


def save(measured: dict[str, Measurement], mark: str, path: Path) -> None:
    """Write what is measured; the earlier file stays whole until the new one is."""
    kept = {"of": mark, "measured": {name: found._asdict() for name, found in measured.items()}}
    unfinished = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(kept), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise unwritable(path.parent, error, f"{path.name} has what was measured before") from error


def keep(results: dict, out: Path) -> None:
    try:
        write(results, theorem_page.render(results, out), out)
    except OSError as error:
        text = "the table above and measured.json have what was measured"
        raise unwritable(out, error, text) from error


def unwritable(out: Path, error: OSError, kept: str) -> InputError:
    return InputError(f"{out} must take the results; {error.strerror or error}: {kept}")


def table(verdicts: Iterable[Verdict]) -> Table:
    """A row for each check of each claim."""
    made = Table(title="What three papers claim, and what holds")
    for column in ("claim", "printed", "corrected", "check"):
        made.add_column(column, overflow="fold")
    for column in ("estimate", "prediction", "z", "draws"):
        made.add_column(column, justify="right", no_wrap=True)
    words = {True: "holds", False: "fails", None: "–"}
    for verdict in verdicts:
        first = [
            f"{verdict.claim.entry}: {verdict.claim.name}",
            words[verdict.printed_holds],
            words[verdict.corrected_holds],
        ]
        if not verdict.findings:
            made.add_row(*first, verdict.claim.reason)
        for found in verdict.findings:
            mark = "" if found.as_recorded else "  [red]not as recorded[/red]"
            error = f" ± {found.stderr:.1g}" if found.stderr else ""
            made.add_row(
                *first,
                f"{found.check.what}{mark}",
                f"{found.estimate:.5g}{error}",
                f"{found.predicted:.5g}",
                "" if math.isnan(found.z) else f"{found.z:.1f}",
                f"{found.draws:,}",
            )
            first = ["", "", ""]
    return made


if __name__ == "__main__":
    cli.run(main, again="start again to go on from what was measured")
