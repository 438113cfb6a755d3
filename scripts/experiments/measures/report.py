"""Train and measure networks, and check claims, for `reproduce.py`."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments import cli, recipes
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.measures import claims, networks, odd_point, provenance
from experiments.progress import Stages, TrainingView
from experiments.recipes import Recipe
from experiments.training import paired_runs
from experiments.training.paired_runs import NORMALIZATIONS, History, Program
from experiments.training.run_folder import same_data
from experiments.training.step import State


def units(epochs: int, seeds: int) -> int:
    """The expected work, as a number of training epochs.

    The measurements of a network count as two epochs. The checks of claims and the measurement of
    the odd point count together as six epochs.
    """
    return len(NORMALIZATIONS) * seeds * (epochs + 2) + 6


def measure(
    script: str, recipe: Recipe, seeds: int, data_dir: Path | None, out: Path, stages: Stages
) -> dict[str, Any]:
    """Run the stages data, train, pruning, claims and odd point, and return their results.

    Checkpoints are written to `out`. The results record `script` as their origin.
    """
    start = time.perf_counter()
    with stages.stage("data"):
        images = datasets.load(recipe.dataset, data_dir)
        same_data(out, images)
    with stages.stage("train"):
        programs, states, histories = train(recipe, seeds, images, run_folder(recipe, out), stages)
    with stages.stage("pruning"):
        pruned = networks.criteria(states, programs, on_network=lambda: stages.advance(2))
    with stages.stage("claims"):
        checked = claims.quick_results(seed=0)
        stages.advance(4)
    with stages.stage("odd point"):
        escape = odd_point.odd_point(seed=0)
        stages.advance(2)
    return dict(
        **cli.provenance(script),
        settings=provenance.settings(recipe) | {"seeds": seeds},
        data=provenance.describe(images, paired_runs.PROBE),
        seconds=stages.seconds | {"total": time.perf_counter() - start},
        training=networks.training(states, histories, recipe),
        moments=networks.moments(histories),
        distances=networks.distances(histories),
        pruning=pruned,
        histograms=networks.histograms(states["batch_norm"][0]),
        claims=checked,
        odd_point=escape,
    )


def train(
    recipe: Recipe, seeds: int, images: Images, folder: Path, stages: Stages
) -> tuple[dict[str, Program], dict[str, list[State]], dict[str, list[History]]]:
    """For each normalization, the compiled functions, the trained states and the histories."""
    programs, states, histories = {}, {}, {}
    for name in NORMALIZATIONS:
        normalized = recipes.replace(recipe, normalization=name)
        programs[name] = paired_runs.program(normalized, images)
        earlier = len(states) * seeds * recipe.epochs
        view = TrainingView(stages, programs[name].trainer.steps, earlier)
        runs = []
        for seed in range(seeds):
            stages.describe(f"training {name.replace('_', ' ')}, seed {seed + 1} of {seeds}")
            runs.append(paired_runs.train(programs[name], seed, folder / name, view))
        states[name], histories[name] = map(list, zip(*runs, strict=True))
    return programs, states, histories


def run_folder(recipe: Recipe, out: Path) -> Path:
    """The folder for the checkpoints of a recipe's networks.

    The name of the folder depends on the recipe, the code, the libraries' versions and the
    processor type.
    """
    digest = provenance.digest(asdict(recipe), provenance.code())
    return out / "runs" / f"{recipe.dataset}-{digest[:12]}"
