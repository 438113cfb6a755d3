"""The page that shows a run: `write(results, folder)` makes `index.html` and `results.json`.

Every number and every judgement on it comes from `results`.
"""

from collections.abc import Iterable
from pathlib import Path

from experiments.pages import page, reproduce_sections, sentences
from experiments.pages.page import cards, paragraphs, plain
from experiments.pages.reproduce_plots import ARMS, pair_label
from experiments.pages.sentences import likeness, percent


def render(results: dict) -> str:
    """The whole page. `results` is described in `scripts/reproduce.py`."""
    results = {key: plain(part) for key, part in results.items()}
    data = results["data"]["name"]
    return page.render(
        title=f"Normalization, pruning and geometry on {data}",
        kicker=f"jaxnorm · {data} · {results['date'].replace('T', ' ')}",
        heading="Normalization, pruning and geometry, reproduced",
        summary=_summary(results),
        sections=[(key, title, body(results)) for key, title, body in reproduce_sections.ALL],
    )


def write(results: dict, folder: Path) -> None:
    """Write `index.html` and `results.json`; earlier ones stay whole until both new ones are."""
    page.write(results, render(results), folder)


def _summary(results: dict) -> str:
    training, pruning, claims = results["training"], results["pruning"], results["claims"]
    ranks = sentences.ranks(pruning, "spearman", "batch_norm")
    known = {pair: m for pair, m in ranks.items() if m["mean"] is not None}
    least = min(known, key=lambda pair: known[pair]["mean"], default=None)
    items = [
        (
            ARMS[arm].label.capitalize(),
            percent(training[arm]["accuracy"]) + " %",
            "test accuracy",
        )
        for arm in ARMS
    ]
    items += [
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
            f"{sum(c['printed_holds'] is True for c in claims)} of {len(claims)} hold",
            f"as corrected, {sum(c['corrected_holds'] is True for c in claims)} of {len(claims)}",
        ),
        ("Time", sentences.duration(results["seconds"]["total"]), results["environment"]["device"]),
    ]
    return cards(items) + paragraphs(*_about(results))


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
