"""The page of an analysis: the pruning paper's pictures of one trained network."""

import numpy as np
from matplotlib.axes import Axes

from experiments.measures import analysis
from experiments.pages import page, plots, reproduce_plots
from experiments.pages.page import cards, figure, made, paragraphs, table
from experiments.pages.plots import GRID, MUTED, SERIES, SMALL, Series, draw
from experiments.pages.reproduce_plots import CRITERIA, pair_label
from experiments.pages.sentences import number

SHORT = dict(zip(analysis.PAIRS, ("l1·l2", "l1·F", "l1·GM", "l2·F", "l2·GM", "F·GM"), strict=True))
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
    "Numbers: Spearman's ρ of pairs of criteria, the least overlap, the distance to the Gaussian "
    "and its 95 % bound, the spread of filters' σ over that of Gaussian filters, filters that are "
    "zero but for 10⁻⁶ of the longest. Fails at 5 %, "
    "Holm's correction over layers: N normal, S symmetric, H one σ, U uncorrelated, C covariance "
    "c² I, R ranks of l1 and l2 as of Gaussian filters; M: the mean is not shown to be within "
    f"{analysis.MEAN_MARGIN} σ of 0 (one test a layer)"
)
FOUND = Series("this network", SERIES[0], "o")
GAUSSIAN = Series("95 % of Gaussian layers of the same shape", MUTED, "")


def render(results: dict) -> str:
    parts = {
        "layers": ("Layer by layer", _layers),
        "first": ("The first to be pruned", _first),
        "scores": ("Score against score", _scores),
        "similarity": ("How alike the criteria are", _similarity),
        "histograms": ("Distribution of the weights", _histograms),
        "covariances": ("Covariance of the filters", _covariances),
        "others": ("Other parameters", _others),
        "settings": ("How it was made", _settings),
    }
    return page.render(
        title=f"Pruning criteria and weights of {results['file']}",
        kicker=f"jaxnorm · {results['file']} · {results['date'].replace('T', ' ')}",
        heading="Which filters would go, and are they Gaussian?",
        summary=_summary(results),
        sections=[(key, title, body(results)) for key, (title, body) in parts.items()],
    )


def above(results: dict, least: float = 0.9) -> dict[str, tuple[int, int]]:
    """For each pair, in how many layers Spearman's ρ exceeds `least`, of how many."""
    layers = results["layers"]
    return {
        pair: (sum(layer["spearman"][pair] > least for layer in layers), len(layers))
        for pair in analysis.PAIRS
    }


def _summary(results: dict) -> str:
    layers = results["layers"]
    items = [("Convolutions", str(len(layers)), f"of {results['file']}")]
    if layers:
        counts = above(results)
        low, high = (pick(counts, key=lambda p: counts[p][0]) for pick in (min, max))
        for pair in dict.fromkeys((low, high)):
            count, total = counts[pair]
            items.append((pair_label(pair), f"{count} of {total}", "layers with ρ above 0.9"))
        far = max(layers, key=lambda layer: layer["ks"])
        near = min(layers, key=lambda layer: layer["ks"])
        items += [
            ("Farthest from Gaussian", f"{far['ks']:.3f}", far["name"]),
            ("Nearest to Gaussian", f"{near['ks']:.3f}", near["name"]),
            (
                "Fail no test",
                f"{sum(not layer['fails'] for layer in layers)} of {len(layers)}",
                "layers, 5 %, Holm's correction",
            ),
        ]
    ignored = [f"Left out: {name} {why}." for name, why in results["left_out"].items()]
    return cards(items) + paragraphs(*ignored)


def _layers(results: dict) -> str:
    layers = results["layers"]
    sizes = [[x["name"], f"{x['filters']}", f"{x['dims']:,}"] for x in layers]
    ranks = [
        [*(f"{rho:.3f}" for rho in x["spearman"].values()), f"{min(x['overlap'].values()):.2f}"]
        for x in layers
    ]
    tests = [
        [
            f"{x['ks']:.3f}",
            f"{x['ks_bound']:.3f}",
            f"{x['std_spread'] * (2 * x['dims']) ** 0.5:.1f}",
            f"{x['dead']}",
            " ".join(MARKS[test] for test in x["fails"]) or "–",
        ]
        for x in layers
    ]
    head = ["layer", "filters", "dims"]
    failing = [
        f"{sum(test in x['fails'] for x in layers)} of {len(layers)} reject that {said}"
        for test, said in analysis.TESTS.items()
    ]
    ranks = [a + b for a, b in zip(sizes, ranks, strict=True)]
    tests = [a + b for a, b in zip(sizes, tests, strict=True)]
    return (
        table([*head, *SHORT.values(), "overlap"], ranks, "Spearman's ρ, and the least overlap")
        + table([*head, "KS", "below", "σ spread", "dead", "fails"], tests, "Gaussian or not")
        + paragraphs(LEGEND + ".", "At 5 %, by Holm's correction: " + "; ".join(failing) + ".")
    )


