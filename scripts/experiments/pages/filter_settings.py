"""Make the page that shows how far filters are from Gaussian in each training setting."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

from experiments.measures.analysis import TESTS
from experiments.measures.filter_tests import SIZES
from experiments.pages import page
from experiments.pages.analysis import MARKS
from experiments.pages.page import cards, figure, paragraphs, provenance, table
from experiments.pages.papers import criteria_defined, reference
from experiments.pages.plots import MUTED, SERIES, Series, mark, panels
from experiments.pages.sentences import duration, mean, percent

HEAD = (
    "setting",
    "test accuracy, %",
    "distance D",
    "shape β",
    "spread of σ",
    "|mean|/σ",
    "largest eigenvalue",
    "ρ of l1 and l2",
    "fails",
)
COLUMNS = (
    "Each number is a mean over the layers of a network and then over the networks, ± the standard "
    "error over the networks. D is Kolmogorov's distance between the distribution of a layer's "
    "weights and a Gaussian of mean 0. D lies between 0 and 1. The shape β is that of the fitted "
    "generalized Gaussian distribution: 2 for Gaussian and 1 for Laplace weights. The spread of σ "
    "is the standard deviation of the filters' σ, divided by the value for Gaussian filters. The "
    "largest eigenvalue of the filters' covariance matrix is divided by the upper edge of the "
    "eigenvalues of Gaussian filters. The column ρ shows Spearman's correlation between l1 and l2, "
    "minus the value for Gaussian filters.",
    "The last column counts the layers in which a test rejects, at 5 % with Holm's correction over "
    "all layers of the page. The tests ask whether the weights are normal (N) and symmetric (S), "
    "whether all filters have one σ (H), whether the filters are uncorrelated (U), whether "
    "the covariance matrix of the filters is c² I (C), and whether l1 and l2 rank the filters as "
    "they rank Gaussian filters (R).",
)
NOT_RUN = (
    "We did not run the settings of Table 3 with other structures, with attention, with other data "
    "sets or tasks, with downloaded networks, or with Autoaugment. Instead of Dropact, we drop "
    "activations. The schedules of the paper count epochs, but our schedules count shares of the "
    "steps."
)
WHEN = (Series("before", SERIES[1], "o", filled=False), Series("after", SERIES[0], "o"))
PANELS = {
    ("base", "initialization"): "Base and initialization",
    ("optimizer",): "Optimizer",
    ("regularization",): "Regularization",
    ("learning rate",): "Learning rate",
    ("width", "depth", "length"): "Width, depth and length",
}
TALL = (4.2, 3.2)
FEW = 4  # a sentence lists at most this number of settings


def render(results: dict[str, Any]) -> str:
    entries = {"data": results["data"], "networks of a setting": results["seeds"]}
    return page.render(
        results,
        title="Settings of training and Gaussian filters",
        about="Table 3 of the pruning paper",
        heading="Which settings of training lead to filters that are not Gaussian?",
        summary=_summary(results),
        sections=[
            ("figure", "Distance to a Gaussian", _figure(results)),
            ("after", "After training", paragraphs(NOT_RUN, *COLUMNS) + _table(results, "after")),
            ("before", "Before training", _table(results, "before")),
        ],
        made=provenance(results, entries),
    )


def findings(results: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    after = {name: found["after"] for name, found in results["settings"].items()}
    for test, what in (("normal", "weights are Gaussian"), ("spherical", "covariance is c² I")):
        failed = {name: part["fails"][test] for name, part in after.items()}
        every = [name for name, part in after.items() if failed[name] == part["layers"]]
        none = [name for name, count in failed.items() if not count]
        yield (
            f"A test of whether the {what} rejects in all trained layers of {len(every)} of "
            f"{len(after)} settings{_few(every)}, and in no trained layer of {len(none)} "
            f"settings{_few(none)}."
        )
    by_distance = sorted(after, key=lambda name: after[name]["ks"]["mean"])

    def summary(names: list[str]) -> str:
        return ", ".join(f"{mean(after[name]['ks'], digits=3)} for “{name}”" for name in names)

    far, near = by_distance[: -FEW - 1 : -1], by_distance[:FEW]
    yield (
        "D is Kolmogorov's distance between the weights of a trained layer and a Gaussian. The "
        f"mean D is {summary(['base'])}. The largest means are {summary(far)}. The smallest means "
        f"are {summary(near)}."
    )


def _few(names: list[str]) -> str:
    """A text with the names in parentheses if there are at most `FEW` names; otherwise empty."""
    return f" ({', '.join(names)})" if 0 < len(names) <= FEW else ""


def rows(results: dict[str, Any], when: str) -> list[list[str]]:
    """The table rows before or after training (`when`), with a row for every setting."""
    found = []
    for name, setting in results["settings"].items():
        part = setting[when]
        fails = [
            f"{MARKS[test]} {part['fails'][test]}/{part['layers']}"
            for test in TESTS
            if part["fails"][test]
        ]
        label = name if name == setting["group"] else f"{setting['group']}: {name}"
        sizes = [mean(part[size], digits=3) for size in SIZES]
        found.append([label, percent(setting["accuracy"]), *sizes, " ".join(fails) or "none"])
    return found


def _table(results: dict[str, Any], when: str) -> str:
    drop = 1 if when == "before" else len(HEAD)  # before training, no accuracy is measured
    keep = [i for i in range(len(HEAD)) if i != drop]
    cells = [[row[i] for i in keep] for row in rows(results, when)]
    return table([HEAD[i] for i in keep], cells, f"Filters {when} training")


def _figure(results: dict[str, Any]) -> str:
    """A figure of distances to a Gaussian before and after training; each setting has a row."""
    settings = results["settings"]
    base = settings["base"]["after"]["ks"]["mean"]
    every = [part["ks"]["mean"] for found in settings.values() for part in _both(found)]

    def paint(axes: Axes, groups: tuple[str, ...]) -> None:
        shown = {name: found for name, found in settings.items() if found["group"] in groups}
        for row, found in enumerate(shown.values()):
            for part, series in zip(_both(found), WHEN, strict=True):
                bars, style = part["ks"]["stderr"], mark(series)
                axes.errorbar(part["ks"]["mean"], row, xerr=bars, color=series.colour, **style)
        axes.axvline(base, color=MUTED, dashes=(4, 2), lw=1.2)
        axes.set_yticks(range(len(shown)), list(shown))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(0.8 * min(every), 1.25 * max(every))
        axes.xaxis.set_major_formatter("{x:g}")

    return figure(
        panels(paint, PANELS, name="distance", xlabel="distance D to a Gaussian", size=TALL),
        "Kolmogorov's distance D between the weights' distribution and a Gaussian of mean 0, "
        "averaged over layers and then over networks. A bar shows the standard error over networks "
        "if the bar is wider than the mark. The dashed line shows the base setting after training. "
        "Settings to the right of this line have less Gaussian weights than the base setting.",
        WHEN,
    )


def _both(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["before"], found["after"]


def _summary(results: dict[str, Any]) -> str:
    settings = results["settings"]
    layers = sum(found["after"]["layers"] for found in settings.values())
    items = [
        ("Settings", str(len(settings)), f"{results['seeds']} networks for each setting"),
        ("Layers", str(layers), "tested after training"),
        ("Time", duration(results["seconds"]), "for training and tests"),
    ]
    return paragraphs(*findings(results)) + cards(items) + criteria_defined() + reference("CWDA")
