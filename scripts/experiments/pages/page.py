"""Make a page of results; `render` makes the HTML, and `write` writes page and results.

A page is one file with SVG figures and a style sheet inside, and without scripts.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any

from experiments import files, storage
from experiments.pages.plots import Series, swatch
from experiments.texts import html

# Some settings of a recipe are shown only for streamed images, and others only for group norm.
STREAMED, GROUPED = {"crop", "scales", "test_scales"}, {"norm_groups", "norm_channels"}


def render(
    results: Mapping[str, Any],
    *,
    title: str,
    about: str,
    heading: str,
    summary: str,
    sections: Iterable[tuple[str, str, str]],
    made: str,
) -> str:
    """The HTML of a whole page.

    Args:
      results: What a script measured, with the date.
      title: Title that the tab of the browser shows.
      about: The subject in a few words; the page shows the words and the date above the heading.
      heading: The heading, which says what the page shows.
      summary: HTML below the heading.
      sections: Key, title and HTML of each section.
      made: HTML of the last section, "How it was made", such as `provenance` returns.
    """
    here = Path(__file__).parent
    sections = [*sections, ("made", "How it was made", made)]
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        style=(here / "page.css").read_text(encoding="utf-8"),
        title=html(title),
        kicker=html(f"jaxnorm · {about} · {results['date'].replace('T', ' ')}"),
        heading=html(heading),
        summary=summary,
        contents="".join(f'<a href="#{key}">{html(name)}</a>' for key, name, _ in sections),
        sections="".join(
            f'<section id="{key}"><h2>{html(name)}</h2>{body}</section>'
            for key, name, body in sections
        ),
    )


def write(results: Mapping[str, object], render: Callable[[Any], str], folder: Path) -> Any:
    """Write `results.json`, and the page `index.html` that `render` makes from the same numbers.

    In a local folder, the earlier files remain until both new files are complete. The function
    returns the contents of `results.json`, where numbers are rounded.
    """
    written = files.rounded(files.plain(results))
    texts = {"results.json": files.results_text(written), "index.html": render(written)}
    if storage.is_remote(folder):
        for name, text in texts.items():
            files.write(folder / name, text)
        return written
    folder.mkdir(parents=True, exist_ok=True)
    # A killed command can leave folders `.report-*`. No other process writes to these folders now,
    # because every command locks its output folder (`files.in_use`).
    for left in folder.glob(".report-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as unfinished:
        for name, text in texts.items():
            with open(Path(unfinished, name), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for name in texts:
            os.replace(Path(unfinished, name), folder / name)
    return written


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """HTML of the main results for the top of a page; each has a name, a value and a note."""
    body = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd><dd>{html(note)}</dd></div>"
        for name, value, note in items
    )
    return f'<dl class="cards">{body}</dl>'


def paragraphs(*sentences: str) -> str:
    """HTML with one paragraph for each sentence."""
    return "".join(f"<p>{html(sentence)}</p>" for sentence in sentences)


def figure(
    panels: Sequence[str], caption: str, legend: Iterable[Series] = (), columns: str = "two"
) -> str:
    """HTML of panels, in several columns on a wide page and in one column on a phone."""
    keys = "".join(swatch(series) for series in legend)
    return (
        f'<figure><div class="legend">{keys}</div><div class="panels {columns}">{"".join(panels)}'
        f"</div><figcaption>{html(caption)}</figcaption></figure>"
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    kind: str = "",
    row_kinds: Sequence[str] = (),
) -> str:
    """HTML of a table that scrolls if the table is wider than the page.

    The first cell of a row is the name of the row.
    """
    lines = []
    for cells, row_kind in zip_longest(rows, row_kinds, fillvalue=""):
        first, *others = (html(cell) for cell in cells)
        name, newline, rest = first.partition("\n")
        first = f"<b>{name}</b>{newline}{rest}" if newline else first
        labels = (html(title) for title in head[1:])
        tds = "".join(
            f'<td data-label="{title}">{cell}</td>'
            for title, cell in zip(labels, others, strict=True)
        )
        lines.append(f'<tr class="{row_kind}"><th scope="row">{first}</th>{tds}</tr>')
    titles = "".join(f'<th scope="col">{html(title)}</th>' for title in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html(caption)}">'
        f'<table class="{kind}"><caption><span>{html(caption)}</span></caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def settings(
    entries: Mapping[str, object],
    caption: str = "Settings",
    head: tuple[str, str] = ("Setting", "Value"),
) -> str:
    """HTML of a table of settings, of any type; settings that have no effect are left out."""
    unused = set() if entries.get("dataset") == "imagenet2012" else STREAMED
    unused = unused if entries.get("normalization") == "group_norm" else unused | GROUPED
    rows = [
        [name.replace("_", " "), _said(value)]
        for name, value in entries.items()
        if name not in unused
    ]
    return table(head, rows, caption, kind="settings")


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_said, value)) or "none"
    return {"True": "yes", "False": "no", "None": "none"}.get(f"{value}", f"{value}")


def details(title: str, body: str) -> str:
    """HTML that is hidden until its title is clicked."""
    return f"<details><summary>{html(title)}</summary>{body}</details>"


def provenance(results: Mapping[str, Any], entries: Mapping[str, object]) -> str:
    """HTML of the command line, a link to results.json, and a table of settings and environment."""
    return (
        f"<p>Command: <code>{html(results['command'])}</code></p>"
        '<p>Every number of this page: <a href="results.json">results.json</a></p>'
        f"{settings({**entries, **results['environment']})}"
    )
