"""Compute Figures 2 to 8 of Nachum et al. and the network of their Discussion, on one page.

    python scripts/reproduce_geometry.py --data-dir DIR     # about 15 minutes on 2 cores

The networks of Figure 2 are trained on Fashion-MNIST in DIR, in tensorflow-datasets' format.
Without DIR, scikit-learn's digits replace Fashion-MNIST. By default, Figure 2 has 5 depths up to 33
hidden layers, 1,000 steps and 2 runs. With `--figure-2 tenth`, Figure 2 has all 17 depths of the
paper, a tenth of the paper's steps (3,510) and 5 runs. The figure then takes about two hours of a
core. With `--figure-2 full`, Figure 2 has the paper's 17 depths, 35,100 steps and 3 runs.
OUT/index.html is the page, and OUT/results.json has the page's numbers. At infinite width, the
angle between two samples should remain at 10.4 degrees if neither sample is the odd point. An
interrupted run resumes after the last network of Figure 2. The script downloads nothing.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments import cli, files
from experiments.options import Location, Natural, checked

if TYPE_CHECKING:
    from experiments.data.datasets import Images


@checked
def main(
    data_dir: Location | None = None,
    figure_2: Literal["short", "tenth", "full"] = "short",
    seed: Natural = 0,
    out: Location = Path("out/geometry"),
) -> None:
    """Compute all figures and write OUT/index.html.

    Args:
      data_dir: The folder with Fashion-MNIST in tensorflow-datasets' format; without this folder,
        digits are used.
      figure_2: The depths, steps and runs of Figure 2. "full" uses the paper's depths, steps and
        runs, and takes days on a CPU. "tenth" uses a tenth of the steps, and more runs than "full".
      seed: The seed of all figures except Figure 2. The runs of Figure 2 have the seeds 0, 1, ….
      out: The folder for the page and its results.
    """
    from experiments.data import datasets
    from experiments.pages import geometry as geometry_page, page

    images = datasets.load("digits" if data_dir is None else "fashion_mnist", data_dir)
    with files.in_use(out, __file__):
        page.write(
            measure(images, figure_2, seed, out / "figure_2.json"), geometry_page.render, out
        )
    cli.say(f"Open {out / 'index.html'}")


def measure(images: "Images", figure_2: str, seed: int, path: Path) -> dict[str, Any]:
    """Compute the numbers that all figures show."""
    import geometry
    from experiments.measures import depth, geometry_figures

    recipe = depth.RECIPES[figure_2]
    return cli.provenance(__file__) | {
        "seed": seed,
        "figure_2": recipe | {"data": images.name} | depth.measure(images, **recipe, path=path),
        "figure_3": geometry_figures.figure_3(seed),
        "odd_state_spread": math.degrees(
            geometry.odd_points.odd_state(geometry_figures.ODD_POINTS).spread
        ),
        "figure_4": geometry_figures.figure_4(),
        "figure_5": geometry_figures.figure_5(seed),
        "figure_6": geometry_figures.figure_6(seed),
        "figures_7_and_8": geometry_figures.figure_7_and_8(),
        "neuron_per_point": geometry_figures.neuron_per_point(seed),
        "seconds": cli.seconds(),
    }


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished network")
