"""Make the page of Nachum et al.'s Figures 2 to 8; every measured value has a reference value."""

from collections.abc import Iterable

import numpy as np

from experiments.pages import geometry_plots as figures, page
from experiments.pages.geometry_plots import FIRST_LAYERS, ODD, OTHERS, PARTS, SAME, STARTS
from experiments.pages.page import details, figure, paragraphs, provenance, table
from experiments.pages.papers import reference

# These reference values for Figures 2, 3, 5 and 6 were computed without this code. The values for
# Figure 3 are medians of six networks, and the values for Figure 5 are median angles.
ODD_REFERENCE = {
    "norm_ratio": (1.7, 7.7, 47.9, 50.3),
    "second_ratio": (0.89, 0.67, 0.021, 0.020),
    "angle": (72.5, 79, 90, 90),
    "spread": (72, 70, 15.4, 11.7),
}
ANGLE_REFERENCE = {
    "standardize": (73.0, 71.8, 71.6, 71.7, 71.4, 71.7),
    "rescale_rms": (59.5, 58.6, 59.3, 59.1, 59.1, 58.7),
    "rescale": (6.6, 40.4, 25.6, 21.1, 26.4, 17.2),
    "recenter": (72.9, 64.4, 71.5, 71.6, 70.8, 71.7),
    "none": (13.2, 17.7, 15.7, 13.2, 12.8, 13.2),
}
LIMIT_REFERENCE = dict(zip(ANGLE_REFERENCE, (71.44, 58.75, 13.6, 71.44, 13.6), strict=True))
# The paper prints one angle with recentering, and one angle without recentering. It is not known
# whether the angle without recentering is for `rescale_rms` or for `rescale`.
PRINTED_ANGLE = {"standardize": "75", "rescale_rms": "60", "rescale": "60"}
ANSWER_REFERENCE = {"rescale_rms": (0.40, 0.90, 0.04, 0.50), "standardize": (0.40, 0.50, 0.0, 0.50)}
RANK_REFERENCE = {
    "default": {1: 127, 5: 69, 9: 37, 17: 1, 33: 1},
    "he": {1: 127, 5: 116, 9: 107, 17: 94, 33: 83},
    "batch_norm": {1: 128, 5: 128, 9: 128, 17: 128, 33: 128},
    "batch_norm_sgd": {},  # before training, the networks equal those of "batch_norm"
}


def render(results: dict) -> str:
    title = "Batch Normalization Decomposed: Figures 2 to 8"
    return page.render(
        results,
        title=title,
        about="geometry",
        heading=title,
        summary=paragraphs(
            "We computed each figure of the paper again, and compare every measured value with a "
            "reference that was computed without this code."
        )
        + reference("Batch Normalization Decomposed"),
        sections=[(key, title, section(results)) for key, title, section in SECTIONS],
        made=provenance(results, {name: f"{results[name]:.0f}" for name in ("seed", "seconds")}),
    )


def beside(
    values: Iterable[float], references: Iterable[float], form: str, reference_form: str = "g"
) -> list[str]:
    """Table cells with the values; each value is followed by its reference value in parentheses."""
    cells = zip(values, references, strict=True)
    return [f"{value:{form}} ({reference:{reference_form}})" for value, reference in cells]


def accuracy_and_rank(results: dict) -> str:
    measured = results["figure_2"]
    rows = []
    for start, series in STARTS.items():
        for hl, accuracy, rank, effective in zip(
            measured["depths"],
            *(measured[start][name] for name in ("accuracy", "rank", "effective_rank")),
            strict=True,
        ):
            reference = RANK_REFERENCE[start].get(hl + 1, "–")
            cells = f"{100 * np.mean(accuracy):.1f}", f"{np.mean(rank):.1f}", f"{reference}"
            rows.append([f"{series.label}, {hl + 1}", *cells, f"{np.mean(effective):.2f}"])
    recipe = (
        f"{measured['data']}, width 128, {measured['steps']:,} steps of 128 images, "
        f"{measured['runs']} runs; the paper has 17 depths, 35,100 steps and 3 runs "
        "(--figure-2 full). "
        "Ranks are measured on the last hidden layer for the first batch, before training."
    )
    head = ["start, hidden layers", "accuracy, %", "rank", "rank, reference", "effective rank"]
    return (
        paragraphs(recipe)
        + figure(
            figures.figure_2(measured),
            "Means over runs. The bands reach from the smallest to the largest run. The reference "
            "ranks were measured on synthetic inputs like images.",
            STARTS.values(),
            "three",
        )
        + details("Every depth", table(head, rows, "Figure 2"))
    )


def odd_point(results: dict) -> str:
    measured = results["figure_3"]
    names = {
        "norm_ratio": "norm over the others'",
        "second_ratio": "second norm over the first",
        "angle": "angle to the others, degrees",
        "spread": "angle of two others, degrees",
    }
    rows = [
        [title, *beside(measured["medians"][name], ODD_REFERENCE[name], ".3g")]
        for name, title in names.items()
    ]
    return (
        paragraphs(
            f"{measured['points']} Gaussian points pass through random layers of recentering and "
            f"ReLU of width {measured['width']}. One point escapes to a right angle, and the "
            "others gather. The paper draws them as one point, but they keep a spread of "
            f"{results['odd_state_spread']:.1f} degrees at infinite width."
        )
        + figure(
            figures.figure_3(measured),
            f"One of the {measured['networks']} networks of the table: its last batch, and the "
            "angles of its pairs of points.",
            (ODD, OTHERS, SAME),
        )
        + table(
            ["", *(f"layer {layer}" for layer in measured["layers"])],
            rows,
            f"Medians of {measured['networks']} networks (reference)",
        )
    )


