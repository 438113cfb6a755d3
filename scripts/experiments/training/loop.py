"""The training loop, `chunks`, and what `train` does after each chunk: log, check and save."""

import itertools
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Float

from experiments.cli import StoppedError
from experiments.signals import Interruption
from experiments.storage import is_remote
from experiments.training.checkpoints import Checkpoints
from experiments.training.finite import check_finite
from experiments.training.optimizers import learning_rate
from experiments.training.processes import any_process
from experiments.training.recipes import Evaluation
from experiments.training.run_folder import Lines, MetricsLog, lines_of
from experiments.training.step import State
from experiments.training.step_log import StepLog
from experiments.training.trainer import Seeds, Trainer

PROFILED_STEPS = 10
BETWEEN_CHECKPOINTS = 30.0  # seconds


class Chunk(NamedTuple):
    """Some steps of one epoch, and the state after them.

    Attributes:
      state: Valid until the next chunk begins.
      step: Number of steps since the start of training.
      epoch: From 0.
      ends_epoch: Whether it has the last steps of its epoch.
      losses: For each seed, the mean over the epoch's steps so far.
      steps: Number of steps of the chunk.
      seconds: Duration of these steps.
    """

    state: State
    step: int
    epoch: int
    ends_epoch: bool
    losses: Float[np.ndarray, " seeds"]
    steps: int
    seconds: float


class Trained(NamedTuple):
    """Networks after their last epoch, the metrics of every epoch by seed, and evaluations."""

    state: State
    lines: list[Lines]
    evaluations: dict[str, dict[str, float]]


class Extras(NamedTuple):
    """What a run does beside training, which changes none of its results.

    Attributes:
      evaluations: Views of test images by which the last state is evaluated.
      profile: Whether to write a trace of ten steps.
      log_every: After how many steps a line is added to steps.jsonl, if any.
      hooks: Called with every chunk, for loggers of other kinds.
    """

    evaluations: tuple[Evaluation, ...] = ()
    profile: bool = False
    log_every: int | None = None
    hooks: tuple[Callable[[Chunk], None], ...] = ()


class View(Protocol):
    """Shows a run while it lasts."""

    def log(self, line: str) -> None:
        """Show a line above the bar."""

    def update(self, steps: int, description: str, numbers: str) -> None:
        """Show how many steps are done, over all seeds, what is trained, and its metrics."""


