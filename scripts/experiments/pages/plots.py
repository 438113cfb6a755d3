"""Draw small panels with matplotlib, as SVG for a web page.

A panel takes its colours and its font from the page, so the panel follows a light or a dark theme.
A panel is drawn in placeholder colours, and `draw` replaces them by the page's colours. Widths suit
a phone, on which a panel of 4.2 inches fills 330 pixels and has text of 11 pixels.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments.texts import html, printable

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
SERIES = ("#0a0b11", "#0a0b12", "#0a0b13", "#0a0b14", "#0a0b15", "#0a0b16")
PAGE_COLOURS = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    PAPER: "var(--paper)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)},
}

BAND = {"alpha": 0.18, "lw": 0}
PANEL, SMALL = (4.2, 2.7), (3.4, 2.2)

# The type of the keys is `Any`, because matplotlib's own type is a union of a thousand literals.
STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "text.color": INK,
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.left": False,
    "ytick.minor.left": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.2,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


Paint = Callable[[Axes], object]
Values = Sequence[float] | np.ndarray


class Series(NamedTuple):
    """The style of a line in a plot: its label in the legend, its colour and its markers."""

    label: str
    colour: str
    marker: str
    filled: bool = True


def draw(
    paint: Paint, *, name: str, title: str, xlabel: str, size: tuple[float, float] = PANEL
) -> str:
    """Draw a panel with the function `paint`, and return it as an `svg` element for a page.

    Args:
      name: A name that is unique on the page, because every id of the panel begins with this name.
      title: The quantity and the unit of the vertical axis; a screen reader also reads this title.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(printable(title), parse_math=False)
        axes.set_xlabel(xlabel)
        paint(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _inline(text.getvalue(), name=name, label=f"{title}; horizontal: {xlabel}")


def panels(
    paint: Callable[[Axes, Any], object],
    titles: Mapping[Any, str],
    *,
    name: str,
    xlabel: str,
    size: tuple[float, float] = PANEL,
) -> list[str]:
    """A panel for each key of `titles`, drawn by `paint(axes, key)`.

    The ids of the panels begin with `name`.
    """
    return [
        draw(
            lambda axes, key=key: paint(axes, key),
            name=f"{name}-{i}",
            title=title,
            xlabel=xlabel,
            size=size,
        )
        for i, (key, title) in enumerate(titles.items())
    ]


def floats(values: Sequence) -> np.ndarray:
    """The numbers `values` in float64.

    In results, None replaces NaN and infinite numbers. This function converts None to NaN.
    """
    return np.asarray(values, dtype=float)


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the horizontal axis at integers, for an axis of epochs or layers."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers.

    The ticks depend on the ratio of the upper end of the axis to the lower end. If the ratio is
    below 8, the axis has approximately four ticks. If the ratio is 8 to 100, there are three ticks
    in each decade. If the ratio is above 100, there is one tick in each decade.
    """
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1,) if high > 100 * low else (1, 2, 5)
    ticks = MaxNLocator(4) if high < 8 * low else LogLocator(subs=steps, numticks=12)
    axes.yaxis.set_major_locator(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def line(axes: Axes, x: np.ndarray, y: np.ndarray, series: Series) -> None:
    """Draw a line with approximately ten markers, and ticks of the horizontal axis at integers."""
    points(axes, x, y, series, markevery=max(1, round(len(x) / 10)))
    whole_numbers(axes)


def points(axes: Axes, x: Values, y: Values, series: Series, **style: Any) -> None:
    """Draw a line with a marker at every point, unless `style` says otherwise."""
    axes.plot(x, y, color=series.colour, **mark(series), **style)


def curve(axes: Axes, x: np.ndarray, runs: np.ndarray, series: Series) -> None:
    """Draw the mean of `runs` (seeds, points) against `x`, with a band of ± one standard error."""
    mean, seeds = runs.mean(0), len(runs)
    line(axes, x, mean, series)
    if seeds > 1:
        stderr = runs.std(0, ddof=1) / seeds**0.5
        axes.fill_between(x, mean - stderr, mean + stderr, color=series.colour, **BAND)


def bars(axes: Axes, x: Values, runs: np.ndarray, series: Series) -> None:
    """Draw the mean of `runs` (seeds, points) against `x`, with bars of ± one standard error."""
    stderr = runs.std(0, ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else None
    axes.errorbar(x, runs.mean(0), stderr, color=series.colour, lw=1.2, **mark(series))


def mark_drops(axes: Axes, rates: Sequence[float], drops: Sequence[int], start: int = 0) -> None:
    """Draw a dotted line before each epoch in `drops`, and write how much the rate falls there.

    The plot begins at epoch `start` + 1, and drops up to this epoch are not drawn.
    """
    for epoch in (drop for drop in drops if drop > start + 1):
        factor = f"÷{rates[epoch - 2] / rates[epoch - 1]:.3g}"
        axes.axvline(epoch - 0.5, color=MUTED, ls=":", lw=1)
        text = axes.text(epoch - 0.5, 1.01, factor, transform=axes.get_xaxis_transform())
        text.set(ha="center", va="bottom", color=MUTED)
    axes.set_title(axes.get_title(loc="left"), pad=17)


def mark(series: Series) -> dict:
    """The style of the markers of a series."""
    face = series.colour if series.filled else PAPER
    return {"marker": series.marker, "mfc": face, "mec": series.colour, "mew": 1.2}


def swatch(series: Series) -> str:
    """HTML of a short line in the style of `series`, for a legend."""
    colour = PAGE_COLOURS[series.colour]
    face = colour if series.filled else PAGE_COLOURS[PAPER]
    mark = {
        "": "",
        "o": '<circle cx="14" cy="6" r="3.2"/>',
        "s": '<path d="M11 3h6v6h-6z"/>',
        "^": '<path d="M14 2l4 7.5h-8z"/>',
        "*": '<path d="M14 0l2 4 4.5.6-3.3 3 .8 4.4-4-2.2-4 2.2.8-4.4-3.3-3 4.5-.6z"/>',
        "D": '<path d="M14 1.5l4.5 4.5-4.5 4.5-4.5-4.5z"/>',
    }[series.marker]
    dash = "" if series.marker else ' stroke-dasharray="5 3"'
    return (
        f'<span class="key"><svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" '
        f'style="stroke: {colour}; fill: {face}; stroke-width: 1.8"><path d="M1 6h26"{dash}/>'
        f"{mark}</svg>{html(series.label)}</span>"
    )


def _inline(svg: str, *, name: str, label: str) -> str:
    """Give an `svg` element the page's colours and font, and ids that begin with `name`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<g id=\"[^\"]*\">", "<g>", svg)
    # Matplotlib's own ids are replaced, because they are hashes of coordinates, whose last bits
    # differ between machines.
    ids = dict.fromkeys(re.findall(r"\bid=\"([^\"]*)", svg))
    numbered = {hashed: f"{name}-{number}" for number, hashed in enumerate(ids)}
    svg = re.sub(
        r"(\bid=\"|url\(#|href=\"#)([^\")]*)", lambda match: match[1] + numbered[match[2]], svg
    ).replace("xlink:href", "href")
    svg = re.sub(r"font: ((?:\w+ )*)([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2", svg)
    svg = re.sub(r" ?font-family: [^;\"]*;?| transform=\"rotate\(-0 [^\"]*\"", "", svg)
    for placeholder, colour in PAGE_COLOURS.items():
        svg = svg.replace(placeholder, colour)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None  # matplotlib always writes a viewBox
    head = f'<svg role="img" aria-label="{html(label)}" {box[0]}><title>{html(label)}</title>'
    body = svg[svg.index(">") + 1 :]
    return head + re.sub(r"\s*\n\s*", " ", body).strip()
