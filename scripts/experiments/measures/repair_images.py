"""Prune a ResNet-20 that was trained on CIFAR-10, and repair it.

The arrays of the weight file have PyTorch's names, and the data folder has CIFAR-10 in the format
of tensorflow-datasets. Inside all blocks, channels are removed by every criterion and, as a
control, at random. Every repair starts from the same trained network. A draw is a random set of
training images, and all repairs of one draw use the same images. Each row is saved when it is
measured, so a second run resumes where the first run ended.
"""

import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import pruning
from experiments.cli import InputError
from experiments.data import datasets, loaders
from experiments.measures.repair import pack
from experiments.training import weight_files
from jaxnorm.nnx import recalibrate
from pruning.channels import (
    least_squares,
    merge_channels,
    reconstruction_scores,
    rescale,
    transport,
)

CHOICES = (*pruning.CRITERIA, "random", "greedy")
# the repairs that are measured last
LAST = ("merged, transport", "merged, clusters", "scaled")
# RATE is the learning rate. Of the rates 0.001, 0.003 and 0.01, it was the best on other images.
# STEP is the number of images in a training step.
RATE, STEP = 0.003, 25

Examples = tuple[np.ndarray, np.ndarray]  # Arrays of images and labels.
# For each criterion and repair, a function that returns the repaired network.
Makers = dict[tuple[str, str], Callable[[], Any]]


class Settings(NamedTuple):
    """How many images and draws are used, and which shares of the channels are removed."""

    images: int = 250
    test: int = 2000
    batch: int = 125
    draws: int = 3
    ratios: Sequence[float] = (0.1, 0.2, 0.3, 0.5)


