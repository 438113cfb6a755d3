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
from experiments.pages.series import NORMALIZATIONS, pair_label, unitized_defined


def render(results: dict) -> str:
    data = results["data"]["name"]
    times = {f"time, {stage}": sentences.duration(s) for stage, s in results["seconds"].items()}
    return page.render(
        results,
        title=f"Normalization, pruning and geometry on {data}",
        about=data,
        heading=f"Experiments of three papers, repeated on {data}",
        summary=_summary(results),
        sections=[(key, title, section(results)) for key, title, section in SECTIONS],
        made=provenance(results, results["settings"] | times),
    )


def _summary(results: dict) -> str:
    training, claims = results["training"], results["claims"]
    pair, *_ = criteria.ranked_pairs(results["pruning"], "spearman") or [None]
    items = [
        (
            series.label.capitalize(),
            percent(training[name]["accuracy"]) + " %",
            "of the test images are classified correctly",
        )
        for name, series in NORMALIZATIONS.items()
    ]
    items += [
        (
            "Unitized minus batch norm",
            percent(training["difference"], sign="+") + " points",
            f"The accuracy is {sentences.judge(training['difference'])}",
        ),
        (
            "Least similar pruning criteria",
            likeness(pair[1]) if pair else "–",
            f"is the mean rank correlation of {pair_label(pair[0])}"
            if pair
            else "No layer has a ranking",
        ),
        (
            "Errata of three papers",
            f"{sum(claim['as_recorded'] for claim in claims)} of {len(claims)} confirmed",
            "We chose claims that are false or misprinted",
        ),
        ("Time", sentences.duration(results["seconds"]["total"]), results["environment"]["device"]),
    ]
    done = (
        f"We trained the same network with batch norm and with unitized batch norm on "
        f"{results['data']['name']}, compared criteria of pruning on the trained networks, and "
        f"checked claims of three papers by random draws. {unitized_defined()}"
    )
    about = paragraphs(*_about(results))
    return paragraphs(done) + cards(items) + about + criteria_defined() + reference(*KEYS)


def _about(results: dict) -> Iterable[str]:
    data, settings = results["data"], results["settings"]
    shape = "×".join(str(size) for size in data["shape"])
    seeds = settings["seeds"]
    yield (
        f"The data set {data['name']} has {data['train']:,} training images and {data['test']:,} "
        f"test images of shape {shape}, in {data['classes']} classes. Moments, distances and the "
        f"accuracy after masking are measured on {data['probe']:,} test images."
        + f" The data set has the note “{data['note']}”"
        * bool(data["note"])
    )
    spread = (
        f"A number after ± is one standard error over {seeds} seeds. A band or a bar in a figure "
        "is also one standard error, unless the caption says otherwise."
    )
    yield (
        f"Both networks start from the same weights and are trained for {settings['epochs']} "
        f"epoch{'s' * (settings['epochs'] > 1)}. "
        + (spread if seeds > 1 else "There was only one seed, so no standard error is known.")
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
