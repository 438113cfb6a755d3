"""Trains, measures, prunes and checks the claims of three papers; writes one page that shows it.

    python scripts/reproduce.py                       # digits, about 3 minutes on 2 cores
    python scripts/reproduce.py --dataset fashion_mnist --data-dir DIR --epochs 1

The page is OUT/report/index.html, every number is in OUT/report/results.json beside it. A run that
is stopped goes on from its last checkpoint when it is started again, and ends with the same
numbers. Nothing is downloaded.
"""

import hashlib
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments import cli
from experiments.cli import InputError
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.measures import claim_checks, networks
from experiments.pages import reproduce as reproduce_page
from experiments.progress import Stages, progress_bar
from experiments.provenance import code, described, settings
from experiments.training import paired_runs, recipes
from experiments.training.recipes import Recipe


def main(
    dataset: str = "digits",
    data_dir: Path | None = None,
    epochs: int = 15,
    seeds: int = 3,
    batch_size: int = 64,
    depth: int = 20,
    out: Path = Path("out"),
) -> None:
    """Reproduce the papers' main results and write OUT/report/index.html.

    Args:
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: Folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: Passes over the training images, at least 1.
      seeds: Networks trained for each of the two normalizations, at least 1.
      batch_size: Images a step, at least 2.
      depth: Layers of the residual network, 8, 14, 20 or any other 6k + 2.
      out: Folder for the report, and for checkpoints from which a stopped run goes on.
    """
    cli.at_least(1, epochs=epochs, seeds=seeds)
    cli.at_least(2, batch_size=batch_size)
    if depth < 8 or depth % 6 != 2:
        raise InputError(f"--depth must be 6k + 2 with k at least 1; got {depth}")
    for folder in (out / "report", out / "runs"):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise InputError(f"the output path must be a folder; {nearest} is a file")
        if not os.access(nearest, os.W_OK):
            raise InputError(f"the output folder must be writable; {nearest} is not")
    recipe = Recipe(
        dataset=dataset,
        model=f"preact{depth}",
        epochs=epochs,
        batch_size=batch_size,
        drops=recipes.drops(epochs),
    )
    with progress_bar() as progress:
        results = run(recipe, seeds, data_dir, out, Stages(progress, units(epochs, seeds)))
    reproduce_page.write(results, out / "report")
    summarize(results)
    print(f"Open {(out / 'report' / 'index.html').resolve()}")


def units(epochs: int, seeds: int) -> int:
    """Expected work in epochs: training, and about two epochs a network and six for the checks."""
    return len(paired_runs.ARMS) * seeds * (epochs + 2) + 6


def run(
    recipe: Recipe, seeds: int, data_dir: Path | None, out: Path, stages: Stages
) -> dict[str, Any]:
    """All stages, and their numbers as one tree."""
    start = time.perf_counter()
    with stages.stage("data"):
        images = datasets.load(recipe.dataset, data_dir)
    with stages.stage("train"):
        programs, states, histories = train(recipe, seeds, images, run_folder(recipe, out), stages)
    with stages.stage("pruning"):
        pruned = networks.criteria(states, programs, on_network=lambda: stages.advance(2))
    with stages.stage("claims"):
        claims = claim_checks.claims(seed=0)
        stages.advance(4)
    with stages.stage("odd point"):
        odd = claim_checks.odd_point(seed=0)
        stages.advance(2)
    return cli.provenance(__file__) | {
        "settings": settings(recipe) | {"seeds": seeds},
        "data": described(images, paired_runs.PROBE),
        "seconds": stages.seconds | {"total": time.perf_counter() - start},
        "training": networks.training(states, histories, recipe),
        "moments": networks.moments(histories),
        "distances": networks.distances(histories),
        "pruning": pruned,
        "histograms": networks.histograms(states["batch_norm"][0]),
        "claims": claims,
        "odd_point": odd,
    }


def train(
    recipe: Recipe, seeds: int, images: Images, folder: Path, stages: Stages
) -> tuple[dict, dict, dict]:
    """Compiled functions, trained states and histories of both arms."""
    programs, states, histories = {}, {}, {}
    for arm in paired_runs.ARMS:
        own = recipes.replace(recipe, normalization=arm)
        programs[arm] = paired_runs.program(own, images)
        states[arm], histories[arm] = [], []
        for seed in range(seeds):
            stages.describe(f"training {arm.replace('_', ' ')}, seed {seed + 1} of {seeds}")
            reached = 0

            def on_epoch(epoch: int) -> None:
                nonlocal reached
                stages.advance(epoch - reached)
                reached = epoch

            state, history = paired_runs.train(
                programs[arm],
                own,
                seed,
                folder / f"{arm}-{seed}",
                on_epoch,
                stages.log,
            )
            states[arm].append(state)
            histories[arm].append(history)
    return programs, states, histories


def run_folder(recipe: Recipe, out: Path) -> Path:
    """Where runs of a recipe keep checkpoints: another recipe, code or versions, another."""
    decisive = [asdict(recipe), cli.versions(), platform.machine()]
    digest = hashlib.sha256(json.dumps(decisive).encode())
    for path in code():
        digest.update(path.read_bytes())
    return out / "runs" / f"{recipe.dataset}-{digest.hexdigest()[:12]}"


def summarize(results: dict[str, Any]) -> None:
    for arm in paired_runs.ARMS:
        found = results["training"][arm]["accuracy"]
        error = "one seed" if found["stderr"] is None else f"± {100 * found['stderr']:.2f}"
        print(f"{arm.replace('_', ' ')}: test accuracy {100 * found['mean']:.2f} % ({error})")
    for claim in results["claims"]:
        print(f"{claim['name']}: {claim['verdict']}")


if __name__ == "__main__":
    cli.run(main, again="start again to go on from the last checkpoint")
