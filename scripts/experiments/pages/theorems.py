"""The page of theorems: a card for every numbered object of three papers."""

import os
import re
from html import escape
from pathlib import Path

import geometry
from experiments.pages import page, theorem_plots
from experiments.pages.page import cards, figure, made, paragraphs, table

SIGNS = {True: "✓", False: "✗", None: "–"}
WORDS = {True: "holds", False: "fails", None: "not checked"}


def render(results: dict, out: Path) -> str:
    """The whole page, for the folder `out`. `results` is what check_theorems.py writes."""
    results = {key: page.plain(part) for key, part in results.items()}
    papers: dict[str, str] = {}
    for claim in results["claims"]:
        card = _card(claim, results["curves"], out)
        papers[claim["paper"]] = papers.get(claim["paper"], "") + card
    return page.render(
        title="What three papers claim, and what holds",
        kicker=f"jaxnorm · theorems · {results['date'].replace('T', ' ')}",
        heading="What three papers claim, and what holds",
        summary=summary(results["claims"]) + paragraphs(_chance(results)),
        sections=[
            ("overview", "Every numbered object", overview(results["claims"], linked=True)),
            *((anchor(paper), paper, body) for paper, body in papers.items()),
            ("settings", "How it was made", _settings(results)),
        ],
    )


def summary(claims: list[dict]) -> str:
    """The first numbers: how many claims hold as printed and as corrected."""
    printed = [claim for claim in claims if claim["printed_holds"] is not None]
    corrected = [claim for claim in claims if claim["corrected_holds"] is not None]
    checks = [check for claim in claims for check in claim["checks"]]
    sampled = [check for check in checks if check["stderr"]]
    unchecked = sum(not claim["checks"] for claim in claims)
    return cards(
        [
            (
                "Claims",
                f"{len(claims)}",
                f"{unchecked} not computed",
            ),
            (
                "As printed",
                f"{sum(claim['printed_holds'] for claim in printed)} of {len(printed)} hold",
                "claims with a check of the printed form",
            ),
            (
                "As corrected",
                f"{sum(claim['corrected_holds'] for claim in corrected)} of {len(corrected)} hold",
                "claims that we correct or sharpen",
            ),
            ("Checks", f"{len(checks)}", f"{len(sampled)} of them sampled"),
            (
                "Outcomes",
                f"{sum(not claim['as_recorded'] for claim in claims)} surprises",
                "that differ from what is recorded",
            ),
        ]
    )


def overview(claims: list[dict], *, linked: bool = False) -> str:
    """A line for each claim, which leads to its card if there is one."""
    lines = "".join(
        f'<tr class="{standing(claim)}">'
        f'<th scope="row">{_name(claim, linked)}\n{escape(claim["paper"])}</th>'
        f'<td data-label="Recorded">{escape(claim["standing"])}</td>'
        f'<td data-label="Printed form">{_word(claim["printed_holds"])}</td>'
        f'<td data-label="Corrected form">{_corrected(claim)}</td></tr>'
        for claim in claims
    )
    heads = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("Claim", "Recorded", "Printed form", "Corrected form")
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="All claims">'
        f'<table class="claims"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _word(holds: bool | None) -> str:
    return f"{SIGNS[holds]} {WORDS[holds]}"


def _corrected(claim: dict) -> str:
    """A dash where there is no corrected form, or none that can be computed."""
    return "–" if claim["corrected_holds"] is None else _word(claim["corrected_holds"])


def standing(claim: dict) -> str:
    """The kind of a row of the table of claims."""
    if not claim["as_recorded"]:
        return "neither"
    return "corrected" if claim["printed_holds"] is False else "printed"


def anchor(*parts: str) -> str:
    """Identifier of a paper, or of a claim by its paper and name."""
    text = " ".join(parts)
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}".replace("-", "−")


def _name(claim: dict, linked: bool) -> str:
    name = escape(claim["name"])
    return f'<a href="#{anchor(claim["paper"], claim["name"])}">{name}</a>' if linked else name


