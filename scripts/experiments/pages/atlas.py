"""Make the page of `scripts/atlas.py`, on whether networks with less shift train better."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments.measures.atlas_findings import OUTCOMES, SHIFTS, comparisons
from experiments.pages import page
from experiments.pages.compiled import DEVICES
from experiments.pages.plots import SERIES, Series, log_scale, panels, points
from experiments.pages.sentences import duration

HEAD = (
    "normalizer",
    "accuracy, %",
    "test loss",
    "loss, first epoch",
    "shift, epoch",
    "shift, step",
    "frozen weights",
    "bound of the moments / W",
    "certificate / W",
)
CAPTION = "Means ± standard errors over seeds"
COLUMNS = (
    "The shift of a layer is the earth mover distance W₁ between its outputs before and after an "
    "epoch or a step, divided by the square root of the sum of the outputs' variances. For these "
    "outputs, the layers that normalize with batch statistics use the statistics of the whole "
    "training set. The tables show the geometric mean of the shift over three layers and all "
    "epochs.",
    "The column “frozen weights” shows how far the outputs of the last layer move in 20 batches if "
    "only the running averages change. The last two columns show two upper bounds of W₁, each "
    "divided by W₁, for the last layer in the last epoch. The first bound is computed from the "
    "means and variances of the outputs. The second bound, the certificate, is computed from the "
    "layer's parameters, if the layer has such a bound.",
)
CORRELATED = (
    "For each network, we measured the shift: how far the outputs of its layers move in an epoch "
    "or in a step of training. We then computed Pearson's correlation between the logarithm of "
    "the shift and the logarithm of a loss, both minus the mean of the comparison. Brackets "
    "contain 95 % intervals."
)
OTHER_REASONS = (
    "A correlation is not a cause. All networks were trained by Adam with the same learning rate, "
    "which may suit some normalizers better than others. A normalizer changes the gradients as "
    "well as the shift. A network that learns more in an epoch also changes more, so the shift can "
    "be an effect of the training."
)
COLOURS = {
    name: Series(name, SERIES[i % len(SERIES)], "os^D*os^"[i], filled=i % 2 == 0)
    for i, name in enumerate(
        (
            "batch norm",
            "unitized",
            "unitized, bounded",
            "layer norm",
            "RMS norm",
            "DyT",
            "Derf",
            "batch renorm",
        )
    )
}


def render(results: Mapping[str, Any]) -> str:
    traffic = results["traffic"]
    entries = results["settings"] | {
        "time": duration(results["seconds"]),
        "comparisons": len(comparisons(results["runs"])),
    }
    return page.render(
        results,
        title="Atlas of normalizers",
        about="eight normalizers, three tasks",
        heading="Does less shift go with better or faster training?",
        summary=page.paragraphs(*sentences(results)),
        sections=[
            ("answer", "Shift and training", figure(results) + correlations(results)),
            *(
                (
                    f"task-{i}",
                    task,
                    page.paragraphs(*(() if i else COLUMNS)) + page.table(HEAD, rows, CAPTION),
                )
                for i, (task, rows) in enumerate(tables(results).items())
            ),
            *([] if traffic is None else [("traffic", "Traffic", traffic_table(traffic))]),
        ],
        made=page.provenance(results, entries),
    )


def sentences(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the correlations of shift with loss, and on possible other causes."""
    found = results["findings"]
    yield (
        f"We trained {len(results['runs'])} networks, which make {found['comparisons']} complete "
        "comparisons of eight normalizers. The networks of a comparison have the same task, begin "
        "with the same weights, and see the same batches."
    )
    yield CORRELATED
    for row in found["correlations"]:
        between = row["between"]
        yield (
            f"Between the shift {row['shift']} and the {row['outcome']}, the correlation is "
            f"{with_interval(between)}: {verdict(between)}."
        )
    yield OTHER_REASONS


def with_interval(found: Mapping[str, float]) -> str:
    """The text of a correlation and its confidence interval."""
    return f"{found['correlation']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"