def tree(results: dict) -> str:
    return paragraphs(
        "The recentering tree of five points. Every neuron has two children: one sees the values "
        "above its mean, and the other the values below. The figure is exact."
    ) + figure(
        figures.figure_4(results["figure_4"]),
        "Each line is a neuron, each dot is the value of a point, and the upright bar is the mean.",
    )


def angles(results: dict) -> str:
    measured = results["figure_5"]
    rows = [
        [
            title,
            *beside(measured["parts"][name]["medians"], ANGLE_REFERENCE[name], ".1f"),
            f"{measured['parts'][name]['infinite_width']:.2f}",
            f"{LIMIT_REFERENCE[name]:g}",
            PRINTED_ANGLE.get(name, "–"),
        ]
        for name, title in PARTS.items()
    ]
    head = ["n, width", *(f"{n}, {width}" for n, width in measured["sizes"])]
    return (
        paragraphs(
            "Angles of pairs of Gaussian points after layer 29 and after layer 30. The paper has "
            "75 degrees with recentering and 60 without. “Without recentering” has two readings: "
            "rescaling about zero gives 58.75 degrees, and rescaling about the mean lets angles "
            "collapse. With recentering the angle is 71.44 degrees for many points, and 75 for "
            "nine."
        )
        + figure(
            figures.figure_5(measured),
            "100 points, width 500; a fifth of all pairs.",
            (SAME,),
            "three",
        )
        + table(
            [*head, "100, ∞ (exact)", "∞, ∞ (reference)", "the paper"],
            rows,
            "Median angle after layer 30, degrees (reference); infinite width: our exact maps",
            kind="narrow",
        )
    )


def histograms(results: dict) -> str:
    measured = results["figure_6"]
    head = {
        "median": "median neuron",
        "p95": "95th percentile",
        "above_90_percent": "neurons that answer more than 90 % of inputs",
        "zeros": "entries that are 0",
    }
    rows = []
    for name, references in ANSWER_REFERENCE.items():
        values = (measured["parts"][name][key] for key in head)
        rows.append([PARTS[name], *beside(values, references, ".2f", ".2f")])
    return (
        paragraphs(
            f"{measured['points']} points, width {measured['width']}, layer {measured['layer']}. "
            "Without recentering some neurons respond to almost every input; with recentering "
            "none does. “Negligible for most inputs” does not describe this: half of the "
            "activities are zero, and the other half has a half-Gaussian distribution."
        )
        + figure(
            figures.figure_6(measured),
            "Left: the neuron with the largest ratio of mean to standard deviation.",
        )
        + table(
            ["", *head.values()],
            rows,
            "Share of inputs above a tenth of a neuron's maximum (reference)",
        )
    )


def clusters(results: dict) -> str:
    return paragraphs(
        "One step of the tree. A neuron of two values has two children of two values. A neuron of "
        "three values has one child of three and one child of two values. This is exact, except "
        "if a value equals the mean."
    ) + figure(
        figures.figures_7_and_8(results["figures_7_and_8"]),
        "The values of a neuron and of its two children at five points.",
    )


def per_point(results: dict) -> str:
    measured = results["neuron_per_point"]
    rows = []
    for name, series in FIRST_LAYERS.items():
        curves = 100 * np.array(measured[name])
        chosen = (0, len(curves[0]) // 2, -1)
        error = curves.std(0, ddof=1) / len(curves) ** 0.5
        rows.append([series.label, *(f"{curves.mean(0)[i]:.2f} ± {error[i]:.2f}" for i in chosen)])
    epochs = measured["epochs"]
    return (
        paragraphs(
            "The paper's Discussion proposes to start with one neuron for each data point. We "
            f"compare an MLP of {measured['points']} hidden neurons on the digits, one for each of "
            f"as many training images, with He's initialization; {measured['runs']} runs, Adam at "
            "0.001."
        )
        + figure(
            figures.neuron_per_point(measured),
            "Means over runs. The bands reach from the smallest to the largest run.",
            FIRST_LAYERS.values(),
        )
        + table(
            ["start", "epoch 1", f"epoch {epochs // 2 + 1}", f"epoch {epochs}"],
            rows,
            "Test accuracy, % ± standard error over runs",
        )
    )


SECTIONS = (
    ("figure-2", "Figure 2: accuracy and rank", accuracy_and_rank),
    ("figure-3", "Figure 3: the odd point", odd_point),
    ("figure-4", "Figure 4: the tree", tree),
    ("figure-5", "Figure 5: angles", angles),
    ("figure-6", "Figure 6: neurons", histograms),
    ("figure-7", "Figures 7 and 8: clusters", clusters),
    ("per-point", "One neuron per point", per_point),
)
