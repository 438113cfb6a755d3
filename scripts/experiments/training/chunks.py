"""Take the steps of a run in chunks, and measure the times of steps and of waiting for data."""

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.training.step import State
from experiments.training.trainer import Seeds, Trainer


class Chunk(NamedTuple):
    """Some consecutive steps of one epoch, and the state after these steps.

    Attributes:
      state: The state after the steps; it is valid until the next chunk begins.
      step: Number of steps since the start of training.
      epoch: Number of the epoch, counted from 0.
      ends_epoch: Whether the chunk has the last steps of its epoch.
      losses: For each seed, the mean loss over all steps of the epoch up to this chunk's end.
      steps: Number of steps of the chunk.
      seconds: Duration of the steps.
      waiting: The part of `seconds` in which the run waited for batches.
      images: Number of images of the chunk, over all seeds.
    """

    state: State
    step: int
    epoch: int
    ends_epoch: bool
    losses: Float[np.ndarray, " seeds"]
    steps: int
    seconds: float
    waiting: float
    images: int


def chunks(
    trainer: Trainer, state: State, seeds: Seeds, max_steps: Iterable[int]
) -> Iterator[Chunk]:
    """Train from `state` to the end of the last epoch, and yield after each chunk of steps.

    Args:
      trainer: Trainer, compiled for the recipe.
      state: The untrained or resumed state, which is donated.
      seeds: The seeds of the networks in the state.
      max_steps: The largest number of steps of each chunk; the end of an epoch also ends a chunk.
    """
    limits, start = iter(max_steps), steps_done(state)
    for epoch in range(start // trainer.steps, trainer.recipe.epochs):
        first = epoch * trainer.steps
        done = max(start - first, 0)
        batches = trainer.batches(seeds, epoch, done)
        while done < trainer.steps:
            steps = min(next(limits), trainer.steps - done)
            began, waited = time.monotonic(), trainer.seconds_waiting
            state = trainer.advance(state, batches, seeds, steps)
            done += steps
            losses = np.ravel(state.loss) / done
            seconds = time.monotonic() - began
            waiting = trainer.seconds_waiting - waited
            ends = done == trainer.steps
            images = steps * trainer.recipe.batch_size * len(seeds)
            yield Chunk(state, first + done, epoch, ends, losses, steps, seconds, waiting, images)


def epochs(trainer: Trainer, state: State, seeds: Seeds) -> Iterator[Chunk]:
    """Train from `state` as `chunks` does, but each chunk is a whole epoch."""
    return chunks(trainer, state, seeds, itertools.repeat(trainer.steps))


def steps_done(state: State) -> int:
    """The number of training steps after which a state was reached."""
    return int(np.ravel(state.step)[0])


class Clock:
    """A clock that measures the speed of training steps, in images per second.

    The speed does not include evaluation and the first `skipped` chunks, in which functions are
    compiled. The clock also measures the share of an epoch's time in which the process waited for
    batches. The epoch's time includes compilation, but not evaluation. The share is an upper bound
    on the device's idle time, because the device can compute earlier steps while the process waits.
    """

    def __init__(self, skipped: int):
        self.skipped = skipped
        self.start, self.images, self.seconds = time.monotonic(), 0, 0.0
        self.epoch_seconds = self.epoch_waiting = 0.0

    def __call__(self, chunk: Chunk) -> None:
        """Add a chunk to the epoch's time and, after the first `skipped` chunks, to the speed."""
        self.epoch_seconds += chunk.seconds
        self.epoch_waiting += chunk.waiting
        if self.skipped:
            self.skipped -= 1
            return
        self.images += chunk.images
        self.seconds += chunk.seconds

    @property
    def speed(self) -> float:
        """The number of images per second; 0 if only skipped chunks have been added."""
        return self.images / self.seconds if self.images else 0.0

    def end_epoch(self) -> float:
        """End an epoch; return the share of its time, in [0, 1], spent waiting for batches."""
        seconds, waiting = self.epoch_seconds, self.epoch_waiting
        self.epoch_seconds = self.epoch_waiting = 0.0
        return waiting / seconds if seconds else 0.0
