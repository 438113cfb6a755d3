"""Make the page of theorems, with findings and a card for every claim of three papers."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.pages import mathematics, page, theorem_plots
from experiments.pages.page import paragraphs, provenance, table
from experiments.pages.papers import papers
from experiments.pages.theorem_cards import GROUPS, TEXT, UNEXPECTED, anchor, card, groups
from experiments.pages.theorem_findings import HIGHLIGHTS, Highlight
from experiments.pages.theorem_words import STANDINGS, describe_finding
from experiments.texts import html

HEADING = "What three papers claim, and what holds"


def render(results: dict, out: Path) -> str:
    """The HTML of the whole page; links are relative to the folder `out`.

    The argument `results` has the numbers of check_theorems.py.
    """
    claims = results["claims"]
    shown = _highlights(claims, results["curves"])
    sections = [
        ("findings", "Findings", _findings(shown, results["curves"])) if shown else None,
        ("entries", "Entries", _entries(claims, shown, out)),
        ("numbers", "By number", _by_number(claims)),
    ]
    entries = {name: f"{results[name]:g}" for name in ("seed", "precision", "devices", "seconds")}
    return page.render(
        results,
        title=HEADING,
        about="theorems",
        heading=HEADING,
        summary=_papers() + _standings(claims),
        sections=filter(None, sections),
        made=paragraphs(_chance(results)) + provenance(results, entries),
    )


def overview(claims: list[dict]) -> str:
    """A table of claims; a row has the statement, the findings of checks, and the verdict."""
    head = ["Claim", "Printed form", "Corrected form", "Outcome"]
    rows = [
        [
            f"{claim['name']}\n{mathematics.plain(claim['statement'])} ({claim['paper']})",
            _found(claim, "printed", "rejected"),
            _found(claim, "corrected"),
            claim["verdict"],
        ]
        for claim in claims
    ]
    kinds = [anchor(claim["standing"]) if claim["as_recorded"] else UNEXPECTED for claim in claims]
    return table(head, rows, "Claims", kind="claims", row_kinds=kinds)


def _found(claim: dict, *forms: str) -> str:
    """The finding of a claim's first check whose form is in `forms`, or a dash without one."""
    checks = (check for check in claim["checks"] if check["form"] in forms)
    return next((describe_finding(check) for check in checks), "–")


def _papers() -> str:
    items = (
        f'<li><a href="{paper.url}"><cite>{html(paper.title)}</cite></a><br>'
        f"{html(', '.join(paper.authors))}, {paper.year}: {html(paper.subject)}</li>"
        for paper in papers()
    )
    return f'<ul class="papers">{"".join(items)}</ul>'


def _standings(claims: list[dict]) -> str:
    """HTML that lists the verdicts, with their meanings and their numbers of claims."""
    counts = Counter(claim["standing"] for claim in claims)
    items = "".join(
        f'<div><dt><span class="badge {anchor(name)}">{html(name)}</span> {counts[name]} of '
        f"{len(claims)}</dt><dd>{html(meaning)}</dd></div>"
        for name, meaning in STANDINGS.items()
    )
    return f'<dl class="standings">{items}</dl>{_surprises(claims)}'


def _surprises(claims: list[dict]) -> str:
    """A warning if the outcome of any check is not as recorded."""
    unexpected = [claim for claim in claims if not claim["as_recorded"]]
    links = ", ".join(
        f'<a href="#{anchor(claim["paper"], claim["name"])}">{html(claim["name"])}</a>'
        for claim in unexpected
    )
    return f'<p class="fails">Not as recorded: {links}</p>' if unexpected else ""


def _highlights(claims: list[dict], curves: dict) -> dict[str, Highlight]:
    """The findings that the results can show, with the anchors of their claims as keys."""
    return {
        anchor(claim["paper"], claim["name"]): item
        for item in HIGHLIGHTS
        for claim in claims
        if item.is_about(claim["paper"], claim["name"]) and item.figure in curves
    }


def _findings(shown: Mapping[str, Highlight], curves: dict) -> str:
    items = (
        f'<li id="finding-{item.figure}"><figure>'
        f"{theorem_plots.plot(item.figure, curves[item.figure])}"
        f'<figcaption><a href="#{home}">{html(item.claim)}</a> '
        f"<small>{html(item.paper)}</small><br>{mathematics.html(item.sentence)}"
        "</figcaption></figure></li>"
        for home, item in shown.items()
    )
    return f'<ol class="findings" tabindex="0">{"".join(items)}</ol>'


