"""The pages of docs/results, drawn again from the numbers beside them, with an index of them all.

    python tests/support/results_pages.py

Nothing is measured: a page changes where its layout does, and a test holds that each is what its
results.json gives. Beside what the commands write, pages have links to each other.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in ("", "scripts")]

from experiments import cli, files
from experiments.benchmarks import compiled_page
from experiments.pages import (
    analysis,
    figures,
    filter_settings,
    geometry,
    page,
    prune,
    reproduce,
    theorems,
    train,
)
from experiments.pages.mathematics import plain
from experiments.pages.papers import papers
from experiments.texts import html
from tests.support import repair_page

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES: dict[str, Callable[[Any], str]] = {
    "report": reproduce.render,
    "theorems": partial(theorems.render, out=FOLDER / "theorems"),
    "resnet20": analysis.render,
    "mnist-mlp": analysis.render,
    "cifar10-vgg11": analysis.render,
    "cifar10-preact20": analysis.render,
    "settings": filter_settings.render,
    "geometry": geometry.render,
    "prune/digits": prune.render,
    "prune/digits-30": prune.render,
    "prune/cifar10": prune.render,
    "train/cifar10-resnet20-batch_norm": train.render,
    "train/cifar10-resnet20-unitized": train.render,
    "train/cifar10-speed-batch_norm": train.render,
    "train/cifar10-speed-unitized": train.render,
    "compiled": compiled_page.render,
    "repair": repair_page.render,
}
NUMBERS = {"repair": "digits.json"}  # else results.json


def drawn() -> dict[Path, str]:
    """The text of every page and of the index, by file."""
    results = {
        name: json.loads(
            (FOLDER / name / NUMBERS.get(name, "results.json")).read_text(encoding="utf-8")
        )
        for name in PAGES
    }
    texts = {name: render(results[name]) for name, render in PAGES.items()}
    headings = {name: _heading(text, name) for name, text in texts.items()}
    entries = "".join(
        f'<li><p><a href="{name}/index.html">{heading}</a><br>'
        f"<code>{html(results[name]['command'])}</code></p></li>"
        for name, heading in headings.items()
    )
    index = page.render(
        title="Results of jaxnorm",
        kicker="jaxnorm",
        heading="Results",
        summary="<p>Each page has its numbers beside it, in results.json; below are all figures "
        f"and tables of the three papers.</p><ul>{entries}</ul>",
        sections=list(tables(results["theorems"]["claims"])),
    )
    linked = {FOLDER / name / "index.html": _linked(texts[name], name, headings) for name in texts}
    return {FOLDER / "index.html": index} | linked


def tables(claims: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Key, title and HTML of a table of each paper's figures and tables."""
    head = ["", "printed", "ours", "made by", "time", "page"]
    for paper in papers():
        rows = figures.rows([claim for claim in claims if claim["paper"] == paper.short])
        cells = [
            [
                row.name or "also",
                plain(row.printed),
                plain(row.ours),
                row.command,
                row.time,
                row.page.parent.name if row.page else "none",
            ]
            for row in rows
        ]
        key = paper.short.lower().replace(" ", "-")
        yield key, paper.title, page.table(head, cells, "Figures and tables", kind="claims")


def _heading(text: str, name: str) -> str:
    """What a page is about; results of several ratios or machines differ by their folder."""
    found = re.search(r"<h1>(.*?)</h1>", text)
    assert found is not None  # page.html has one
    return f"{found[1]} ({html(name)})"


def _linked(text: str, name: str, headings: dict[str, str]) -> str:
    """A page with links to the index and to all others at its end."""

    def link(target: str, words: str) -> str:
        path = os.path.relpath(FOLDER / target / "index.html", FOLDER / name)
        return f'<a href="{Path(path).as_posix()}">{words}</a>'

    others = [link(other, heading) for other, heading in headings.items() if other != name]
    links = " ".join([link("", "All results"), *others])
    footer = f'<footer><nav aria-label="Other results">{links}</nav></footer>'
    return text.replace("</main>", f"</main>\n{footer}", 1)


def main() -> None:
    """Write the pages that differ."""
    for path, text in drawn().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            files.write(path, text)
            cli.say(f"Written: {path}")


if __name__ == "__main__":
    main()
