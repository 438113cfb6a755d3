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
LEGEND = (
    "Means over layers and then over networks, ± standard errors over networks. D is the distance "
    "of the weights' distribution to the Gaussian of mean 0. β is the shape of the best "
    "generalized Gaussian, 2 for a Gaussian and 1 for a Laplace distribution. The spread of the "
    "filters' standard deviations is 1 for Gaussian filters. The largest eigenvalue of the "
    "filters' covariance is divided by the upper edge for Gaussian filters. ρ is Spearman's "
    "correlation of l1 and l2 minus its value for Gaussian filters. The last columns count the "
    "layers in which a test fails at 5 % by Holm's correction over all layers of the page: N "
    "normal, S symmetric, H one σ, U uncorrelated, C covariance c² I, R ranks of l1 and l2 as of "
    "Gaussian filters."
)
NOT_RUN = (
    "These settings of Table 3 were not run: other structures, attention, data sets and tasks, "
    "trained networks to download, Autoaugment, and Dropact, which is replaced by dropping "
    "activations. The paper's schedules count epochs, and ours count shares of the steps."
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
        heading="Which settings of training depart from Gaussian filters?",
        summary=_summary(results),
        sections=[
            ("figure", "By how much", _figure(results)),
            ("after", "After training", paragraphs(NOT_RUN, LEGEND) + _table(results, "after")),
            ("before", "Before training", _table(results, "before")),
        ],
        made=provenance(results, entries),
    )


def findings(results: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    after = {name: found["after"] for name, found in results["settings"].items()}
    for test, what in (("normal", "a Gaussian"), ("spherical", "a covariance c² I")):
        failed = {name: part["fails"][test] for name, part in after.items()}
        every = [name for name, part in after.items() if failed[name] == part["layers"]]
        none = [name for name, count in failed.items() if not count]
        yield (
            f"Of {len(after)} settings, {len(every)} have trained layers that all reject "
            f"{what}{_few(every)}, and {len(none)} have no trained layer that rejects "
            f"it{_few(none)}."
        )
    by_distance = sorted(after, key=lambda name: after[name]["ks"]["mean"])

    def summary(names: list[str]) -> str:
        return ", ".join(f"{name} {mean(after[name]['ks'], digits=3)}" for name in names)

    far, near = by_distance[: -FEW - 1 : -1], by_distance[:FEW]
    yield (
        f"Distances to a Gaussian: {summary(['base'])}; largest {summary(far)}; "
        f"smallest {summary(near)}."
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
        "Distance of the weights' distribution to a Gaussian of mean 0, averaged over layers and "
        "then over networks. Bars are standard errors over networks, if they are wider than a "
        "marker. The dashed line is the base setting after training.",
        WHEN,
    )


def _both(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["before"], found["after"]


def _summary(results: dict[str, Any]) -> str:
    settings = results["settings"]
    layers = sum(found["after"]["layers"] for found in settings.values())
    items = [
        ("Settings", str(len(settings)), f"{results['seeds']} networks of each"),
        ("Layers", str(layers), "that were tested after training"),
        ("Time", duration(results["seconds"]), "of training and tests"),
    ]
    return paragraphs(*findings(results)) + cards(items) + criteria_defined() + reference("CWDA")