def chunks(
    trainer: Trainer, state: State, seeds: Seeds, max_steps: Iterable[int]
) -> Iterator[Chunk]:
    """Train from `state`, some steps at a time, to the end of the last epoch.

    Args:
      trainer: Compiled for the recipe.
      state: Untrained or resumed; it is donated.
      seeds: Seeds of the state.
      max_steps: For each chunk, how many steps it has where its epoch does not end before.
    """
    limits, start = iter(max_steps), steps_done(state)
    for epoch in range(start // trainer.steps, trainer.recipe.epochs):
        first = epoch * trainer.steps
        done = max(start - first, 0)
        batches = trainer.batches(seeds, epoch, done)
        while done < trainer.steps:
            steps = min(next(limits), trainer.steps - done)
            began = time.monotonic()
            state = trainer.advance(state, batches, seeds, steps)
            done += steps
            losses = np.ravel(state.loss) / done
            seconds = time.monotonic() - began
            ends = done == trainer.steps
            yield Chunk(state, first + done, epoch, ends, losses, steps, seconds)


def epochs(trainer: Trainer, state: State, seeds: Seeds) -> Iterator[Chunk]:
    """Train from `state` as `chunks`, a whole epoch at a time."""
    return chunks(trainer, state, seeds, itertools.repeat(trainer.steps))


def steps_done(state: State) -> int:
    """The number of steps that led to a state."""
    return int(np.ravel(state.step)[0])


def train(
    trainer: Trainer,
    seeds: Seeds,
    out: Path,
    view: View,
    interrupted: Interruption,
    extras: Extras | None = None,
) -> Trained:
    """Train the networks of a group of seeds, from their newest checkpoint if they have one.

    Args:
      trainer: Compiled for the recipe, and for as many seeds.
      seeds: Seeds of the networks.
      out: Folder of the run, for checkpoints, metrics and the trace.
      view: Shows the progress.
      interrupted: Set by the caller to make the run save its state and end.
      extras: What the run does besides, by default nothing.

    Raises:
      StoppedError: The run was asked to end, and its state is saved.
      InputError: The loss or the network is no longer finite, or a file cannot be read or written.
    """
    extras = extras or Extras()
    with Checkpoints(out / f"checkpoints-{name_of(seeds)}") as checkpoints, ExitStack() as files:
        state, notes = checkpoints.restore(trainer.init_state(seeds), view.log)
        lines = lines_of(notes, len(seeds))
        folders = [out / f"seed-{seed}" for seed in seeds]
        logs = [
            files.enter_context(MetricsLog(folder, before, view.log))
            for folder, before in zip(folders, lines, strict=True)
        ]
        # The first chunk compiles, and the second one may be traced.
        clock = Clock(trainer.recipe.batch_size * len(seeds), skipped=1 + extras.profile)
        after_chunk: list[Callable[[Chunk], None]] = [
            *([Profiling(trainer, trace_folder(out), view)] if extras.profile else []),
            lambda chunk: check_finite("loss", chunk.losses, chunk.step, checkpoints),
            clock,
            partial(show_progress, trainer, seeds, view, logs, clock),
            partial(log_epoch, trainer, logs, clock),
            *([logged_steps(trainer, folders, state)] if extras.log_every else []),
            *extras.hooks,
            Checkpointing(trainer, checkpoints, lines, interrupted),
        ]
        profiled = [PROFILED_STEPS] * 2 if extras.profile else []
        sizes = itertools.chain(
            profiled, itertools.repeat(extras.log_every or trainer.steps_per_call)
        )
        for chunk in chunks(trainer, state, seeds, sizes):
            for hook in after_chunk:
                hook(chunk)
            state = chunk.state
        return Trained(state, lines, trainer.evaluate_views(state, extras.evaluations))


class Profiling:
    """Traces the second chunk, the first one that does not compile."""

    def __init__(self, trainer: Trainer, folder: Path, view: View):
        self.last_step = trainer.total_steps
        self.folder, self.view, self.chunks = folder, view, 0

    def __call__(self, chunk: Chunk) -> None:
        """Start the trace after the first chunk and end it after the second one."""
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
    """Where a run's trace is written: beside its metrics, or for a bucket a new folder here."""
    return Path(tempfile.mkdtemp(prefix="profile-")) if is_remote(out) else out / "profile"


class Clock:
    """Images per second of the steps alone, without compilation and evaluation."""

    def __init__(self, images_per_step: int, skipped: int):
        self.images_per_step, self.skipped = images_per_step, skipped
        self.start, self.steps, self.seconds = time.monotonic(), 0, 0.0

    def __call__(self, chunk: Chunk) -> None:
        """Count a chunk, unless it is one of the first `skipped`."""
        if self.skipped:
            self.skipped -= 1
            return
        self.steps += chunk.steps
        self.seconds += chunk.seconds

    @property
    def speed(self) -> float:
        """Images per second, 0 before the first chunk that counts."""
        return self.steps * self.images_per_step / self.seconds if self.steps else 0.0


class Checkpointing:
    """Saves state and metrics every half minute, at the end, and where the run is interrupted."""

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
        """Save the state where any process wants it, and end the run if it is interrupted."""
        is_due = time.monotonic() - self.saved > BETWEEN_CHECKPOINTS
        interrupted, is_due = any_process(self.interrupted.is_set(), is_due)
        if interrupted or is_due or chunk.step == self.last_step:
            # After a step whose own loss still was.
            check_finite("network", chunk.state, chunk.step, self.checkpoints)
            self.checkpoints.save(chunk.step, chunk.state, self.lines)
            self.saved = time.monotonic()
        if interrupted and chunk.step < self.last_step:
            self.checkpoints.manager.wait_until_finished()
            raise StoppedError(self.interrupted.received or signal.SIGTERM)


def name_of(seeds: Seeds) -> str:
    """The first and the last seed of a group, or its only one."""
    return "-".join(map(str, sorted({seeds[0], seeds[-1]})))


def show_progress(
    trainer: Trainer, seeds: Seeds, view: View, logs: list[MetricsLog], clock: Clock, chunk: Chunk
) -> None:
    """Show loss, the accuracy of the last epoch, and speed."""
    numbers = f"loss {chunk.losses.mean():.4f}, "
    if logs[0].lines:
        accuracy = statistics.fmean(log.lines[-1]["accuracy"] for log in logs)
        numbers += f"accuracy {100 * accuracy:.2f} %, "
    view.update(
        seeds[0] * trainer.total_steps + chunk.step,
        f"seed {name_of(seeds)}, epoch {chunk.epoch + 1}/{trainer.recipe.epochs}",
        f"{numbers}{clock.speed:,.0f} images/s",
    )


def log_epoch(trainer: Trainer, logs: list[MetricsLog], clock: Clock, chunk: Chunk) -> None:
    """Evaluate the networks at the end of an epoch, and log its metrics for each seed."""
    if not chunk.ends_epoch:
        return
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
            }
        )


def logged_steps(trainer: Trainer, folders: list[Path], state: State) -> Callable[[Chunk], None]:
    """Adds a line to steps.jsonl after each chunk."""
    log = StepLog(trainer, folders, state)
    return lambda chunk: log.add(chunk.state, chunk.step)
