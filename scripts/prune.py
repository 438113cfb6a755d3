"""Trained networks pruned by each criterion, recalibrated and fine-tuned; what it cost and gained.

    python scripts/prune.py                     # digits, about 3 minutes on 2 cores
    python scripts/prune.py out/train --ratio 0.7 --steps 4 --curve cubic
    python scripts/prune.py --dataset cifar10 --data-dir DIR --images 5000 --epochs 4

All criteria start from the same trained weights, as in Table 4 of the pruning paper. RUN is the
folder of a run of scripts/train.py with batch norm (the norm of a unitized layer couples all of its
channels, and none can go); without one, residual networks are trained first, in OUT/run.
OUT/index.html shows accuracies and costs, OUT/results.json has every number, OUT/networks the small
networks, which `pruning.load_pruned` reads. A run that is stopped goes on from its last checkpoint.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

import pruning
import train
from experiments import cli
from experiments.cli import InputError
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.measures.networks import mean
from experiments.pages import page
from experiments.pages import prune as prune_page
from experiments.progress import Stages, progress_bar
from experiments.provenance import described
from experiments.training import recipes
from experiments.training.recipes import Recipe, replace
from experiments.training.trainer import State, Trainer, mesh_of, trainer
from jaxnorm.nnx import recalibrate

CURVES = {
    "linear": pruning.linear,
    "cubic": pruning.cubic,
    "geometric": pruning.geometric,
}
SCOPES = {"layerwise": pruning.layerwise, "globally": pruning.globally}
STAGES = ("pruned", "recalibrated", "fine-tuned")
RECALIBRATION, CHUNK = 10, 500  # at most so many batches of so many images


class Options(NamedTuple):
    """What decides how the networks are pruned."""

    ratio: float
    steps: int
    curve: str
    scope: str
    fine_tune: int
    floor: int
    multiple: int
    exclude: tuple[str, ...]
    fold: bool


def main(
    run: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    dataset: str = "digits",
    data_dir: Path | None = None,
    epochs: int = 15,
    seeds: int = 3,
    depth: int = 8,
    batch_size: int = 64,
    images: int | None = None,
    ratio: float = 0.5,
    steps: int = 1,
    curve: Literal["linear", "cubic", "geometric"] = "geometric",
    scope: Literal["layerwise", "globally"] = "layerwise",
    fine_tune: int = 3,
    floor: int = 1,
    multiple: int = 1,
    exclude: tuple[str, ...] = (),
    fold: bool = True,
    batch_sizes: tuple[int, ...] = (1, 32),
    out: Path = Path("out/prune"),
) -> None:
    """Prune trained networks by each criterion and write OUT/index.html and OUT/results.json.

    Args:
      run: Folder of a run of scripts/train.py; its own settings then replace those below up to
        --images, but --data-dir.
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: Folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: Passes over the training images before pruning, at least 1.
      seeds: Networks, at least 1.
      depth: Layers of the residual network, 8, 14, 20 or any other 6k + 2.
      batch_size: Images a step, at least 2.
      images: At most so many of the training images.
      ratio: The fraction of the channels that goes, in (0, 1).
      steps: In so many steps, at least 1.
      curve: How the ratio rises over the steps.
      scope: Whether each layer loses the ratio, or the network in all.
      fine_tune: Passes over the training images after each step.
      floor: At least so many channels of each layer stay.
      multiple: What stays is rounded up to a multiple.
      exclude: Layers that keep their filters, such as stem or blocks/0.
      fold: Whether constants of removed channels move into the next biases.
      batch_sizes: Batches that are timed.
      out: Folder for the page, its numbers and the small networks.
    """
    cli.at_least(
        1, epochs=epochs, seeds=seeds, steps=steps, fine_tune=fine_tune, floor=floor,
        multiple=multiple, **({} if images is None else {"images": images}),
    )  # fmt: skip
    cli.at_least(2, batch_size=batch_size)
    for size in batch_sizes:
        cli.at_least(1, batch_sizes=size)
    if not 0 < ratio < 1:
        raise InputError(f"--ratio must lie in (0, 1); got {ratio}")
    if depth < 8 or depth % 6 != 2:
        raise InputError(f"--depth must be 6k + 2 with k at least 1; got {depth}")
    recipe = Recipe(
        dataset=dataset,
        model=f"preact{depth}",
        epochs=epochs,
        batch_size=batch_size,
        drops=recipes.drops(epochs),
    )
    if run is not None:
        recipe, seeds, images = recipe_of(run)
    found = datasets.load(recipe.dataset, data_dir)
    found = found._replace(x_train=found.x_train[:images], y_train=found.y_train[:images])
    if run is None:
        run = out / "run"
        train.prepare(run, recipe, side_by_side=1, images=images)
    options = Options(ratio, steps, curve, scope, fine_tune, floor, multiple, exclude, fold)
    with progress_bar() as progress:
        units = seeds * (recipe.epochs + len(pruning.CRITERIA) * steps * fine_tune)
        results = experiment(
            found, recipe, seeds, options, batch_sizes, run, out, Stages(progress, units)
        )
    results |= cli.provenance(__file__)
    results = {key: page.plain(part) for key, part in results.items()}
    page.write(results, prune_page.render(results), out)
    summarize(results)
    print(f"Open {(out / 'index.html').resolve()}")


def recipe_of(run: Path) -> tuple[Recipe, int, int | None]:
    """What a run was trained with, how many seeds, and of how many images, if not of all.

    Raises:
      InputError: It is no run of scripts/train.py, or trained its seeds side by side.
    """
    try:
        settings = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
        own: dict[str, Any] = {
            field.name: settings[field.name] for field in dataclasses.fields(Recipe)
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the run must be a folder that scripts/train.py made, with its recipe.json; got {run} "
            f"({type(error).__name__})"
        ) from error
    if settings["seeds_side_by_side"] != 1:
        raise InputError(f"the seeds of a run must be trained with --side-by-side no; got {run}")
    own |= {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
    return Recipe(**own), len(list(run.glob("seed-*"))), settings["images"]


def experiment(
    images: Images,
    recipe: Recipe,
    seeds: int,
    options: Options,
    batch_sizes: tuple[int, ...],
    run: Path,
    out: Path,
    stages: Stages,
) -> dict[str, Any]:
    """Networks of all seeds pruned by all criteria, and the costs of the first."""
    start = time.perf_counter()
    key = json.dumps([dataclasses.asdict(recipe), options, len(images.x_train), cli.versions()])
    folder = out / "networks" / hashlib.sha256(key.encode()).hexdigest()[:12]
    programs = Programs.compiled(recipe, images, options.fine_tune)
    trained, accuracy = [], []
    networks: list[Network] = []
    for seed in range(seeds):
        stages.describe(f"training, seed {seed + 1} of {seeds}")
        with train.Stop().listening() as stop:
            found = train.train(
                recipe,
                programs.trained,
                (seed,),
                train.Options(out=run),
                View(stages, programs.trained.steps),
                stop,
            )
        network = Network(images, programs, found.state, seed)
        networks.append(network)
        trained.append(network.accuracy(network.tree))
        accuracy.append({})
        for criterion in pruning.CRITERIA:
            stages.describe(f"pruning by {criterion}, seed {seed + 1} of {seeds}")
            pruned_by(network, criterion, options, folder / f"{criterion}-{seed}")
            accuracy[seed][criterion] = recorded(folder / f"{criterion}-{seed}")
            stages.advance(options.steps * options.fine_tune)
    return {
        "settings": dataclasses.asdict(recipe)
        | {"seeds": seeds, "training images": len(images.x_train)},
        "options": options._asdict(),
        "ratios": schedule(options),
        "data": described(images, len(images.x_test)),
        "accuracy": accuracies(trained, accuracy),
        **costs(networks[0], folder / "l2-0", batch_sizes),
        "seconds": time.perf_counter() - start,
    }


class View:
    """What `train.train` shows, on the bar of the whole experiment."""

    def __init__(self, stages: Stages, of_epoch: int):
        self.stages, self.of_epoch, self.reached = stages, of_epoch, 0

    def tell(self, line: str) -> None:
        self.stages.log(line)

    def at(self, steps: int, what: str, numbers: str) -> None:
        self.stages.advance((steps - self.reached) / self.of_epoch)
        self.reached = steps


def costs(network: "Network", folder: Path, batch_sizes: tuple[int, ...]) -> dict[str, Any]:
    """Widths and costs of a network, as it was trained and as its checkpoint has it."""
    trees = {
        "trained": network.tree,
        "pruned": pruning.load_pruned(folder, network.tree).params,
    }
    image = network.images.x_test[:1]
    found = {
        name: pruning.cost(network.apply, tree, image, batch_sizes=batch_sizes)
        for name, tree in trees.items()
    }
    return {
        "widths": {name: pruning.widths(tree) for name, tree in trees.items()},
        "cost": {
            name: cost._asdict() | {"timings": {b: t._asdict() for b, t in cost.timings.items()}}
            for name, cost in found.items()
        },
        "checkpoint": sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()),
    }


class Programs(NamedTuple):
    """What is compiled for a recipe: training, fine-tuning, inference; for arrays of any widths."""

    trained: Trainer
    tuned: Trainer
    graph: nnx.GraphDef
    logits: Callable[[Any, Any], Any]

    @classmethod
    def compiled(cls, recipe: Recipe, images: Images, fine_tune: int) -> "Programs":
        mesh = mesh_of(1)
        # Trained further from a fifth of the first learning rate, by the same schedule.
        further = replace(
            recipe,
            epochs=fine_tune,
            learning_rate=recipe.learning_rate / 5,
            drops=recipes.drops(fine_tune),
        )
        training, inference = recipes.graphs(recipe, images)

        @jax.jit
        def logits(tree: Any, x: Any) -> Any:
            merged: Any = nnx.merge(inference, tree["params"], tree["statistics"])
            return merged(x)

        return cls(
            trainer(recipe, images, mesh),
            trainer(further, images, mesh),
            training,
            logits,
        )


class Network:
    """One trained network, and what is done to trees of its arrays of any widths."""

    def __init__(self, images: Images, programs: Programs, state: State, seed: int):
        self.images, self.programs, self.seed = images, programs, seed
        self.state = state
        self.tree = {"params": state.params, "statistics": state.statistics}
        self.apply = programs.logits

    def accuracy(self, tree: Any) -> float:
        (found,) = self.programs.trained.evaluate(self.with_tree(tree))
        return found["accuracy"]

    def with_tree(self, tree: Any) -> State:
        return self.state._replace(params=tree["params"], statistics=tree["statistics"])

    def recalibrated(self, tree: Any) -> Any:
        model = nnx.merge(self.programs.graph, tree["params"], tree["statistics"], copy=True)
        chunk = min(CHUNK, len(self.images.x_train))
        starts = range(0, len(self.images.x_train) - chunk + 1, chunk)[:RECALIBRATION]
        recalibrate(model, (jnp.asarray(self.images.x_train[i : i + chunk]) for i in starts))
        return tree | {"statistics": nnx.state(model, nnx.BatchStat)}

    def fine_tuned(self, tree: Any, epochs: int) -> Any:
        """Trained further, the optimizer at rest."""
        tuned, seeds = self.programs.tuned, (self.seed,)
        tree = jax.tree.map(jnp.copy, tree)  # a step reuses what it is given
        rest = tuned.start(seeds)
        still = jax.tree.map(jnp.zeros_like, tree["params"])
        state = rest._replace(
            params=tree["params"],
            statistics=tree["statistics"],
            optimizer=optax.tree.set(rest.optimizer, trace=still),
        )
        for epoch in range(epochs):
            batches = tuned.epoch(seeds, epoch, 0)
            state = tuned.advance(state, batches, seeds, tuned.steps)
        return {"params": state.params, "statistics": state.statistics}


def schedule(options: Options) -> tuple[float, ...]:
    return pruning.iterative(options.ratio, options.steps, curve=CURVES[options.curve])


def recorded(folder: Path) -> dict[str, list[float]]:
    """Accuracies at every stage, one a step that is done, of the network in `folder`."""
    path = folder.with_suffix(".json")
    if not path.is_file():
        return {stage: [] for stage in STAGES}
    return json.loads(path.read_text(encoding="utf-8"))


def pruned_by(network: Network, criterion: str, options: Options, folder: Path) -> None:
    """Prune by a criterion; the small network and its accuracies are kept in `folder`."""
    stages = recorded(folder)

    def recalibrated(tree: Any) -> Any:
        stages["pruned"].append(network.accuracy(tree))
        tree = network.recalibrated(tree)
        stages["recalibrated"].append(network.accuracy(tree))
        return tree

    def fine_tuned(tree: Any, step: int) -> Any:
        tree = network.fine_tuned(tree, options.fine_tune)
        stages["fine-tuned"].append(network.accuracy(tree))
        for values in stages.values():  # a step that was stopped may have left an entry
            values[step:] = values[-1:]
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.with_suffix(".json").write_text(json.dumps(stages), encoding="utf-8")
        return tree

    choose = partial(SCOPES[options.scope], floor=options.floor, multiple=options.multiple)
    score = partial(pruning.channel_scores, criterion=pruning.CRITERIA[criterion])
    try:
        pruning.prune(
            network.apply,
            network.tree,
            network.images.x_test[:8],
            ratios=schedule(options),
            scores=score,
            choose=choose,
            exclude=options.exclude,
            fold=options.fold,
            recalibrate=recalibrated,
            fine_tune=fine_tuned,
            folder=folder,
        )
    except ValueError as error:
        raise InputError(str(error)) from error


def accuracies(trained: list[float], networks: list[dict[str, dict[str, list[float]]]]) -> dict:
    """Accuracies by criterion and stage, over seeds, and how far the criteria differ."""
    last = {
        stage: np.array([[run[c][stage][-1] for c in pruning.CRITERIA] for run in networks])
        for stage in STAGES
    }
    return {
        "trained": mean(trained),
        "by criterion": {
            criterion: {stage: mean(last[stage][:, i]) for stage in STAGES}
            for i, criterion in enumerate(pruning.CRITERIA)
        },
        "spread": {stage: mean(np.ptp(last[stage], axis=1)) for stage in STAGES},
        "friedman": {stage: friedman(last[stage]) for stage in STAGES},
        "steps": networks,
    }


def friedman(values: np.ndarray) -> dict[str, float | None]:
    """Friedman's test that criteria, the columns, do not differ; networks are the blocks."""
    if len(values) < 2 or not np.ptp(values, axis=1).any():
        return {"statistic": None, "p": None}
    found = scipy.stats.friedmanchisquare(*values.T)
    return {"statistic": float(found.statistic), "p": float(found.pvalue)}


def summarize(results: dict[str, Any]) -> None:
    """The tables of accuracies and of costs."""
    for title, head, rows in prune_page.tables(results):
        table = Table(title=title)
        for column in head:
            table.add_column(column, justify="left" if column == head[0] else "right")
        for row in rows:
            table.add_row(*row)
        Console(width=max(Console().width, 100)).print(table)


if __name__ == "__main__":
    cli.run(main, again="start again to go on from the last checkpoint")
