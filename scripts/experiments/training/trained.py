"""Read networks that scripts/train.py has trained; no training data are read."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.tree_util import keystr

from experiments import cli, files, recipes, storage
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.options import MAX_SEEDS
from experiments.recipes import Recipe
from experiments.training import networks
from experiments.training.checkpoints import Checkpoints
from experiments.training.loop import name_of
from experiments.training.optimizers import check_optimizer
from experiments.training.step import State
from experiments.training.trainer import Layout, Seeds, Trainer, mesh_of


def read_recipe(run: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a run, and all entries of its recipe.json.

    Raises:
      InputError: The folder is not a run of scripts/train.py.
    """
    must = "the run must be a folder that scripts/train.py made, with its recipe.json"
    try:
        content = files.read_bytes(run / "recipe.json")
        if content is None:
            raise InputError(f"{must}; {run} has none")
        settings = json.loads(content)
        fields: dict[str, Any] = {f.name: settings[f.name] for f in dataclasses.fields(Recipe)}
        if not 1 <= settings["vmapped_seeds"] <= MAX_SEEDS:
            raise InputError(f"{must}; in {run} vmapped_seeds is {settings['vmapped_seeds']}")
        data_shapes(settings["data"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise InputError(f"{must}; got {run} ({type(error).__name__})") from error
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    recipe = Recipe(**fields)
    try:  # another version of the code, or a person, can have written the file
        recipes.check(recipe)
        check_optimizer(recipe)
    except InputError as error:
        raise InputError(f"{run / 'recipe.json'}: {error}") from error
    return recipe, settings


def load_network(run: str | Path, seed: int = 0) -> nnx.Module:
    """Read the network of a seed from its newest checkpoint, for inference.

    The network takes images `(n, height, width, channels)` and returns logits `(n, classes)`. The
    images must be standardized like the images of the data set.

    Args:
      run: The folder `--out` of scripts/train.py, on this machine or in a bucket.
      seed: Seed of the network.

    Raises:
      InputError: The folder is not a run of scripts/train.py, or has no checkpoint of the seed.
    """
    run = storage.location(str(run))
    recipe, settings = read_recipe(run)
    data = data_shapes(settings["data"])
    (variables,) = _weights(run, [seed])
    streamed = isinstance(data, Records)
    shape = (recipe.crop, recipe.crop, 3) if isinstance(data, Records) else data.x_train.shape[1:]
    build = partial(networks.network, recipe, classes=data.classes, shape=shape, streamed=streamed)
    model = nnx.eval_shape(partial(build, key=jax.random.key(0)))
    return nnx.merge(networks.inference_graph(model), *variables)


def _weights(run: Path, seeds: Sequence[int]) -> list[tuple[Any, Any]]:
    """Read the parameters and statistics of seeds from their newest checkpoints, on one device."""
    recipe, settings = read_recipe(run)
    count = settings["vmapped_seeds"]
    data = data_shapes(settings["data"])
    trainer = Trainer(recipe, data, mesh_of(1), Layout(vmap_seeds=count > 1))
    if count == 1:
        states = [newest_state(trainer, (seed,), run) for seed in seeds]
        return [(state.params, state.statistics) for state in states]
    for seed in seeds:
        if not 0 <= seed < count:
            raise InputError(f"the run must have a checkpoint of seed {seed}; {run} has none")
    state = newest_state(trainer, tuple(range(count)), run)
    both = state.params, state.statistics
    return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], both) for seed in seeds]


class InitialWeights:
    """The trained networks of an old run, as initial weights for a new run.

    Each seed of the new run starts from the old run's network with the same seed.

    Attributes:
      digest: A hash that identifies the weights.
    """

    def __init__(self, run: Path, seeds: int):
        """Read the newest checkpoint of each of the first `seeds` seeds.

        Raises:
          InputError: The folder is not a run of scripts/train.py, or has no checkpoint of a seed.
        """
        self.run = run
        self._by_seed = jax.device_get(_weights(run, range(seeds)))
        arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self._by_seed)]
        self.digest = hashlib.sha256(b"".join(arrays)).hexdigest()

    def init_state(self, trainer: Trainer, seeds: Seeds) -> State:
        """The first state of `trainer`, with weights and statistics from the old run's networks.

        Raises:
          InputError: The networks of the trainer and of the old run differ.
        """
        state = trainer.init_state(seeds)
        own = state.params, state.statistics
        given = self._by_seed[seeds[0]]
        if trainer.vmaps_seeds:
            networks = [self._by_seed[seed] for seed in seeds]
            given = jax.tree.map(lambda *leaves: np.stack(leaves), *networks)
        self._check_shapes(given, own)
        leaves, structure = jax.tree.flatten(own)
        put = [
            jax.device_put(new, old.sharding)
            for new, old in zip(jax.tree.leaves(given), leaves, strict=True)
        ]
        params, statistics = jax.tree.unflatten(structure, put)
        return state._replace(params=params, statistics=statistics)

    def _check_shapes(self, given: Any, own: Any) -> None:
        sizes = [
            {keystr(path[1:], simple=True, separator="/"): leaf.shape for path, leaf in entries}
            for entries in map(jax.tree.leaves_with_path, (given, own))
        ]
        for name in [*sizes[0], *sizes[1]]:
            theirs, ours = (shapes.get(name) for shapes in sizes)
            if theirs != ours:
                raise InputError(
                    "--init-from must be a run of the same network, normalization and number of "
                    f"classes; {name} of {self.run} has shape {theirs}, and the new network has "
                    f"{ours}"
                )


def newest_state(trainer: Trainer, seeds: Seeds, run: Path) -> State:
    """Read the state of a group of seeds from the group's newest checkpoint.

    Raises:
      InputError: The run has no checkpoint of the group.
    """
    name, state, notes = name_of(seeds), None, None
    folder = run / f"checkpoints-{name}"
    if folder.is_dir():
        with Checkpoints(folder) as checkpoints:
            state, notes = checkpoints.restore(trainer.init_state(seeds), cli.say)
    if state is None or notes is None:
        raise InputError(f"the run must have a checkpoint of seed {name}; {run} has none")
    return state


def data_shapes(data: dict[str, Any]) -> Images | Records:
    """A data set without real images; the entry `data` of recipe.json gives its sizes."""
    if data["shape"] is None:
        splits = range(data["train"]), range(data["test"])
        return Records(data["name"], "", data["classes"], *splits)
    x = np.broadcast_to(np.float32(0), (data["train"], *data["shape"]))
    y = np.broadcast_to(np.int32(0), data["train"])
    return Images(data["name"], "", data["classes"], x, y, x[:1], y[:1])
