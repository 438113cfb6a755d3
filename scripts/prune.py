"""Prune trained networks by each criterion, fine-tune them, and compare accuracies and costs.

    python scripts/prune.py                     # digits, about 3 minutes on 2 cores
    python scripts/prune.py out/train --ratio 0.7 --steps 4 --curve cubic
    python scripts/prune.py out/train --ratio 0.3 --repair least_squares
    python scripts/prune.py out/train --budget 0.5 --unit macs --round-to 8
    python scripts/prune.py --dataset cifar10 --data-dir DIR --images 5000 --epochs 4
    python scripts/prune.py resnet20.safetensors --dataset cifar10 --data-dir DIR --images 1000 \
        --exclude stem --repair least_squares

All criteria start from the same trained weights, as in Table 4 of the pruning paper. RUN is the
folder of a run of scripts/train.py with batch norm. The script does not prune unitized layers,
because their norm couples all channels of a layer. RUN can also be a weight file of a residual
network for small images, with PyTorch's names conv1, bn1, layer1.0.conv1, .... The network of a
weight file must have been trained on pixels that were standardized by ImageNet's means and standard
deviations. Without RUN, residual networks are trained first, in OUT/run. OUT/index.html shows
accuracies and costs, and OUT/results.json has all values. OUT/networks has the pruned networks, and
`pruning.load_pruned` reads them. An interrupted run resumes from its last checkpoint.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import tyro

from experiments import cli, files
from experiments.cli import InputError
from experiments.measures.plan import Plan
from experiments.options import AtLeastTwo, Flat, LocalPath, Location, Positive, Seeds, checked
from experiments.progress import Stages, progress_bar
from experiments.recipes import Recipe, residual_recipe


@dataclass(frozen=True)
class Options:
    """The networks to prune, and how to prune them.

    Attributes:
      run: A weight file (.safetensors) of a network for the data set, or the folder of a run of
        scripts/train.py. The settings of a run replace the training options.
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: The folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: The number of passes over the training images before pruning.
      seeds: The number of networks.
      depth: The number of layers of the residual network: 8, 14, 20 or any other 6k + 2.
      batch_size: The number of images per step.
      images: The largest number of training images.
      plan: How the networks are pruned.
      batch_sizes: The batch sizes at which networks are timed.
      sensitivity: Whether to measure also, for each layer, the accuracy when channels of this layer
        alone are removed. The channels with the smallest l2 norms are removed.
      out: The folder for the page, its results and the pruned networks.
    """

    run: tyro.conf.Positional[LocalPath | None] = None
    dataset: str = "digits"
    data_dir: Location | None = None
    epochs: Positive = 15
    seeds: Seeds = 3
    depth: Positive = 8
    batch_size: AtLeastTwo = 64
    images: Positive | None = None
    plan: Plan = field(default_factory=Plan)
    batch_sizes: tuple[Positive, ...] = (1, 32)
    sensitivity: bool = False
    out: LocalPath = Path("out/prune")


@checked
def main(options: Flat[Options]) -> None:
    """Prune trained networks by each criterion and write OUT/index.html and OUT/results.json."""
    from experiments.data import datasets, loaders
    from experiments.measures import pruned
    from experiments.pages import page, prune as prune_page
    from experiments.training import run_folder
    from experiments.training.trained import read_recipe

    run = options.out / "run" if options.run is None else options.run
    recipe, seeds, count = choose(options)
    # The network of a weight file was trained on images standardized by ImageNet's moments.
    moments = (loaders.MEAN, loaders.DEVIATION) if run.is_file() else None
    images = datasets.load(recipe.dataset, options.data_dir, moments)
    images = images._replace(x_train=images.x_train[:count], y_train=images.y_train[:count])
    in_use = nullcontext() if run.is_file() else files.in_use(run)
    with files.in_use(options.out, __file__), in_use, progress_bar() as progress:
        if not run.is_file():
            start = None if options.run is None else read_recipe(run)[1].get("init_from")
            run_folder.prepare(run, recipe, images, vmapped_seeds=1, images=count, init_from=start)
        measured = pruned.measure(
            images,
            recipe,
            options.plan,
            seeds=seeds,
            batch_sizes=options.batch_sizes,
            sensitivity=options.sensitivity,
            run=run,
            out=options.out,
            stages=Stages(progress, pruned.units(recipe, seeds, options.plan)),
        )
        measured |= cli.provenance(__file__)
        results = page.write(measured, prune_page.render, options.out)
    summarize(results)
    cli.say(f"Open {(options.out / 'index.html').resolve()}")


def choose(options: Options) -> tuple[Recipe, int, int | None]:
    """The recipe, the number of networks, and the number of training images (None for all)."""
    recipe = residual_recipe(options.dataset, options.depth, options.epochs, options.batch_size)
    if options.run is None:
        return recipe, options.seeds, options.images
    if options.run.is_file():
        from experiments.training import weight_files

        return replace(recipe, model=weight_files.name(options.run)), 1, options.images
    return read(options.run)


def read(run: Path) -> tuple[Recipe, int, int | None]:
    """The recipe, the number of networks and the number of images in a run of scripts/train.py.

    Raises:
      InputError: The folder is not a run, the seeds were trained as one program, the layers are
        unitized, or the run is incomplete and started from another run's weights.
    """
    from experiments.training.trained import read_recipe

    recipe, settings = read_recipe(run)
    if settings["vmapped_seeds"] != 1:
        raise InputError(f"the seeds of a run must be trained with --vmap-seeds no; {run} was not")
    if settings["normalization"] in ("unitized", "bounded"):
        raise InputError(
            f"the channels of the run's network must be removable, as with batch norm; {run} has "
            "unitized layers, which normalize over all channels: prune it by pruning.prune(*pruning"
            ".nnx.evaluation(model), x, budget=0.5, resize=True) with model = load_network(RUN)"
        )
    if settings.get("init_from") and not (run / "results.json").is_file():
        raise InputError(
            f"a run with --init-from must be complete; {run} has no results.json: run the command "
            "that began it again, and then prune"
        )
    return recipe, len(list(run.glob("seed-*"))), settings["images"]


def summarize(results: dict) -> None:
    """Print the tables of accuracies and of costs."""
    from experiments.pages import prune as prune_page

    for title, head, rows in prune_page.tables(results):
        cli.show_table(title, head, rows, left=head[:1])


if __name__ == "__main__":
    cli.run(main, again="start again to resume from the last checkpoint, if there is one")
