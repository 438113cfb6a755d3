"""Draw docs/repair.svg for README, which shows a pruned ResNet-20's accuracy after each repair.

    python -m tools.readme_picture

The numbers come from docs/results/repair/resnet20.json; docs/repair.md has these numbers as a
table.
"""

import argparse
import json
from io import StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.measures.repair import Mean, mean_of, of_images, ratios, values_of_criteria

DOCS = Path(__file__).parents[1] / "docs"
CURVES = {
    "least squares": ("least_squares, no gradient step", "#0067a5"),
    "fine-tuned, one epoch": ("one epoch of training", "#00745c"),
    "recalibrated": ("new batch statistics only", "#5d646d"),
    "folded": ("no repair", "#c04a00"),
}


def curves() -> dict[str, list[tuple[float, Mean]]]:
    """For each repair, the points (share of removed channels, mean accuracy over criteria)."""
    recorded = json.loads((DOCS / "results/repair/resnet20.json").read_text(encoding="utf-8"))
    table = of_images(recorded)
    return {
        repair: [
            (ratio, mean_of(values_of_criteria(table["ResNet-20", ratio, repair]).mean(0)))
            for ratio in ratios(table, "ResNet-20")
        ]
        for repair in CURVES
    }


def draw() -> str:
    """The picture as SVG text; every drawing gives the same bytes."""
    mpl.rcParams |= {"svg.hashsalt": "readme", "font.size": 10, "axes.spines.top": False}
    mpl.rcParams |= {"axes.spines.right": False}
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for repair, points in curves().items():
        label, color = CURVES[repair]
        x, y = [100 * ratio for ratio, _ in points], [100 * value.mean for _, value in points]
        axes.errorbar(x, y, [100 * value.stderr for _, value in points], fmt="o-", color=color)
        axes.annotate(label, (x[-1], y[-1]), (8, -3), textcoords="offset points", color=color)
    axes.set(xlabel="channels removed, %", ylabel="test accuracy, %", xlim=(8, 76), ylim=(0, 90))
    axes.set_xticks([10, 20, 30, 50])
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    (DOCS / "repair.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
