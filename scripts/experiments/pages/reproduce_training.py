"""Make the report's sections on training: accuracy, moments of a layer, and covariate shift.

Except in the plots of moments, a line is the mean over seeds, and the band around the line is one
standard error.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import plots
from experiments.pages.page import figure, paragraphs, table
from experiments.pages.plots import BAND, INK, SMALL, curve, draw, floats, line, mark_drops, panels
from experiments.pages.sentences import average, hundredths, judge, mean, number, percent
from experiments.pages.series import MOMENTS, NORMALIZATIONS


def accuracy(results: dict) -> str:
    training = results["training"]
    final = [training[name]["accuracy"] for name in NORMALIZATIONS] + [training["difference"]]
    seeds = zip(*(over_seeds["values"] for over_seeds in final), strict=True)
    rows = [[f"seed {i}", *map(hundredths, values)] for i, values in enumerate(seeds, 1)]
    rows.append(["mean", *map(percent, final)])
    head = ["", "batch norm, %", "unitized, %", "difference, points"]
    caption = (
        "Test accuracy after each epoch, the same accuracy in the later half of training, and the "
        "mean training loss of each epoch. Each line is the mean over seeds. Dotted lines mark "
        "drops of the learning rate."
    )
    return (
        paragraphs(accuracy_sentence(results))
        + figure(accuracy_plots(training), caption, NORMALIZATIONS.values(), "three")
        + table(
            head,
            rows,
            "Test accuracy after the last epoch; the difference is unitized batch norm minus "
            "batch norm, in percentage points",
        )
        + paragraphs(alpha_sentence(training))
    )


def accuracy_plots(training: dict) -> list[str]:
    """Plots of the test accuracy (all epochs, and the second half) and of the training loss."""
    epochs = len(training["learning_rate"])
    middle = min(epochs // 2, epochs - 1)

    def over_epochs(axes: Axes, quantity: str, scale: float, start: int = 0) -> None:
        for name, series in NORMALIZATIONS.items():
            runs = scale * floats(training[name][quantity])[:, start:]
            curve(axes, np.arange(start, epochs) + 1, runs, series)
        mark_drops(axes, training["learning_rate"], training["drops"], start)

    def loss(axes: Axes) -> None:
        over_epochs(axes, "train_loss", 1)
        plots.log_scale(axes)

    paints = {
        "test accuracy, %": lambda axes: over_epochs(axes, "test_accuracy", 100),
        "the same, later half, %": lambda axes: over_epochs(axes, "test_accuracy", 100, middle),
        "training loss, nats": loss,
    }
    return [
        draw(paint, name=f"training-{i}", title=title, xlabel="epoch", size=SMALL)
        for i, (title, paint) in enumerate(paints.items())
    ]


def accuracy_sentence(results: dict) -> str:
    """Sentences with the accuracies, and with the conclusion from their difference."""
    training, test = results["training"], results["data"]["test"]
    batch_norm, unitized = (percent(training[name]["accuracy"]) for name in NORMALIZATIONS)
    return (
        f"After the last epoch, the network with batch norm classifies {batch_norm} % of the test "
        f"images correctly, and the network with unitized batch norm {unitized} %. The mean "
        "difference between networks of the same seed, unitized batch norm minus batch norm, is "
        f"{percent(training['difference'], sign='+')} percentage points. With unitized batch norm, "
        f"the accuracy is {judge(training['difference'])}. One of the {test:,} test images is "
        f"{100 / test:.2g} points."
    )


def alpha_sentence(training: dict) -> str:
    """Sentences with the range of α after training."""
    alpha = training["unitized"]["alpha"]
    reach = "All values are inside [0, 1], where the unitization paper's theory holds."
    if alpha["outside"] > 0:
        reach = (
            "The unitization paper's theory requires [0, 1], and "
            f"{100 * alpha['outside']:.3g} % of the values are outside this range."
        )
    low, high = number(alpha["min"], 3), number(alpha["max"], 3)
    return (
        "Training did not restrict the parameters α of unitized batch norm. After the last epoch, "
        f"their values are between {low} and {high}. {reach}"
    )


def moments(results: dict) -> str:
    layer, channels = results["moments"]["layer"], results["moments"]["channels"]
    return paragraphs(
        f"After each epoch, we measured four moments of the outputs of the {layer} on "
        f"{results['data']['probe']:,} test images. The unitization paper (Figure 2) reports that "
        "unitization makes skewness and kurtosis steadier, which means that they change less from "
        f"epoch to epoch. {moments_sentence(results)}"
    ) + figure(
        moment_plots(results),
        f"Moments over the epochs. Each line is the median over {channels} channels and all seeds, "
        "and the band reaches from the lower to the upper quartile. Dotted lines mark drops of the "
        "learning rate.",
        NORMALIZATIONS.values(),
    )


def moment_plots(results: dict) -> list[str]:
    """Plots of four moments of one layer's outputs (median and quartiles, channels and seeds)."""
    training = results["training"]

    def paint(axes: Axes, moment: str) -> None:
        for name, series in NORMALIZATIONS.items():
            quartiles = results["moments"][name][moment]
            low, median, high = (floats(quartiles[part]) for part in ("low", "median", "high"))
            epochs = np.arange(len(median))
            line(axes, epochs, median, series)
            axes.fill_between(epochs, low, high, color=series.colour, **BAND)
            for edge in (low, high):
                axes.plot(epochs, edge, color=series.colour, lw=0.8, alpha=0.7)
        mark_drops(axes, training["learning_rate"], training["drops"])

    return panels(paint, MOMENTS, name="moments", xlabel="epoch (0: untrained)")


