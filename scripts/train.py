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
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh
from jaxtyping import Array, Bool
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from tensorboardX import SummaryWriter

from experiments import cli
from experiments.cli import InputError
from experiments.data import datasets
from experiments.pages import page
from experiments.pages import train as train_page
from experiments.training import compiled_step, recipes
from experiments.training.checkpoints import Checkpoints
from experiments.training.recipes import PRESETS, Evaluation, Recipe
from experiments.training.trainer import (
    Layout,
    Seeds,
    State,
    Trainer,
    learning_rate,
    mesh_of,
    platform,
    trainer,
)

PROFILED = 10  # steps of a trace
BETWEEN_CHECKPOINTS = 30.0  # seconds


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


class Trained(NamedTuple):
    """Networks of a group of seeds after their last epoch, and the lines of each one's epochs."""

    state: State
    lines: list[list[dict[str, Any]]]
    evaluations: dict[str, dict[str, float]]


class View(Protocol):
    """What is shown of a run while it lasts."""

    def tell(self, line: str) -> None:
        """Show a line that stays."""

    def at(self, steps: int, what: str, numbers: str) -> None:
        """So many steps are done, over all seeds; what is trained, and how it stands."""


class Bar:
    """The progress bar of a run."""

    def __init__(self, progress: Progress, total: int):
        self.progress = progress
        self.task: TaskID = progress.add_task("compiling", total=total, numbers="")

    def tell(self, line: str) -> None:
        self.progress.console.print(line, markup=False, highlight=False)

    def at(self, steps: int, what: str, numbers: str) -> None:
        self.progress.update(self.task, completed=steps, description=what, numbers=numbers)


class Log:
    """The lines of a seed's epochs, in a file of its own and for TensorBoard; process 0 writes."""

    def __init__(self, folder: Path, epochs: int):
        self.path = folder / "metrics.jsonl"
        self.lines = read_lines(self.path)[:epochs]
        self._events: SummaryWriter | None = None
        if leads():
            # What an interrupted run wrote beyond its checkpoint is left out. Names of files tell
            # seconds apart, and resumed within one a run would write over its own file.
            self._events = SummaryWriter(
                str(folder / "events"),
                purge_step=epochs + 1,
                filename_suffix=f".from-epoch-{epochs + 1}",
            )

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._events:
            self._events.close()

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if self._events:
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))
            for name in line.keys() - {"epoch"}:
                self._events.add_scalar(name, line[name], line["epoch"])
            self._events.flush()


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
    prepare(options.out, recipe, side_by_side=len(groups[0]))
    if leads():
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
    bar = Progress(*columns, console=Console(stderr=True), disable=not leads())
    start, runs, final = time.perf_counter(), [], []
    with bar as progress, Stop().listening() as stop, ExitStack() as atlast:
        atlast.callback(program.close)
        view = Bar(progress, len(groups) * recipe.epochs * program.steps)
        for seeds in groups:
            found = train(recipe, program, seeds, options, view, stop)
            runs += found.lines
            final.append(found.evaluations)
    if leads():
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


def leads() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


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


