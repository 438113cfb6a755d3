"""Quotations in the errata are in the papers word for word, except for white space and markup."""

import re
import unicodedata
from pathlib import Path

import pytest

from claims import ALL

TEXTS = Path(__file__).parents[3] / "shared" / "papers"
FILES = {
    "Unitization": "001_6e454e444f73f078.txt",
    "CWDA": "000_24428aac4b08c5f4.txt",
    "Batch Normalization Decomposed": "003_30ee2e90493a5acb.txt",
}
QUOTED = [claim for claim in ALL if claim.fault in ("false", "false in a case")]
MARKUP = r"\\(?:mathrm|mathbf|boldsymbol|operatorname\*?|text|bm|rm|left|right|hat|,|;|!|quad)"


def bare(text: str) -> str:
    """A text without white space, links and markup of formulas, with plain quotation marks."""
    text = re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", unicodedata.normalize("NFKC", text))
    text = re.sub(r"[‘’]", "'", re.sub(r"[“”]", '"', text))
    return re.sub(r"[\s$*\\{}^_]", "", re.sub(MARKUP, "", text)).lower().rstrip(".,")


@pytest.mark.parametrize("claim", QUOTED, ids=lambda claim: f"{claim.paper}, {claim.name}")
def test_what_is_false_is_quoted(claim):
    quotes = re.findall("“([^”]*)”", claim.printed)
    assert quotes
    path = TEXTS / FILES[claim.paper]
    if not path.is_file():
        pytest.skip("the texts of the papers are not here")
    text = bare(path.read_text(encoding="utf-8"))
    assert [quote for quote in quotes if bare(quote) not in text] == []
