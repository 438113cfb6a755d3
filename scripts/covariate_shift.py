"""Redraws Figures 2 and 3 of the unitization paper: moments and shift of layers through training.

    python scripts/covariate_shift.py                                # digits, about a minute
    python scripts/covariate_shift.py --dataset mnist --data-dir DIR --epochs 60    # 15 minutes

The paper's dense network (ten layers of 100 units, one of 8) is trained with batch norm and with
unitized batch norm from the same weights, at a learning rate that is divided by 5 at 30, 60 and
80 % of the epochs, and again at a constant one: only the second tells whether a fall of the shift
comes from the layer or from the step. After every epoch a tracker measures, on test images, how far
two layers' outputs moved, and moments are streamed over all training images. OUT/index.html shows
it, OUT/results.json holds every number. Finished networks are kept in OUT/runs; a run that is
stopped goes on after the last of them. Nothing is downloaded.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from rich.console import Console
from rich.progress import Progress

import jaxnorm
from experiments import cli
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.pages import shift as shift_page
from experiments.pages.page import plain, write
from experiments.training.loop import write_text
from experiments.training.paired_runs import ARMS
from experiments.training.recipes import Recipe, drops, graphs, replace
from experiments.training.trainer import State, Trainer, learning_rate, mesh_of, trainer
from jaxnorm.shift import Tracker, stream_moments
from reproduce import code, described, settings

Layers = Callable[[State, Array], dict[str, Array]]

LAYERS = ("norms.4", "norms.10")
SCHEDULES = ("drops", "constant")
PROBE = 1000  # test images that the tracker sees
CHUNK = 500  # training images at a time, whose moments are streamed


def main(
    dataset: str = "digits",
    data_dir: Path | None = None,
    epochs: int = 40,
    seeds: int = 3,
    batch_size: int = 128,
    exact: int = 400,
    out: Path = Path("out/shift"),
) -> None:
    """Follow moments and shift of a network's layers through training.

    Args:
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: Folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: Passes over the training images, at least 2.
      seeds: Networks for each of two normalizations and two schedules, at least 1.
      batch_size: Images a step, at least 2.
      exact: Test images of which exact joint distances are computed, at least 2.
      out: Folder for the page, its numbers and finished networks.
    """
    cli.at_least(1, seeds=seeds)
    cli.at_least(2, epochs=epochs, batch_size=batch_size, exact=exact)
    start = time.perf_counter()
    images = datasets.load(dataset, data_dir)
    recipe = Recipe(
        dataset=dataset,
        model="mlp",
        epochs=epochs,
        batch_size=batch_size,
        drops=drops(epochs),
        momentum=0.0,
        weight_decay=0.0,
    )
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("training", total=len(ARMS) * len(SCHEDULES) * seeds * epochs)

        def tell(label: str, epochs: int) -> None:
            progress.update(task, description=label, advance=epochs)

        runs = {arm: {} for arm in ARMS}
        for arm, schedule in itertools.product(ARMS, SCHEDULES):
            own = scheduled(replace(recipe, normalization=arm), schedule)
            runs[arm][schedule] = train_all(own, images, seeds, exact, out, tell)
    results = cli.provenance(__file__) | {
        "settings": settings(recipe) | {"seeds": seeds, "exact": exact},
        "data": described(images, PROBE),
        "seconds": time.perf_counter() - start,
        "learning_rate": {
            schedule: [learning_rate(scheduled(recipe, schedule), epoch) for epoch in range(epochs)]
            for schedule in SCHEDULES
        },
        "runs": runs,
    }
    results["findings"] = shift_page.findings(results)
    write(results, shift_page.render(results), out)
    for sentence in shift_page.sentences(results):
        print(sentence)
    print(f"Open {(out / 'index.html').resolve()}")


def scheduled(recipe: Recipe, schedule: str) -> Recipe:
    return replace(recipe, drops=()) if schedule == "constant" else recipe


def train_all(
    recipe: Recipe,
    images: Images,
    seeds: int,
    exact: int,
    out: Path,
    tell: Callable[[str, int], None],
) -> list[list[dict]]:
    """The networks of all seeds of one recipe; finished ones are read, not trained."""
    program, layers = trainer(recipe, images, mesh_of(1)), layers_of(recipe, images)
    found = []
    for seed in range(seeds):
        schedule = "drops" if recipe.drops else "constant"
        arm = recipe.normalization
        label = f"{arm.replace('_', ' ')}, {schedule}, seed {seed + 1} of {seeds}"
        finished = out / "runs" / f"{digest(recipe, exact)}-{arm}-{schedule}-{seed}.json"
        tell(label, 0)
        if finished.exists():
            run = json.loads(finished.read_text(encoding="utf-8"))
            tell(label, recipe.epochs)
        else:
            run = []
            for line in train(program, layers, images, recipe, exact, seed):
                run.append(plain(line))
                tell(label, 1)
            write_text(finished, json.dumps(run))
        found.append(run)
    return found


def digest(recipe: Recipe, exact: int) -> str:
    """Of what decides the numbers: settings, code and versions."""
    decisive = json.dumps([asdict(recipe), exact, jax.__version__])
    found = hashlib.sha256(decisive.encode())
    for path in (Path(__file__), *code()):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def layers_of(recipe: Recipe, images: Images) -> Layers:
    """Outputs of `LAYERS` in inference, of a state and images."""
    _, inference = graphs(recipe, images)

    @jax.jit
    def outputs(network: Any, x: Float[Array, "n h w c"]) -> dict[str, Array]:
        return jaxnorm.nnx.layer_outputs(nnx.merge(inference, *network, copy=True), LAYERS, x)

    return lambda state, x: outputs((state.params, state.statistics), x)


def train(
    program: Trainer, layers: Layers, images: Images, recipe: Recipe, exact: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Trains one network; after every epoch, what was measured."""
    x, probe = jnp.asarray(images.x_train), jnp.asarray(images.x_test[:PROBE])
    tracker = Tracker(layers, probe, exact=exact)
    states = trained(program, recipe, seed)
    tracker.update(next(states))
    for state in states:
        (found,) = program.evaluate(state)
        yield {
            "loss": float(state.loss) / program.steps,
            **found,
            "shift": {
                name: moved["shift"] | {"channels": float(np.mean(moved["shift"]["channels"]))}
                for name, moved in tracker.update(state).items()
            },
            "tracker_seconds": tracker.seconds,
            "moments": stream_moments(partial(layers, state), chunks(x))[LAYERS[-1]]._asdict(),
        }


def trained(program: Trainer, recipe: Recipe, seed: int) -> Iterator[State]:
    """The untrained state and that after every epoch; each is gone when the next is asked for."""
    state, seeds = program.start((seed,)), (seed,)
    for epoch in range(recipe.epochs):
        yield state
        state = program.advance(state, program.epoch(seeds, epoch, 0), seeds, program.steps)
    yield state


def chunks(x: Float[Array, "n h w c"]) -> Iterator[Float[Array, "m h w c"]]:
    for i in range(0, len(x), CHUNK):
        yield x[i : i + CHUNK]


if __name__ == "__main__":
    cli.run(main, again="start again to go on after the last finished network")
