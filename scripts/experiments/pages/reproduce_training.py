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
    return (
        figure(
            accuracy_plots(training), accuracy_sentence(results), NORMALIZATIONS.values(), "three"
        )
        + table(head, rows, "Test accuracy after the last epoch")
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
    """A sentence with the accuracies, and with the conclusion from their difference."""
    training, test = results["training"], results["data"]["test"]
    batch_norm, unitized = (percent(training[name]["accuracy"]) for name in NORMALIZATIONS)
    return (
        f"Batch norm ends at {batch_norm} % of the test images and unitized batch norm at "
        f"{unitized} %; paired by seed, unitized minus batch norm is "
        f"{percent(training['difference'], sign='+')} points: {judge(training['difference'])} "
        f"(one of the {test:,} test images is {100 / test:.2g} points)."
    )


def alpha_sentence(training: dict) -> str:
    """A sentence with the range of α after training."""
    alpha = training["unitized"]["alpha"]
    reach = "inside [0, 1], where the paper's theory holds"
    if alpha["outside"] > 0:
        reach = (
            "and the paper's theory asks for [0, 1]: "
            f"{100 * alpha['outside']:.3g} % of the entries ended outside it"
        )
    low, high = number(alpha["min"], 3), number(alpha["max"], 3)
    return f"Trained freely, the α of unitized batch norm ended between {low} and {high}, {reach}."


def moments(results: dict) -> str:
    layer, channels = results["moments"]["layer"], results["moments"]["channels"]
    return paragraphs(
        f"Four moments of the outputs of the {layer} on {results['data']['probe']:,} test images. "
        f"The line is the median over {channels} channels and all seeds, and the band reaches from "
        "quartile to quartile. The unitization paper (Figure 2) reports that unitization makes "
        "skewness and kurtosis steadier."
    ) + figure(moment_plots(results), moments_sentence(results), NORMALIZATIONS.values())


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
    """A sentence on how steady skewness and kurtosis are."""
    change = results["moments"]["change"]

    def clause(moment: str) -> str:
        batch_norm, unitized = (mean(change[moment][name]) for name in NORMALIZATIONS)
        verdict = judge(change[moment]["difference"], more="less steady", less="steadier")
        return (
            f"{moment} changes by {batch_norm} under batch norm and {unitized} unitized: {verdict}"
        )

    return (
        "From one epoch to the next, after the first quarter of training, "
        f"{clause('skewness')}; {clause('kurtosis')}."
    )


def distances(results: dict) -> str:
    return paragraphs(
        "The exact earth mover distance, channel by channel, between the outputs of the "
        f"{results['moments']['layer']} after one epoch and after the next, averaged over "
        "channels. The unitization paper (Figure 3) reads it as internal covariate shift."
    ) + figure(distance_plots(results), distances_sentence(results), NORMALIZATIONS.values())


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
    """A sentence on whether the distance between epochs falls when the learning rate is divided."""
    training = results["training"]
    drops = [d for d in training["drops"] if 1 < d <= len(training["learning_rate"])]
    if not drops:
        return "The learning rate never fell, so nothing shows what the distance follows."
    rates = training["learning_rate"]
    factor = rates[drops[0] - 2] / rates[drops[0] - 1]
    shares = [_share_left(results["distances"][name], drops[0]) for name in NORMALIZATIONS]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return "The distances around the first drop of the learning rate are not finite."
    verdict = "does not fall with the step size under both normalizations alike"
    if all(share < 0.8 for share in known):
        verdict = "follows the step size under both normalizations"
    batch_norm, unitized = (number(share, 2) for share in known)
    return (
        f"When the learning rate is first divided by {factor:.3g}, the distance becomes "
        f"{batch_norm} of what it was under batch norm and {unitized} under unitized batch norm: "
        f"it {verdict}."
    )


def _share_left(runs: Sequence[Sequence[float | None]], drop: int) -> float | None:
    """The mean distance after `drop`, divided by the mean distance before `drop`.

    Each mean is over seeds and over at most three epochs. One mean takes the epochs from `drop` on,
    and the other mean takes the epochs before `drop`.
    """
    before = average(x for run in runs for x in run[max(0, drop - 4) : drop - 1])
    after = average(x for run in runs for x in run[drop - 1 : drop + 2])
    return None if before is None or after is None or before == 0 else after / before
