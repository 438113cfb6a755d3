"""Make the page of `scripts/analyze.py`, with the pruning paper's figures for one network."""

from collections.abc import Iterator

from experiments.measures import analysis
from experiments.pages import analysis_figures as figures, page
from experiments.pages.page import cards, details, paragraphs, provenance, table
from experiments.pages.papers import criteria_defined, reference
from experiments.pages.series import CRITERIA, pair_label
from experiments.texts import shorten

# If, for every pair of criteria, ρ is above 0.9 in at least this share of the layers, the page says
# that the criteria rank the filters nearly alike.
ALIKE = 0.8
SHORT_LABELS = {"fermat": "F", "gm": "GM"}
SHORT = {
    pair: "·".join(SHORT_LABELS.get(name, name) for name in pair.split("-"))
    for pair in analysis.PAIRS
}
MARKS = {
    "normal": "N",
    "symmetry": "S",
    "homogeneity": "H",
    "uncorrelated": "U",
    "spherical": "C",
    "spearman": "R",
    "mean": "M",
}
COLUMNS = (
    "The columns from “l1·l2” to “F·GM” have Spearman's ρ of pairs of criteria, where F is Fermat. "
    "The column “overlap” has the smallest overlap of all pairs. The column “KS” has the "
    "Kolmogorov-Smirnov distance between the weights and a Gaussian. The distance between the "
    "distribution of the weights and a Gaussian is at most “KS bound” with 95 % confidence. The "
    "column “σ spread” has the relative spread of the filters' standard deviations, divided by its "
    "value for Gaussian filters."
)
MEAN = (
    "The letter M means that a test does not show that the mean weight is within "
    f"{analysis.MEAN_MARGIN} σ of 0 (one test for each layer at the 5 % level)."
)
LEGEND = (
    f"{COLUMNS} The column “fails” has a letter for each test that rejects at the 5 % level, with "
    "Holm's correction over layers: N for normal weights, S for symmetric weights, H for filters "
    "with one σ, U for uncorrelated filters, C for filters with covariance c² I, and R for ranks "
    f"by l1 and l2 as of Gaussian filters. {MEAN}"
)


def render(results: dict) -> str:
    entries = {**results["settings"], "seconds": f"{results['seconds']['analysis']:.1f}"}
    return page.render(
        results,
        title=f"Pruning criteria and weights of {results['file']}",
        about=results["file"],
        heading="Which filters would be removed, and are they Gaussian?",
        summary=_summary(results),
        sections=[(key, title, section(results)) for key, title, section in SECTIONS],
        made=provenance(results, entries),
    )


def _summary(results: dict) -> str:
    layers = results["layers"]
    items = [(results["kind"].capitalize(), str(len(layers)), f"in {results['file']}")]
    if layers:
        counts = analysis.above(results)
        low, high = (pick(counts, key=lambda p: counts[p][0]) for pick in (min, max))
        for pair in dict.fromkeys((low, high)):
            count, total = counts[pair]
            items.append((pair_label(pair), f"{count} of {total}", "layers have ρ above 0.9"))
        far = max(layers, key=lambda layer: layer["ks"])
        near = min(layers, key=lambda layer: layer["ks"])
        items += [
            ("Farthest from Gaussian", f"{far['ks']:.3f}", f"KS of {shorten(far['name'])}"),
            ("Nearest to Gaussian", f"{near['ks']:.3f}", f"KS of {shorten(near['name'])}"),
            (
                "Layers that fail no test",
                f"{sum(not layer['fails'] for layer in layers)} of {len(layers)}",
                "at the 5 % level, with Holm's correction",
            ),
        ]
    done = (
        f"We ranked the filters in each of the {len(layers)} {results['kind']} of "
        f"{results['file']} by four pruning criteria, compared the rankings, and tested whether "
        "the weights are Gaussian. A filter consists of the weights of one output channel."
    )
    ignored = [
        f"We left out {shorten(name)}, because the layer {why}."
        for name, why in results["left_out"].items()
    ]
    found = paragraphs(done, *conclusion(results))
    return found + cards(items) + paragraphs(*ignored) + criteria_defined() + reference("CWDA")


