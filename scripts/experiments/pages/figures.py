"""List all figures and tables of three papers as Markdown, with printed numbers and ours."""

import json
import os
from pathlib import Path

from experiments.pages import errata
from experiments.pages.errata import escape
from experiments.pages.papers import ROOT, Paper, papers
from experiments.pages.sentences import duration

DOCS = ROOT / "docs"
HEAD = (
    "| | number or claim in the paper | our number or verdict | page | command, time |\n"
    "| --- | --- | --- | --- | --- |"
)
TITLE = """# Figures and tables of the three papers

Each row of a table is about a figure or a table of a paper. The row shows the number that the paper
prints, our number, the page with our number, and the command that computes our number. "Not run"
means that we did not run the experiment. If a paper makes a claim without a number, the row has our
verdict, such as "true". [The page of the claims](results/theorems/results.json) explains the
verdicts.

- The number before "spread" is a mean over the layers of a network, and the number after "spread"
  is the standard deviation over these layers. The number after "±" is the standard error over
  networks.
- W₁ is the earth mover distance between the outputs of a layer before and after an epoch.
- "Norm first" means that a layer normalizes before ReLU. "ReLU first" means that a layer normalizes
  after ReLU.
- Spearman's ρ compares how two criteria rank the filters of a layer. If each criterion prunes half
  of the filters, the overlap is the share of the pruned filters that two criteria have in common.
- Tests of filters have the level 5 % and Holm's correction for the number of layers. The distance
  from a Gaussian is Kolmogorov's distance, which is between 0 and 1.
- We measured the times of commands on two shared cores or on the device that the page names. The
  time of a command that resumed after an interruption counts from the last start.

The command `python scripts/check_theorems.py --errata docs/errata.md` writes this page.
"""


def documents(results: dict, path: Path | None) -> dict[Path, str]:
    """The texts of the errata and of the figures, with their paths as keys; empty without `path`.

    The errata have the path `path`, and the figures have the path of figures.md in the same folder.
    """
    if path is None:
        return {}
    return {
        path: errata.markdown(results["claims"], results["date"]),
        path.with_name("figures.md"): markdown(results["claims"]),
    }


def markdown(claims: list[dict]) -> str:
    """The text of figures.md, from claims in the format of results.json."""
    sections = [
        _section(paper, [claim for claim in claims if claim["paper"] == paper.short])
        for paper in papers()
    ]
    return "\n".join([TITLE, *sections])


def figures(claim: dict) -> list[str]:
    """The figures and tables that a claim is about."""
    return [name for name in claim["objects"] if name.startswith(("Figure", "Table"))]


def rows(claims: list[dict]) -> list[list[str]]:
    """The rows for one paper: first its figures, then its tables, each ordered by number.

    A row has five cells. The first cell is the name of the figure; the cell is empty if the row
    above has the same name. The second cell says what the paper shows. The third cell is our
    result, or the reason why the figure was not computed. The fourth cell is a link to the page
    with the result. The fifth cell has the command line and its time.
    """
    by_place = sorted(
        ((name, claim) for claim in claims for name in figures(claim)), key=lambda x: _order(x[0])
    )
    return [row for name, claim in by_place for row in _rows(name, claim)]


def _section(paper: Paper, claims: list[dict]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows(claims)]
    return "\n".join([f"## {paper.title}\n", HEAD, *lines, ""])


def _order(name: str) -> tuple[str, int]:
    kind, number = name.split()
    return kind, int(number)


def _rows(name: str, claim: dict) -> list[list[str]]:
    first, *others = figures(claim)
    if name in others:
        return [[name, "", f"see {first}", "", ""]]
    found = [
        (result["printed"], result["ours"], ROOT / result["page"]) for result in claim["results"]
    ]
    if not found and claim["reason"]:
        return [[name, escape(claim["statement"]), escape(f"not run: {claim['reason']}"), "", ""]]
    if not found:
        page = DOCS / "results" / "theorems" / "results.json"
        found = [(claim["printed"] or claim["statement"], claim["standing"], page)]
    heads = [name, *[""] * (len(found) - 1)]
    return [
        [head, escape(printed), escape(ours), _link(page), _made(page)]
        for head, (printed, ours, page) in zip(heads, found, strict=True)
    ]


def _link(page: Path) -> str:
    return f"[{page.parent.name}]({Path(os.path.relpath(page, DOCS)).as_posix()})"


def _made(page: Path) -> str:
    """The text of the command line and the time that a page's results record."""
    results = json.loads((page.parent / "results.json").read_text(encoding="utf-8"))
    seconds = results["seconds"]
    if isinstance(seconds, dict):
        seconds = seconds.get("total", sum(seconds.values()))
    return f"`{results['command'].removeprefix('python ')}`, {duration(seconds)}"
