"""Every numbered object that a paper prints has a claim, and claims name no other."""

import json
from pathlib import Path

import pytest

from claims import PAPERS
from geometry import claims

PRINTED = Path(__file__).parent / "numbered_objects"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_that_is_printed_has_a_home_and_no_other_is_named(paper):
    lists = json.loads((PRINTED / f"{paper}.json").read_text(encoding="utf-8"))
    printed = {x for kind, numbers in lists.items() for x in claims.numbered(f"{kind} {numbers}")}
    named = {x for claim in PAPERS[paper] for x in claims.objects(claim)}
    assert printed - named == set()
    assert named - printed == set()
