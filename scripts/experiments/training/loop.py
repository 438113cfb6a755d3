"""Train in a loop that logs, checks and saves after each chunk of steps."""

import itertools
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from experiments.cli import StoppedError
from experiments.recipes import Evaluation
from experiments.signals import Interruption
from experiments.storage import is_remote
from experiments.training.checkpoints import Checkpoints
from experiments.training.chunks import Chunk, Clock, chunks, steps_done
from experiments.training.finite import check_finite
from experiments.training.optimizers import learning_rate
from experiments.training.processes import any_process, is_main_process
from experiments.training.run_folder import Lines, MetricsLog, lines_of
from experiments.training.step import State
from experiments.training.step_log import StepLog
from experiments.training.trainer import Seeds, Trainer

PROFILED_STEPS = 10
BETWEEN_CHECKPOINTS = 30.0  # the smallest number of seconds between two checkpoints


Measure = Callable[[State], dict[str, Any]]


class Trained(NamedTuple):
    """A result of training: networks, metrics of each seed by epoch, and final evaluations."""

    state: State
    lines: list[Lines]
    evaluations: dict[str, dict[str, float]]


class Extras(NamedTuple):
    """Additional actions of a run; they do not change the results of the run.

    Attributes:
      evaluations: The views of test images, such as crops, on which the last state is evaluated.
      profile: Whether to write a trace of ten steps.
      log_every: The number of steps between two lines in steps.jsonl; None for no lines.
      hooks: Functions, such as other loggers, that are called with every chunk. An exception in a
        hook ends the run.
      measure: A function that takes the first state of this run and returns a second function. The
        second function takes the state after an epoch and returns further metrics. With `measure`,
        the run must have only one seed.
    """

    evaluations: tuple[Evaluation, ...] = ()
    profile: bool = False
    log_every: int | None = None
    hooks: tuple[Callable[[Chunk], None], ...] = ()
    measure: Callable[[State], Measure] | None = None


class View(Protocol):
    """A display of the progress of a run."""

    def log(self, line: str) -> None:
        """Show a line above the progress bar."""

    def update(self, steps: int, description: str, numbers: str) -> None:
        """Show the finished steps over all seeds, the seeds in training, and their metrics."""


def train(
    trainer: Trainer,
    seeds: Seeds,
    out: Path,
    view: View,
    interrupted: Interruption,
    extras: Extras | None = None,
    init: Callable[[Seeds], State] | None = None,
) -> Trained:
    """Train the networks of a group of seeds; resume from their newest checkpoint if possible.

    Args:
      trainer: Trainer, compiled for the recipe and for this number of seeds.
      seeds: Seeds of the networks.
      out: Folder of the run, for checkpoints, metrics and the trace.
      view: The display that shows the progress.
      interrupted: A flag that SIGTERM or Ctrl-C sets. If the flag is set, the run saves its state
        and ends.
      extras: Additional actions of the run, by default none.
      init: A function of the seeds that returns the state before the first step; by default the
        trainer's `init_state`.

    Raises:
      StoppedError: The run was asked to end, and its state is saved.
      InputError: The loss or the network is no longer finite, or a file cannot be read or written.
    """
    extras = extras or Extras()
    with Checkpoints(out / f"checkpoints-{name_of(seeds)}") as checkpoints, ExitStack() as files:
        state, notes = checkpoints.restore((init or trainer.init_state)(seeds), view.log)
        lines = lines_of(notes, len(seeds))
        if steps := steps_done(state):
            done = f"{len(lines[0])} of {trainer.recipe.epochs} epochs"
            view.log(f"seed {name_of(seeds)}: resumed after {done}")
            view.update(seeds[0] * trainer.total_steps + steps, f"seed {name_of(seeds)}", "")
        folders = [out / f"seed-{seed}" for seed in seeds]
        logs = [
            files.enter_context(MetricsLog(folder, before, view.log))
            for folder, before in zip(folders, lines, strict=True)
        ]
        measure = extras.measure(state) if extras.measure else lambda _: {}
        # The clock skips the first chunk, because it compiles, and the second chunk if it is
        # profiled.
        clock = Clock(skipped=1 + extras.profile)
        after_chunk: list[Callable[[Chunk], None]] = [
            *([Profiling(trainer, trace_folder(out), view)] if extras.profile else []),
            lambda chunk: check_finite("loss", chunk.losses, chunk.step, checkpoints),
            clock,
            partial(log_epoch, trainer, view, logs, clock, measure),
            partial(show_progress, trainer, seeds, view, logs, clock),
            *([StepLog(trainer, folders, state)] if extras.log_every else []),
            *extras.hooks,
            Checkpointing(trainer, checkpoints, lines, interrupted),
        ]
        profiled = [PROFILED_STEPS] * 2 if extras.profile else []
        usual = extras.log_every or trainer.steps_per_call
        sizes = itertools.chain(profiled, itertools.repeat(usual))
        for chunk in chunks(trainer, state, seeds, sizes):
            for hook in after_chunk:
                hook(chunk)
            state = chunk.state
        return Trained(state, lines, trainer.evaluate_views(state, extras.evaluations))


