"""Whole and smaller decoders, compared with a decoder in NumPy that loops over positions."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import InputError
from experiments.language import decoder, folders, naming, removal
from experiments.language.architecture import FAMILIES, parse
from tests.support import language_models, smaller_language_models
from tests.support.smaller_language_models import masked, ours, random_selection, read

TOKENS = 11


pytestmark = pytest.mark.usefixtures("users_jax")


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


@pytest.mark.parametrize("tokens", [1, 3, 4, 9])
def test_a_position_sees_itself_and_those_before_it_within_the_window(tokens):
    """At position t, the angle t r rotates a pair of channels with the rate r."""
    config = language_models.random_config("gemma3_text", np.random.default_rng(0))
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config |= {"layer_types": kinds, "num_hidden_layers": 3, "head_dim": 4}
    config |= {"sliding_window": 3, "rope_theta": 100.0, "rope_local_base_freq": 25.0}
    model = parse({name: value for name, value in config.items() if name != "rope_scaling"})
    for layer, (window, rates) in enumerate([(3, [1, 1 / 5]), (99, [1, 1 / 10]), (3, [1, 1 / 5])]):
        found = decoder.positions(model, layer, tokens)
        visible = [[t - window < s <= t for s in range(tokens)] for t in range(tokens)]
        np.testing.assert_array_equal(found.visible, visible)
        angles = np.outer(np.arange(tokens), rates)
        np.testing.assert_allclose(found.cos, np.cos(angles), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.sin, np.sin(angles), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_a_smaller_folder_gives_the_logits_of_zeros_at_removed_units(family, seed, tmp_path):
    rng = np.random.default_rng(100 + seed)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    model = read(language_models.write(tmp_path / "model", config, weights))
    selection = random_selection(model.architecture, rng)
    out = smaller_language_models.write(model, config, selection, tmp_path / "out")
    tokens = rng.integers(0, language_models.WORDS, TOKENS)
    zeros = masked(config, weights, model.architecture, selection)
    expected = language_models.logits(*zeros, list(tokens))
    config, weights = language_models.read(out)
    cut = language_models.logits(config, weights, list(tokens))
    np.testing.assert_allclose(cut, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours(out, tokens), expected, rtol=0, atol=1e-5)
    small = removal.parameters(model.architecture, model.tensors, selection.counts)
    assert small == sum(a.size for a in language_models.read(out)[1].values())


def test_the_width_of_a_norm_moves_into_its_weight_and_epsilon():
    """The width decreases from d = 4 to k = 1, so the factor √(d/k) of the weight is 2."""
    config = language_models.random_config("gemma2", np.random.default_rng(0))
    model = dataclasses.replace(parse(config), hidden=4, eps=0.5)
    weight = np.array([3.0], np.float32)
    assert removal.fold(model, "input_layernorm.weight", weight, 1, tied=True) == 2 * (1 + 3) - 1
    assert removal.fold(model, removal.NORM, weight, 1, tied=True) == 3
    assert removal.fold(model, removal.NORM, weight, 1, tied=False) == 7
    assert removal.fold(model, removal.EMBEDDING, weight, 1, tied=False) == 6
    selection = removal.whole(model)._replace(hidden=np.array([2]))
    assert removal.smaller_architecture(model, selection).eps == 2


def test_gpt2_is_read_without_the_prefix_of_its_names_and_with_its_masks(tmp_path):
    rng = np.random.default_rng(0)
    config = language_models.random_config("gpt2", rng)
    weights = language_models.random_weights(config, rng)
    tokens = rng.integers(0, language_models.WORDS, TOKENS)
    old = {name.removeprefix("transformer."): array for name, array in weights.items()}
    old |= {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)}
    old |= {"h.0.attn.masked_bias": np.full((), -1e4, np.float32)}
    folder = language_models.write(tmp_path / "model", config, old)
    expected = language_models.logits(config, weights, list(tokens))
    np.testing.assert_allclose(ours(folder, tokens), expected, rtol=0, atol=1e-5)


def test_layers_of_gpt2_have_numbers_of_several_digits():
    tensor = folders.Tensor(Path(), 0, np.dtype(np.float32), (3,))
    found = naming.gpt2_sources({f"h.{i}.ln_1.weight": tensor for i in (9, 10, 123)})
    assert list(found) == [f"model.layers.{i}.input_layernorm.weight" for i in (9, 10, 123)]


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_missing_expert_is_named(family, tmp_path):
    rng = np.random.default_rng(0)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    first = next(name for name in weights if ".experts.0." in name)
    last = first.replace(".experts.0.", f".experts.{count_experts(config) - 1}.")
    changed = [({last}, "must have the shape"), ({first}, "must be numbered from 0")]
    for i, (removed, message) in enumerate(changed):
        rest = {name: array for name, array in weights.items() if name not in removed}
        with pytest.raises(InputError, match=message):
            read(language_models.write(tmp_path / str(i), config, rest))


def count_experts(config):
    return config.get("num_local_experts") or config["num_experts"]


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
        ({"model_type": "mamba"}, f"one of {', '.join(FAMILIES)}, .*; got mamba"),
        ({"model_type": "mixtral"}, "positive whole number num_local_experts; got None"),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "moe_intermediate_size": 8},
            "every layer must have experts; .* decoder_sparse_step 2 and mlp_only_layers None",
        ),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention must be false"),
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx must be false",
        ),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "scale_attn_weights must be true"),
        ({"quantization_config": {}}, "must not be quantized"),
        ({"use_bidirectional_attention": True}, "must be causal"),
        ({"hidden_size": "wide"}, "positive whole number hidden_size; got wide"),
        ({"hidden_act": "tanh"}, "activation must be one of silu, .*; got tanh"),
        ({"layer_types": ["full_attention"]}, "for [234] layers; got 1 entries"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "default, linear or llama3"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "must rotate whole heads"),
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
        ({"model.layers.0.mlp.experts.weight": (2, 2)}, "experts.weight is not one of its tensors"),
        ({"model.layers.2.input_layernorm.weight": (3,)}, "layernorm.weight is not one of its"),
        ({"model.norm.weight": (3,)}, r"must have the shape .* it has \(3,\)"),
        ({"model.layers.0.mlp.up_proj.weight": (3,)}, r"the shape \(\d+, \d+\) that .* has \(3,\)"),
        ({"model.embed_tokens.weight": (3,)}, r"the shape \(words, \d+\) that .* has \(3,\)"),
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
