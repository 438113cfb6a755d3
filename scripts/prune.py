"""Trained networks pruned by each criterion, recalibrated and fine-tuned; what it cost and gained.

    python scripts/prune.py                     # digits, about 3 minutes on 2 cores
    python scripts/prune.py out/runs/RUN --ratio 0.7 --steps 4 --curve cubic
    python scripts/prune.py --dataset cifar10 --data-dir DIR --images 5000 --epochs 4

All criteria start from the same trained weights, as in Table 4 of the pruning paper. RUN is a run
of scripts/reproduce.py; without one, networks are trained first. OUT/index.html shows accuracies
and costs, OUT/results.json has every number, OUT/networks the small networks, which
`pruning.load_pruned` reads. A run that is stopped goes on from its last checkpoint.
"""

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

import command
import data
import page
import prune_page
import pruning
import training
from command import InputError
from data import Images
from jaxnorm.nnx import recalibrate
from measures import mean
from reproduce import Stages, described, progress_bar, run_folder

CURVES = {
    "linear": pruning.linear,
    "cubic": pruning.cubic,
    "geometric": pruning.geometric,
}
SCOPES = {"layerwise": pruning.layerwise, "globally": pruning.globally}
STAGES = ("pruned", "recalibrated", "fine-tuned")
RECALIBRATION = 10  # batches of `training.CHUNK` images


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
      run: Folder of a run of scripts/reproduce.py; its own settings then replace those below
        up to --batch-size.
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
    command.at_least(
        1, epochs=epochs, seeds=seeds, steps=steps, fine_tune=fine_tune, floor=floor,
        multiple=multiple, **({} if images is None else {"images": images}),
    )  # fmt: skip
    command.at_least(2, batch_size=batch_size)
    for size in batch_sizes:
        command.at_least(1, batch_sizes=size)
    if not 0 < ratio < 1:
        raise InputError(f"--ratio must lie in (0, 1); got {ratio}")
    if depth < 8 or depth % 6 != 2:
        raise InputError(f"--depth must be 6k + 2 with k at least 1; got {depth}")
    settings = training.Settings(dataset, epochs, seeds, batch_size, depth)
    if run is not None:
        settings = training.read_settings(run)
    found = data.load(settings.dataset, data_dir)
    found = found._replace(x_train=found.x_train[:images], y_train=found.y_train[:images])
    if run is None:
        run = run_folder(settings, out)
        run = run if images is None else run.with_name(f"{run.name}-{images}")
    options = Options(ratio, steps, curve, scope, fine_tune, floor, multiple, exclude, fold)
    with progress_bar() as progress:
        units = settings.seeds * (settings.epochs + len(pruning.CRITERIA) * steps * fine_tune)
        results = experiment(
            found, settings, options, batch_sizes, run, out, Stages(progress, units)
        )
    results |= command.provenance(__file__)
    results = {key: page.plain(part) for key, part in results.items()}
    page.write(results, prune_page.render(results), out)
    summarize(results)
    print(f"Open {(out / 'index.html').resolve()}")


def experiment(
    images: Images,
    settings: training.Settings,
    options: Options,
    batch_sizes: tuple[int, ...],
    run: Path,
    out: Path,
    stages: Stages,
) -> dict[str, Any]:
    """Networks of all seeds pruned by all criteria, and the costs of the first."""
    start = time.perf_counter()
    training.write_settings(run, settings)
    functions = training.program("batch_norm", images, settings)
    key = json.dumps([settings, options, run.name, command.versions()])
    folder = out / "networks" / hashlib.sha256(key.encode()).hexdigest()[:12]
    trained, accuracy = [], []
    for seed in range(settings.seeds):
        stages.tell(f"training, seed {seed + 1} of {settings.seeds}")
        state, _ = training.train(
            functions, images, settings, seed, run / f"batch_norm-{seed}", advancing(stages)
        )
        network = Network(images, settings, functions, state, seed)
        trained.append(network.accuracy(network.tree))
        accuracy.append({})
        for criterion in pruning.CRITERIA:
            stages.tell(f"pruning by {criterion}, seed {seed + 1} of {settings.seeds}")
            pruned_by(network, criterion, options, folder / f"{criterion}-{seed}")
            accuracy[seed][criterion] = recorded(folder / f"{criterion}-{seed}")
            stages.advance(options.steps * options.fine_tune)
    return {
        "settings": settings._asdict() | {"training images": len(images.x_train)},
        "options": options._asdict(),
        "ratios": schedule(options),
        "data": described(images, settings.probe),
        "accuracy": accuracies(trained, accuracy),
        **costs(images, settings, functions, run, folder / "l2-0", batch_sizes),
        "seconds": time.perf_counter() - start,
    }


