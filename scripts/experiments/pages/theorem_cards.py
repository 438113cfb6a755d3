"""Make a claim's folded card, with printed form, correct form, reason and all findings."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from experiments.pages import mathematics
from experiments.pages.papers import ROOT
from experiments.pages.theorem_words import FORMS, MUST_FAIL, describe_finding, outcome, power
from experiments.texts import html

GROUPS = {
    "theorems": ("Theorem", "Lemma", "Proposition", "Corollary", "Fact"),
    "equations": ("Equation",),
    "definitions": ("Definition", "Assumption"),
    "algorithms": ("Algorithm",),
    "figures": ("Figure",),
    "tables": ("Table",),
}
TEXT = "text"
UNEXPECTED = "not-as-recorded"


def card(claim: dict, out: Path, finding: str = "") -> str:
    """The HTML of a claim's card; the card opens if a reader follows a link to the card's anchor.

    Args:
      claim: Claim in the format of results.json.
      out: Folder of the page, from which links are relative.
      finding: The anchor of the finding about this claim, if there is one.
    """
    name = anchor(claim["paper"], claim["name"])
    body = (
        _texts(claim)
        + _results(claim, out)
        + _checks(claim)
        + _sources(claim, out)
        + (f'<p><a href="#{finding}">Its figure, among the findings</a></p>' if finding else "")
        + '<p><a href="#entries">All entries</a></p>'
    )
    state = anchor(claim["standing"])
    if not claim["as_recorded"]:
        state += f" {UNEXPECTED}"
    return (
        f'<details class="claim" data-paper="{anchor(claim["paper"])}" '
        f'data-kind="{" ".join(groups(claim))}" data-standing="{state}"><summary>'
        f"<h3>{html(claim['name'])}</h3> {badge(claim)}"
        f'<span class="statement">{mathematics.html(claim["statement"])}</span></summary>'
        f'<div class="body" id="{name}">{body}</div></details>'
    )


def anchor(*parts: str) -> str:
    """An HTML identifier that is made from texts, such as a paper and the name of a claim."""
    text = " ".join(parts)
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


def badge(claim: dict) -> str:
    """The verdict on a claim as a coloured word."""
    if not claim["as_recorded"]:
        return f'<span class="badge {UNEXPECTED}">not as recorded</span>'
    label = html(claim["standing"])
    return f'<span class="badge {anchor(claim["standing"])}">{label}</span>'


def groups(claim: dict) -> list[str]:
    """The groups in `GROUPS` for a claim's numbered objects, such as theorems and figures.

    If the claim has no numbered object of a known kind, the only group is `TEXT`.
    """
    kinds = {name.partition(" ")[0] for name in claim["objects"]}
    return [group for group, members in GROUPS.items() if kinds & set(members)] or [TEXT]


def relative(path: Path, out: Path) -> str:
    """The relative address of a file, as seen from the page's folder."""
    return os.path.relpath(path, out.absolute()).replace(os.sep, "/")


def _texts(claim: dict) -> str:
    """The texts of a card, if present: printed form, correct form, reason and remark."""
    remark = claim["remark"]
    texts = {
        "Paper": claim["paper"] + (f"; with {claim['covers']}" if claim["covers"] else ""),
        "Printed": claim["printed"],
        "What holds": claim["corrected"],
        "Why": claim["why"],
        f"Remark: {remark['kind']}" if remark else "": remark["text"] if remark else "",
        "Not tested": claim["reason"],
        "Outcome": "" if claim["as_recorded"] else claim["verdict"],
    }
    lines = (
        f"<dt>{html(title)}</dt><dd>{mathematics.html(text)}</dd>"
        for title, text in texts.items()
        if text
    )
    return f"<dl>{''.join(lines)}</dl>"


def _results(claim: dict, out: Path) -> str:
    """HTML of our results on trained networks, each beside the result that the paper prints."""
    items = (
        f"<li><b>Ours:</b> {mathematics.html(result['ours'])} "
        f'(<a href="{html(relative(ROOT / result["page"], out))}">page</a>). '
        f"<b>The paper:</b> {mathematics.html(result['printed'])}</li>"
        for result in claim["results"]
    )
    return _section("Of trained networks", items)


def _checks(claim: dict) -> str:
    """HTML with a row for each check, which gives the check's quantity and its finding."""
    items = (
        f"<li><p>{mathematics.html(check['what'])}: "
        f"{html(describe_finding(check) + power(check))}.</p>"
        f'<p class="outcome {_colour(check)}">{html(outcome(check))} · '
        f"{html(FORMS[check['form']])}</p></li>"
        for check in claim["checks"]
    )
    return _section("Checks", items)


def _section(title: str, items: Iterable[str]) -> str:
    body = "".join(items)
    return f"<h4>{title}</h4><ul>{body}</ul>" if body else ""


def _colour(check: dict) -> str:
    if not check["as_recorded"]:
        return "fails"
    return "differs" if check["form"] in MUST_FAIL else "holds"


def _sources(claim: dict, out: Path) -> str:
    """HTML with links to the modules that check a claim."""
    files = dict.fromkeys(check["source"] for check in claim["checks"])
    if not files:
        return ""
    links = (_link(ROOT / file, out, f"<code>{html(file)}</code>") for file in files)
    return f"<p>Checked in {', '.join(links)}.</p>"


def _link(path: Path, out: Path, label: str) -> str:
    return f'<a href="{html(relative(path, out))}">{label}</a>'
