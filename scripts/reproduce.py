"""Train, measure and prune networks, check the claims of three papers, and write one page.

    python scripts/reproduce.py                       # digits, 3 to 5 minutes on 2 cores
    python scripts/reproduce.py --dataset fashion_mnist --data-dir DIR --epochs 1

OUT/report/index.html is the page, and OUT/report/results.json has the page's numbers. On the
digits, networks with batch norm and networks with unitized batch norm both reach a test accuracy of
approximately 98 %. An interrupted run resumes from its last checkpoint when it is started again,
and ends with the same results. The script downloads nothing.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from pathlib import Path

from experiments import cli, files, storage
from experiments.options import AtLeastTwo, Location, Positive, Seeds, checked
from experiments.progress import Stages, progress_bar
from experiments.recipes import residual_recipe


@checked
def main(
    dataset: str = "digits",
    data_dir: Location | None = None,
    epochs: Positive = 15,
    seeds: Seeds = 3,
    batch_size: AtLeastTwo = 64,
    depth: Positive = 20,
    out: Location = Path("out"),
) -> None:
    """Reproduce the papers' main results and write OUT/report/index.html.

    Args:
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: The folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: The number of passes over the training images.
      seeds: The number of networks that are trained for each of the two normalizations.
      batch_size: The number of images per step.
      depth: The number of layers of the residual network: 8, 14, 20 or any other 6k + 2.
      out: The folder for the report, and for checkpoints from which an interrupted run resumes.
    """
    from experiments.measures import report
    from experiments.pages import page, reproduce as reproduce_page

    recipe = residual_recipe(dataset, depth, epochs, batch_size)
    folder = out / "report"
    with files.in_use(out), progress_bar() as progress:
        for path in (folder, out / "runs"):
            storage.make_folder(path)
        stages = Stages(progress, report.units(epochs, seeds))
        measured = report.measure(__file__, recipe, seeds, data_dir, out, stages)
        results = page.write(measured, reproduce_page.render, folder)
    summarize(results)
    cli.say(f"Open {storage.absolute(folder / 'index.html')}")


def summarize(results: dict) -> None:
    """Print the accuracy of each normalization, and the verdict on each claim."""
    for name in ("batch_norm", "unitized"):
        accuracy = results["training"][name]["accuracy"]
        error = "one seed" if accuracy["stderr"] is None else f"± {100 * accuracy['stderr']:.2f}"
        cli.say(f"{name.replace('_', ' ')}: test accuracy {100 * accuracy['mean']:.2f} % ({error})")
    for claim in results["claims"]:
        cli.say(f"{claim['name']}: {claim['verdict']}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume from the last checkpoint, if there is one")