def _chance(results: dict) -> str:
    checks = [check for claim in results["claims"] for check in claim["checks"]]
    sampled = [check for check in checks if check["stderr"]]
    powers = [
        check["power"]
        for check in sampled
        if check["kind"].startswith("Monte-Carlo") and check["prediction"]
    ]
    smallest = f"{min(powers):.4f}" if powers else "–"
    return (
        f"{len(sampled)} checks are sampled and decided together: by Holm's correction the chance "
        f"that any true statement is rejected is at most {100 * results['level']:g} %. A mean or "
        f"variance that is 10 % off is noticed with probability {smallest} at least. All others "
        "are computed, on random and on adversarial cases."
    )


def _card(claim: dict, curves: dict, out: Path) -> str:
    forms = [
        f"<p><b>{title}:</b> {escape(text)}</p>"
        for title, text in (("Printed", claim["printed"]), ("Corrected", claim["corrected"]))
        if text
    ]
    verdict = claim["verdict"][0].upper() + claim["verdict"][1:]
    return (
        f'<article id="{anchor(claim["paper"], claim["name"])}"><h3>{escape(claim["name"])}</h3>'
        f"<p>{escape(claim['statement'])}</p>{''.join(forms)}"
        f"<p><b>{escape(verdict)}.</b> Recorded: {escape(claim['standing'])}.</p>"
        f"{_checks(claim)}{_links(claim, out)}{_curves(claim, curves)}</article>"
    )


def _checks(claim: dict) -> str:
    """A table of the checks, if there are any."""
    checks = claim["checks"]
    if not checks:
        return ""
    rows = [
        [
            f"{check['what']}\n{check['kind']}, {_form(check)}",
            number(check["estimate"]) + (f" ± {check['stderr']:.1g}" if check["stderr"] else ""),
            number(check["prediction"]),
            "–" if check["z"] is None else f"{check['z']:.1f}".replace("-", "−"),
            f"{check['draws']:,}",
            _word(check["holds"]) + ("" if check["as_recorded"] else ": not as recorded"),
        ]
        for check in checks
    ]
    head = ["Check", "Estimate or worst case", "Prediction", "z", "Draws or cases", "Outcome"]
    kinds = [
        "neither" if not check["as_recorded"] else "printed" if check["holds"] else "corrected"
        for check in checks
    ]
    return table(head, rows, claim["name"], kind="claims", row_kinds=kinds)


def _curves(claim: dict, curves: dict) -> str:
    """The figures that belong to the functions that check the claim."""
    functions = dict.fromkeys(check["source"].rsplit(".", 1)[1] for check in claim["checks"])
    plots = [theorem_plots.plot(name, curves[name]) for name in functions if name in curves]
    return "".join(figure([panel], caption, legend) for panel, caption, legend in plots)


def _form(check: dict) -> str:
    return "printed form" if check["form"] != "corrected" else "corrected form"


def _links(claim: dict, out: Path) -> str:
    """Where what checks the claim is defined, as paths from the page."""
    root = Path(geometry.__file__).parent.parent
    links = []
    for name in dict.fromkeys(check["source"] for check in claim["checks"]):
        module, function = name.rsplit(".", 1)
        path = root / (module.replace(".", "/") + ".py")
        href = os.path.relpath(path, out.absolute()).replace(os.sep, "/")
        links.append(f'<a href="{escape(href)}"><code>{escape(function)}</code></a>')
    return f"<p>Checked by {', '.join(links)}.</p>" if links else ""


def _settings(results: dict) -> str:
    rows = [[key.replace("_", " "), f"{value}"] for key, value in results["environment"].items()]
    rows += [[name, f"{results[name]:g}"] for name in ("seed", "precision", "devices", "seconds")]
    return made(results["command"], table(["Part", "Version"], rows, "Device, versions, seed"))
