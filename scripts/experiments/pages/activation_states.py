"""Make the page of `scripts/odd_states.py`, on odd and symmetric states of eight activations."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import page
from experiments.pages.page import figure, paragraphs, provenance, table
from experiments.pages.papers import reference
from experiments.pages.plots import MUTED, SERIES, Series, panels

HEAD = (
    "activation, samples",
    "odd state: norm ratio",
    "angle",
    "spread",
    "its radius",
    "its radius, computed with 50 digits",
    "spread by the expansion",
    "radius of the symmetric state",
)
SUBJECT = (
    "We computed the Gram matrices that infinitely wide random layers do not change. A layer "
    "recenters the batch, scales it to a mean square of 1, and applies an activation. In the odd "
    "state, one sample is longer than the others, which form a cluster. In the symmetric state, "
    "all pairs of samples have the same angle. A state is stable if layers shrink every small "
    "deviation from the state."
)
COLUMNS = (
    "Angles are in degrees. The norm ratio is the norm of the odd sample divided by the norm of "
    "another sample. The angle is between the odd sample and another sample, and the spread is the "
    "angle between two other samples. The radius is the largest factor by which a layer multiplies "
    "a small deviation of the Gram matrix. A state is stable if the radius is below 1.",
    "To check the radius, we computed it with 50 digits from closed forms or one integral, by code "
    "that shares nothing with the other column. The column “spread by the expansion” has the "
    "spread of a cluster that is nearly a point. This column has no number if the spread is large.",
)
SYMMETRIC = Series("activation", SERIES[0], "o")


def render(results: dict[str, Any]) -> str:
    found = results["activations"]
    return page.render(
        results,
        title="Odd points of eight activations",
        about="Batch Normalization Decomposed",
        heading="Does an odd point form?",
        summary=paragraphs(SUBJECT, *findings(results))
        + reference("Batch Normalization Decomposed"),
        sections=[
            ("states", "States of a recentred batch", paragraphs(*COLUMNS) + _states(found)),
            ("networks", "Networks of finite width", _networks(results)),
            ("angles", "Angles without recentering", _angles(found)),
        ],
        made=provenance(results, {}),
    )


def findings(results: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    largest = {
        name: list(row["batches"].values())[-1] for name, row in results["activations"].items()
    }
    n = list(next(iter(results["activations"].values()))["batches"])[-1]
    kinds: dict[str, list[str]] = {}
    for name, row in largest.items():
        kinds.setdefault(_kind(row), []).append(name)
    for kind, names in kinds.items():
        yield f"With {n} samples, {kind}, for these activations: {', '.join(names)}."
    ordered = [
        name for name, row in results["activations"].items() if row["fixed_point"]["cosine"] == 1
    ]
    names = ", ".join(ordered) or "none"
    yield (
        "Without recentering, the angle between two samples tends to zero for these activations: "
        f"{names}."
    )


def _kind(row: dict[str, Any]) -> str:
    odd = row["odd"]
    alone = "stable" if row["symmetric"]["radius"] < 1 else "unstable"
    if odd is None:
        return f"there is no odd state, and the symmetric state is {alone}"
    stable = "stable" if odd["radius"] < 1 else "unstable"
    spread = "has a spread" if odd["state"]["spread"] > 1e-6 else "is one point"
    return f"the odd state is {stable}, its cluster {spread}, and the symmetric state is {alone}"


def _states(found: dict[str, Any]) -> str:
    rows = []
    for name, activation in found.items():
        for n, row in activation["batches"].items():
            odd, expansion = row["odd"], row["expansion"]
            cells = ["none", "", "", "", ""]
            if odd is not None:
                state = odd["state"]
                cells = [
                    f"{state['norm_ratio']:.2f}",
                    f"{math.degrees(state['angle']):.1f}",
                    f"{math.degrees(state['spread']):.2f}",
                    f"{odd['radius']:.3f}",
                    "" if row["certificate"] is None else row["certificate"]["radius"][:16],
                ]
            by_expansion = "none" if expansion is None else f"{math.degrees(expansion):.2f}"
            rows.append([f"{name}, {n}", *cells, by_expansion, f"{row['symmetric']['radius']:.3f}"])
    return table(HEAD, rows, "Odd and symmetric states by activation and number of samples")


def _networks(results: dict[str, Any]) -> str:
    rows = []
    for name, activation in results["activations"].items():
        row = activation["network"]
        ratio, angle, spread = (row[key] for key in ("norm_ratio", "angle", "spread"))
        rows.append(
            [
                name,
                f"{ratio['mean']:.2f} ± {ratio['stderr']:.2f}",
                *(
                    f"{math.degrees(part['mean']):.1f} ± {math.degrees(part['stderr']):.1f}"
                    for part in (angle, spread)
                ),
            ]
        )
    text = (
        f"We passed 10 samples through {results['networks']} random networks with "
        f"{results['layers']} layers of width {results['width']}. The first sample is four times "
        "as long as the other samples. The table compares the longest sample of the last layer "
        "with the other samples of this layer. Numbers are means ± standard errors over the "
        "networks, and angles are in degrees."
    )
    return paragraphs(text) + table(
        ("activation", "norm ratio", "angle", "spread"), rows, "Random networks"
    )


def _angles(found: dict[str, Any]) -> str:
    def paint(axes: Axes, name: str) -> None:
        after = np.degrees(found[name]["angles"])
        before = np.linspace(0, 180, len(after))
        axes.plot(before, after, color=SYMMETRIC.colour)
        axes.plot([0, 180], [0, 180], color=MUTED, dashes=(4, 2), lw=1.2)

    rows = [
        [
            name,
            f"{row['slope']:.4f}",
            f"{row['cubic']:.4f}",
            f"{math.degrees(math.acos(row['fixed_point']['cosine'])):.2f}",
            _depth(row["fixed_point"]["depth_scale"]),
            f"{row['tail']:.0e}",
        ]
        for name, row in found.items()
    ]
    head = ("activation", "κ′(1)", "cubic term", "fixed angle", "depth scale", "tail of the series")
    return figure(
        panels(
            paint, {name: name for name in found}, name="angles", xlabel="angle before, degrees"
        ),
        "The angle of two samples after an infinitely wide layer without recentering, in degrees. "
        "On the dashed line, the layer does not change the angle. Below this line, the samples "
        "become more alike.",
    ) + table(head, rows, "Maps of the correlation of two samples")


def _depth(layers: float | None) -> str:
    return "infinite" if layers is None or layers > 1e6 else f"{layers:.1f}"
