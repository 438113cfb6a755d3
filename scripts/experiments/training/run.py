"""Run the training of several seeds, with groups of seeds, a progress bar and results."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.progress import Progress, TaskID

from experiments import cli, signals
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.progress import print_above, progress_bar
from experiments.recipes import Evaluation, Recipe
from experiments.training import chunks, loop, run_folder
from experiments.training.accuracies import percentages
from experiments.training.loop import Extras
from experiments.training.processes import is_main_process
from experiments.training.step import State
from experiments.training.trained import InitialWeights, newest_state, read_recipe
from experiments.training.trainer import Seeds, Trainer


class Bar:
    """A display that shows the progress of a run on a bar."""

    def __init__(self, progress: Progress, total: int):
        self.progress = progress
        self.task: TaskID = progress.add_task("compiling", total=total, numbers="")

    def log(self, line: str) -> None:
        print_above(self.progress, line)

    def update(self, steps: int, description: str, numbers: str) -> None:
        """Show the number of finished steps, and which seeds are in training."""
        self.progress.update(self.task, completed=steps, description=description, numbers=numbers)


def seed_groups(
    recipe: Recipe, seeds: int, vmap_seeds: Literal["auto", "yes", "no"]
) -> list[Seeds]:
    """Divide the seeds into groups; the seeds of one group are trained together by vmap.

    The groups are trained in turn. With "auto", all seeds form one group only if the network is an
    mlp. On a CPU, vmap halves the time of five mlps. For five residual networks, vmap saves no time
    and takes five times the memory, because convolutions with one kernel per seed become grouped
    convolutions.
    """
    together = recipe.model == "mlp" if vmap_seeds == "auto" else vmap_seeds == "yes"
    return [tuple(range(seeds))] if together else [(seed,) for seed in range(seeds)]


def recipe_to_evaluate(out: Path, recipe: Recipe) -> Recipe:
    """The recipe of the run in `out`, which must agree with the given `recipe`.

    Raises:
      InputError: The run and `recipe` differ in the data set, the model or the normalization.
    """
    found, _ = read_recipe(out)
    for name in ("dataset", "model", "normalization"):
        given, recorded = getattr(recipe, name), getattr(found, name)
        if given != recorded:
            raise InputError(
                "--evaluate-only needs the preset and the normalization of the run; "
                f"{out} has {name} {recorded}, not {given}"
            )
    return found


def prepare(
    trainer: Trainer,
    data: Images | Records,
    groups: list[Seeds],
    out: Path,
    init_from: Path | None,
    *,
    evaluate_only: bool = False,
) -> Callable[[Seeds], State]:
    """Prepare the folder of a run, and return a function that makes the first state.

    The returned function takes the seeds of a group of networks, and returns the state of these
    networks before the first step.
    With `evaluate_only`, `prepare` does not check from which weights the run in `out` started.

    Raises:
      InputError: The folder belongs to a different run, or the run `init_from` has a different
        network.
    """
    weights = None if init_from is None else InitialWeights(init_from, sum(map(len, groups)))
    digest = weights.digest if weights else None
    if evaluate_only:
        digest = read_recipe(out)[1].get("init_from")
    run_folder.prepare(out, trainer.recipe, data, vmapped_seeds=len(groups[0]), init_from=digest)
    return partial(weights.init_state, trainer) if weights else trainer.init_state


def train_groups(
    trainer: Trainer, groups: list[Seeds], out: Path, extras: Extras, init: Callable[[Seeds], State]
) -> dict[str, Any]:
    """Train all groups of seeds, show a progress bar, and return the results.

    Args:
      trainer: The trainer, compiled for the recipe and for the number of seeds in a group.
      groups: The groups of seeds that `seed_groups` returns.
      out: Folder of the run.
      extras: Additional actions of the run.
      init: A function that takes the seeds of a group and returns the state before the first step.

    Raises:
      StoppedError: SIGTERM or Ctrl-C asked the run to end, and its state is saved.
    """
    bar = progress_bar("numbers", disable=not is_main_process())
    start, runs, evaluated = time.perf_counter(), [], []
    with bar as progress, signals.caught() as interrupted, closing(trainer):
        view = Bar(progress, len(groups) * trainer.total_steps)
        for seeds in groups:
            trained = loop.train(trainer, seeds, out, view, interrupted, extras, init)
            runs += trained.lines
            evaluated.append(trained.evaluations)
    return {
        "recipe": dataclasses.asdict(trainer.recipe),
        "vmapped seeds": len(groups[0]),
        "seconds": time.perf_counter() - start,
        "seeds": runs,
        "accuracy": summary([run[-1]["accuracy"] for run in runs]),
        "evaluations": evaluated,
    }


def show_evaluations(
    trainer: Trainer, groups: list[Seeds], out: Path, evaluations: tuple[Evaluation, ...]
) -> None:
    """Print the accuracies of every seed's newest checkpoint, without training.

    Raises:
      InputError: A group has no checkpoint.
    """
    rows: list[dict[str, str]] = []
    with closing(trainer):
        for seeds in groups:
            state = newest_state(trainer, seeds, out)
            step = str(chunks.steps_done(state))
            views = trainer.evaluate_views(state, evaluations)
            for seed, fractions in zip(seeds, trainer.evaluate(state), strict=True):
                rows.append({"seed": str(seed), "step": step} | percentages(fractions, views))
    if is_main_process():
        values = [list(row.values()) for row in rows]
        cli.show_table("newest checkpoints, test images", list(rows[0]), values)


def summary(values: list[float]) -> dict[str, float | None]:
    """The median, the mean and its standard error; for a single value, the error is None."""
    stderr = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {"median": statistics.median(values), "mean": statistics.fmean(values), "stderr": stderr}
