"""The errata of the three papers, as Markdown: what is printed, what is right, and why."""

import re
from collections.abc import Iterator

from experiments.pages.mathematics import plain
from experiments.pages.papers import Paper, papers
from experiments.pages.theorem_words import found

FORMS = {"rejected": "Printed", "overread": "Over-read", "corrected": "Corrected"}

TITLE = """# Errata of three papers

Statements that are wrong as printed, in the order of each paper, with the correct ones; then
remarks on statements that are true: loose bounds, wrong units, missing or idle hypotheses, and what
a reader might take from them and must not. Every number comes from a check that anyone can run;
`python scripts/check_theorems.py --claim "Theorem 1"` runs those of one theorem, and
[the page](results/theorems/results.json) has every statement of the papers, the true ones too.

This file is made by `python scripts/check_theorems.py --errata docs/errata.md`.
"""


def markdown(claims: list[dict]) -> str:
    """The whole file, of claims as they stand in results.json."""
    sections = (
        _paper(paper, [claim for claim in claims if claim["paper"] == paper.short])
        for paper in papers()
    )
    return "\n".join([TITLE, *filter(None, sections)])


def _paper(paper: Paper, claims: list[dict]) -> str:
    wrong = [claim for claim in claims if "wrong" in claim["standing"]]
    remarks = [claim for claim in claims if claim["remark"]]
    if not wrong and not remarks:
        return ""
    lines = [
        f"## {paper.title}\n",
        f"{', '.join(paper.authors)}: [arXiv:{paper.arxiv}]({paper.url}), {paper.year}\n",
        *(line for claim in wrong for line in _erratum(claim)),
    ]
    if remarks:
        lines += ["### Remarks\n", *map(_remark, remarks), ""]
    return "\n".join(lines)


def _erratum(claim: dict) -> Iterator[str]:
    yield f"### {escaped(claim['name'])}\n"
    yield f"> {escaped(claim['printed'] or claim['statement'])}\n"
    yield f"**Correct:** {escaped(claim['corrected'])}\n"
    if claim["why"]:
        yield f"**Why:** {escaped(claim['why'])}\n"
    for form, title in FORMS.items():
        for check in claim["checks"]:
            if check["form"] == form:
                yield f"- {title}: {escaped(check['what'])}. Found {escaped(found(check))}."
    yield ""


def _remark(claim: dict) -> str:
    remark = claim["remark"]
    return f"- **{escaped(claim['name'])}** ({remark['kind']}): {escaped(remark['text'])}"


def escaped(text: str) -> str:
    """Text whose characters Markdown leaves alone; formulas in Unicode."""
    return re.sub(r"([\\`*_<>#|\[\]~])", r"\\\1", plain(text))
