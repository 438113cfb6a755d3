"""Language models cut at random, beside the same with zeros, and logits of a folder."""

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.language import cutting, folders, removal, training
from experiments.language.architecture import Architecture, parse
from experiments.language.choice import Model
from experiments.language.removal import Selection


def ours(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits of one sequence by our decoder."""
    model = read(folder)
    params = {name: folders.read(tensor) for name, tensor in model.tensors.items()}
    batch = jnp.asarray(tokens)[None]
    return np.asarray(training.forward(model.architecture, params, batch)[0])


def read(folder: Path) -> Model:
    """The model of a folder, its names checked."""
    architecture = parse(folders.read_config(folder))
    model = Model(architecture, folders.tensors(folder))
    removal.check_names(architecture, model.tensors)
    return model


def random_selection(
    model: Architecture, rng: np.random.Generator, *, share: float = 0.0
) -> Selection:
    """At least a share of every kind of units, others in every layer, that `transformers` takes."""
    whole = removal.counts(model)
    smaller = [int(rng.integers(max(1, math.ceil(share * n)), n + 1)) for n in whole]
    if model.traits.divides:  # the heads must divide the hidden width
        heads = smaller[1] * (model.heads // model.groups)
        largest = model.hidden // heads
        smaller[3] = heads * int(rng.integers(max(1, math.ceil(share * largest)), largest + 1))

    def some(n: int, count: int) -> np.ndarray:
        return np.sort(rng.permutation(n)[:count])

    of_layers = [
        [some(n, count) for _ in range(model.layers)]
        for n, count in zip(whole[1:3], smaller[1:3], strict=True)
    ]
    groups, intermediate = of_layers
    layers, hidden = some(whole.layers, smaller[0]), some(whole.hidden, smaller[3])
    return Selection(layers, groups, intermediate, hidden)


def masked(
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    model: Architecture,
    selection: Selection,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The old model with zeros at removed units, and without removed layers."""
    places = {layer: i for i, layer in enumerate(selection.layers)}
    found = {}
    for name, array in weights.items():
        layer, short = removal.layer_of(name), removal.short(name)
        if layer >= 0 and layer not in places:
            continue
        zeros = mask(short, array, removal.indices(model, selection, layer))
        found[name if layer < 0 else f"model.layers.{places[layer]}.{short}"] = zeros
    kinds = ["sliding_attention" if w else "full_attention" for w in model.windows]
    config = config | {"num_hidden_layers": len(places)}
    if model.family not in ("llama", "mistral"):
        config["layer_types"] = [kinds[i] for i in selection.layers]
    return config, found


def mask(name: str, array: np.ndarray, remaining: dict[str, np.ndarray]) -> np.ndarray:
    """The array with removed units at zero; norms, which read zeros then, are left as they are."""
    array = array.copy()
    for axis, unit in enumerate(removal.AXES[name]):
        if unit in remaining and name not in removal.NORMS:
            removed = np.setdiff1d(np.arange(array.shape[axis]), remaining[unit])
            array[(slice(None),) * axis + (removed,)] = 0
    return array


def write(model: Model, config: dict[str, Any], selection: Selection, out: Path) -> Path:
    """The smaller model's folder, in several shards."""
    plan = cutting.plan(model, selection, None, repaired=False)
    out.mkdir()
    folders.write(out, cutting.arrays(plan, {}, lambda _: None), shard_bytes=2000)
    new = removal.rewrite_config(config, plan.small, selection)
    (out / "config.json").write_text(json.dumps(new), encoding="utf-8")
    return out
