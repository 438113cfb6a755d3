"""Train a network with any normalization, on a laptop or on all devices of many hosts.

    python scripts/train.py digits-mlp                              # seconds on a CPU
    python scripts/train.py cifar10-resnet20 --normalization unitized --data-dir DIR
    python scripts/train.py --help                                  # all presets
    python scripts/train.py cifar10-resnet20 --help                 # all options of a preset

A preset is an experiment of the papers; each of its fields is an option. OUT holds the settings, a
line of numbers an epoch (seed-0/metrics.jsonl, and the same for TensorBoard), checkpoints, and at
the end results.json and a page with curves. A run that is stopped, however it is stopped, goes on
when it is started again and ends with the same numbers. Nothing is downloaded.
"""

import dataclasses
import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from jax.sharding import AxisType, Mesh
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from experiments import cli
from experiments.cli import InputError
from experiments.data import datasets
from experiments.pages import page
from experiments.pages import train as train_page
from experiments.training import compiled_step, loop, recipes
from experiments.training.recipes import PRESETS, Evaluation, Recipe
from experiments.training.trainer import (
    Layout,
    Seeds,
    Trainer,
    mesh_of,
    platform,
    trainer,
)


@dataclass(frozen=True)
class Options:
    """How a recipe is run; nothing here changes its numbers beyond rounding.

    Attributes:
      data_dir: Folder with the data set in tensorflow-datasets' format; digits need none.
      seeds: Networks trained, from seeds 0, 1, …
      side_by_side: Train all seeds as one program; auto: where that is faster, for the mlp.
      devices: Of how many devices a mesh is made; by default of all.
      shard_state: Spread parameters and optimizer state over the devices.
      remat: Compute blocks again in the backward pass: less memory, more time; not on a CPU.
      evaluations: After the last epoch, of ImageNet: crops (42 at five scales), whole (images).
      workers: Processes that read and crop images of ImageNet; by default one a core.
      coordinator: HOST:PORT of process 0 of several, or auto on TPU pods and under Slurm.
      processes: How many processes there are; not with auto.
      process: Which of them this is, from 0; not with auto.
      axis_type: Of the mesh: who propagates shardings, XLA (auto) or JAX, in types (explicit).
      compile_for: Compile a step for v5e:16x16, another TPU topology or h100, none of which need
        be attached, and print its memory, traffic and bounds; nothing is run or written.
      profile: Write a trace of ten steps, for Perfetto or TensorBoard, to OUT/profile.
      out: Folder of the run.
    """

    data_dir: Path | None = None
    seeds: int = 1
    side_by_side: Literal["auto", "yes", "no"] = "auto"
    devices: int | None = None
    shard_state: bool = False
    remat: bool = False
    evaluations: tuple[Evaluation, ...] = ()
    workers: int | None = None
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    axis_type: Literal["auto", "explicit"] = "auto"
    compile_for: str | None = None
    profile: bool = False
    out: Path = Path("out/train")


class Bar:
    """The progress bar of a run."""

    def __init__(self, progress: Progress, total: int):
        self.progress = progress
        self.task: TaskID = progress.add_task("compiling", total=total, numbers="")

    def log(self, line: str) -> None:
        self.progress.console.print(line, markup=False, highlight=False)

    def update(self, steps: int, what: str, numbers: str) -> None:
        self.progress.update(self.task, completed=steps, description=what, numbers=numbers)


