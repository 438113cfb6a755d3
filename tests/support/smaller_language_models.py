"""Randomly pruned language models, and the masked models with which they are compared."""

import json
import math
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.language import choice, cutting, folders, naming, removal, training
from experiments.language.architecture import Architecture
from experiments.language.choice import Model
from experiments.language.removal import Selection
from tests.support import language_models


def ours(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """The logits of one sequence, computed by the project's decoder."""
    model = read(folder)
    params = {name: model.read(name) for name in model.tensors}
    batch = jnp.asarray(tokens)[None]
    return np.asarray(training.forward(model.architecture, params, batch)[0])


def read(folder: Path) -> Model:
    """The model in a folder, after a check of its names."""
    _, model = choice.read_model(folder)
    return model


def random_model(
    folder: Path, family: str = "qwen3", change: Any = lambda weights: weights, **sizes: Any
) -> Model:
    """A random model of given sizes, written to a folder after a change of its weights."""
    rng = np.random.default_rng(0)
    config = language_models.random_config(family, rng) | sizes
    weights = change(language_models.random_weights(config, rng))
    return read(language_models.write(folder, config, weights))


def random_selection(
    model: Architecture, rng: np.random.Generator, *, share: float = 0.0
) -> Selection:
    """A random selection of units that differs between layers, and that `transformers` accepts.

    At least the fraction `share` of each kind of units is kept.
    """
    whole = removal.counts(model)
    smaller = [int(rng.integers(max(1, math.ceil(share * n)), n + 1)) for n in whole]
    if model.traits.divides:  # the number of heads must divide the hidden width
        heads = smaller[1] * (model.heads // model.groups)
        largest = model.hidden // heads
        smaller[3] = heads * int(rng.integers(max(1, math.ceil(share * largest)), largest + 1))
    for i, name in enumerate(("layers", "heads", "intermediate", "hidden", "experts")):
        if name not in ("layers", *model.traits.units):
            smaller[i] = whole[i]
    counts = removal.Counts(*smaller)

    def some(n: int, count: int) -> np.ndarray:
        return np.sort(rng.permutation(n)[:count])

    groups, intermediate, experts = (
        [some(n, count) for _ in range(model.layers)]
        for n, count in (
            (whole.groups, counts.groups),
            (whole.intermediate, counts.intermediate),
            (whole.experts, counts.experts),
        )
    )
    layers, hidden = some(whole.layers, counts.layers), some(whole.hidden, counts.hidden)
    return Selection(layers, groups, intermediate, hidden, experts)


def masked(
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    model: Architecture,
    selection: Selection,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The model before pruning, but with zeros at removed units and without the removed layers.

    Removed experts are not set to zero, but get no tokens.
    """
    if model.traits.gpt2:
        return masked_gpt2(config, weights, selection)
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
    if model.traits.mixture:
        whole = np.arange(model.experts)
        removed = [np.setdiff1d(whole, selection.experts[i]).tolist() for i in selection.layers]
        config["removed_experts"] = removed
    elif model.family not in ("llama", "mistral"):
        config["layer_types"] = [kinds[i] for i in selection.layers]
    return config, found


def masked_gpt2(
    config: dict[str, Any], weights: dict[str, np.ndarray], selection: Selection
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The masked model of a GPT-2, in which only layers and units of perceptrons are removed."""
    places = {f"transformer.h.{layer}.": i for i, layer in enumerate(selection.layers)}
    found = {}
    for name, array in weights.items():
        layer = re.match(r"transformer\.h\.(\d+)\.", name)
        if layer is None:
            found[name] = array
        elif layer[0] in places:
            units = np.isin(np.arange(array.shape[-1]), selection.intermediate[int(layer[1])])
            inner = name.endswith(("mlp.c_fc.weight", "mlp.c_fc.bias"))
            new = name.replace(layer[0], f"transformer.h.{places[layer[0]]}.")
            found[new] = np.where(units, array, 0) if inner else array
    return config | {"n_layer": len(places)}, found


OF_EXPERTS = {
    ("gate_proj", "w1"): ("intermediate", "hidden"),
    ("up_proj", "w3"): ("intermediate", "hidden"),
    ("down_proj", "w2"): ("hidden", "intermediate"),
}


def axes(name: str) -> tuple[str, ...]:
    """The kind of units along each axis of a tensor in a file."""
    if ".experts." in name:
        kind = name.split(".")[-2]
        return next(found for names, found in OF_EXPERTS.items() if kind in names)
    if name.endswith(("moe.gate.weight", "mlp.gate.weight")):
        return ("", "hidden")
    return removal.AXES[name]


def mask(name: str, array: np.ndarray, remaining: dict[str, np.ndarray]) -> np.ndarray:
    """The array with zeros at removed units.

    Scales of norms are unchanged, because the inputs of norms are zero at removed units.
    """
    array = array.copy()
    for axis, unit in enumerate(axes(name)):
        if unit in remaining and name not in removal.NORMS:
            removed = np.setdiff1d(np.arange(array.shape[axis]), remaining[unit])
            array[(slice(None),) * axis + (removed,)] = 0
    return array


def write(model: Model, config: dict[str, Any], selection: Selection, out: Path) -> Path:
    """Write the smaller model to a folder, in several shards."""
    plan = cutting.plan(model, selection, None, repaired=False)
    out.mkdir()
    arrays = cutting.arrays(plan, {}, lambda _: None)
    folders.write(out, naming.to_files(plan.small.family, arrays), shard_bytes=2000)
    new = removal.rewrite_config(config, plan.small, selection)
    (out / "config.json").write_text(json.dumps(new), encoding="utf-8")
    return out
