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
            "We computed Figures 2 to 8 of the paper again, and trained the network that its "
            "Discussion proposes. Recentering subtracts from the outputs of a neuron their mean "
            "over the batch, and rescaling divides the outputs by a measure of their size. Batch "
            "norm does both. A layer of the random networks is a random linear map, then "
            "recentering or rescaling or both, and then ReLU.",
            "A reference value was computed by other code, as a check of our value. In tables, the "
            "reference value is in parentheses, if it has no column of its own.",
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
    return (
        paragraphs(
            f"We trained networks of width 128 on {measured['data']} for {measured['steps']:,} "
            f"steps of 128 images, with {measured['runs']} runs for each depth. The paper has 17 "
            "depths, 35,100 steps and 3 runs, as with the option --figure-2 full. Before training, "
            "we measured the rank of the outputs X of the last hidden layer for the first batch, "
            "and their effective rank tr(C)²/‖C‖², where C = XᵀX. After training, we measured the "
            "accuracy on 1,000 training images."
        )
        + _deepest(measured)
        + figure(
            figures.figure_2(measured),
            "Training accuracy, rank and effective rank for each number of hidden layers. Each "
            "line is the mean over runs, and the band reaches from the smallest to the largest "
            "run.",
            STARTS.values(),
            "three",
        )
        + details("Show every depth", _depths(measured))
    )


def _deepest(measured: dict) -> str:
    """A table of the accuracies of the deepest networks."""
    rows = []
    for start, series in STARTS.items():
        values = 100 * np.array(measured[start]["accuracy"][-1])
        found = values.mean(), values.min(), values.max()
        rows.append([series.label, *(f"{value:.1f}" for value in found)])
    layers = measured["depths"][-1] + 1
    caption = f"Training accuracy in % of networks with {layers} hidden layers"
    return table(["network", "mean over runs", "smallest run", "largest run"], rows, caption)


def _depths(measured: dict) -> str:
    """A table of accuracies and ranks with a row for each network and depth."""
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
    return table(
        ["network, hidden layers", "accuracy, %", "rank", "rank, reference", "effective rank"],
        rows,
        "Means over runs for each network and number of hidden layers. The reference ranks are of "
        "networks with synthetic inputs that resemble images.",
    )


def odd_point(results: dict) -> str:
    measured = results["figure_3"]
    names = {
        "norm_ratio": "largest norm / mean norm of the others",
        "second_ratio": "second largest norm / largest norm",
        "angle": "mean angle to the others, degrees",
        "spread": "mean angle of two others, degrees",
    }
    rows = [
        [title, *beside(measured["medians"][name], ODD_REFERENCE[name], ".3g")]
        for name, title in names.items()
    ]
    return (
        paragraphs(
            f"We passed {measured['points']} Gaussian points through random layers of recentering "
            f"and ReLU of width {measured['width']}. One point, the odd point, becomes much longer "
            "than the others and moves to a right angle to them, while the others gather. The "
            "paper draws the others as one point, but at infinite width the angle between two of "
            f"them remains {results['odd_state_spread']:.1f} degrees."
        )
        + figure(
            figures.figure_3(measured),
            f"One of the {measured['networks']} networks of the table. Left: the points after the "
            "last layer, in a random plane. Right: the angle of each pair of points before and "
            "after the last layer. On the dashed line, the angle does not change.",
            (ODD, OTHERS, SAME),
        )
        + table(
            ["median", *(f"layer {layer}" for layer in measured["layers"])],
            rows,
            f"Medians over {measured['networks']} networks for the longest point, with the "
            "reference in parentheses",
        )
    )


