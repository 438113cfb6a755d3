"""Check whether each numbered statement of three papers holds.

    python scripts/check_theorems.py              # all three papers, about ten minutes on 2 cores
    python scripts/check_theorems.py --claim "Theorem 1"             # of all three papers
    python scripts/check_theorems.py --paper cwda --claim "equation 30" --precision 0.5

OUT/index.html shows the outcomes, and OUT/results.json has every number. The exit status is 1 if
the outcome of any check differs from the recorded outcome. An interrupted run resumes from
OUT/measured.json and ends with the same numbers. OUT/compiled stores compiled programs.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments import cli, files
from experiments.options import LocalPath, Natural, Positive, checked, number

if TYPE_CHECKING:
    from geometry.claims import Claim

Precision = Annotated[float, number(float, "in (0, 2]", lambda x: 0 < x <= 2)]


@checked
def main(
    paper: str | None = None,
    claim: str | None = None,
    precision: Precision = 1.0,
    seed: Natural = 0,
    devices: Positive | None = None,
    out: LocalPath = Path("out/theorems"),
    errata: LocalPath | None = None,
    list_only: Annotated[bool, tyro.conf.arg(name="list")] = False,
) -> None:
    """Check what three papers claim, and write a page that shows the results.

    For example:
        --claim "Theorem 1"                  # Theorem 1 of all three papers
        --paper cwda --claim "equation 30"   # one equation of one paper
        --claim "odd point"                  # claims with these words in their name
        --precision 2                        # all three papers, with a quarter of the draws
        --paper cwda --list                  # the names of all claims of a paper

    Args:
      paper: The paper to check: unitization, cwda or bn-decomposed; by default all three. jaxnorm
        selects the claims of this library instead.
      claim: The label of a statement in a paper, such as "Theorem 1", or a part of a claim's name.
      precision: A factor by which all standard errors are multiplied. With 0.5, checks make four
        times as many random draws as with 1.
      seed: The seed of all draws.
      devices: The number of devices that share the draws, by default all devices. Without
        accelerators, the CPU is split into `devices` parts.
      out: The folder for the page and its numbers.
      errata: The file for the errata of the papers, such as docs/errata.md; figures.md in the same
        folder lists the papers' figures and tables. By default, neither of these files is written.
      list_only: Whether claims are only listed with their recorded verdicts, without being checked.
    """
    from experiments.measures import claims as claim_measures

    selected = claim_measures.select(paper, claim)
    if list_only:
        if errata is not None:
            raise cli.InputError("--list writes no errata: omit --list or --errata")
        cli.console(min_width=80).print(claim_measures.listing(selected))
        return
    claim_devices = claim_measures.first_devices(devices)
    with files.in_use(out, __file__):
        cli.compiled_in(out / "compiled")
        results = check(selected, precision, seed, claim_devices, out / "measured.json")
        write(results, out, errata)
    cli.say(f"Open {out / 'index.html'}")
    unexpected = [f"{c['paper']}, {c['name']}" for c in results["claims"] if not c["as_recorded"]]
    if unexpected:
        cli.stop(1, f"not as recorded: {'; '.join(unexpected)}")


def check(
    selected: Sequence["Claim"], precision: float, seed: int, devices: Sequence[Any], path: Path
) -> dict[str, Any]:
    """Check claims, print a report of each claim, and return the entries of results.json."""
    from claims import ALL
    from experiments.files import plain
    from experiments.measures import claims as claim_measures
    from experiments.pages import theorem_plots
    from geometry import claims

    measured = claim_measures.measure(selected, precision, seed, devices, path)
    checked = [claim_measures.result(verdict) for verdict in claims.decide(selected, measured)]
    cli.console(min_width=80).print(*map(report, plain(checked)))
    return cli.provenance(__file__) | {
        "seed": seed,
        "precision": precision,
        "level": claims.LEVEL,
        "devices": len(devices),
        "claims": checked,
        "curves": theorem_plots.curves() if len(selected) == len(ALL) else {},
        "seconds": cli.seconds(),
    }


def write(results: dict, out: Path, errata: Path | None) -> None:
    """Write the page and its numbers.

    If a file for the errata is given, write the errata and the figures too.
    """
    from experiments.measures.claims import writing
    from experiments.pages import figures, page, theorems

    with writing(out, "the lines above and measured.json have all measurements"):
        results = page.write(results, partial(theorems.render, out=out), out)
        for path, text in figures.documents(results, errata).items():
            files.write(path, text)


def report(claim: dict) -> Group:
    """The printed text about a claim: its outcome, its checks, and results of trained networks."""
    from experiments.pages import mathematics
    from experiments.pages.theorem_words import FORMS, describe_finding

    checks = Table.grid(padding=(0, 2))
    checks.add_column(no_wrap=True)
    for check in claim["checks"]:
        mark = "✓" if check["as_recorded"] else "✗ not as recorded"
        form = "" if check["form"] == "printed" else f" ({FORMS[check['form']]})"
        checks.add_row(
            f"  {mark}",
            Text(f"{mathematics.plain(check['what'])}{form}: {describe_finding(check)}"),
        )
    if not claim["checks"]:
        checks.add_row("  –", Text(mathematics.plain(claim["reason"])))
    for result in claim["results"]:
        both = f"ours: {result['ours']}; the paper: {result['printed']} ({result['page']})"
        checks.add_row("  –", Text(mathematics.plain(both)))
    title = f"{claim['paper']}, {claim['name']}: {claim['verdict']}"
    return Group(Text(title, "bold"), Text(f"  {mathematics.plain(claim['statement'])}"), checks)


if __name__ == "__main__":
    cli.run(main, again="start again to resume from measured.json")