def main(recipe: Recipe, options: Options) -> None:
    """Train a recipe for every seed and print what came of it."""
    recipes.check(recipe)
    check(recipe, options)
    groups = seeds_of(recipe, options)
    layout = Layout(
        options.shard_state,
        options.remat,
        together=len(groups[0]) > 1,
        workers=len(os.sched_getaffinity(0)) if options.workers is None else options.workers,
    )
    axis_type = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[options.axis_type]
    if options.compile_for is not None:
        compiled_step.show(
            recipe, options.compile_for, layout, devices=options.devices, axis_type=axis_type
        )
        return
    join(options)
    cli.compiled_in(datasets.cache_folder() / "compiled")
    if recipe.dataset in datasets.STREAMED:
        images = datasets.records(recipe.dataset, options.data_dir)
    else:
        images = datasets.load(recipe.dataset, options.data_dir)
    mesh = mesh_of(options.devices, axis_type=axis_type)
    program = trainer(recipe, images, mesh, layout)
    loop.prepare(options.out, recipe, side_by_side=len(groups[0]))
    if loop.leads():
        print(first_line(recipe, program, mesh, groups))
        print(", ".join(f"{name} {value}" for name, value in dataclasses.asdict(recipe).items()))
        if images.note:
            print(images.note)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(12),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    bar = Progress(*columns, console=Console(stderr=True), disable=not loop.leads())
    start, runs, final = time.perf_counter(), [], []
    with bar as progress, loop.sigterm() as interrupted, ExitStack() as atlast:
        atlast.callback(program.close)
        view = Bar(progress, len(groups) * recipe.epochs * program.steps)
        for seeds in groups:
            found = loop.train(
                program,
                seeds,
                options.out,
                view,
                interrupted,
                evaluations=options.evaluations,
                profile=options.profile,
            )
            runs += found.lines
            final.append(found.evaluations)
    if loop.leads():
        results: dict[str, Any] = cli.provenance(__file__) | {
            "recipe": dataclasses.asdict(recipe),
            "note": images.note,
            "mesh": {"shape": dict(mesh.shape), "device": mesh.devices.flat[0].device_kind},
            "side by side": len(groups[0]),
            "seconds": time.perf_counter() - start,
            "seeds": runs,
            "accuracy": summary([run[-1]["accuracy"] for run in runs]),
            "evaluations": final,
        }
        page.write(results, train_page.render(results), options.out)
        show(results)
        print(f"Open {options.out / 'index.html'}")


def check(recipe: Recipe, options: Options) -> None:
    """Refuse options that cannot be, naming them."""
    cli.at_least(1, seeds=options.seeds)
    cli.at_least(0, workers=options.workers or 0)
    several = (options.processes, options.process)
    if options.coordinator in (None, "auto"):
        if several != (None, None):
            raise InputError("--processes and --process need --coordinator HOST:PORT")
    elif None in several:
        raise InputError("--coordinator HOST:PORT needs --processes and --process")
    if "whole" in options.evaluations and recipe.model.startswith("vgg"):
        raise InputError(
            f"--evaluations whole needs a network of any image size; {recipe.model} has dense "
            "layers of one size"
        )


def join(options: Options) -> None:
    """Become one of several processes, before anything is computed."""
    if options.coordinator is None:
        return
    try:
        if options.coordinator == "auto":
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(options.coordinator, options.processes, options.process)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"--coordinator must lead to the other processes; {reason}") from error


def seeds_of(recipe: Recipe, options: Options) -> list[Seeds]:
    """Seeds that are trained together, one group after the other.

    On a CPU five mlps take half the time side by side, and five residual networks the same time
    and five times the memory: convolutions with kernels of their own for every seed are grouped.
    """
    every = tuple(range(options.seeds))
    auto = options.side_by_side == "auto"
    together = recipe.model == "mlp" if auto else options.side_by_side == "yes"
    return [every] if together else [(seed,) for seed in every]


def first_line(recipe: Recipe, program: Trainer, mesh: Mesh, groups: list[Seeds]) -> str:
    """On what a run computes, and how much."""
    line = (
        f"{mesh.size} x {mesh.devices.flat[0].device_kind} ({platform(mesh)}), mesh "
        f"{dict(mesh.shape)}, {jax.process_count()} process(es), "
        f"{recipe.batch_size // mesh.size} images a device, {program.parameters:,} parameters, "
        f"{program.steps} steps an epoch"
    )
    cost = program.lowered().cost_analysis()
    if cost and cost.get("flops", 0) > 0:
        each = cost["flops"] * program.steps / len(groups[0])
        line += f" of {each:.2g} floating-point operations"
    if len(groups) * len(groups[0]) > 1:
        line += ", seeds " + ("side by side" if len(groups) == 1 else "one after the other")
    return line


def summary(values: list[float]) -> dict[str, float | None]:
    several = len(values) > 1
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "stderr": statistics.stdev(values) / len(values) ** 0.5 if several else None,
    }


def show(results: dict[str, Any]) -> None:
    """One row a seed, and their median and mean."""
    title, head, rows = train_page.seed_table(results)
    table = Table(title=title)
    for column in head:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=100).print(table)
    print(train_page.accuracy_sentence(results))


@dataclass(frozen=True)
class Arguments:
    """The command line behind the preset."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    run: tyro.conf.OmitArgPrefixes[Options] = field(default_factory=Options)


if __name__ == "__main__":
    with cli.ending("start again to go on from the last checkpoint"):
        presets = {name: (words, Arguments(recipe)) for name, (words, recipe) in PRESETS.items()}
        chosen = tyro.extras.overridable_config_cli(presets, description=__doc__)
        try:
            main(chosen.recipe, chosen.run)
        except loop.TerminatedError:
            print("terminated; the state is saved, start again to go on", file=sys.stderr)
            sys.exit(143)
