"""Tiny training runs, with the output that a user would see."""

import signal
from typing import Any

import jax
import numpy as np

from experiments import signals
from experiments.data.datasets import Images
from experiments.recipes import PRESETS, replace
from experiments.training import loop, trainer

SMALL = replace(PRESETS["digits-mlp"][1], epochs=3, drops=(), batch_size=16)


def random_images():
    """Random images; the last training batch and the last chunk of test images are not full."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((85, 4, 4, 1)).astype(np.float32)
    y = (x.sum((1, 2, 3)) > 0).astype(np.int32)
    return Images("made", "", 2, x[:70], y[:70], x[70:], y[70:])


def compiled(recipe, images, devices=1, **layout):
    mesh = trainer.mesh_of(devices)
    return trainer.Trainer(recipe, images, mesh, trainer.Layout(**layout))


def first_state(program, steps, seeds=(0,)):
    """The state of training after the first steps of the first epoch."""
    batches = program.batches(seeds, 0, 0)
    return program.advance(program.init_state(seeds), batches, seeds, steps)


def with_steps_per_call(program, steps):
    program.steps_per_call = steps
    return program


class View:
    """Records the output that a user would see, and interrupts the run after a step."""

    def __init__(self, interrupt_after=None):
        self.lines, self.steps, self.numbers = [], [], ""
        self.interrupt_after = interrupt_after
        self.interrupted = signals.Interruption()

    def log(self, line):
        self.lines.append(line)

    def update(self, steps, description, numbers):
        self.steps.append(steps)
        self.numbers = numbers
        if steps == self.interrupt_after:
            self.interrupted.handle(signal.SIGTERM, None)


def train_one(program, out, view: Any = None, seeds=(0,)):
    """Train a network for each seed, and return the lines of metrics of the first seed."""
    view = view or View()
    return loop.train(program, seeds, out, view, view.interrupted).lines[0]


def without_times(lines):
    times = ("seconds", "images_per_second", "waiting_for_data")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
