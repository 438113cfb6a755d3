"""Every numbered object of a paper has a claim, and claims name no other numbered objects."""

import json
from pathlib import Path

import pytest

from claims import PAPERS
from geometry import claims

PRINTED = Path(__file__).parent / "numbered_objects"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("theorem 4", ["Theorem 4"]),
        ("EQUATIONS 4, 6 to 8", ["Equation 4", "Equation 6", "Equation 7", "Equation 8"]),
        ("Lemma 2.1, and Figures 3 and 5b", ["Lemma 2.1", "Figure 3", "Figure 5b"]),
        ("Table 1, Table 1", ["Table 1"]),
        ("Corollary 2 of Facts 1", ["Corollary 2", "Fact 1"]),
        ("Section 4 or Subtheorem 3", []),
        ("Theorems 3.9 to 3.11", ["Theorem 3.9", "Theorem 3.10", "Theorem 3.11"]),
        ("Equations 1.1 to 1.2", ["Equation 1.1", "Equation 1.2"]),
        ("Equations 7a to 7c and 9 to 9", [f"Equation {n}" for n in ("7a", "7b", "7c", "9")]),
    ],
)
def test_numbers_of_a_text(text, names):
    assert claims.numbered(text) == tuple(names)


@pytest.mark.parametrize(
    "ends", ["7a to 9", "7 to 9b", "3.1 to 4.2", "8 to 6", "7a to 7", "3 to 3.2"]
)
def test_a_range_counts_up_in_its_last_part(ends):
    with pytest.raises(ValueError, match=f"ranges that ascend in their last part, .*; got {ends}$"):
        claims.numbered(f"Equations {ends}")


def test_claims_are_found_by_a_number_or_by_a_part_of_their_names():
    first = claims.Claim("p", "Theorem 1, Bound", "s")
    second = claims.Claim("p", "Lemma 12", "s", covers="Theorems 1 and 2")
    both = [first, second]
    assert claims.about(both, "Theorem 1") == (first, second)
    assert claims.about(both, "Theorem 2") == (second,)
    assert claims.about(both, "Theorems 1 and 2") == (first, second)
    assert claims.about(both, "bOUND") == (first,)
    with pytest.raises(ValueError, match=r"such as Lemma 12; Theorem 1, Bound; got 'Lemma 1'"):
        claims.about(both, "Lemma 1")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_that_is_printed_has_a_home_and_no_other_is_named(paper):
    lists = json.loads((PRINTED / f"{paper}.json").read_text(encoding="utf-8"))
    printed = {x for kind, numbers in lists.items() for x in claims.numbered(f"{kind} {numbers}")}
    named = {x for claim in PAPERS[paper] for x in claims.objects(claim)}
    assert printed - named == set()
    assert named - printed == set()