def verdict(found: Mapping[str, float]) -> str:
    """A text that says whether less shift goes with a lower loss, by a correlation's interval.

    The correlation is positive if networks with less shift have less loss.
    """
    if found["low"] > 0:
        return "networks with less shift tend to have a lower loss"
    if found["high"] < 0:
        return "networks with less shift tend to have a higher loss"
    return "the sign is uncertain"


def correlations(results: Mapping[str, Any]) -> str:
    """A table of the correlations between and within normalizers, with 95 % intervals."""
    rows = [
        [
            f"shift {row['shift']}, {row['outcome']}",
            with_interval(row["between"]),
            "–" if row["within"] is None else with_interval(row["within"]),
        ]
        for row in results["findings"]["correlations"]
    ]
    caption = (
        "Pearson's correlation between the logarithms of the shift and of the loss, with a 95 % "
        "bootstrap interval. Between normalizers, the bootstrap resamples normalizers. Within a "
        "normalizer, the mean of each normalizer on a task was subtracted first, so only the "
        "differences between seeds are correlated."
    )
    head = ("shift, loss", "between normalizers", "within a normalizer")
    return page.table(head, rows, caption)


def figure(results: Mapping[str, Any]) -> str:
    """A panel for each task; each point shows the shift and the test loss of one network."""
    tasks = list(dict.fromkeys(run["task"] for run in results["runs"]))
    shift, outcome = next(iter(SHIFTS.values())), next(iter(OUTCOMES.values()))

    def paint(axes: Axes, task: str) -> None:
        for run in results["runs"]:
            if run["task"] == task:
                points(axes, [shift(run)], [outcome(run)], COLOURS[run["normalizer"]], ls="none")
        log_scale(axes)

    titles = {task: f"{task}: test loss at the end" for task in tasks}
    drawn = panels(paint, titles, name="shift-loss", xlabel="shift of an epoch, relative")
    caption = (
        "Each mark is a network. A mark on the left has less shift, and a low mark has a low loss."
    )
    return page.figure(drawn, caption, COLOURS.values())


def tables(results: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """For each task, the rows of its table, with one row for each normalizer."""
    found: dict[str, list[list[str]]] = {}
    for row in results["findings"]["rows"]:
        cells = [
            row["normalizer"],
            _number(row["accuracy"], 100, 1),
            _number(row["test_loss"]),
            _number(row["first_epoch_loss"]),
            *(_number(row[name]) for name in ("epoch_shift", "step_shift", "floor")),
            *(_number(row[name], digits=1) for name in ("moment_bound", "certificate")),
        ]
        found.setdefault(row["task"], []).append(cells)
    return found


def _number(value: Mapping[str, float | None], factor: float = 1.0, digits: int = 3) -> str:
    if value["mean"] is None:
        return "–"
    text = f"{factor * value['mean']:.{digits}f}"
    return text if value["stderr"] is None else f"{text} ± {factor * value['stderr']:.{digits}f}"


def traffic_table(traffic: Mapping[str, Any]) -> str:
    """The HTML table of the memory traffic of a training step with each normalizer.

    The traffic is divided by the bytes of the normalizer's input.
    """
    caption = (
        "The bytes that a forward and a backward pass in bfloat16 read from HBM and write to HBM. "
        "The unit n is the number of bytes of the input, whose shape is in the head of the column."
    )
    return page.table(*traffic_rows(traffic), caption)


def traffic_rows(traffic: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The head of the table of memory traffic, and a row for each normalizer."""
    targets: Mapping[str, Sequence[Mapping[str, Any]]] = traffic["targets"]
    columns: dict[str, dict[str, float]] = {}
    for target, rows in targets.items():
        for row in rows:
            shape = "×".join(map(str, row["shape"]))
            column = columns.setdefault(f"{DEVICES[target]}, {shape}", {})
            column[row["normalizer"]] = row["traffic"]
    names = dict.fromkeys(name for column in columns.values() for name in column)
    cells = [[name, *(f"{column[name]:.1f} n" for column in columns.values())] for name in names]
    return ["normalizer", *columns], cells