def _entries(claims: list[dict], shown: Mapping[str, Highlight], out: Path) -> str:
    """HTML of the cards of all claims, below the controls that filter the cards.

    The style sheet hides the cards that a reader has not selected.
    """
    figures = {home: f"finding-{item.figure}" for home, item in shown.items()}
    body = "".join(
        card(claim, out, figures.get(anchor(claim["paper"], claim["name"]), "")) for claim in claims
    )
    shorts = dict.fromkeys(claim["paper"] for claim in claims)
    kinds = Counter(group for claim in claims for group in groups(claim))
    states = Counter(anchor(claim["standing"]) for claim in claims)
    names = {anchor(name): name for name in STANDINGS if states[anchor(name)]}
    facets = {
        "paper": {anchor(short): short for short in shorts},
        "kind": {group: group for group in (*GROUPS, TEXT) if kinds[group]},
        "standing": names,
    }
    rules = "".join(
        f"section:has(#{facet}-{value}:checked) .claim:not([data-{facet}~={value}])"
        "{display:none}\n"
        for facet, values in facets.items()
        for value in values
    )
    fields = "".join(_field(facet, values) for facet, values in facets.items())
    return (
        f'<style>\n{rules}</style><form class="filter">{fields}'
        '<button type="reset">Show all</button></form>'
        f'<div class="entries">{body}<p class="shown"></p></div>'
    )


def _field(facet: str, values: Mapping[str, str]) -> str:
    choices = "".join(
        f'<label><input type="radio" name="{facet}" id="{facet}-{value}"'
        f"{' checked' if value == 'all' else ''}>{html(label)}</label>"
        for value, label in {"all": "all", **values}.items()
    )
    return f"<fieldset><legend>{facet.capitalize()}</legend>{choices}</fieldset>"


def _by_number(claims: list[dict]) -> str:
    """HTML with an index of each paper's theorems, equations and figures, with links to cards."""
    return "".join(
        f"<h3>{html(short)}</h3><dl class='numbers'>"
        + _numbers(claim for claim in claims if claim["paper"] == short)
        + "</dl>"
        for short in dict.fromkeys(claim["paper"] for claim in claims)
    )


def _numbers(claims: Iterable[dict]) -> str:
    homes: dict[str, dict[str, list[dict]]] = {}
    for claim in claims:
        for name in claim["objects"]:
            kind, _, number = name.partition(" ")
            homes.setdefault(kind, {}).setdefault(number, []).append(claim)
    return "".join(
        f"<dt>{kind}</dt><dd>"
        + " ".join(_number(number, numbers[number]) for number in sorted(numbers, key=_in_order))
        + "</dd>"
        for kind, numbers in sorted(homes.items())
    )


def _number(number: str, claims: list[dict]) -> str:
    """HTML of an object's number, which links to the card of the first claim about the object.

    Superscripts link to the cards of further claims about the same object.
    """
    first, *others = (
        f'<a href="#{anchor(claim["paper"], claim["name"])}" title="{html(claim["name"])}">'
        f"{html(number) if i == 0 else _part(claim['name'])}</a>"
        for i, claim in enumerate(claims)
    )
    raised = f" <sup>{', '.join(others)}</sup>" if others else ""
    return f"<span>{first}{raised}</span>"


def _part(name: str) -> str:
    """The part of a numbered object that the claim `name` is about."""
    label = re.search(r"item \d+|proof|example|Equations? [\w ]+|$", name, re.IGNORECASE)
    return (label[0] if label else "").lower() or "more"


def _in_order(number: str) -> tuple[list[int], str]:
    """A sort key for numbers such as 7, 7a and 3.1."""
    return [int(digits) for digits in re.findall(r"\d+", number)], number


def _chance(results: dict) -> str:
    checks = [check for claim in results["claims"] for check in claim["checks"]]
    sampled = sum(check["side"] is not None for check in checks)
    return (
        f"Of {len(checks)} checks {sampled} are sampled and decided together: by Holm's "
        "correction, the probability that any true statement is rejected is at most "
        f"{100 * results['level']:g} %. All other checks are computed, on random and on "
        "adversarial cases. A distance in standard errors is the distance between estimate and "
        "prediction."
    )