def tree(results: dict) -> str:
    return paragraphs(
        "In the recentering tree, every neuron has two children. One child has the amounts by "
        "which the neuron's values exceed their mean, and the other child has the amounts by which "
        "the values fall below the mean. All other amounts are zero. We computed the values for "
        "five points exactly."
    ) + figure(
        figures.figure_4(results["figure_4"]),
        "Layers 0 to 3 of the tree. Each line is a neuron, each dot is the value of the neuron for "
        "a point, and the upright bar is the mean of the values.",
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
    head = ["network; n, width", *(f"{n}, {width}" for n, width in measured["sizes"])]
    return (
        paragraphs(
            "We measured the angles between pairs of Gaussian points after layers 29 and 30 of "
            "random networks. The paper has 75 degrees with recentering and 60 degrees without "
            "recentering. At infinite width, the angle with recentering is 71.44 degrees for many "
            "points, and 75 degrees for nine points. The words “without recentering” can mean two "
            "things. If the outputs are divided by their root mean square (rescaling about zero), "
            "the angle is 58.75 degrees. If the outputs are divided by their standard deviation "
            "(rescaling about the mean), the angles become much smaller."
        )
        + figure(
            figures.figure_5(measured),
            "Each point is a pair of points in a network with 100 points and width 500, and a "
            "fifth of all pairs is shown. On the dashed line, the angle does not change in the "
            "layer. Each panel has one combination of recentering and rescaling.",
            (SAME,),
            "three",
        )
        + table(
            [*head, "100, ∞ (exact)", "∞, ∞ (reference)", "the paper"],
            rows,
            "Median angle after layer 30 in degrees for n points, with the reference in "
            "parentheses. For infinite width, we computed the angle exactly. The last column has "
            "the angle that the paper prints.",
            kind="narrow",
        )
    )


def histograms(results: dict) -> str:
    measured = results["figure_6"]
    head = {
        "median": "share of inputs, median neuron",
        "p95": "share of inputs, 95th percentile",
        "above_90_percent": "share of neurons that more than 90 % of inputs activate",
        "zeros": "share of outputs that are 0",
    }
    rows = []
    for name, references in ANSWER_REFERENCE.items():
        values = (measured["parts"][name][key] for key in head)
        rows.append([PARTS[name], *beside(values, references, ".2f", ".2f")])
    return (
        paragraphs(
            f"We measured the outputs of the neurons in layer {measured['layer']} of random "
            f"networks of width {measured['width']} for {measured['points']} points. We say that "
            "an input activates a neuron if the output exceeds a tenth of the neuron's largest "
            "output. Without recentering, almost every input activates some of the neurons, and "
            "with recentering, no neuron is activated by almost every input. The paper's words "
            "“negligible for most inputs” do not describe the outputs. Half of the outputs are "
            "zero, and the other half has a half-Gaussian distribution."
        )
        + figure(
            figures.figure_6(measured),
            "Histograms of the outputs of one neuron over the inputs. Left: the neuron with the "
            "largest ratio of mean to standard deviation. Right: the first neuron that is not "
            "always zero.",
        )
        + table(
            ["network", *head.values()],
            rows,
            "Share of the inputs that activate a neuron, over all neurons, with the reference in "
            "parentheses",
        )
    )


def clusters(results: dict) -> str:
    return paragraphs(
        "The figures show one step of the recentering tree for five points. If a neuron has two "
        "different values, each child has two different values. If a neuron has three different "
        "values, one child has three and the other child has two different values, unless a value "
        "equals the mean."
    ) + figure(
        figures.figures_7_and_8(results["figures_7_and_8"]),
        "Values of a neuron and of its two children for each of five points. The dashed line is "
        "the mean of the neuron's values.",
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
            "The paper's Discussion proposes to start training with one neuron for each data "
            f"point. We trained MLPs with {measured['points']} hidden neurons on the digits. In "
            "one kind, each neuron is active for only one of as many training images at the start. "
            "The other kind starts with He et al.'s initialization. Each kind has "
            f"{measured['runs']} runs, with Adam at the learning rate 0.001."
        )
        + figure(
            figures.neuron_per_point(measured),
            "Test accuracy after each epoch, and the same accuracy in the later half of training. "
            "Each line is the mean over runs, and the band reaches from the smallest to the "
            "largest run.",
            FIRST_LAYERS.values(),
        )
        + table(
            ["network", "epoch 1", f"epoch {epochs // 2 + 1}", f"epoch {epochs}"],
            rows,
            "Mean test accuracy in % ± one standard error over runs",
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
