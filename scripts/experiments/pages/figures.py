"""All figures and tables of the three papers, as Markdown: what is printed, what we found."""

import json
import os
import re
from pathlib import Path

from experiments.pages import errata
from experiments.pages.errata import escaped
from experiments.pages.page import plain
from experiments.pages.papers import ROOT, Paper, papers
from experiments.pages.sentences import duration

DOCS = ROOT / "docs"
HEAD = "| | printed | ours | page | made by |\n| --- | --- | --- | --- | --- |"
TITLE = """# Figures and tables of the three papers

What each shows in print, what we found, on which page, by which command and in what time on two
shared cores (of its last start, where a run was resumed). "Not run" says why. Standings are
explained, and what has no page of its own is checked, on
[the page of the claims](results/theorems/index.html).

This file is made by `python scripts/check_theorems.py --errata docs/errata.md`.
"""


def documents(claims: list[dict], path: Path | None) -> dict[Path, str]:
    """The errata, for `path`, and the figures and tables, for a file beside it; without it none."""
    if path is None:
        return {}
    claims = plain(claims)
    return {path: errata.markdown(claims), path.with_name("figures.md"): markdown(claims)}


def markdown(claims: list[dict]) -> str:
    """The whole file, of claims as they stand in results.json."""
    sections = [
        _section(paper, [claim for claim in claims if claim["paper"] == paper.short])
        for paper in papers()
    ]
    return "\n".join([TITLE, *sections])


def figures(claim: dict) -> list[str]:
    """The figures and tables that a claim is about."""
    return [name for name in claim["objects"] if name.startswith(("Figure", "Table"))]


def _section(paper: Paper, claims: list[dict]) -> str:
    by_place = sorted(
        ((name, claim) for claim in claims for name in figures(claim)), key=lambda x: _order(x[0])
    )
    rows = [row for name, claim in by_place for row in _rows(name, claim)]
    return "\n".join([f"## {paper.title}\n", HEAD, *rows, ""])


def _order(name: str) -> tuple[str, int]:
    kind, number = name.split()
    return kind, int(number)


def _rows(name: str, claim: dict) -> list[str]:
    first, *others = figures(claim)
    if name in others:
        return [f"| {name} | | with {first} | | |"]
    found = [
        [result["printed"], result["ours"], *_page(ROOT / result["page"])]
        for result in claim["results"]
    ]
    if not found and claim["reason"]:
        found = [[claim["statement"], f"not run: {claim['reason']}", "", ""]]
    elif not found:
        page = DOCS / "results" / "theorems" / "index.html"
        found = [[claim["printed"] or claim["statement"], claim["standing"], *_page(page)]]
    heads = [name, *[""] * (len(found) - 1)]
    return [
        f"| {head} | {escaped(printed)} | {escaped(ours)} | {page} | {made} |"
        for head, (printed, ours, page, made) in zip(heads, found, strict=True)
    ]


def _page(path: Path) -> tuple[str, str]:
    """A link to a page, and the command and the minutes in its results."""
    results = json.loads((path.parent / "results.json").read_text(encoding="utf-8"))
    seconds = results["seconds"]
    if isinstance(seconds, dict):
        seconds = seconds.get("total", sum(seconds.values()))
    command = re.sub(r"^python ", "", results["command"])
    link = Path(os.path.relpath(path, DOCS)).as_posix()
    return f"[{path.parent.name}]({link})", f"`{command}`, {duration(seconds)}"