def _first(results: dict) -> str:
    """Table 1."""
    head = ["layer", *(series.label for series in CRITERIA.values())]
    rows = [
        [layer["name"], *(" ".join(map(str, layer["first"][c])) for c in CRITERIA)]
        for layer in results["layers"]
    ]
    chosen = [row for row in rows if row[0] in results["chosen"]]
    inside = table(head, rows, "The eight lowest scores of every layer")
    return (
        table(head, chosen, "The eight filters with the lowest scores, ascending (Table 1)")
        + f"<details><summary>All layers</summary>{inside}</details>"
    )


def _chosen(results: dict) -> list[dict]:
    return [layer for layer in results["layers"] if layer["name"] in results["chosen"]]


def _scores(results: dict) -> str:
    """Figure 1."""

    def paint(axes: Axes, layer: dict, a: str, b: str) -> None:
        axes.grid(color=GRID)
        x, y = (np.asarray(layer["scores"][name], float) for name in (a, b))
        axes.plot(x, y, "o", color=SERIES[0], ms=4, alpha=0.6, mew=0)
        axes.locator_params(nbins=5)

    panels = [
        draw(
            lambda axes, layer=layer, a=a, b=b: paint(axes, layer, a, b),
            name=f"scores-{i}-{a}",
            title=f"{layer['name']}: {CRITERIA[b].label}",
            xlabel=f"{CRITERIA[a].label}; ρ {layer['spearman'][pair]:.3f}",
            size=SMALL,
        )
        for i, layer in enumerate(_chosen(results))
        for a, b, pair in (
            ("l1", "l2", "l1-l2"),
            ("gm", "l2", "l2-gm"),
            ("fermat", "l2", "l2-fermat"),
        )
    ]
    return figure(
        panels,
        "One point a filter, for the first, a middle and the last layer (Figure 1): l2 over l1, GM "
        "and Fermat. Gaussian filters of one width would put l1 against l2 at ρ near 0.93.",
        columns="three",
    )


def _similarity(results: dict) -> str:
    """Figures 2 and 4."""
    layers = results["layers"]
    x = np.arange(len(layers)) + 1
    bands = [results["gaussian"][f"{layer['filters']}x{layer['dims']}"] for layer in layers]

    def paint(axes: Axes, pair: str, quantity: str) -> None:
        low, high = np.array([band[pair][quantity] for band in bands], float).T
        edges = np.repeat(np.concatenate([x - 0.5, x[-1:] + 0.5]), 2)[1:-1]
        axes.fill_between(
            edges, np.repeat(low, 2), np.repeat(high, 2), color=MUTED, alpha=0.2, lw=0
        )
        middle = [band[pair][f"expected_{quantity}"] for band in bands]
        axes.plot(x, middle, color=MUTED, dashes=(4, 2), lw=1.2)
        axes.plot(x, [layer[quantity][pair] for layer in layers], color=SERIES[0], marker="o")
        plots.whole_numbers(axes)

    def panels(quantity: str) -> list[str]:
        return [
            draw(
                lambda axes, pair=pair: paint(axes, pair, quantity),
                name=f"{quantity}-{pair}",
                title=pair_label(pair),
                xlabel=f"convolution, 1 to {len(layers)}",
                size=SMALL,
            )
            for pair in analysis.PAIRS
        ]

    if not layers:
        return paragraphs("No layer has a ranking to compare.")
    counts = above(results)
    said = "; ".join(f"{pair_label(p)} in {n} of {total}" for p, (n, total) in counts.items())
    ratio = results["settings"]["ratio"]
    dashed = "Dashed: what the ledger's formulas expect of Gaussian filters."
    return (
        "<h3>Spearman's ρ by layer (every panel has its own scale)</h3>"
        + figure(
            panels("spearman"),
            f"ρ exceeds 0.9 for {said} layers (Figure 4). {dashed}",
            (FOUND, GAUSSIAN),
            "three",
        )
        + f"<h3>Overlap by layer, at {100 * ratio:.3g} %</h3>"
        + figure(
            panels("overlap"),
            f"Share of the {100 * ratio:.3g} % that one criterion would prune and the other too "
            f"(Figure 2); independent rankings share {100 * ratio:.3g} %. {dashed}",
            (FOUND, GAUSSIAN),
            "three",
        )
    )


