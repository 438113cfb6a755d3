"""The training loop: from the newest checkpoint to the last epoch, logged and checkpointed."""

import dataclasses
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool
from tensorboardX import SummaryWriter

from experiments.cli import InputError
from experiments.training.checkpoints import Checkpoints
from experiments.training.recipes import Evaluation, Recipe
from experiments.training.trainer import Seeds, State, Trainer, learning_rate

PROFILED = 10  # steps of a trace
BETWEEN_CHECKPOINTS = 30.0  # seconds


class TerminatedError(Exception):
    """The run was asked to end, and its state is saved."""


class Trained(NamedTuple):
    """Networks of a group of seeds after their last epoch, and the lines of each one's epochs."""

    state: State
    lines: list[list[dict[str, Any]]]
    evaluations: dict[str, dict[str, float]]


class View(Protocol):
    """What is shown of a run while it lasts."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def update(self, steps: int, what: str, numbers: str) -> None:
        """So many steps are done, over all seeds; what is trained, and how it stands."""


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


@contextmanager
def sigterm() -> Iterator[threading.Event]:
    """An event that is set when the process is asked to end, by SIGTERM."""
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def leads() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def train(
    program: Trainer,
    seeds: Seeds,
    out: Path,
    view: View,
    interrupted: threading.Event,
    *,
    evaluations: tuple[Evaluation, ...] = (),
    profile: bool = False,
) -> Trained:
    """Train the networks of a group of seeds, from their newest checkpoint if they have one.

    Args:
      program: Compiled for the recipe, for one seed or for several at once.
      seeds: Of the networks that are trained.
      out: Folder of the run, for checkpoints, logs and the trace.
      view: Shows how far the run is.
      interrupted: Set by whoever wants the run to save its state and end.
      evaluations: Of the last state.
      profile: Write a trace of ten steps.

    Raises:
      TerminatedError: It was interrupted, and its state is saved.
      InputError: The loss or the network is no longer finite.
    """
    recipe = program.recipe
    steps, name = program.steps, "-".join(map(str, sorted({seeds[0], seeds[-1]})))
    total, before = recipe.epochs * steps, seeds[0] * recipe.epochs * steps
    with Checkpoints(out / f"checkpoints-{name}") as checkpoints, ExitStack() as files:
        state = checkpoints.restore(program.start(seeds), view.log)
        step = first = int(np.ravel(state.step)[0])
        logs = [files.enter_context(Log(out / f"seed-{seed}", step // steps)) for seed in seeds]
        saved, clock, trace, batches = time.monotonic(), Clock(), profile, None
        while step < total:
            epoch = step // steps
            if batches is None or step % steps == 0:
                batches = program.epoch(seeds, epoch, step % steps)
            compiled = step > first
            count = min(PROFILED if trace else program.at_once, (epoch + 1) * steps - step)
            counts = compiled and not trace
            with traced(out / "profile", view, trace and compiled), clock.timing(counts):
                state = program.advance(state, batches, seeds, count)
                losses = np.ravel(state.loss) / (step + count - epoch * steps)
            trace = trace and not compiled
            step += count
            if not np.isfinite(losses).all():
                raise InputError(diverged("loss", step, checkpoints))
            clock.count(count * recipe.batch_size * len(seeds), counts)
            view.update(
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
            asked, due = agreed(
                interrupted.is_set(), time.monotonic() - saved > BETWEEN_CHECKPOINTS
            )
            if asked or due or step == total:
                if not finite(state):  # after a step whose own loss still was
                    raise InputError(diverged("network", step, checkpoints))
                checkpoints.save(step, state)
                saved = time.monotonic()
            if asked and step < total:
                raise TerminatedError
        lines = [log.lines for log in logs]
        return Trained(state, lines, program.finally_evaluate(state, evaluations))


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
    view.log(f"a trace of {PROFILED} steps is in {folder}: open its .json.gz in ui.perfetto.dev")


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
