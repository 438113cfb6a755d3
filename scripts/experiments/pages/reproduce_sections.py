"""The sections of the report, each a function from the results to HTML."""

from experiments.pages import reproduce_plots, sentences
from experiments.pages import theorems as theorem_page
from experiments.pages.page import figure, made, paragraphs, table
from experiments.pages.plots import MUTED, SERIES, Series
from experiments.pages.reproduce_plots import ARMS, CRITERIA, GAUSSIAN, pair_label
from experiments.pages.sentences import duration, likeness, number, percent

NAMES = {"spearman": "ρ", "overlap": "overlap"}


def accuracy(results: dict) -> str:
    training = results["training"]
    final = [training[arm]["accuracy"] for arm in ARMS] + [training["difference"]]
    values = zip(*(m["values"] for m in final), strict=True)
    rows = [
        [
            f"seed {i}",
            *(
                percent({"mean": value, "stderr": 0}).split("\N{NO-BREAK SPACE}")[0]
                for value in row
            ),
        ]
        for i, row in enumerate(values, 1)
    ]
    rows.append(["mean", *map(percent, final)])
    head = ["", "batch norm, %", "unitized, %", "difference, points"]
    return (
        figure(
            reproduce_plots.accuracy(training), sentences.accuracy(results), ARMS.values(), "three"
        )
        + table(head, rows, "Test accuracy after the last epoch")
        + paragraphs(sentences.alpha(training))
    )


def moments(results: dict) -> str:
    layer, channels = results["moments"]["layer"], results["moments"]["channels"]
    return paragraphs(
        f"Four moments of the outputs of the {layer} on {results['data']['probe']:,} test images: "
        f"the line is the median over {channels} channels and all seeds, the band goes from "
        "quartile to quartile. The "
        "unitization paper (Figure 2) sees skewness and kurtosis become steadier by unitization."
    ) + figure(reproduce_plots.moments(results), sentences.moments(results), ARMS.values())


def distances(results: dict) -> str:
    return paragraphs(
        "The exact earth mover distance, channel by channel, between the outputs of the "
        f"{results['moments']['layer']} after one epoch and after the next, averaged over "
        "channels. The unitization paper (Figure 3) reads it as internal covariate shift."
    ) + figure(reproduce_plots.distances(results), sentences.distances(results), ARMS.values())


def criteria(results: dict) -> str:
    pruning = results["pruning"]
    lines = [*ARMS.values(), GAUSSIAN]
    kinds = {"masked": "Without further change", "recalibrated": "With recalibrated statistics"}
    parts = [
        paragraphs(
            "Each criterion scores the filters of a layer, and the lowest scores are pruned first. "
            "The pruning paper says that l1, l2, Fermat and GM rank the filters almost alike."
        ),
        "<h3>Spearman's ρ by layer (every panel has its own scale)</h3>",
        figure(
            reproduce_plots.by_layer(pruning, "spearman"),
            sentences.spearman(pruning),
            lines,
            "three",
        ),
        f"<h3>Overlap by layer, at {100 * pruning['overlap_ratio']:.3g} %</h3>",
        figure(
            reproduce_plots.by_layer(pruning, "overlap"),
            sentences.overlap(pruning),
            lines[:2],
            "three",
        ),
        _pairs(pruning),
        "<h3>Accuracy after masking</h3>",
    ]
    for kind, title in kinds.items():
        if all(kind in pruning[arm] for arm in ARMS):
            kept = "; ".join(sentences.masking(pruning, arm, kind) for arm in ARMS)
            parts += [
                figure(
                    reproduce_plots.masking(pruning, kind),
                    f"{title}, {kept} (dashed: nothing masked).",
                    CRITERIA.values(),
                ),
                _masked(pruning, kind, title),
            ]
    return "".join(parts) + _layers(pruning)


def filters(results: dict) -> str:
    layers = results["histograms"]
    return paragraphs(
        "Weights of a few convolutions of the batch norm network (bars) and the fitted Gaussian of "
        "mean 0 (dashed). The pruning paper assumes that weights are Gaussian."
    ) + figure(reproduce_plots.histograms(layers), sentences.histograms(layers), (), "three")


