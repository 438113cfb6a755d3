"""Train a network with any normalization, on a laptop or on all devices of many hosts.

    python scripts/train.py digits-mlp                              # seconds on a CPU
    python scripts/train.py cifar10-resnet20 --normalization unitized --data-dir DIR
    python scripts/train.py --help                                  # all presets

A preset is an experiment of the papers; each of its fields is an option. OUT holds the settings,
one folder a seed with checkpoints and a line of numbers an epoch (metrics.jsonl), and results.json
at the end. A run that is stopped, however it is stopped, goes on when it is started again and ends
with the same numbers. Nothing is downloaded.
"""

import dataclasses
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import command
import data
import recipes
from checkpoints import Checkpoints
from command import InputError
from recipes import PRESETS, Recipe
from trainer import Trainer, learning_rate, mesh_of, trainer

CHUNK = 100  # steps between two looks at the loss
BETWEEN_CHECKPOINTS = 30.0  # seconds


@dataclass(frozen=True)
class Options:
    """How a recipe is run; nothing here changes its numbers.

    Attributes:
      data_dir: Folder with the data set in tensorflow-datasets' format; digits need none.
      seeds: Networks trained, one after the other, from seeds 0, 1, …
      devices: Of how many devices a mesh is made; by default of all.
      shard_state: Spread parameters and optimizer state over the devices.
      out: Folder of the run.
    """

    data_dir: Path | None = None
    seeds: int = 1
    devices: int | None = None
    shard_state: bool = False
    out: Path = Path("out/train")


class Stop:
    """Whether the run was asked to end, by SIGTERM."""

    def __init__(self):
        self.asked = threading.Event()

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        before = signal.signal(signal.SIGTERM, lambda *_: self.asked.set())
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)


class TerminatedError(Exception):
    """The run was asked to end, and its state is saved."""


class View:
    """The progress bar of a run."""

    def __init__(self, progress: Progress, total: int):
        self.progress = progress
        self.task: TaskID = progress.add_task("compiling", total=total, numbers="")

    def tell(self, line: str) -> None:
        self.progress.console.print(line, markup=False, highlight=False)

    def at(self, steps: int, what: str, numbers: str) -> None:
        self.progress.update(self.task, completed=steps, description=what, numbers=numbers)


def main(recipe: Recipe, options: Options) -> None:
    """Train a recipe for every seed and print what came of it."""
    recipes.check(recipe)
    command.at_least(1, seeds=options.seeds)
    images = data.load(recipe.dataset, options.data_dir)
    mesh = mesh_of(options.devices)
    program = trainer(recipe, images, mesh, shard_state=options.shard_state)
    prepare(options.out, recipe)
    print(first_line(recipe, program, mesh))
    if images.note:
        print(images.note)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TextColumn("still"),
        TimeRemainingColumn(),
    )
    start, found = time.perf_counter(), []
    with Progress(*columns, console=Console(stderr=True)) as progress, Stop().listening() as stop:
        view = View(progress, options.seeds * recipe.epochs * program.steps)
        for seed in range(options.seeds):
            folder = options.out / f"seed-{seed}"
            found.append(train(recipe, program, seed, folder, view, stop, len(images.x_test)))
    results = command.provenance(__file__) | {
        "recipe": dataclasses.asdict(recipe),
        "note": images.note,
        "mesh": dict(mesh.shape),
        "seconds": time.perf_counter() - start,
        "seeds": found,
        "accuracy": summary([run[-1]["accuracy"] for run in found]),
    }
    write(options.out / "results.json", results)
    show(recipe, results)


def first_line(recipe: Recipe, program: Trainer, mesh: Mesh) -> str:
    """On what a run computes, and how much."""
    line = (
        f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {dict(mesh.shape)}, "
        f"{recipe.batch_size // mesh.size} images a device, {program.parameters:,} parameters, "
        f"{program.steps} steps an epoch"
    )
    cost = program.lowered().cost_analysis()
    if cost and cost.get("flops", 0) > 0:
        line += f" of {cost['flops'] * program.steps:.2g} floating-point operations"
    return line


