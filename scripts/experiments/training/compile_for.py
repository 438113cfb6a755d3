"""Compile a training step for chips that are not attached.

The step is lowered from shapes alone, so no image is read and nothing runs.
"""

import dataclasses
import json
import time
from functools import partial
from typing import Any

import jax
from jax.sharding import AxisType

from experiments import cli
from experiments.cli import InputError
from experiments.compiled.compile_only import compile_only_devices
from experiments.compiled.step import CHIPS, environment, hbm_needed, lines, measure, operations
from experiments.data import stand_ins
from experiments.recipes import Recipe
from experiments.training.trainer import Layout, Seeds, Trainer, mesh_of


def show(
    recipe: Recipe,
    topology: str,
    layout: Layout,
    seeds: Seeds = (0, 1),
    *,
    devices: int | None = None,
    axis_type: AxisType = AxisType.Auto,
) -> None:
    """Print the cost of a training step on each chip of a topology; the last printed line is JSON.

    If `layout.vmap_seeds` is true, one step trains the networks of all `seeds`.

    Raises:
      InputError: The topology or the data set is unknown, a plugin or a library is not installed,
        the step cannot be compiled, or the number of chips does not divide the batch size.
    """
    # `environment` raises an error if a library is missing, so it is called before the compilation,
    # which takes minutes.
    found = environment()
    try:
        available = compile_only_devices(topology)
    except ValueError as error:
        raise InputError(f"--compile-for: {error}") from error
    mesh = mesh_of(devices, available=available, axis_type=axis_type)
    build = partial(Trainer, recipe, stand_ins.shapes_of(recipe.dataset), layout=layout)
    program, chip = build(mesh), available[0].device_kind
    result: dict[str, Any] = {
        "topology": topology,
        "chip": chip,
        "chips": mesh.size,
        "images_per_chip": recipe.batch_size // mesh.size,
        "parameters": program.parameters,
    }
    start = time.perf_counter()
    try:
        compiled = program.lower(seeds).compile()
    except jax.errors.JaxRuntimeError as error:
        result["memory"] = {"needed": hbm_needed(error), "fits": False}
    else:
        # The CUDA plugin does not count operations, so JAX counts them before compilation.
        flops = operations(compiled) or operations(build(mesh_of(1)).lower(seeds)) / mesh.size
        result |= measure(compiled, flops, mesh.size, CHIPS.get(chip))
    result["compile_seconds"] = time.perf_counter() - start
    cli.say(*lines(result))
    settings = {"recipe": dataclasses.asdict(recipe), "layout": layout._asdict()}
    cli.say(json.dumps(result | settings | {"environment": found}))
