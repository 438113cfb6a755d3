"""The three papers whose claims are checked, read from references.bib."""

import re
from pathlib import Path
from typing import NamedTuple

import geometry
from experiments.texts import html

ROOT = Path(geometry.__file__).parent.parent
KEYS = {
    "Unitization": "huang_yu_unitization",
    "CWDA": "huang_cwda",
    "Batch Normalization Decomposed": "batch_norm_decomposed",
}
SUBJECTS = {
    "Unitization": "layers whose outputs cannot move far in training",
    "CWDA": "why criteria of channel pruning rank filters alike",
    "Batch Normalization Decomposed": "what recentering and rescaling do to random networks",
}


class Paper(NamedTuple):
    """The bibliographic data of a paper.

    Attributes:
      short: The short title by which claims name the paper.
      title: Full title.
      authors: Names of the authors, given names first.
      year: Year of the first version.
      arxiv: Identifier on arXiv.
      subject: The subject of the paper in one line.
    """

    short: str
    title: str
    authors: tuple[str, ...]
    year: str
    arxiv: str
    subject: str

    @property
    def url(self) -> str:
        return f"https://arxiv.org/abs/{self.arxiv}"


def papers() -> list[Paper]:
    """The three papers, in the order of `KEYS`."""
    text = (ROOT / "references.bib").read_text(encoding="utf-8")
    return [_paper(short, key, text) for short, key in KEYS.items()]


def reference(*shorts: str) -> str:
    """A paragraph of HTML that names papers and links to them."""
    cited = [
        f'<a href="{paper.url}">{html(paper.title)}</a> ({_short(paper.authors)}, {paper.year})'
        for paper in papers()
        if paper.short in shorts
    ]
    return f"<p>The paper{'s' * (len(cited) > 1)}: {'; '.join(cited)}.</p>"


def criteria_defined() -> str:
    """A paragraph of HTML that defines the four criteria of the pages."""
    return (
        "<p>A criterion gives each filter of a layer a score, and pruning removes the filters with "
        "the smallest scores. The criteria l1 and l2 are norms of the filter. Fermat is the "
        "distance between the filter and the geometric median of all filters of the layer. GM is "
        "the sum of the distances between the filter and all other filters of the layer.</p>"
    )


def _short(authors: tuple[str, ...]) -> str:
    families = [name.rpartition(" ")[2] for name in authors]
    return " and ".join(families) if len(families) < 3 else f"{families[0]} et al."


def _paper(short: str, key: str, text: str) -> Paper:
    body = text.partition(f"{{{key},\n")[2].partition("\n}")[0]
    fields = dict(re.findall(r"^ +(\w+) += \{(.*)\},$", body, re.MULTILINE))
    names = (name.partition(", ") for name in fields["author"].split(" and "))
    authors = tuple(f"{given} {family}" for family, _, given in names)
    return Paper(short, fields["title"], authors, fields["year"], fields["eprint"], SUBJECTS[short])