def train(
    recipe: Recipe,
    program: Trainer,
    seed: int,
    folder: Path,
    view: View,
    stop: Stop,
    tested: int,
) -> list[dict[str, Any]]:
    """Train one network, from its newest checkpoint if it has one; the lines of its epochs."""
    total, before = recipe.epochs * program.steps, seed * recipe.epochs * program.steps
    with Checkpoints(folder / "checkpoints") as checkpoints:
        state = checkpoints.restore(program.start(seed), view.tell)
        step = int(state.step)
        lines = read_lines(folder / "metrics.jsonl")[: step // program.steps]
        saved, began, first = time.monotonic(), time.monotonic(), step
        while len(lines) < recipe.epochs:
            epoch = len(lines)
            order = program.order(seed, epoch)
            while step < (epoch + 1) * program.steps:
                count = min(CHUNK, (epoch + 1) * program.steps - step)
                state = program.advance(state, order, seed, count)
                step += count
                loss = float(state.loss) / (step - epoch * program.steps)
                if not math.isfinite(loss):
                    raise InputError(diverged(step, checkpoints))
                speed = (step - first) * recipe.batch_size / (time.monotonic() - began)
                view.at(
                    before + step,
                    f"seed {seed}, epoch {epoch + 1} of {recipe.epochs}",
                    f"loss {loss:.4f}, {accuracy_so_far(lines)}{speed:,.0f} images/s",
                )
                if stop.asked.is_set():
                    checkpoints.save(step, state)
                    raise TerminatedError
                if time.monotonic() - saved > BETWEEN_CHECKPOINTS:
                    checkpoints.save(step, state)
                    saved = time.monotonic()
            lines.append(
                {
                    "epoch": epoch + 1,
                    "loss": float(state.loss) / program.steps,
                    "accuracy": program.evaluate(state) / tested,
                    "learning_rate": learning_rate(recipe, epoch),
                    "seconds": time.monotonic() - began,
                }
            )
            write_lines(folder / "metrics.jsonl", lines)
        checkpoints.save(total, state)
    return lines


def prepare(out: Path, recipe: Recipe) -> None:
    """Make the run's folder, or find in it a run of the same recipe.

    Raises:
      InputError: It holds a run of another recipe, or is no folder that can be written.
    """
    path, here = out / "recipe.json", dataclasses.asdict(recipe)
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be the readable recipe of a run; {error}") from error
    if there is None:
        try:
            write(path, here)
        except OSError as error:
            raise InputError(f"--out must be a folder that can be written; {error}") from error
        return
    for name, value in json.loads(json.dumps(here)).items():
        if name not in there or there[name] != value:
            raise InputError(
                f"--out must be a new folder or a run of this recipe; {out} has {name} "
                f"{there.get(name)}, not {value}"
            )


def diverged(step: int, checkpoints: Checkpoints) -> str:
    last = max(checkpoints.manager.all_steps(), default=None)
    kept = f"the last good checkpoint is of step {last}" if last else "no checkpoint is kept"
    return f"the loss must stay finite; by step {step} it is not: {kept}; lower --learning-rate"


def accuracy_so_far(lines: list[dict[str, Any]]) -> str:
    return f"accuracy {100 * lines[-1]['accuracy']:.2f} %, " if lines else ""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may not exist; a last one that is cut is none."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    _replace(path, "".join(json.dumps(line) + "\n" for line in lines))


def write(path: Path, tree: dict[str, Any]) -> None:
    _replace(path, json.dumps(tree, indent=1, allow_nan=False) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def summary(values: list[float]) -> dict[str, float | None]:
    several = len(values) > 1
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "stderr": statistics.stdev(values) / len(values) ** 0.5 if several else None,
    }


def show(recipe: Recipe, results: dict[str, Any]) -> None:
    """One row a seed, and their median and mean."""
    table = Table(title=f"{recipe.model}, {recipe.normalization}, {recipe.dataset}")
    for column in ("seed", "last loss", "test accuracy, %"):
        table.add_column(column, justify="right")
    for seed, run in enumerate(results["seeds"]):
        table.add_row(str(seed), f"{run[-1]['loss']:.4f}", f"{100 * run[-1]['accuracy']:.2f}")
    found = results["accuracy"]
    error = "" if found["stderr"] is None else f" ± {100 * found['stderr']:.2f}"
    Console(width=100).print(table)
    print(f"median {100 * found['median']:.2f} %, mean {100 * found['mean']:.2f}{error} %")


@dataclass(frozen=True)
class Arguments:
    """The command line behind the preset."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    options: tyro.conf.OmitArgPrefixes[Options] = field(default_factory=Options)


if __name__ == "__main__":
    with command.ending("start again to go on from the last checkpoint"):
        presets = {name: (words, Arguments(recipe)) for name, (words, recipe) in PRESETS.items()}
        chosen = tyro.extras.overridable_config_cli(presets, description=__doc__)
        try:
            main(chosen.recipe, chosen.options)
        except TerminatedError:
            print("terminated; the state is saved, start again to go on", file=sys.stderr)
            sys.exit(143)
