"""The page of theorems: its texts, its links, and the view in a browser."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import gammaln

from claims import ALL
from experiments.measures import claims as claim_measures
from experiments.pages import (
    errata,
    figures,
    theorem_cards,
    theorem_plots,
    theorem_words,
    theorems as theorem_page,
)
from experiments.pages.papers import ROOT, papers
from experiments.pages.sentences import duration
from experiments.pages.theorem_cards import anchor
from experiments.pages.theorem_findings import HIGHLIGHTS
from tests.support.browser import on_phone_and_desktop, open_page
from tests.support.made_up_results import made_up_settings, made_up_theorems, made_up_verdict

pytestmark = pytest.mark.fitted_figures

COMMITTED = ROOT / "docs" / "results" / "theorems"
TEXTS = ("statement", "printed", "corrected", "why", "reason", "standing", "covers")


@pytest.fixture(scope="module")
def results():
    return made_up_theorems()


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("theorems") / "index.html"
    path.write_text(theorem_page.render(results, path.parent), encoding="utf-8")
    return path


def broken_links(page: Path) -> list[str]:
    """The links of a page to files or ids that do not exist; links to arXiv are not followed."""
    text = page.read_text(encoding="utf-8")
    ids = set(re.findall(r'\bid="([^"]*)"', text))
    hrefs = {unescape(href) for href in re.findall(r'href="([^"]*)"', text)}
    local = {href for href in hrefs if not href.startswith(("https://arxiv.org/abs/", "data:"))}
    return [
        href
        for href in sorted(local)
        if (href[0] == "#" and href[1:] not in ids)
        or (href[0] != "#" and not (page.parent / href.partition("#")[0]).exists())
    ]


def test_every_link_leads_somewhere(page, results):
    (page.parent / "results.json").touch()  # `write` writes this file beside the page
    assert broken_links(page) == []
    text = page.read_text(encoding="utf-8")
    for claim in results["claims"]:
        assert f'href="#{anchor(claim["paper"], claim["name"])}"' in text or not claim["objects"]
        for check in claim["checks"]:
            assert f"<code>{check['source']}</code></a>" in text


def test_a_run_in_parts_took_their_total():
    path = ROOT / "docs" / "results" / "report" / "results.json"
    seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    text = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert f"`scripts/reproduce.py`, {duration(seconds['total'])} |" in text


def test_every_claim_has_an_anchor_of_its_own(page):
    ids = re.findall(r'\bid="([^"]*)"', page.read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
    assert {anchor(claim.paper, claim.name) for claim in ALL} <= set(ids)


@pytest.mark.parametrize("item", HIGHLIGHTS, ids=lambda item: f"{item.paper}, {item.claim}")
def test_a_finding_is_about_one_claim(item):
    assert sum(item.is_about(claim.paper, claim.name) for claim in ALL) == 1


def test_every_finding_has_a_figure(page):
    assert [item.figure for item in HIGHLIGHTS] == list(theorem_plots.FIGURES)
    assert page.read_text(encoding="utf-8").count('<li id="finding-') == len(HIGHLIGHTS)
    for figure in theorem_plots.FIGURES.values():
        assert not figure.reference or figure.reference in figure.numbers()


def ratio_variance(n):
    """n Var(R), where R = (l1/E l1) / (l2/E l2) for the norms l1 and l2 of n Gaussian numbers.

    R is independent of l2, so E R = 1 and E R² = E l1² (E l2)² / (E l2² (E l1)²).
    """
    l1, l2 = n * np.sqrt(2 / np.pi), np.sqrt(2) * np.exp(gammaln((n + 1) / 2) - gammaln(n / 2))
    return n * ((n + n * (n - 1) * 2 / np.pi) * l2**2 / (n * l1**2) - 1)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "unbounded",  # the inputs are R and -R, and α is 1/2
            {
                "Equation 10": lambda r: 2 * (1 + r) / 2,
                "Equation 9": lambda r: 2 * r / ((r + 1) / 2),
                "2/α": lambda r: 4 + 0 * r,
            },
        ),
        (
            "ratio-variance",
            {"l1/l2": ratio_variance, "the proof’s": lambda n: (np.pi - 1) / 2 + 0 * n},
        ),
        (
            "shared-point",
            {"(1 + 3/n)/(8k)": lambda n: (1 + 3 / n) / 800, "1/(2nk)": lambda n: 1 / (200 * n)},
        ),
        (
            "dimensions",
            {
                "the bound 2d + 2": lambda d: (2 * d + 2) / d**0.5,
                "largest W": lambda d: 2**0.5 + 0 * d,
            },
        ),
        (
            "waiting",
            {
                "P(y₂ = 0 | y₁ = k)": lambda k: 1 - 2 * 0.5**k,
                "if independent": lambda k: 1 / 3 + 0 * k,
            },
        ),
        ("spread", {"3π/n": lambda n: 540 / n, "as printed": lambda n: 0 * n}),
    ],
)
def test_lines_of_a_figure_have_their_formulas(name, lines):
    numbers = theorem_plots.FIGURES[name].numbers()
    (_, x), *found = numbers.items()
    assert len(set(x)) == len(x) > 4
    for label, values in found:
        if label in lines:
            expected = lines[label](np.array(x))
            np.testing.assert_allclose(values, expected, rtol=1e-6, err_msg=label)
    assert {*lines} <= dict(found).keys()


def test_the_reference_is_dashed_and_axes_may_be_logarithmic(monkeypatch):
    numbers = {"n": [1.0, 10.0], "found": [2.0, 20.0], "printed": [3.0, 30.0]}
    for logarithmic in ("", "x", "y", "xy"):
        axes = Figure().subplots()
        figure = theorem_plots.Figure(dict, "", "", logarithmic=logarithmic, reference="printed")
        monkeypatch.setattr(theorem_plots, "FIGURES", {"own": figure})
        monkeypatch.setattr(theorem_plots, "draw", lambda paint, axes=axes, **_: paint(axes))
        theorem_plots.plot("own", numbers)
        scales = axes.get_xscale(), axes.get_yscale()
        assert scales == tuple("log" if k in logarithmic else "linear" for k in "xy")
        assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]


def test_a_number_says_which_part_of_it_is_on_which_card(page):
    text = unescape(re.sub(r"<(?!/?sup)[^>]*>", "", page.read_text(encoding="utf-8")))
    assert "14 <sup>item 1, item 2, item 3, item 4, more</sup>" in text
    assert "1 <sup>proof, more</sup>" in text
    assert "6 <sup>equation 21</sup>" in text


def test_the_papers_are_named_with_authors_and_links(page):
    text = unescape(page.read_text(encoding="utf-8"))
    for paper in papers():
        assert paper.title in text
        assert ", ".join(paper.authors) in text
        assert f'href="{paper.url}"' in text


def test_counts_are_of_all_claims(page, results):
    text = page.read_text(encoding="utf-8")
    for standing in theorem_words.STANDINGS:
        count = sum(claim["standing"] == standing for claim in results["claims"])
        assert f"{count} of {len(results['claims'])}" in text


def test_what_is_not_as_recorded_is_named_first(results, page, tmp_path):
    changed = results | {"claims": [dict(claim) for claim in results["claims"]]}
    changed["claims"][3]["as_recorded"] = False
    text = theorem_page.render(changed, tmp_path)
    assert text.index("Not as recorded: ") < text.index('id="findings"')
    assert "Not as recorded: " not in page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def claims():
    """Made-up results of all claims; one of them differs from its record."""
    found = [claim_measures.result(made_up_verdict(claim)) for claim in ALL]
    found[3]["as_recorded"] = False
    return found


def test_links_to_claims_lead_to_their_cards(claims, tmp_path):
    claims = claims[:20]
    cards = "".join(theorem_cards.card(claim, tmp_path) for claim in claims)
    ids = set(re.findall(r'\bid="([^"]*)"', cards))
    parts = theorem_page._standings(claims), theorem_page._by_number(claims)
    surprises, numbers = (re.findall(r'href="#([^"]*)"', part) for part in parts)
    assert surprises == [anchor(claims[3]["paper"], claims[3]["name"])]
    assert {*surprises, *numbers} <= ids


@pytest.mark.parametrize("standing", theorem_words.STANDINGS)
def test_a_card_has_its_standing_and_says_if_it_is_not_as_recorded(standing, claims, tmp_path):
    name = standing.replace(" ", "-")
    claim = claims[0] | {"standing": standing, "verdict": "the verdict", "as_recorded": True}
    shown = theorem_cards.card(claim, tmp_path)
    assert f'data-standing="{name}"' in shown
    assert f'<span class="badge {name}">{standing}</span>' in shown
    assert "the verdict" not in shown
    shown = theorem_cards.card(claim | {"as_recorded": False}, tmp_path)
    assert f'data-standing="{name} not-as-recorded"' in shown
    assert '<span class="badge not-as-recorded">not as recorded</span>' in shown
    assert "<dt>Outcome</dt><dd>the verdict</dd>" in shown


def test_links_of_cards_lead_to_files_whatever_the_working_folder(claims, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some = [claim for i, claim in enumerate(claims) if claim["results"] or i % 9 == 0]
    assert sum(bool(claim["results"]) for claim in some) > 3
    for out in (tmp_path / "in" / "it", Path("here")):
        for claim in some:
            hrefs = re.findall(r'href="([^#"]+)"', theorem_cards.card(claim, out))
            found = {(out.absolute() / href).resolve() for href in map(unescape, hrefs)}
            pages = {result["page"] for result in claim["results"]}
            expected = pages | {check["source"] for check in claim["checks"]}
            assert found == {ROOT.resolve() / name for name in expected}


@pytest.mark.parametrize("form", theorem_words.FORMS)
@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_outcome_of_a_check_is_said_and_coloured(form, holds, recorded, claims, tmp_path):
    claim = next(claim for claim in claims if claim["checks"])
    own = claim["checks"][0] | {"form": form, "holds": holds, "as_recorded": recorded}
    shown = theorem_cards.card(claim | {"checks": [own]}, tmp_path)
    words = {
        (True, True): "holds",
        (False, True): "fails, as recorded",
        (True, False): "holds, which is not as recorded",
        (False, False): "fails: not as recorded",
    }
    colour = "fails"
    if recorded:
        colour = "differs" if form in ("rejected", "overread") else "holds"
    expected = f"{words[holds, recorded]} · {theorem_words.FORMS[form]}"
    assert f'<p class="outcome {colour}">{expected}</p>' in shown


def test_each_choice_of_the_filter_hides_all_other_cards(claims, tmp_path):
    claims = claims[::3]  # a third of the claims saves time
    text = theorem_page.render(made_up_settings() | {"claims": claims, "curves": {}}, tmp_path)
    ids = re.findall(r'<input type="radio" name="\w+" id="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    rule = r"section:has\(#(\S+):checked\) \.claim:not\(\[data-(\w+)~=(\S+)\]\)\{display:none\}"
    rules = {choice: (facet, value) for choice, facet, value in re.findall(rule, text)}
    assert {*rules, "paper-all", "kind-all", "standing-all"} == set(ids)
    cards = re.findall(r'data-paper="(.*?)" data-kind="(.*?)" data-standing="(.*?)"', text)
    assert len(cards) == len(claims)
    for choice, (facet, value) in rules.items():
        column = ("paper", "kind", "standing").index(facet)
        shown = [i for i, card in enumerate(cards) if value in card[column].split()]
        assert shown == [i for i, claim in enumerate(claims) if is_chosen(claim, choice)]
        assert shown


def is_chosen(claim: dict[str, Any], choice: str) -> bool:
    """Whether the page shows a claim after the filter with the id `choice` is set."""
    facet, _, value = choice.partition("-")
    if facet == "kind":
        # a kind is named after its most frequent objects, such as "Theorem"
        objects = [str(name).split()[0] for name in claim["objects"]]
        named = {"Lemma": "Theorem", "Proposition": "Theorem", "Corollary": "Theorem"}
        named |= {"Fact": "Theorem", "Assumption": "Definition"}
        kinds = {named.get(name, name) for name in objects}
        return value in {f"{kind.lower()}s" for kind in kinds} or (value == "text" and not kinds)
    return value == claim[facet].lower().replace(" ", "-").replace("'", "-")


@on_phone_and_desktop
def test_a_browser_shows_figures_and_folded_cards(page, tmp_path, width, height, dark):
    seen = open_page(page, width, height, dark=dark, scratch=tmp_path)
    assert seen["console"] == []
    assert (seen["width"], seen["dark"]) == (width, dark)
    assert seen["content"] <= width  # nothing is wider than the window
    assert len(seen["figures"]) == len(HIGHLIGHTS)
    for figure in seen["figures"]:
        assert figure["height"] > 100, figure
        assert figure["text"] >= 9.5, figure  # the text is large enough to read
    assert len(seen["cards"]) == len(ALL)
    assert not any(card["open"] for card in seen["cards"])
    if width == 390:  # on a phone, the figures are at most two screens high
        assert seen["cards"][0]["top"] < 2 * height


def test_a_link_to_a_folded_card_opens_it(page, tmp_path):
    name = anchor("Batch Normalization Decomposed", "Figure 3")
    seen = open_page(page, 390, 844, fragment=f"#{name}", scratch=tmp_path)
    opened = [card for card in seen["cards"] if card["open"]]
    assert [card["id"] for card in opened] == [name]
    assert -100 < opened[0]["scrolled"] < 844  # the card is in the window


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ("#paper-cwda", lambda claim: claim["paper"] == "CWDA"),
        ("#kind-figures", lambda claim: "Figure" in " ".join(claim["objects"])),
        ("#standing-not-tested", lambda claim: claim["standing"] == "not tested"),
    ],
)
def test_the_filter_shows_what_is_chosen(page, results, tmp_path, chosen, wanted):
    seen = open_page(page, 1280, 900, choose=chosen, scratch=tmp_path)
    expected = [
        anchor(claim["paper"], claim["name"]) for claim in results["claims"] if wanted(claim)
    ]
    assert [card["id"] for card in seen["cards"]] == expected
    assert 0 < len(expected) < len(ALL)


def test_a_link_to_a_card_that_the_filter_hides_shows_it(page, tmp_path):
    name = anchor("Batch Normalization Decomposed", "Figure 3")
    seen = open_page(page, 1280, 900, fragment=f"#{name}", choose="#paper-cwda", scratch=tmp_path)
    assert name in [card["id"] for card in seen["cards"]]


def check_of(**fields):
    base = {"side": None, "relation": "identity", "tolerance": 1e-9, "prediction": 0.0}
    base |= {"estimate": 0.0, "stderr": 0.0, "draws": 200, "z": None, "power": None}
    return base | {"against": None} | fields


SAMPLED = {"side": "=", "stderr": 0.002, "estimate": 0.501, "prediction": 0.5, "z": 0.5}
SAMPLED |= {"tolerance": 0.0}


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (check_of(estimate=2.2e-16), "equal to 0, to rounding, in 200 cases"),
        (check_of(estimate=3.0, draws=1), "3 in the one case, where 0 is expected within rounding"),
        (
            check_of(relation="inequality", estimate=-0.85),
            "at most −0.85 in 200 cases, where 0 is allowed",
        ),
        (
            check_of(relation="inequality", estimate=1e-15),
            "at most 0 in 200 cases, and attained there to rounding",
        ),
        (
            check_of(**SAMPLED, power=0.99999, against=0.55),
            "0.5010 ± 0.0020 in 200 draws; predicted 0.5, 0.5 standard errors away (chance to "
            "notice 0.55 instead: above 0.9999)",
        ),
        (
            check_of(**SAMPLED | {"tolerance": 1e-3, "z": 0.0}),
            "0.5010 ± 0.0020 in 200 draws; predicted 0.5 to within 0.001, 0.0 standard errors away",
        ),
        (
            check_of(**SAMPLED | {"side": "≤"}),
            "0.5010 ± 0.0020 in 200 draws; predicted at most 0.5, 0.5 standard errors away",
        ),
    ],
)
def test_what_a_check_found_is_said_in_words(check, words):
    found = theorem_words.describe_finding(check) + theorem_words.power(check)
    assert found.replace("\N{NO-BREAK SPACE}", " ") == words


def test_errata_quote_what_is_wrong_and_list_remarks(results):
    text = errata.markdown(results["claims"], "2026-11-25T08:00:00")
    for claim in results["claims"]:
        wrong = claim["fault"] is not None
        assert (f"### {claim['name']}\n" in text) >= wrong
        assert (f"- **{claim['name']}** (" in text) >= bool(claim["remark"])
    assert "$" not in text
    wrong = next(claim for claim in results["claims"] if claim["fault"])
    assert "**Why:**" not in errata.markdown([wrong | {"why": ""}], "2026-11-25")
    first = next(claim for claim in results["claims"] if claim["remark"])
    alone = errata.markdown([first | {"fault": None}], "2026-11-25")
    titles = {paper.short: f"## {paper.title}\n" for paper in papers()}
    assert [short for short in titles if titles[short] in alone] == [first["paper"]]
    assert f"- **{first['name']}** ({first['remark']['kind']}): " in alone


def test_the_committed_errata_are_of_the_claims_as_they_are(results):
    whole = json.loads((COMMITTED / "results.json").read_text(encoding="utf-8"))
    committed = whole["claims"]

    def texts(claim):
        return {key: claim[key] for key in TEXTS} | {"remark": claim["remark"]}

    again = (
        "run: python scripts/check_theorems.py --out docs/results/theorems --errata docs/errata.md"
    )
    assert list(map(texts, committed)) == list(map(texts, results["claims"])), again
    assert (ROOT / "docs" / "errata.md").read_text(encoding="utf-8") == errata.markdown(
        committed, whole["date"]
    )


def test_the_committed_list_has_every_figure_and_table_with_what_was_found():
    committed = json.loads((COMMITTED / "results.json").read_text(encoding="utf-8"))["claims"]
    text = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert text == figures.markdown(committed)
    for section, count in zip(text.split("\n## ")[1:], (7, 15, 8), strict=True):
        heads = [line.split("|")[1].strip() for line in section.splitlines() if line[:1] == "|"]
        assert len({head for head in heads if head.startswith(("Figure", "Table"))}) == count
    assert "Table 3 | Accuracies of a ResNet-101 on ImageNet" in text
    assert re.search(r"Figure 4 .* above 0.9 in 18 of 19 layers for .*\[resnet20\]", text)
