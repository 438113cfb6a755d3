"""Networks that scripts/train.py has trained, without the data that they were trained on."""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments import cli, files, storage
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.training import networks
from experiments.training.checkpoints import Checkpoints
from experiments.training.loop import name_of
from experiments.training.recipes import Recipe
from experiments.training.step import State
from experiments.training.trainer import Layout, Seeds, Trainer, mesh_of


def read_recipe(run: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a run, and everything that its recipe.json holds.

    Raises:
      InputError: It is no run of scripts/train.py.
    """
    must = "the run must be a folder that scripts/train.py made, with its recipe.json"
    try:
        content = files.read_bytes(run / "recipe.json")
        if content is None:
            raise InputError(f"{must}; {run} has none")
        settings = json.loads(content)
        fields: dict[str, Any] = {f.name: settings[f.name] for f in dataclasses.fields(Recipe)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{must}; got {run} ({type(error).__name__})") from error
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Recipe(**fields), settings


def load_network(run: str | Path, seed: int = 0) -> nnx.Module:
    """The network of a seed as its newest checkpoint has it, in inference.

    It takes images `(n, height, width, channels)` that are standardized as the data set's were, and
    returns logits `(n, classes)`.

    Args:
      run: The folder `--out` of scripts/train.py, here or in a bucket.
      seed: Which of its networks.

    Raises:
      InputError: It is no such run, or has no checkpoint of the seed.
    """
    run = storage.location(str(run))
    recipe, settings = read_recipe(run)
    count = settings["vmapped_seeds"]
    seeds = tuple(range(count)) if count > 1 else (seed,)
    if seed not in seeds:
        raise InputError(f"the run must have a checkpoint of seed {seed}; {run} has none")
    data = _shapes_of(settings["data"])
    trainer = Trainer(recipe, data, mesh_of(1), Layout(vmap_seeds=count > 1))
    state = newest_state(trainer, seeds, run)
    variables = state.params, state.statistics
    if count > 1:
        variables = jax.tree.map(lambda leaf: leaf[seed], variables)
    streamed = isinstance(data, Records)
    shape = (recipe.crop, recipe.crop, 3) if isinstance(data, Records) else data.x_train.shape[1:]
    build = partial(networks.network, recipe, classes=data.classes, shape=shape, streamed=streamed)
    model = nnx.eval_shape(partial(build, key=jax.random.key(0)))
    return nnx.merge(networks.inference_graph(model), *variables)


def newest_state(trainer: Trainer, seeds: Seeds, run: Path) -> State:
    """The state of a group of seeds as its newest checkpoint has it.

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


def _shapes_of(data: dict[str, Any]) -> Images | Records:
    """Data of which recipe.json knows the sizes."""
    if data["shape"] is None:
        splits = range(data["train"]), range(data["test"])
        return Records(data["name"], "", data["classes"], *splits)
    x = np.broadcast_to(np.float32(0), (data["train"], *data["shape"]))
    y = np.broadcast_to(np.int32(0), data["train"])
    return Images(data["name"], "", data["classes"], x, y, x[:1], y[:1])