class Task(NamedTuple):
    """One network to prune and repair, with images, and the criterion and ratio of the removal."""

    graph: Any
    tree: Any
    train: Examples
    batch: int
    ratio: float
    choice: str
    draw: int

    @property
    def batches(self) -> list[tuple[np.ndarray]]:
        x, _ = self.train
        return [(part,) for part in np.split(x, len(x) // self.batch)]

    def prune_draw(self, **options: Any) -> Any:
        x = self.train[0][:1]  # if the stem is excluded, the residual stream is not pruned
        given = {"ratios": [self.ratio], "exclude": ["stem"], "score": self.score()} | options
        try:
            return pruning.prune(applied(self.graph), self.tree, x, **given).params
        except ValueError as error:
            raise InputError(f"the ratio {self.ratio} must be usable; {error}") from error

    def score(self) -> Callable[..., Any]:
        """The function that scores channels, by a criterion, at random or greedily."""
        apply = applied(self.graph)
        if self.choice == "greedy":
            return partial(reconstruction_scores, apply=apply, batches=self.batches)
        if self.choice == "random":
            return partial(random_scores, jax.random.key(self.draw))
        criterion = pruning.CRITERIA[self.choice]
        return partial(pruning.channels.channel_scores, criterion=criterion)


def zeros(params: Any, groups: Any) -> list[jax.Array]:
    return [jnp.zeros(group.size) for group in groups]


def random_scores(key: jax.Array, params: Any, groups: Any) -> list[jax.Array]:
    return [jax.random.uniform(jax.random.fold_in(key, i), (g.size,)) for i, g in enumerate(groups)]


def repairs(task: Task) -> Makers:
    """For each pair of a criterion and a repair, a function that makes the repaired network.

    For the greedy choice and for merging by clusters, the criterion is "none".
    """
    batches = task.batches
    folded = cache(task.prune_draw)
    fresh = partial(recalibrated, task.graph, batches=batches)
    solved = cache(lambda: task.prune_draw(repair=partial(least_squares, batches=batches)))
    merged = partial(merge_channels, inputs=batches[0])
    if task.choice == "greedy":
        clusters = {
            ("none", "merged, clusters"): lambda: task.prune_draw(repair=merged, score=zeros)
        }
        return {("none", "greedy, least squares"): solved} | ({} if task.draw else clusters)
    makers: dict[str, Callable[[], Any]] = {}
    # "folded" and "merged, transport" use no images, so one draw suffices. With random choice, each
    # draw removes different channels, so all draws are computed.
    if task.draw == 0 or task.choice == "random":
        carried = partial(merged, plan=transport)
        makers = {"folded": folded, "merged, transport": lambda: task.prune_draw(repair=carried)}
    makers |= {
        "recalibrated": lambda: fresh(folded()),
        "scaled": lambda: task.prune_draw(repair=partial(rescale, batches=batches)),
        "least squares": solved,
        "least squares, recalibrated": lambda: fresh(solved()),
        "fine-tuned, one epoch": lambda: fresh(fine_tuned(task.graph, fresh(folded()), task.train)),
    }
    return {(task.choice, name): make for name, make in makers.items()}


@cache
def applied(graph: Any) -> Callable[..., Any]:
    return jax.jit(lambda state, x: nnx.merge(graph, state)(x))


def recalibrated(graph: Any, tree: Any, batches: list[tuple[np.ndarray]]) -> Any:
    model = nnx.merge(graph, tree, copy=True)
    recalibrate(model, [jnp.asarray(x) for (x,) in batches])
    return nnx.state(model)


def fine_tuned(graph: Any, tree: Any, train: Examples) -> Any:
    """The network's arrays after one epoch of SGD with momentum on the images for the repair."""
    model = nnx.view(nnx.merge(graph, tree, copy=True), use_running_average=False)
    training, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    optimizer, step = stepping(training)
    state = optimizer.init(params)
    for x, y in zip(*(np.split(a, len(a) // STEP) for a in train), strict=True):
        params, statistics, state = step(params, statistics, state, x, y)
    return nnx.merge_state(params, statistics)


@cache
def stepping(graph: Any) -> tuple[optax.GradientTransformation, Callable[..., Any]]:
    """SGD with momentum, and a function that takes one training step of this SGD.

    The step is compiled once for all networks with the same widths.
    """
    optimizer = optax.sgd(RATE, momentum=0.9)

    def loss(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, params, statistics, copy=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
        return losses.mean(), nnx.state(model, nnx.BatchStat)

    @jax.jit
    def step(params: Any, statistics: Any, state: Any, x: Any, y: Any) -> Any:
        gradient, statistics = jax.grad(loss, has_aux=True)(params, statistics, x, y)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), statistics, state

    return optimizer, step


def network(path: Path | str) -> tuple[Any, Any]:
    """Read the network of a weight file, as a graph for inference and arrays."""
    return nnx.split(nnx.view(weight_files.read(Path(path)), use_running_average=True))


def images(data_dir: Path | str, split: str, start: int, count: int) -> Examples:
    """Read standardized images of CIFAR-10 and their labels.

    Raises:
      InputError: The folder does not hold the data set, or the split has fewer images.
    """
    source = datasets.open_split("cifar10", Path(data_dir), split)
    if start + count > len(source):
        raise InputError(
            f"this run needs {start + count:,} {split} images; {data_dir} has {len(source):,}: "
            "use fewer images"
        )
    examples = [source[i] for i in range(start, start + count)]
    x = np.stack([e["image"] for e in examples]).astype("float32") / 255
    x = (x - np.array(loaders.MEAN, "float32")) / np.array(loaders.DEVIATION, "float32")
    return x, np.array([e["label"] for e in examples])


def correct(graph: Any, tree: Any, test: Examples) -> np.ndarray:
    """For each test image, whether the network classifies the image correctly."""
    x, labels = test
    parts = np.array_split(x, max(1, len(x) // 500))
    return np.concatenate([applied(graph)(tree, part).argmax(1) for part in parts]) == labels


def run(
    weights: Path,
    data_dir: Path,
    settings: Settings,
    before: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Measure the rows that the results `before` of an earlier run lack; save after each row."""
    graph, tree = network(weights)
    test = images(data_dir, "test", 0, settings.test)
    images_of_draws = images(data_dir, "train", 0, settings.draws * settings.images)
    results = resume(settings, identity(weights, test), before)
    rows = results["rows"]
    done = {(row["draw"], row["ratio"], row["criterion"], row["repair"]) for row in rows}
    for draw, ratio in itertools.product(range(settings.draws), settings.ratios):
        x, labels = (np.split(array, settings.draws)[draw] for array in images_of_draws)
        whole = Task(graph, tree, (x, labels), settings.batch, ratio, "greedy", draw)
        if len(results["whole, recalibrated"]) == draw:
            results["whole"] = pack(correct(graph, tree, test))
            fresh = recalibrated(graph, tree, whole.batches)
            results["whole, recalibrated"].append(pack(correct(graph, fresh, test)))
        for last, choice in itertools.product((False, True), CHOICES):
            makers = repairs(whole._replace(choice=choice))
            left = {
                key: make
                for key, make in makers.items()
                if (draw, ratio, *key) not in done and (key[1] in LAST) == last
            }
            for (criterion, repair), small, took in measure(left):
                row = {"draw": draw, "ratio": ratio, "criterion": criterion, "repair": repair}
                rows.append(row | took | {"correct": pack(correct(graph, small, test))})
                save(results)


def identity(weights: Path, test: Examples) -> dict[str, str]:
    """Checksums of the weight file and of the test images with their labels."""
    return {
        "weights": datasets.sha256([weights.read_bytes()]),
        "test images": datasets.sha256(test),
    }


def resume(settings: Settings, inputs: dict[str, str], before: dict[str, Any]) -> dict[str, Any]:
    """The results with which a run starts; fitting measurements of an earlier run are kept.

    The measurements in `before` are kept only if the earlier run had the same `images`, `test`,
    `batch`, learning rate, images per step and `inputs` as this run. The `draws` and `ratios` of
    the two runs can differ.
    """
    shared: dict[str, Any] = {n: getattr(settings, n) for n in ("images", "test", "batch")}
    shared |= {"learning rate": RATE, "images a step": STEP} | inputs
    results = {
        "settings": shared,
        "data": "CIFAR-10, JPEG-recompressed: accuracies are below those on the original pixels.",
        "whole": "",
        "whole, recalibrated": [],
        "rows": [],
    }
    measured_before = ("whole", "whole, recalibrated", "rows")
    same = before.get("settings") == shared
    return results | ({name: before[name] for name in measured_before} if same else {})


def measure(makers: Makers) -> Iterator[tuple[tuple[str, str], Any, dict[str, float]]]:
    """Make each network; yield its key, its arrays, the processor time and the added memory (MB).

    The time can be shorter for later networks, because JAX does not compile a function again for
    networks of the same widths.
    """
    for key, make in makers.items():
        before, start = peak(), time.process_time()
        tree = jax.block_until_ready(make())
        seconds = time.process_time() - start
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        yield key, tree, {"seconds": seconds, "megabytes": megabytes}


def peak() -> int:
    """Reset the process's peak memory; return the memory that is in use, in kB."""
    Path("/proc/self/clear_refs").write_text("5")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
