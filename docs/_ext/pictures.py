"""The directive `picture`, which draws a panel of the home page from files of `docs/results`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from docutils import nodes
from matplotlib.axes import Axes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from experiments.pages.plots import MUTED, SERIES, SMALL, Series, draw, line, log_scale
from experiments.pages.shift import distance, select


def shift(results: Path) -> str:
    """Draw how far the outputs of two layers move in each epoch of training."""
    runs = json.loads((results / "shift/results.json").read_text())["runs"]
    epochs = np.arange(len(runs[0]["accuracy"])) + 1
    # For each normalization, the color, and the place and text of the label.
    shown = {
        "unitized": (SERIES[1], 75, 1, "unitized layers"),
        "batch_norm": (SERIES[0], 10, 0.06, "batch norm"),
    }

    def paint(axes: Axes) -> None:
        for name, (color, *label) in shown.items():
            chosen = select(runs, normalization=name, order="norm first")
            shifts = np.mean([distance(run, "whole set") for run in chosen], 0)
            axes.plot(epochs, shifts, color=color, lw=1.2)
            axes.text(*label, color=color)
        log_scale(axes)

    return draw(paint, name="shift", title="shift in an epoch", xlabel="epoch", size=SMALL)


def criteria(results: Path) -> str:
    """Draw how similarly two criteria rank the filters of each layer of a ResNet-20."""
    found = json.loads((results / "resnet20/results.json").read_text())
    layers, gaussian = found["layers"], found["gaussian"]
    bands = [gaussian[f"{layer['filters']}x{layer['dims']}"]["l1-fermat"] for layer in layers]

    def paint(axes: Axes) -> None:
        x = np.arange(len(layers)) + 1
        expected = [band["expected_spearman"] for band in bands]
        axes.plot(x, expected, color=MUTED, dashes=(4, 2))
        axes.text(len(x), 0.85, "Gaussian filters", ha="right", color=MUTED)
        spearman = np.array([layer["spearman"]["l1-fermat"] for layer in layers])
        line(axes, x, spearman, Series("l1 and Fermat", SERIES[0], "o"))
        axes.set_ylim(top=1)

    title = "Spearman's ρ of l1 and Fermat"
    return draw(paint, name="criteria", title=title, xlabel="layer of a ResNet-20", size=SMALL)


def odd_point(results: Path) -> str:
    """Draw a batch after the last layer of a deep network with recentering and ReLU."""
    found = json.loads((results / "geometry/results.json").read_text())["figure_3"]
    batch, odd = np.array(found["projection"]), found["index"]
    others = np.delete(batch, odd, 0)

    def paint(axes: Axes) -> None:
        axes.plot(*others.T, "o", color=SERIES[0], ms=4.5, alpha=0.6, mew=0)
        x, y = others.mean(0)
        axes.text(x + 0.4, y - 0.5, f"{len(others)} samples", color=SERIES[0])
        x, y = batch[odd]
        axes.plot([x], [y], "*", color=SERIES[1], ms=13, mew=0)
        axes.text(x - 0.4, y, "the odd point", ha="right", va="center", color=SERIES[1])
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.15)

    title = f"a batch after layer {found['layers'][-1]}"
    return draw(paint, name="odd-point", title=title, xlabel="a random plane", size=SMALL)


PICTURES: dict[str, Callable[[Path], str]] = {
    "shift": shift,
    "criteria": criteria,
    "odd-point": odd_point,
}


class Picture(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        svg = PICTURES[self.arguments[0]](Path(self.env.srcdir, "results"))
        return [nodes.raw("", f'<div class="picture">{svg}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
