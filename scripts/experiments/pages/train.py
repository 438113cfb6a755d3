"""Make the page of a training run, with its seeds' curves and accuracies, and its settings."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments import cli
from experiments.pages import page, plots
from experiments.pages.page import cards, figure, paragraphs, provenance, table
from experiments.pages.plots import SERIES, SMALL, Series, curve, draw, mark_drops
from experiments.pages.sentences import duration, number, percent
from experiments.pages.series import FACTORS, NORMALIZATIONS, unitized_defined
from experiments.training.accuracies import percentages

RUN = Series("mean over seeds", SERIES[0], "o")
EVALUATIONS = {
    "crops": "crops at the corners and the middle, and their mirror images",
    "whole": "the whole image",
}


def render(results: dict) -> str:
    recipe = results["recipe"]
    rising = " with warm-up" if recipe.get("warmup") else ""
    title = f"{recipe['model']} on {recipe['dataset']}{rising}"
    return page.render(
        results,
        title=f"{title}, {_normalization(recipe)}",
        about=title,
        heading=f"{title}, trained with {_normalization(recipe)}",
        summary=_summary(results),
        sections=[
            ("curves", "Curves", _curves(results)),
            ("seeds", "Accuracy", _accuracy(results)),
        ],
        made=provenance(results, _settings(results)),
    )


def report(results: dict, out: Path) -> None:
    """Write the page to `out`, and print the accuracies of the seeds and the path of the page."""
    results = page.write(results, render, out)
    cli.show_table(*seed_table(results))
    cli.say(accuracy_sentence(results), f"Open {out / 'index.html'}")


def _normalization(recipe: dict) -> str:
    name = recipe["normalization"]
    if name in NORMALIZATIONS:
        return NORMALIZATIONS[name].label
    if name == "bounded":
        return "unitized batch norm, α in [0, 1]"
    return "no normalization" if name == "none" else name.replace("_", " ")


def accuracy_sentence(results: dict) -> str:
    """A sentence with the median and the mean of the seeds' test accuracies."""
    accuracy = results["accuracy"]
    if accuracy["stderr"] is None:
        return f"The test accuracy is {100 * accuracy['mean']:.2f} % (one seed)."
    return (
        f"The test accuracies of the seeds have the median {100 * accuracy['median']:.2f} % and "
        f"the mean {percent(accuracy)} %."
    )


def seed_table(results: dict) -> tuple[str, Sequence[str], list[list[str]]]:
    """The title, head and rows of a table of seeds.

    A row has the loss and the accuracy of a seed in the last epoch, the speed of its training, and
    other evaluations.
    """
    recipe, runs = results["recipe"], results["seeds"]
    rows = []
    for seed, run in enumerate(runs):
        last = run[-1]
        views = results["evaluations"][seed] if recipe["dataset"] == "imagenet2012" else {}
        row = {
            "seed": str(seed),
            "last loss": f"{last['loss']:.4f}",
            "images/s": f"{_speed(run):,.0f}",
        }
        rows.append(row | percentages(last, views))
    title = (
        f"Last epoch of each seed: {recipe['model']} on {recipe['dataset']}, trained with "
        f"{_normalization(recipe)}"
    )
    return title, list(rows[0]), [list(row.values()) for row in rows]


def _speed(run: Sequence[dict]) -> float:
    """The median speed of a run over its epochs.

    The median is used, because a run can begin on one machine and end on a slower or faster
    machine.
    """
    return float(np.median([line["images_per_second"] for line in run]))


def _summary(results: dict) -> str:
    runs, recipe = results["seeds"], results["recipe"]
    accuracy = results["accuracy"]
    networks = (
        "1 network" if len(runs) == 1 else f"mean of {len(runs)} networks ± one standard error"
    )
    speed = np.mean([_speed(run) for run in runs])
    items = [
        ("Test accuracy", f"{percent(accuracy).replace(' (one seed)', '')} %", networks),
        ("Speed", f"{speed:,.0f} images/s", "median over epochs, without evaluation"),
        (
            "Time",
            duration(results["seconds"]),
            f"{recipe['epochs']} epochs, counted from the last start",
        ),
    ]
    if len(runs) > 1:
        items.insert(
            1, ("Median test accuracy", f"{100 * accuracy['median']:.2f} %", "of the same networks")
        )
    count = "one network" if len(runs) == 1 else f"{len(runs)} networks with different seeds"
    done = (
        f"We trained {count} for {recipe['epochs']} epochs. {accuracy_sentence(results)} "
        "All accuracies are those after the last epoch."
    )
    note = f"The data set has the note “{results['note']}”" if results["note"] else ""
    name = recipe["normalization"]
    terms = unitized_defined(name) if name in FACTORS else ""
    return paragraphs(done) + cards(items) + paragraphs(*filter(None, [terms, note]))


def _curves(results: dict) -> str:
    runs = results["seeds"]
    rates = [line["learning_rate"] for line in runs[0]]
    drops = [e + 1 for e in range(1, len(rates)) if rates[e] < rates[e - 1]]
    drops = drops if results["recipe"]["schedule"] == "drops" else []
    epochs = np.arange(len(rates)) + 1

    def over_epochs(axes: Axes, quantity: str, scale: float = 1) -> None:
        values = scale * np.array([[line[quantity] for line in run] for run in runs])
        curve(axes, epochs, values, RUN)
        mark_drops(axes, rates, drops)

    def loss(axes: Axes) -> None:
        over_epochs(axes, "loss")
        plots.log_scale(axes)

    options = {"xlabel": "epoch", "size": SMALL}
    panels = [
        draw(loss, name="loss", title="training loss, nats", **options),
        draw(
            lambda axes: over_epochs(axes, "accuracy", 100),
            name="accuracy",
            title="test accuracy, %",
            **options,
        ),
    ]
    caption = [
        "Left: the mean training loss over the steps of each epoch, on a logarithmic scale. "
        "Right: the accuracy on all test images after each epoch.",
        "Dotted lines mark drops of the learning rate." if len(drops) else "",
        "The band is one standard error about the mean over seeds." if len(runs) > 1 else "",
    ]
    return figure(panels, " ".join(filter(None, caption)), [RUN] if len(runs) > 1 else [])


def _accuracy(results: dict) -> str:
    title, head, rows = seed_table(results)
    text = (
        "The column “last loss” has the mean training loss in the last epoch, in nats. The column "
        "“images/s” has the median speed of the training steps over the epochs. Top-1 is the share "
        "of the test images whose most probable class is right."
    )
    if any("top-5" in name for name in head):
        text += " Top-5 is the share of those whose right class is among the five most probable."
    if len(results["seeds"]) > 1:
        text += " If one program trains several seeds, its speed counts the images of all of them."
    scales = ", ".join(map(str, results["recipe"]["test_scales"]))
    others = [
        f"For the columns “{name}”, the logits of an image are averaged over {views}, after the "
        f"image is resized to shorter sides of {scales} pixels."
        for name, views in EVALUATIONS.items()
        if name in results["evaluations"][0]
    ]
    return table(head, rows, title) + paragraphs(text, *others)


def _settings(results: dict) -> dict[str, object]:
    mesh, entries = results["mesh"], dict(results["recipe"])
    devices, seeds = math.prod(mesh["shape"].values()), len(results["seeds"])
    entries["devices"] = f"{devices} × {mesh['device']}"
    entries["seeds"] = f"{seeds}, {results['vmapped seeds']} as one program" if seeds > 1 else "1"
    entries["learning rate at the end"] = number(results["seeds"][0][-1]["learning_rate"])
    return entries
