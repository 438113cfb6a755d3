"""Decoders, whole and smaller, beside one written in NumPy for one position after the other."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.cli import InputError
from experiments.language import cutting, folders, removal, training
from experiments.language.architecture import FAMILIES, parse
from experiments.language.choice import Model
from experiments.language.removal import Selection
from tests.support import language_models

TOKENS = 11


@pytest.fixture(autouse=True)
def float32(users_jax):
    """As the command runs."""


def ours(folder, tokens):
    model = read(folder)
    params = {name: folders.read(tensor) for name, tensor in model.tensors.items()}
    batch = jnp.asarray(tokens)[None]
    return np.asarray(training.forward(model.architecture, params, batch)[0])


def read(folder):
    architecture = parse(folders.read_config(folder))
    model = Model(architecture, folders.tensors(folder))
    removal.check_names(architecture, model.tensors)
    return model


def random_selection(model, rng):
    """A share of every kind of units, others in every layer."""
    whole = removal.counts(model)
    smaller = [int(rng.integers(1, n + 1)) for n in whole]

    def some(n, count):
        return np.sort(rng.permutation(n)[:count])

    of_layers = [
        [some(n, count) for _ in range(model.layers)]
        for n, count in zip(whole[1:3], smaller[1:3], strict=True)
    ]
    groups, intermediate = of_layers
    layers, hidden = some(whole.layers, smaller[0]), some(whole.hidden, smaller[3])
    return Selection(layers, groups, intermediate, hidden)


def masked(config, weights, model, selection):
    """The old model with zeros at removed units, and without removed layers."""
    places = {layer: i for i, layer in enumerate(selection.layers)}
    found = {}
    for name, array in weights.items():
        layer, short = removal.layer_of(name), removal.short(name)
        if layer >= 0 and layer not in places:
            continue
        zeros = removal.mask(short, array, removal.indices(model, selection, layer))
        found[name if layer < 0 else f"model.layers.{places[layer]}.{short}"] = zeros
    kinds = ["sliding_attention" if w else "full_attention" for w in model.windows]
    config = config | {"num_hidden_layers": len(places)}
    if model.family not in ("llama", "mistral"):
        config["layer_types"] = [kinds[i] for i in selection.layers]
    return config, found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_logits_are_those_of_the_decoder_in_numpy(family, seed, tmp_path):
    rng = np.random.default_rng(seed)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    folder = language_models.write(tmp_path / "model", config, weights, shards=1 + seed % 2)
    tokens = rng.integers(0, language_models.WORDS, TOKENS)
    expected = language_models.logits(config, weights, list(tokens))
    np.testing.assert_allclose(ours(folder, tokens), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_a_smaller_folder_gives_the_logits_of_zeros_at_removed_units(family, seed, tmp_path):
    rng = np.random.default_rng(100 + seed)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    model = read(language_models.write(tmp_path / "model", config, weights))
    selection = random_selection(model.architecture, rng)
    plan = cutting.plan(model, selection, None, repaired=False)
    out = tmp_path / "out"
    out.mkdir()
    folders.write(out, cutting.arrays(plan, {}, lambda _: None), shard_bytes=2000)
    new = removal.updated(config, plan.small, selection)
    (out / "config.json").write_text(json.dumps(new), encoding="utf-8")
    tokens = rng.integers(0, language_models.WORDS, TOKENS)
    zeros = masked(config, weights, model.architecture, selection)
    expected = language_models.logits(*zeros, list(tokens))
    cut = language_models.logits(*language_models.read(out), list(tokens))
    np.testing.assert_allclose(cut, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours(out, tokens), expected, rtol=0, atol=1e-5)
    small = removal.parameters(model.architecture, model.tensors, selection.counts)
    assert small == sum(a.size for a in language_models.read(out)[1].values())


def test_the_width_of_a_norm_moves_into_its_weight_and_epsilon():
    """Worked out by hand: d = 4, k = 1, so that √(d/k) = 2."""
    config = language_models.random_config("gemma2", np.random.default_rng(0))
    model = dataclasses.replace(parse(config), hidden=4, eps=0.5)
    weight = np.array([3.0], np.float32)
    assert removal.fold(model, "input_layernorm.weight", weight, 1, tied=True) == 2 * (1 + 3) - 1
    assert removal.fold(model, removal.NORM, weight, 1, tied=True) == 3
    assert removal.fold(model, removal.NORM, weight, 1, tied=False) == 7
    assert removal.fold(model, removal.EMBEDDING, weight, 1, tied=False) == 6
    selection = removal.whole(model)._replace(hidden=np.array([2]))
    assert removal.smaller(model, selection).eps == 2


def test_positions_are_read_from_both_releases_of_the_configuration():
    config = language_models.random_config("gemma3_text", np.random.default_rng(3))
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}
    new = {k: v for k, v in config.items() if not k.startswith("rope")}
    new["rope_parameters"] = {
        "full_attention": {
            "rope_type": "linear",
            "factor": 3.0,
            "rope_theta": config["rope_theta"],
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    assert parse(config).rates == parse(new).rates
    plain = language_models.random_config("qwen3", np.random.default_rng(0))
    theta = plain.pop("rope_theta")
    new = plain | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    assert parse(plain | {"rope_theta": theta}).rates == parse(new).rates


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, f"one of {', '.join(FAMILIES)}, .*; got mixtral"),
        ({"quantization_config": {}}, "must not be quantized"),
        ({"use_bidirectional_attention": True}, "must be causal"),
        ({"hidden_size": "wide"}, "positive whole number hidden_size; got wide"),
        ({"hidden_act": "tanh"}, "activation must be one of silu, .*; got tanh"),
        ({"layer_types": ["full_attention"]}, "for [234] layers; got 1 entries"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "default, linear or llama3"),
    ],
)
def test_another_architecture_is_refused_by_name(change, message):
    config = language_models.random_config("qwen3", np.random.default_rng(0))
    with pytest.raises(InputError, match=message):
        parse(config | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.0.mlp.up_proj.weight": None}, "1 are missing, such as model.layers.0.mlp"),
        ({"model.layers.0.mlp.experts.weight": (2, 2)}, "experts.weight is none of its"),
        ({"model.norm.weight": (3,)}, r"must have the shape .* it has \(3,\)"),
        ({"model.layers.0.self_attn.rotary_emb.inv_freq": (3,)}, None),
    ],
)
def test_tensors_of_another_program_are_refused_by_name(change, message, tmp_path):
    rng = np.random.default_rng(0)
    config = language_models.random_config("llama", rng)
    weights = language_models.random_weights(config, rng)
    for name, shape in change.items():
        weights.pop(name, None)
        if shape is not None:
            weights[name] = np.zeros(shape, np.float32)
    folder = language_models.write(tmp_path / "model", config, weights)
    if message is None:
        read(folder)
        return
    with pytest.raises(InputError, match=message):
        read(folder)
