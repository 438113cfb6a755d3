"""The errata of the three papers as Markdown: printed form, correct form and reason."""

import re
from collections.abc import Iterator

from experiments.pages.mathematics import plain
from experiments.pages.papers import Paper, papers
from experiments.pages.theorem_cards import anchor
from experiments.pages.theorem_words import FAULTS, STANDINGS

TITLE = """# Errata of three papers

{date}. This page lists statements of three papers that are misprinted or false, and a correct form
of each statement. The page also lists remarks on true statements. An entry names the place in the
paper, quotes the text, and explains why the statement fails. A misprinted or false statement has
one of three verdicts:

{classes}

A remark has one of four kinds:

- **loose**: A bound is not sharp.
- **unit**: A unit is wrong.
- **hypothesis**: A hypothesis is missing or not needed.
- **over-reading**: A reader might draw a false conclusion.

Quotations come from the texts of the PDFs, but we typeset the formulas again. The texts of the PDFs
have no version number, so an entry may not apply to every version of a paper on arXiv.

A computation checks every entry. For example, the command `python scripts/check_theorems.py --claim
"Theorem 1"` checks all statements with the name "Theorem 1". [The page of all
statements](results/theorems/results.json) also includes the true statements. The command `python
scripts/check_theorems.py --errata docs/errata.md` writes this page.
"""
# the letter that abbreviates each paper
LETTERS = {
    "Unitization": "In these entries, W is the earth mover distance between the outputs X and Y of "
    "a layer at two iterations. The layer has d features and the parameter α. E is a mean, and ‖·‖ "
    "is a norm.",
    "CWDA": "In these entries, a layer has N filters. Each filter has d weights, which are drawn "
    "from N(0, c²). In some statements, there are n filters of k weights. Sp is Spearman's rank "
    "correlation, E is a mean, Var is a variance, and CV is a coefficient of variation.",
    "Batch Normalization Decomposed": "In these entries, a batch X has n samples xᵢ. A layer has d "
    "neurons, and the weights w of a neuron are a row of W. The vector x′ is the sample x after "
    "the next layer, and x̃ is the recentred sample. The vector ν is the mean of all samples except "
    "the first sample.",
}


def markdown(claims: list[dict], date: str) -> str:
    """The text of the whole file, from claims in the format of results.json."""
    sections = (
        _paper(paper, [claim for claim in claims if claim["paper"] == paper.short])
        for paper in papers()
    )
    classes = "\n".join(f"- **{name}**: {STANDINGS[name]}" for name in FAULTS)
    return "\n".join([TITLE.format(date=date[:10], classes=classes), *filter(None, sections)])


def _paper(paper: Paper, claims: list[dict]) -> str:
    wrong = [claim for claim in claims if claim["fault"]]
    remarks = [claim for claim in claims if claim["remark"]]
    if not wrong and not remarks:
        return ""
    counts = [f"“{fault}” for {sum(c['fault'] == fault for c in wrong)}" for fault in FAULTS]
    counts[0] += f" of the paper's {len(claims)} statements"
    lines = [
        f"## {paper.title}\n",
        f"{', '.join(paper.authors)}: [arXiv:{paper.arxiv}]({paper.url}), {paper.year}. "
        f"The verdict is {', '.join(counts[:-1])} and {counts[-1]}.\n",
        f"{LETTERS[paper.short]}\n",
        *(line for claim in wrong for line in _erratum(claim)),
    ]
    if remarks:
        lines += ["### Remarks\n", *map(_remark, remarks), ""]
    return "\n".join(lines)


def _erratum(claim: dict) -> Iterator[str]:
    yield f"({anchor(claim['paper'], claim['name'])})=\n"
    yield f"### {escape(claim['name'])}\n"
    yield f"> {escape(claim['printed'])}\n"
    yield f"**Subject:** {escape(claim['statement'])}. *Verdict:* {claim['fault']}.\n"
    yield f"**Correct:** {escape(claim['corrected'])}.\n"
    if claim["why"]:
        yield f"**Why:** {escape(claim['why'])}\n"


def _remark(claim: dict) -> str:
    remark = claim["remark"]
    return f"- **{escape(claim['name'])}** ({remark['kind']}): {escape(remark['text'])}"


def escape(text: str) -> str:
    """The text, escaped for Markdown, with its formulas in Unicode."""
    return re.sub(r"([\\`*_<>#|\[\]~])", r"\\\1", plain(text))
