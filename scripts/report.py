"""The page that shows a run: `write(results, folder)` makes `index.html` and `results.json`.

The page needs nothing beside itself: its figures are inline SVG, its style sheet is in its head,
and it has no script. Every number and every judgement on it comes from `results`.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template

import numpy as np

import sections
import sentences
from figures import ARMS, pair_label
from sections import paragraphs
from sentences import likeness, percent


def render(results: dict) -> str:
    """The whole page. `results` is described in `scripts/reproduce.py`."""
    results = {key: plain(part) for key, part in results.items()}
    here = Path(__file__).parent
    return Template((here / "report.html").read_text(encoding="utf-8")).substitute(
        style=(here / "report.css").read_text(encoding="utf-8"),
        data=escape(results["data"]["name"]),
        date=escape(results["date"].replace("T", " ")),
        summary=_summary(results),
        contents="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections.ALL),
        sections="".join(
            f'<section id="{key}"><h2>{title}</h2>{body(results)}</section>'
            for key, title, body in sections.ALL
        ),
    )


def write(results: dict, folder: Path) -> None:
    """Write `index.html` and `results.json`; earlier ones stay whole until both new ones are."""
    texts = {
        "results.json": json.dumps(plain(results), indent=1, allow_nan=False) + "\n",
        "index.html": render(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as unfinished:
        for name, text in texts.items():
            with open(Path(unfinished, name), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for name in texts:
            os.replace(Path(unfinished, name), folder / name)


def plain(value: object) -> object:
    """`value` as JSON can say it: lists for arrays, None for what is not finite."""
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if np.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return plain(np.asarray(value).tolist())


def _summary(results: dict) -> str:
    training, pruning, claims = results["training"], results["pruning"], results["claims"]
    ranks = sentences.ranks(pruning, "spearman", "batch_norm")
    known = {pair: m for pair, m in ranks.items() if m["mean"] is not None}
    least = min(known, key=lambda pair: known[pair]["mean"], default=None)
    cards = [
        (
            ARMS[arm].label.capitalize(),
            percent(training[arm]["accuracy"]) + " %",
            "test accuracy",
        )
        for arm in ARMS
    ]
    cards += [
        (
            "Unitized minus batch norm",
            percent(training["difference"], sign="+"),
            "points: " + sentences.judged(training["difference"]),
        ),
        (
            "Least alike criteria",
            likeness(known[least]) if least else "–",
            f"Spearman's ρ of {pair_label(least)}" if least else "no layer has a ranking",
        ),
        (
            "Claims as printed",
            f"{sum(c['printed_holds'] for c in claims)} of {len(claims)} hold",
            f"as corrected, {sum(c['corrected_holds'] for c in claims)} of {len(claims)}",
        ),
        ("Time", sentences.duration(results["seconds"]["total"]), results["environment"]["device"]),
    ]
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd>{escape(note)}</dd></div>"
        for name, value, note in cards
    )
    return f'<dl class="cards">{body}</dl>' + paragraphs(*_about(results))


def _about(results: dict) -> Iterable[str]:
    data, settings = results["data"], results["settings"]
    shape = "×".join(str(size) for size in data["shape"])
    seeds = settings["seeds"]
    yield (
        f"Data: {data['name']}, {data['train']:,} images of {shape} to train on and "
        f"{data['test']:,} to test on, in {data['classes']} classes; moments, distances and "
        f"masking are measured on {data['probe']:,} test images. {data['note']}".strip()
    )
    spread = f"± is the standard error over {seeds} seeds, as are bands and bars not said otherwise"
    yield (
        f"Each number comes from {settings['epochs']} "
        f"epoch{'s' * (settings['epochs'] > 1)} of training; "
        + (spread if seeds > 1 else "there was one seed, so no standard error is known")
        + ". Both networks start from the same weights."
    )