def claims(results: dict) -> str:
    found = results["claims"]
    papers = {claim["paper"] for claim in found}
    return (
        paragraphs(
            f"{len(found)} claims of {len(papers)} papers that are wrong or far off as printed, "
            "against random draws. scripts/check_theorems.py checks every numbered object of the "
            "three and gives each a card."
        )
        + theorem_page.summary(found)
        + theorem_page.overview(found)
        + paragraphs(sentences.claims(found))
    )


def odd_point(results: dict) -> str:
    found = results["odd_point"]
    network, tree = found["network"], found["tree"]
    points = Series("the other points", SERIES[0], "o")
    odd = Series("the longest point", SERIES[1], "*")
    limit = Series(f"{network['points'] - 1}, as in the invariant representation", MUTED, "")
    return paragraphs(
        f"{network['points']} points go through {network['depth']:,} random layers of recentering "
        f"and ReLU, {network['width']:,} wide; {tree['points']} numbers go through the recentering "
        f"tree to depth {tree['depth']:,}. The paper on batch normalization's parts says that one "
        "point escapes at a right angle while the others gather."
    ) + figure(
        reproduce_plots.odd_point(found), sentences.odd_point(found), (odd, points, limit), "three"
    )


def settings(results: dict) -> str:
    times = [[stage, duration(value)] for stage, value in results["seconds"].items()]
    return made(
        results["command"],
        table(["Setting", "Value"], _entries(results["settings"]), "Settings"),
        table(["Part", "Version"], _entries(results["environment"]), "Device and versions"),
        table(["Stage", "Time"], times, "Time of each stage"),
    )


def _pairs(pruning: dict) -> str:
    ranks = {
        (q, arm): sentences.ranks(pruning, q, arm) for q in ("spearman", "overlap") for arm in ARMS
    }
    head = ["", *(f"{NAMES[q]}, {ARMS[arm].label}" for q, arm in ranks), "ρ, Gaussian filters"]
    rows = [
        [
            pair_label(pair),
            *(likeness(found[pair]) for found in ranks.values()),
            number(sentences.average(pruning["expected_spearman"][pair]), 4),
        ]
        for pair in pruning["pairs"]
    ]
    return table(head, rows, "Pairs of criteria, averaged over layers")


def _masked(pruning: dict, kind: str, title: str) -> str:
    rows = []
    for arm in ARMS:
        ratios = list(pruning[arm][kind]["l1"])
        whole = percent(pruning[arm]["unmasked"])
        rows.append([f"{ARMS[arm].label}, 0 %", *(whole for _ in CRITERIA)])
        for ratio in ratios:
            left = (percent(pruning[arm][kind][name][ratio]) for name in CRITERIA)
            rows.append([f"{ARMS[arm].label}, {100 * float(ratio):.3g} %", *left])
    head = ["share masked", *(series.label for series in CRITERIA.values())]
    return table(head, rows, f"{title}: test accuracy after masking, %")


def _layers(pruning: dict) -> str:
    """All that the figures by layer show, as a table to open."""
    head = ["", "layer", "filters", "dims", *map(pair_label, pruning["pairs"])]
    rows = []
    for i, layer in enumerate(pruning["layers"]):
        found = (
            sentences.over_seeds(run[i] for run in pruning["batch_norm"]["spearman"][pair])
            for pair in pruning["pairs"]
        )
        rows.append([f"{i + 1}", layer["name"], f"{layer['filters']}", f"{layer['dims']:,}"])
        rows[-1] += [likeness(m) for m in found]
    inside = table(head, rows, "Spearman's ρ under batch norm")
    return f"<details><summary>Layer by layer</summary>{inside}</details>"


def _entries(mapping: dict) -> list[list[str]]:
    return [[key.replace("_", " "), f"{value}"] for key, value in mapping.items()]


ALL = (
    ("accuracy", "Accuracy", accuracy),
    ("moments", "Moments of a layer", moments),
    ("distances", "Covariate shift", distances),
    ("criteria", "Pruning criteria", criteria),
    ("filters", "Distribution of the weights", filters),
    ("claims", "Claims", claims),
    ("odd-point", "The odd point", odd_point),
    ("settings", "How it was made", settings),
)