def train(
    recipe: Recipe, program: Trainer, seeds: Seeds, options: Options, view: View, stop: Stop
) -> Trained:
    """Train the networks of a group of seeds, from their newest checkpoint if they have one."""
    steps, name = program.steps, "-".join(map(str, sorted({seeds[0], seeds[-1]})))
    total, before = recipe.epochs * steps, seeds[0] * recipe.epochs * steps
    with Checkpoints(options.out / f"checkpoints-{name}") as checkpoints, ExitStack() as files:
        state = checkpoints.restore(program.start(seeds), view.tell)
        step = first = int(np.ravel(state.step)[0])
        logs = [
            files.enter_context(Log(options.out / f"seed-{seed}", step // steps)) for seed in seeds
        ]
        saved, clock, trace, batches = time.monotonic(), Clock(), options.profile, None
        while step < total:
            epoch = step // steps
            if batches is None or step % steps == 0:
                batches = program.epoch(seeds, epoch, step % steps)
            compiled = step > first
            count = min(PROFILED if trace else program.at_once, (epoch + 1) * steps - step)
            counts = compiled and not trace
            with traced(options.out / "profile", view, trace and compiled), clock.timing(counts):
                state = program.advance(state, batches, seeds, count)
                losses = np.ravel(state.loss) / (step + count - epoch * steps)
            trace = trace and not compiled
            step += count
            if not np.isfinite(losses).all():
                raise InputError(diverged("loss", step, checkpoints))
            clock.count(count * recipe.batch_size * len(seeds), counts)
            view.at(
                before + step,
                f"seed {name}, epoch {epoch + 1}/{recipe.epochs}",
                f"loss {losses.mean():.4f}, {accuracy_so_far(logs)}{clock.speed:,.0f} images/s",
            )
            if step % steps == 0:
                for log, loss, fractions in zip(logs, losses, program.evaluate(state), strict=True):
                    log.add(
                        {
                            "epoch": epoch + 1,
                            "loss": float(loss),
                            **fractions,
                            "learning_rate": learning_rate(recipe, epoch),
                            "seconds": time.monotonic() - clock.start,
                            "images_per_second": clock.speed,
                        }
                    )
            asked, due = agreed(stop.asked.is_set(), time.monotonic() - saved > BETWEEN_CHECKPOINTS)
            if asked or due or step == total:
                if not finite(state):  # after a step whose own loss still was
                    raise InputError(diverged("network", step, checkpoints))
                checkpoints.save(step, state)
                saved = time.monotonic()
            if asked and step < total:
                raise TerminatedError
        lines = [log.lines for log in logs]
        return Trained(state, lines, program.finally_evaluate(state, options.evaluations))


class Clock:
    """Images a second of the steps alone, without compilation and evaluation."""

    def __init__(self):
        self.start, self.images, self.seconds = time.monotonic(), 0, 0.0

    @contextmanager
    def timing(self, counts: bool) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds += counts * (time.monotonic() - start)

    def count(self, images: int, counts: bool) -> None:
        self.images += counts * images

    @property
    def speed(self) -> float:
        return self.images / self.seconds if self.images else 0.0


@contextmanager
def traced(folder: Path, view: View, wanted: bool) -> Iterator[None]:
    """Write what the devices do meanwhile, if it is wanted."""
    if not wanted:
        yield
        return
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        yield
    view.tell(f"a trace of {PROFILED} steps is in {folder}: open its .json.gz in ui.perfetto.dev")


def agreed(*flags: bool) -> tuple[bool, ...]:
    """Flags that any process raises: all must save, and leave, at the same step."""
    if jax.process_count() == 1:
        return flags
    every = multihost_utils.process_allgather(np.array(flags))
    return tuple(map(bool, np.asarray(every).reshape(-1, len(flags)).max(0).tolist()))


def prepare(out: Path, recipe: Recipe, *, side_by_side: int, images: int | None = None) -> None:
    """Make the run's folder, or find in it a run of the same recipe.

    Args:
      out: The folder.
      recipe: What is trained.
      side_by_side: Seeds of one program.
      images: Training images, where they are not all of the data set.

    Raises:
      InputError: It holds a run of another recipe, or is no folder that can be written.
    """
    path = out / "recipe.json"
    also = {"seeds_side_by_side": side_by_side, "images": images}
    here = json.loads(json.dumps(dataclasses.asdict(recipe) | also))
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be the readable recipe of a run; {error}") from error
    if there is None:
        try:
            if leads():
                write_text(path, json.dumps(here, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise InputError(f"--out must be a folder that can be written; {error}") from error
        return
    for name, value in here.items():
        if name not in there or there[name] != value:
            raise InputError(
                f"--out must be a new folder or a run of this recipe; {out} has {name} "
                f"{there.get(name)}, not {value}"
            )


@jax.jit
def finite(state: State) -> Bool[Array, ""]:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()


def diverged(what: str, step: int, checkpoints: Checkpoints) -> str:
    last = max(checkpoints.manager.all_steps(), default=None)
    kept = f"the last good checkpoint is of step {last}" if last else "no checkpoint is kept"
    return f"the {what} must stay finite; by step {step} it is not: {kept}; lower --learning-rate"


def accuracy_so_far(logs: list[Log]) -> str:
    if not logs[0].lines:
        return ""
    mean = statistics.fmean(log.lines[-1]["accuracy"] for log in logs)
    return f"accuracy {100 * mean:.2f} %, "


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may not exist; a last one that is cut is none."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def write_text(path: Path, text: str) -> None:
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
        except TerminatedError:
            print("terminated; the state is saved, start again to go on", file=sys.stderr)
            sys.exit(143)
