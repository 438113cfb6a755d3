"""Make the page that shows a run of `scripts/reproduce.py`.

Every value and every conclusion on the page comes from `results`. One of the modules
`reproduce_training`, `reproduce_criteria` and `reproduce_claims` has the plot, the sentence and the
place of each figure. A new section also needs a line in `SECTIONS`.
"""

from collections.abc import Iterable

from experiments.pages import (
    page,
    reproduce_claims as claims,
    reproduce_criteria as criteria,
    reproduce_training as training,
    sentences,
)
from experiments.pages.page import cards, paragraphs, provenance
from experiments.pages.papers import KEYS, criteria_defined, reference
from experiments.pages.sentences import likeness, percent
from experiments.pages.series import NORMALIZATIONS, pair_label


def render(results: dict) -> str:
    data = results["data"]["name"]
    times = {f"time, {stage}": sentences.duration(s) for stage, s in results["seconds"].items()}
    return page.render(
        results,
        title=f"Normalization, pruning and geometry on {data}",
        about=data,
        heading="Normalization, pruning and geometry, reproduced",
        summary=_summary(results),
        sections=[(key, title, section(results)) for key, title, section in SECTIONS],
        made=provenance(results, results["settings"] | times),
    )


def _summary(results: dict) -> str:
    training, claims = results["training"], results["claims"]
    pair, *_ = criteria.ranked_pairs(results["pruning"], "spearman") or [None]
    items = [
        (series.label.capitalize(), percent(training[name]["accuracy"]) + " %", "test accuracy")
        for name, series in NORMALIZATIONS.items()
    ]
    items += [
        (
            "Unitized minus batch norm",
            percent(training["difference"], sign="+"),
            "points: " + sentences.judge(training["difference"]),
        ),
        (
            "Least alike criteria",
            likeness(pair[1]) if pair else "–",
            f"Spearman's ρ of {pair_label(pair[0])}" if pair else "no layer has a ranking",
        ),
        (
            "Errata of three papers",
            f"{sum(claim['as_recorded'] for claim in claims)} of {len(claims)} confirmed",
            "claims chosen because they are false or misprinted",
        ),
        ("Time", sentences.duration(results["seconds"]["total"]), results["environment"]["device"]),
    ]
    return cards(items) + paragraphs(*_about(results)) + criteria_defined() + reference(*KEYS)


def _about(results: dict) -> Iterable[str]:
    data, settings = results["data"], results["settings"]
    shape = "×".join(str(size) for size in data["shape"])
    seeds = settings["seeds"]
    yield (
        f"Data: {data['name']}, {data['train']:,} images of {shape} to train on and "
        f"{data['test']:,} to test on, in {data['classes']} classes; moments, distances and "
        f"masking are measured on {data['probe']:,} test images. {data['note']}".strip()
    )
    spread = (
        f"± is the standard error over {seeds} seeds; so are bands and bars, unless stated "
        "otherwise"
    )
    yield (
        f"Each value comes from {settings['epochs']} "
        f"epoch{'s' * (settings['epochs'] > 1)} of training; "
        + (spread if seeds > 1 else "there was one seed, so no standard error is known")
        + ". Both networks start from the same weights."
    )


SECTIONS = (
    ("accuracy", "Accuracy", training.accuracy),
    ("moments", "Moments of a layer", training.moments),
    ("distances", "Covariate shift", training.distances),
    ("criteria", "Pruning criteria", criteria.criteria),
    ("filters", "Distribution of the weights", criteria.filters),
    ("claims", "Claims", claims.claims),
    ("odd-point", "The odd point", claims.odd_point),
)