def moments_sentence(results: dict) -> str:
    """Sentences on how steady skewness and kurtosis are."""
    change = results["moments"]["change"]

    def said(moment: str) -> str:
        batch_norm, unitized = (mean(change[moment][name]) for name in NORMALIZATIONS)
        verdict = judge(change[moment]["difference"], more="larger", less="smaller")
        return (
            f"The mean absolute change of {moment} in an epoch is {batch_norm} with batch norm and "
            f"{unitized} with unitized batch norm, where the change is {verdict}."
        )

    return (
        "We averaged the changes over all epochs after the first quarter of training. "
        f"{said('skewness')} {said('kurtosis')}"
    )


def distances(results: dict) -> str:
    return paragraphs(
        "The earth mover distance of two samples is the mean distance between their values after "
        "the best pairing. For each channel, we computed the exact distance between the outputs of "
        f"the {results['moments']['layer']} after one epoch and after the next epoch, for the same "
        "test images, and averaged the distances over channels. The unitization paper (Figure 3) "
        f"interprets this distance as internal covariate shift. {distances_sentence(results)}"
    ) + figure(
        distance_plots(results),
        "Left: the mean distance over channels and seeds, in the unit of the layer's outputs. "
        "Right: the learning rate. Both vertical axes are logarithmic, and dotted lines mark drops "
        "of the learning rate.",
        NORMALIZATIONS.values(),
    )


def distance_plots(results: dict) -> list[str]:
    """Plots of the earth mover distance from one epoch to the next, and of the learning rate."""
    training = results["training"]

    rates = floats(training["learning_rate"])
    epochs = np.arange(len(rates)) + 1

    def paint(axes: Axes, quantity: str) -> None:
        if quantity == "rate":
            axes.plot(epochs, rates, color=INK, marker=".", drawstyle="steps-mid")
        else:
            for name, series in NORMALIZATIONS.items():
                curve(axes, epochs, floats(results["distances"][name]), series)
        mark_drops(axes, training["learning_rate"], training["drops"])
        plots.log_scale(axes)

    titles = {"distance": "earth mover distance, layer's units", "rate": "learning rate"}
    return panels(paint, titles, name="shift", xlabel="epoch")


def distances_sentence(results: dict) -> str:
    """Sentences on whether the distance between epochs falls if the learning rate is divided."""
    training = results["training"]
    drops = [d for d in training["drops"] if 1 < d <= len(training["learning_rate"])]
    if not drops:
        return "The learning rate never fell, so no drop shows on what the distance depends."
    rates = training["learning_rate"]
    factor = rates[drops[0] - 2] / rates[drops[0] - 1]
    shares = [_share_left(results["distances"][name], drops[0]) for name in NORMALIZATIONS]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return "The distances around the first drop of the learning rate are not finite."
    verdict = "With one or both normalizations, the distance does not fall by more than a fifth."
    if all(share < 0.8 for share in known):
        verdict = "With both normalizations, the distance falls by more than a fifth."
    batch_norm, unitized = (number(share, 2) for share in known)
    return (
        f"At its first drop, the learning rate is divided by {factor:.3g}. The distance after the "
        f"drop is {batch_norm} times the distance before the drop with batch norm, and {unitized} "
        "times with unitized batch norm. Each number is a ratio of means over seeds and over at "
        f"most three epochs. {verdict}"
    )


def _share_left(runs: Sequence[Sequence[float | None]], drop: int) -> float | None:
    """The mean distance after `drop`, divided by the mean distance before `drop`.

    Each mean is over seeds and over at most three epochs. One mean takes the epochs from `drop` on,
    and the other mean takes the epochs before `drop`.
    """
    before = average(x for run in runs for x in run[max(0, drop - 4) : drop - 1])
    after = average(x for run in runs for x in run[drop - 1 : drop + 2])
    return None if before is None or after is None or before == 0 else after / before
