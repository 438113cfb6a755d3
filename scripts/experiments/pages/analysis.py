"""Make the page of `scripts/analyze.py`, with the pruning paper's figures for one network."""

from collections.abc import Iterator

from experiments.measures import analysis
from experiments.pages import analysis_figures as figures, page
from experiments.pages.page import cards, details, paragraphs, provenance, table
from experiments.pages.papers import criteria_defined, reference
from experiments.pages.series import CRITERIA, pair_label
from experiments.texts import shorten

# If, for every pair of criteria, ρ is above 0.9 in at least this share of the layers, the page says
# that the criteria remove nearly the same filters.
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
LEGEND = (
    "The columns show Spearman's ρ of pairs of criteria (F is Fermat), the smallest overlap of "
    "all pairs, the distance to the Gaussian (KS) and its 95 % bound, the spread of the filters' "
    "σ divided by the spread of Gaussian filters, and dead filters, which are shorter than 10⁻⁶ "
    "of the longest filter. Letters mark tests that fail at 5 % with Holm's correction over "
    "layers: N normal, S symmetric, H one σ, U uncorrelated, C covariance c² I, R ranks of l1 and "
    "l2 as of Gaussian filters. M marks a mean that is not shown to be within "
    f"{analysis.MEAN_MARGIN} σ of 0 (one test for each layer)."
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
    items = [(results["kind"].capitalize(), str(len(layers)), f"of {results['file']}")]
    if layers:
        counts = analysis.above(results)
        low, high = (pick(counts, key=lambda p: counts[p][0]) for pick in (min, max))
        for pair in dict.fromkeys((low, high)):
            count, total = counts[pair]
            items.append((pair_label(pair), f"{count} of {total}", "layers with ρ above 0.9"))
        far = max(layers, key=lambda layer: layer["ks"])
        near = min(layers, key=lambda layer: layer["ks"])
        items += [
            ("Farthest from Gaussian", f"{far['ks']:.3f}", shorten(far["name"])),
            ("Nearest to Gaussian", f"{near['ks']:.3f}", shorten(near["name"])),
            (
                "Fail no test",
                f"{sum(not layer['fails'] for layer in layers)} of {len(layers)}",
                "layers, 5 %, Holm's correction",
            ),
        ]
    ignored = [f"Left out: {shorten(name)} {why}." for name, why in results["left_out"].items()]
    found = paragraphs(*conclusion(results))
    return found + cards(items) + paragraphs(*ignored) + criteria_defined() + reference("CWDA")


def conclusion(results: dict) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    layers = results["layers"]
    if not layers:
        return
    counts = analysis.above(results)
    pair = min(counts, key=lambda p: counts[p][0])
    count, total = counts[pair]
    if count >= ALIKE * total:
        yield (
            "The criteria would remove nearly the same filters, so the choice among them "
            f"matters little here: every pair has ρ above 0.9 in {count} of {total} layers or more."
        )
    else:
        yield (
            "The criteria would not remove the same filters, so the choice among them "
            f"matters here: {pair_label(pair)} have ρ above 0.9 in {count} of {total} layers."
        )
    rejected = sum("normal" in layer["fails"] for layer in layers)
    largest = max(layer["ks"] for layer in layers)
    if rejected:
        yield (
            f"The weights are not Gaussian in {rejected} of {len(layers)} layers (5 %, Holm's "
            f"correction); the distance to a Gaussian is at most {largest:.3f} of a possible 1."
        )
    else:
        yield (
            "The Kolmogorov-Smirnov test does not distinguish the weights of any layer from "
            "Gaussian weights."
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
        "Spearman's ρ, and the least overlap": [*sizes, *SHORT.values(), "overlap"],
        "Gaussian or not": [*sizes, "KS", "KS bound", "σ spread", "dead", "fails"],
    }
    failing = [
        f"{sum(test in x['fails'] for x in layers)} of {len(layers)} reject that {hypothesis}"
        for test, hypothesis in analysis.TESTS.items()
    ]
    text = paragraphs("At 5 %, by Holm's correction: " + "; ".join(failing) + ".", LEGEND + ".")
    return text + "".join(
        table(head, list(zip(*(columns[name] for name in head), strict=True)), caption)
        for caption, head in tables.items()
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
    first = table(head, chosen, "The eight filters with the lowest scores, ascending (Table 1)")
    every = table(head, [*rows.values()], "The eight lowest scores of every layer")
    return first + details("All layers", every)


SECTIONS = (
    ("similarity", "How alike the criteria are", figures.similarity),
    ("histograms", "Distribution of the weights", figures.histograms),
    ("scores", "Score against score", figures.scores),
    ("first", "The first to be pruned", _first),
    ("layers", "Layer by layer", _layers),
    ("covariances", "Covariance of the filters", figures.covariances),
    ("others", "Other parameters", figures.others),
)