def conclusion(results: dict) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    layers = results["layers"]
    if not layers:
        return
    counts = analysis.above(results)
    pair = min(counts, key=lambda p: counts[p][0])
    count, total = counts[pair]
    rho = "Spearman's ρ, which is the correlation of the two rankings of a layer's filters,"
    if count >= ALIKE * total:
        yield (
            f"The criteria rank the filters nearly alike. For every pair of criteria, {rho} is "
            f"above 0.9 in {count} of {total} layers or more."
        )
    else:
        yield (
            f"The criteria do not rank the filters alike in all layers. For {pair_label(pair)}, "
            f"{rho} is above 0.9 in only {count} of {total} layers."
        )
    rejected = sum("normal" in layer["fails"] for layer in layers)
    largest = max(layer["ks"] for layer in layers)
    if rejected:
        yield (
            f"In {rejected} of {len(layers)} layers, a Kolmogorov-Smirnov test rejects that the "
            "weights are Gaussian with mean 0 (5 % level, with Holm's correction over layers). The "
            "Kolmogorov-Smirnov distance (KS), which is the largest difference between the "
            f"distribution functions, is at most {largest:.3f}."
        )
    else:
        yield (
            "The Kolmogorov-Smirnov test does not distinguish the weights of any layer from "
            "Gaussian weights with mean 0 (5 % level, with Holm's correction over layers)."
        )


def layer_columns(layers: list[dict]) -> dict[str, list[str]]:
    """The columns of the table of layers, as a dictionary from titles to all layers' cells."""
    similarity = {
        SHORT[pair]: [f"{layer['spearman'][pair]:.3f}" for layer in layers]
        for pair in analysis.PAIRS
    }
    return {
        "layer": [shorten(layer["name"], 48) for layer in layers],
        "filters": [f"{layer['filters']}" for layer in layers],
        "dims": [f"{layer['dims']:,}" for layer in layers],
        **similarity,
        "overlap": [f"{min(layer['overlap'].values()):.2f}" for layer in layers],
        "KS": [f"{layer['ks']:.3f}" for layer in layers],
        "KS bound": [f"{layer['ks_bound']:.3f}" for layer in layers],
        "σ spread": [f"{x['std_spread'] * (2 * x['dims']) ** 0.5:.1f}" for x in layers],
        "dead": [f"{layer['dead']}" for layer in layers],
        "fails": [" ".join(MARKS[test] for test in layer["fails"]) or "–" for layer in layers],
    }


def _layers(results: dict) -> str:
    layers = results["layers"]
    columns = layer_columns(layers)
    sizes = ["layer", "filters", "dims"]
    tables = {
        "Spearman's ρ of each pair of criteria, and the smallest overlap of two criteria": [
            *(*sizes, *SHORT.values(), "overlap")
        ],
        "Distance to a Gaussian, and tests that fail": [
            *(*sizes, "KS", "KS bound", "σ spread", "dead", "fails")
        ],
    }
    rejected = [
        [hypothesis, MARKS[test], f"{sum(test in x['fails'] for x in layers)} of {len(layers)}"]
        for test, hypothesis in analysis.TESTS.items()
    ]
    tests = table(
        ["hypothesis", "letter", "layers"],
        rejected,
        "Number of layers in which a test rejects the hypothesis at the 5 % level, with Holm's "
        "correction over layers; c² is the mean square of the weights, and I the identity matrix",
    )
    dims = "The column “dims” has the number of weights of a filter."
    ends = (
        "The column “dead” counts filters that are shorter than 10⁻⁶ of the longest filter. "
        "The column “fails” has the letters of the tests that reject."
    )
    return (
        tests
        + paragraphs(f"{dims} {COLUMNS} {ends} {MEAN}")
        + "".join(
            table(head, list(zip(*(columns[name] for name in head), strict=True)), caption)
            for caption, head in tables.items()
        )
    )


def _first(results: dict) -> str:
    """The HTML table of the filters that each criterion would remove first (paper's Table 1)."""
    head = ["layer", *(series.label for series in CRITERIA.values())]
    rows = {
        layer["name"]: [
            shorten(layer["name"]),
            *(" ".join(map(str, layer["first"][c])) for c in CRITERIA),
        ]
        for layer in results["layers"]
    }
    chosen = [rows[name] for name in results["chosen"]]
    caption = "Indices (from 0) of the eight filters with the lowest scores, lowest score first"
    first = table(head, chosen, f"{caption} (the paper's Table 1)")
    return first + details("Show all layers", table(head, [*rows.values()], caption))


SECTIONS = (
    ("similarity", "How alike the criteria are", figures.similarity),
    ("histograms", "Distribution of the weights", figures.histograms),
    ("scores", "Scores by two criteria", figures.scores),
    ("first", "Filters with the lowest scores", _first),
    ("layers", "Layer by layer", _layers),
    ("covariances", "Covariance of the filters", figures.covariances),
    ("others", "Other parameters", figures.others),
)