def costs(
    images: Images,
    settings: training.Settings,
    functions: training.Program,
    run: Path,
    folder: Path,
    batch_sizes: tuple[int, ...],
) -> dict[str, Any]:
    """Widths and costs of the first network, as it was trained and as its checkpoint has it."""
    state, _ = training.train(
        functions, images, settings, 0, run / "batch_norm-0", lambda epoch: None
    )
    network = Network(images, settings, functions, state, 0)
    trees = {
        "trained": network.tree,
        "pruned": pruning.load_pruned(folder, network.tree).params,
    }
    found = {
        name: pruning.cost(network.apply, tree, images.x_test[:1], batch_sizes=batch_sizes)
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


def advancing(stages: Stages) -> Callable[[int], None]:
    """What `training.train` calls with the epochs that are done."""
    reached = 0

    def on_epoch(epoch: int) -> None:
        nonlocal reached
        stages.advance(epoch - reached)
        reached = epoch

    return on_epoch


class Network:
    """One trained network, and what is done to trees of its arrays of any widths."""

    def __init__(
        self,
        images: Images,
        settings: training.Settings,
        functions: training.Program,
        state: training.State,
        seed: int,
    ):
        self.images, self.settings, self.functions, self.seed = images, settings, functions, seed
        self.state = state
        self.tree = {"params": state.params, "statistics": state.statistics}
        build = partial(training.network, "batch_norm", images, settings, 0)
        self.graph = nnx.graphdef(nnx.eval_shape(build))

    def apply(self, tree: Any, x: Any) -> Any:
        return self.functions.logits(self.with_state(tree, None), x)

    def with_state(self, tree: Any, optimizer: Any) -> training.State:
        return training.State(tree["params"], tree["statistics"], optimizer)

    def accuracy(self, tree: Any) -> float:
        x, y = self.images.x_test, self.images.y_test
        return training.accuracy(partial(self.apply, tree), x, y)

    def recalibrated(self, tree: Any) -> Any:
        model = nnx.merge(self.graph, tree["params"], tree["statistics"], copy=True)
        chunk = min(training.CHUNK, len(self.images.x_train))
        starts = range(0, len(self.images.x_train) - chunk + 1, chunk)[:RECALIBRATION]
        recalibrate(model, (jnp.asarray(self.images.x_train[i : i + chunk]) for i in starts))
        return tree | {"statistics": nnx.state(model, nnx.BatchStat)}

    def fine_tuned(self, tree: Any, epochs: int) -> Any:
        """Trained further from a fifth of the first learning rate, by the same schedule."""
        rate = self.settings.learning_rate / 5
        settings = self.settings._replace(epochs=epochs, learning_rate=rate)
        tree = jax.tree.map(jnp.copy, tree)  # a step reuses what it is given
        still = jax.tree.map(jnp.zeros_like, tree["params"])
        state = self.with_state(tree, optax.tree.set(self.state.optimizer, trace=still))
        for epoch in range(epochs):
            state, _ = training.one_epoch(
                self.functions, self.images, settings, self.seed, epoch, state
            )
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
    command.run(main, again="start again to go on from the last checkpoint")
