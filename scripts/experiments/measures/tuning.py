"""Evaluate, recalibrate and fine-tune networks, before and after they are pruned.

A tree holds the parameters and the running statistics of a network.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments import signals
from experiments.data.datasets import Images
from experiments.progress import Stages, TrainingView
from experiments.recipes import Recipe, replace
from experiments.training import chunks, loop, weight_files
from experiments.training.networks import graphs
from experiments.training.step import State
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.nnx import recalibrate

# Running statistics are computed from at most RECALIBRATION_BATCHES batches. Each batch has at most
# RECALIBRATION_IMAGES images.
RECALIBRATION_BATCHES, RECALIBRATION_IMAGES = 10, 500


def trained_networks(
    images: Images, recipe: Recipe, fine_tune: int, seeds: int, run: Path, stages: Stages
) -> list["Network"]:
    """Train the network of each seed, or read the network from `run`.

    The networks can be fine-tuned for `fine_tune` epochs. If `run` is a weight file, the result is
    only the network of this file.
    """
    if run.is_file():
        return [network_of_file(images, recipe, fine_tune, run)]
    programs = Programs.compiled(recipe, images, fine_tune)
    networks = []
    for seed in range(seeds):
        stages.describe(f"trained network, seed {seed + 1} of {seeds}")
        view = TrainingView(stages, programs.trainer.steps)
        with signals.caught() as interrupted:
            state = loop.train(programs.trainer, (seed,), run, view, interrupted).state
        networks.append(Network(images, programs, state, seed))
    return networks


def network_of_file(images: Images, recipe: Recipe, fine_tune: int, path: Path) -> "Network":
    """The network of a weight file, with compiled functions for fine-tuning by the recipe."""
    model = weight_files.read(path)
    weight_files.check_fits(model, images)
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    programs = Programs.compiled(recipe, images, fine_tune)
    state = programs.trainer.init_state((0,))._replace(params=params, statistics=statistics)
    return Network(images, programs, state, seed=0)


class Programs(NamedTuple):
    """The compiled functions of a recipe, for training, fine-tuning and inference."""

    trainer: Trainer
    fine_tuner: Trainer
    graph: nnx.GraphDef
    logits: Callable[[Any, Any], Any]

    @classmethod
    def compiled(cls, recipe: Recipe, images: Images, fine_tune: int) -> "Programs":
        mesh = mesh_of(1)
        # Fine-tuning starts at a fifth of the recipe's learning rate, with the recipe's schedule.
        further = replace(recipe, epochs=fine_tune, learning_rate=recipe.learning_rate / 5)
        training, inference = graphs(recipe, images)

        @jax.jit
        def logits(tree: Any, x: Any) -> Any:
            merged: Any = nnx.merge(inference, tree["params"], tree["statistics"])
            return merged(x)

        return cls(Trainer(recipe, images, mesh), Trainer(further, images, mesh), training, logits)


class Network:
    """A trained network; its methods take its own arrays, or smaller arrays after pruning."""

    def __init__(self, images: Images, programs: Programs, state: State, seed: int):
        self.images, self.programs, self.seed = images, programs, seed
        self.state = state
        self.tree = {"params": state.params, "statistics": state.statistics}
        self.apply = programs.logits

    def accuracy(self, tree: Any) -> float:
        """The share of the test images that `tree` classifies correctly."""
        state = self.state._replace(params=tree["params"], statistics=tree["statistics"])
        (fractions,) = self.programs.trainer.evaluate(state)
        return fractions["accuracy"]

    def recalibrated(self, tree: Any) -> Any:
        """A copy of `tree` with new running statistics, which are computed from training images."""
        model = nnx.merge(self.programs.graph, tree["params"], tree["statistics"], copy=True)
        x = self.images.x_train
        size = min(RECALIBRATION_IMAGES, len(x))
        starts = range(0, len(x) - size + 1, size)[:RECALIBRATION_BATCHES]
        recalibrate(model, (jnp.asarray(x[i : i + size]) for i in starts))
        return tree | {"statistics": nnx.state(model, nnx.BatchStat)}

    def fine_tuned(self, tree: Any) -> Any:
        """Train the arrays `tree` further; the optimizer's velocity starts at zero."""
        fine_tuner, seeds = self.programs.fine_tuner, (self.seed,)
        tree = jax.tree.map(jnp.copy, tree)  # the tree is copied, because a step donates its input
        initial = fine_tuner.init_state(seeds)
        still = jax.tree.map(jnp.zeros_like, tree["params"])
        state = initial._replace(
            params=tree["params"],
            statistics=tree["statistics"],
            optimizer=optax.tree.set(initial.optimizer, trace=still),
        )
        for chunk in chunks.epochs(fine_tuner, state, seeds):
            state = chunk.state
        return {"params": state.params, "statistics": state.statistics}