def _histograms(results: dict) -> str:
    """Figure 3."""
    return figure(
        reproduce_plots.histograms(results["histograms"]),
        "Weights (bars) and the Gaussian of mean 0 and the same width (dashed), with the distance "
        "between the two (Figure 3).",
        columns="three",
    )


def _covariances(results: dict) -> str:
    """Figure 6."""

    def paint(axes: Axes, found: dict) -> None:
        c = np.array(found["covariance"], float)
        image = np.zeros((*c.shape, 4))
        # Opaque where large, so that the page's own paper shows where there is nothing.
        image[..., :3] = np.where(c[..., None] > 0, (0.0, 0.45, 0.7), (0.85, 0.37, 0.0))
        image[..., 3] = np.clip(np.abs(c), 0, 1)
        axes.grid(visible=False)
        axes.imshow(image, interpolation="nearest", extent=(0.5, len(c) + 0.5, len(c) + 0.5, 0.5))
        axes.locator_params(nbins=5)

    panels = [
        draw(
            lambda axes, found=found: paint(axes, found),
            name=f"covariance-{i}",
            title=f"{found['layer']}: covariance / c²",
            xlabel=f"filter; {found['dims']:,} dims",
            size=(3.4, 3.2),
        )
        for i, found in enumerate(results["covariances"])
    ]
    rows = [
        [
            layer["name"],
            *(number(layer[f"{key}_z"], 3) for key in ("diagonal", "off_diagonal", "sphericity")),
            f"{layer['smallest_eigenvalue']:.3f} to {layer['largest_eigenvalue']:.3f}",
            f"{layer['low_edge']:.3f} to {layer['high_edge']:.3f}",
        ]
        for layer in _chosen(results)
    ]
    head = ["layer", "variances, z", "correlations, z", "sphericity, z"]
    head += ["eigenvalues / c²", "Marchenko-Pastur"]
    return figure(
        panels,
        f"Covariance of the first {analysis.SHOWN} filters (Figure 6): blue positive, orange "
        "negative, full colour at c². Of Gaussian filters only the diagonal would stand out; "
        "z is N(0, 1) for them.",
        columns="three",
    ) + table(head, rows, "The whole covariance of those layers")


def _others(results: dict) -> str:
    """Figure 8."""
    others = results["others"]
    if not others:
        return paragraphs("The file holds no dense layers, biases or normalization parameters.")
    far = sorted(others, key=lambda found: -found["ks"])
    shown = [far[0], far[len(far) // 2], max(others, key=lambda found: found["weights"])]
    shown = list({found["layer"]: found for found in shown}.values())
    rows = [
        [found["layer"], f"{found['weights']:,}", f"{found['ks']:.3f}", number(found["p_value"], 2)]
        for found in others
    ]
    rejected = sum(found["p_value"] < analysis.LEVEL for found in others)
    inside = table(["parameter", "n", "KS", "p"], rows, "Distance to N(0, c²), c from the data")
    panels = [panel.replace("histogram-", "other-") for panel in reproduce_plots.histograms(shown)]
    return (
        figure(
            panels,
            "Normalization and dense parameters (Figure 8): the farthest from a Gaussian, a middle "
            f"one, the largest. {rejected} of {len(others)} reject N(0, c²) at 5 %, each alone; "
            "a normalization's scale has a positive mean, which alone makes it reject.",
            columns="three",
        )
        + f"<details><summary>All {len(others)} of them</summary>{inside}</details>"
    )


def _settings(results: dict) -> str:
    entries = {**results["settings"], **results["environment"]}
    entries["seconds"] = f"{results['seconds']['analysis']:.1f}"
    rows = [[name, f"{value}"] for name, value in entries.items()]
    return made(results["command"], table(["Setting", "Value"], rows, "Settings"))
