"""Redraw Figures 2 and 3 of the unitization paper, about layers' moments and shift in training.

    python scripts/covariate_shift.py                                # digits, two minutes
    python scripts/covariate_shift.py --dataset mnist --data-dir DIR --epochs 200   # hours

The paper's dense network has ten layers of 100 units and one layer of 8 units. The script trains
the dense network with batch norm and with unitized batch norm, from the same weights. Some networks
normalize before the ReLU, and others after the ReLU. The learning rate is either constant, or
divided by 5 at 30, 60 and 80 % of the epochs. If the shift decreases in a run with decreasing
rates, a run with a constant rate shows whether the smaller learning rate is the cause. After every
epoch, the script measures the shift of two layers' outputs for test images, and the moments of the
last layer's outputs for training images. Outputs are normalized in three ways: by statistics of the
whole training set, by running averages, and by the statistics of each batch. For running averages
and for batch statistics, the page also shows the shift that is measured while the weights are
frozen, which is noise. OUT/index.html shows the results, and OUT/results.json has every number.
OUT/runs has the finished networks. An interrupted run resumes after the last finished network. The
script downloads nothing.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from pathlib import Path
from typing import Literal

from experiments import cli, files, storage
from experiments.options import AtLeastTwo, Location, Positive, checked
from experiments.progress import progress_bar


@checked
def main(
    dataset: str = "digits",
    data_dir: Location | None = None,
    epochs: AtLeastTwo = 40,
    seeds: Positive = 3,
    schedules: tuple[Literal["drops", "constant"], ...] = ("drops", "constant"),
    orders: tuple[Literal["norm first", "ReLU first"], ...] = ("norm first", "ReLU first"),
    batch_size: AtLeastTwo = 128,
    exact: AtLeastTwo = 400,
    out: Location = Path("out/shift"),
) -> None:
    """Measure the moments and the shift of a network's layers through training.

    Args:
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: The folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: The number of passes over the training images.
      seeds: The number of networks for each normalization, order and schedule.
      schedules: The schedules of learning rates: rates that drop, constant rates, or both.
      orders: The orders of normalization and ReLU: before the ReLU, after the ReLU, or both.
      batch_size: The number of images per step.
      exact: The number of test images for which exact joint distances are computed.
      out: The folder for the page, its results and finished networks.
    """
    from experiments.data import datasets
    from experiments.measures import provenance, shift
    from experiments.pages import page, shift as shift_page
    from experiments.training import run_folder
    from experiments.training.optimizers import learning_rate
    from experiments.training.paired_runs import NORMALIZATIONS

    images = datasets.load(dataset, data_dir)
    recipe = shift.dense_recipe(dataset, epochs, batch_size)
    with files.in_use(out, __file__), progress_bar() as progress:
        run_folder.same_data(out, images)
        total = len(NORMALIZATIONS) * len(schedules) * len(orders) * seeds * epochs
        task = progress.add_task("training", total=total)

        def update(description: str, epochs: int) -> None:
            progress.update(task, description=description, advance=epochs)

        runs = shift.train_all(recipe, images, schedules, orders, seeds, exact, out, update)
    rates = [learning_rate(recipe, 1, epoch) for epoch in range(epochs)]
    results = cli.provenance(__file__) | {
        "settings": provenance.settings(recipe) | {"seeds": seeds, "exact": exact},
        "data": provenance.describe(images, shift.PROBE),
        "seconds": cli.seconds(),
        "learning_rate": rates,
        "runs": runs,
    }
    results["findings"] = shift_page.findings(results)
    results = page.write(results, shift_page.render, out)
    cli.say(*shift_page.sentences(results))
    cli.say(f"Open {storage.absolute(out / 'index.html')}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished network")
