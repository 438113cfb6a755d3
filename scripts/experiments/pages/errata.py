"""Write the errata of three papers as Markdown, with printed form, correct form and reason."""

import re
from collections.abc import Iterator

from experiments.pages.mathematics import plain
from experiments.pages.papers import Paper, papers
from experiments.pages.theorem_cards import anchor
from experiments.pages.theorem_words import FAULTS

TITLE = """# Errata of three papers

{date}. Each entry quotes a statement that is misprinted or false, corrects the statement, and
explains why the quoted form fails. A computation checks each statement. Every corrected form passes
all checks. An entry has one of three verdicts:

- **misprint**: The paper uses the corrected form, or no result of the paper depends on the quoted
  form.
- **false in a case**: The quoted form fails only in a case that the hypotheses allow. For example,
  a hypothesis is missing, or an approximation is used outside its range.
- **false**: The quoted form fails, and the other verdicts do not apply.

A remark is about a bound that is not sharp (**loose**), a wrong **unit**, a **hypothesis** that is
missing, unclear or not needed, or a false conclusion that a reader might draw (**over-reading**).

The quotations are from PDFs without version numbers. Therefore an entry may not apply to every
version on arXiv. To check a statement, run, for example, `python scripts/check_theorems.py --claim
"Theorem 1"`. [The page of all statements](results/theorems/results.json) includes the true
statements.
"""
# the symbols in the entries of each paper
LETTERS = {
    "Unitization": "In these entries, X and Y are the outputs of a layer with d features at two "
    "iterations of training. W is the earth mover distance between X and Y, and α is the parameter "
    "of unitization. E is a mean, and ‖·‖ is the Euclidean norm.",
    "CWDA": "In these entries, a layer has N filters of d weights, or n filters of k weights. The "
    "weights are drawn from N(0, c²). The score of a filter is the norm for the criteria ℓ₁ and "
    "ℓ₂, the sum of the distances to all filters for GM, and the distance to the Fermat point of "
    "all filters for Fermat. Sp is Spearman's rank correlation, E is a mean, Var is a variance, "
    "and CV is a coefficient of variation.",
    "Batch Normalization Decomposed": "In these entries, a batch X has n samples xᵢ. A layer has d "
    "neurons, and the weights w of a neuron are a row of W. The vector x′ is the sample x after "
    "the next layer, and x̃ is the recentred sample. A row contains the outputs of one neuron for "
    "all samples. Samples with equal outputs form a cluster of the row. In the tree, x₁ is the "
    "smallest sample, xₙ is the largest sample, and all other samples are inner samples. In "
    "Section III, x₁ is the odd sample, the other samples form the cluster, and ν is the mean of "
    "the cluster.",
}


def markdown(claims: list[dict], date: str) -> str:
    """The text of errata.md, from claims in the format of results.json."""
    sections = (
        _paper(paper, [claim for claim in claims if claim["paper"] == paper.short])
        for paper in papers()
    )
    return "\n".join([TITLE.format(date=date[:10]), *filter(None, sections)])


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
    yield f"**Statement:** {escape(claim['statement'])}. *Verdict:* {claim['fault']}.\n"
    yield f"**Correct:** {escape(claim['corrected'])}.\n"
    if claim["why"]:
        yield f"**Why:** {escape(claim['why'])}\n"


def _remark(claim: dict) -> str:
    remark = claim["remark"]
    return f"- **{escape(claim['name'])}** ({remark['kind']}): {escape(remark['text'])}"


def escape(text: str) -> str:
    """The text, escaped for Markdown, with its formulas in Unicode."""
    return re.sub(r"([\\`*_<>#|\[\]~])", r"\\\1", plain(text))