class Profiling:
    """A hook that traces the second chunk of steps; JAX compiles during the first chunk."""

    def __init__(self, trainer: Trainer, folder: Path, view: View):
        self.last_step = trainer.total_steps
        self.folder, self.view, self.chunks = folder, view, 0

    def __call__(self, chunk: Chunk) -> None:
        """Start the trace after the first chunk, and end the trace after the second chunk."""
        self.chunks += 1
        if self.chunks == 1 and chunk.step < self.last_step:
            jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
        elif self.chunks == 2:
            jax.profiler.stop_trace()
            self.view.log(
                f"a trace of {chunk.steps} steps is in {self.folder}: open its .json.gz in "
                "ui.perfetto.dev"
            )


def trace_folder(out: Path) -> Path:
    """The folder for the trace of a run, which is next to the run's metrics.

    If `out` is in a bucket, the result is a new temporary folder on this machine.
    """
    return Path(tempfile.mkdtemp(prefix="profile-")) if is_remote(out) else out / "profile"


class Checkpointing:
    """A hook that saves every half minute, at the end, and when the run is interrupted."""

    def __init__(
        self,
        trainer: Trainer,
        checkpoints: Checkpoints,
        lines: list[Lines],
        interrupted: Interruption,
    ):
        self.last_step = trainer.total_steps
        self.checkpoints, self.lines, self.interrupted = checkpoints, lines, interrupted
        self.saved = time.monotonic()

    def __call__(self, chunk: Chunk) -> None:
        """Save the state if a save is due, and end the run if a process was interrupted."""
        is_due = time.monotonic() - self.saved > BETWEEN_CHECKPOINTS
        interrupted, is_due = any_process(self.interrupted.is_set(), is_due)
        if interrupted or is_due or chunk.step == self.last_step:
            # the loss of this step was already checked and is finite
            check_finite("network", chunk.state, chunk.step, self.checkpoints)
            self.checkpoints.save(chunk.step, chunk.state, self.lines)
            self.saved = time.monotonic()
        if interrupted and chunk.step < self.last_step:
            self.checkpoints.manager.wait_until_finished()
            raise StoppedError(self.interrupted.received or signal.SIGTERM)


def name_of(seeds: Seeds) -> str:
    """A text for a group of seeds: the first and the last seed, such as 0-4, or the only seed."""
    return "-".join(map(str, sorted({seeds[0], seeds[-1]})))


def show_progress(
    trainer: Trainer, seeds: Seeds, view: View, logs: list[MetricsLog], clock: Clock, chunk: Chunk
) -> None:
    """Show the loss, the accuracy after the last full epoch, and the speed if it is known."""
    numbers = f"loss {chunk.losses.mean():.4f}"
    if logs[0].lines:
        accuracy = statistics.fmean(log.lines[-1]["accuracy"] for log in logs)
        numbers += f", accuracy {100 * accuracy:.2f} % after epoch {logs[0].lines[-1]['epoch']}"
    if clock.speed:
        numbers += f", {clock.speed:,.0f} images/s"
    view.update(
        seeds[0] * trainer.total_steps + chunk.step,
        f"seed {name_of(seeds)}, epoch {chunk.epoch + 1}/{trainer.recipe.epochs}",
        numbers,
    )


def log_epoch(
    trainer: Trainer,
    view: View,
    logs: list[MetricsLog],
    clock: Clock,
    measure: Measure,
    chunk: Chunk,
) -> None:
    """Evaluate the networks at the end of an epoch, and log the metrics of each seed.

    For streamed data, also show for which share of the time training waited for data.
    """
    if not chunk.ends_epoch:
        return
    waited = round(clock.end_epoch(), 4)
    if trainer.streams and is_main_process():
        view.log(f"epoch {chunk.epoch + 1}: waiting for data {100 * waited:.0f} % of the time")
    accuracies = trainer.evaluate(chunk.state)
    for log, loss, fractions in zip(logs, chunk.losses, accuracies, strict=True):
        log.add(
            {
                "epoch": chunk.epoch + 1,
                "loss": float(loss),
                **fractions,
                "learning_rate": learning_rate(trainer.recipe, trainer.steps, chunk.step - 1),
                "seconds": time.monotonic() - clock.start,
                "images_per_second": clock.speed,
                "waiting_for_data": waited,
                **measure(chunk.state),
            }
        )
