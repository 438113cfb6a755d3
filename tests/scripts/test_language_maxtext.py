"""The checkpoint for MaxText: names and shapes as in MaxText's sources, and equal products."""

import json
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.cli import InputError
from experiments.language import maxtext
from tests.support import language_models

PLAIN: dict[str, Any] = {"use_sliding_window": False, "attention_bias": False}
NAMES = [
    "decoder-decoder_norm-scale",
    "decoder-layers-mlp-wi_0-kernel",
    "decoder-layers-mlp-wi_1-kernel",
    "decoder-layers-mlp-wo-kernel",
    "decoder-layers-post_self_attention_layer_norm-scale",
    "decoder-layers-pre_self_attention_layer_norm-scale",
    "decoder-layers-self_attention-key-kernel",
    "decoder-layers-self_attention-out-kernel",
    "decoder-layers-self_attention-query-kernel",
    "decoder-layers-self_attention-value-kernel",
    "token_embedder-embedding",
]
OF_QWEN2 = [f"decoder-layers-self_attention-{x}-bias" for x in ("key", "query", "value")]
OF_QWEN3 = [f"decoder-layers-self_attention-{x}_norm-scale" for x in ("key", "query")]


pytestmark = pytest.mark.usefixtures("users_jax")


def written(tmp_path, family, **changes):
    """The arrays that MaxText's checkpoint holds, by path, and the model's config and weights."""
    rng = np.random.default_rng(0)
    config = language_models.random_config(family, rng) | PLAIN | changes
    weights = language_models.random_weights(config, rng)
    maxtext.write(language_models.write(tmp_path / "model", config, weights), tmp_path / "out")
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore(tmp_path / "out/0/items")
    flat, _ = jax.tree.flatten_with_path(tree["params"]["params"])
    return {"-".join(k.key for k in path): np.asarray(leaf) for path, leaf in flat}, config, weights


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_names_are_those_of_its_sources_and_products_those_of_our_kernels(family, tied, tmp_path):
    found, config, weights = written(tmp_path, family, tie_word_embeddings=tied)
    others = [] if tied else ["decoder-logits_dense-kernel"]
    assert sorted(found) == sorted(NAMES + (OF_QWEN2 if family == "qwen2" else OF_QWEN3) + others)
    d, n = config["hidden_size"], config["head_dim"]
    x = np.random.default_rng(1).normal(size=d)
    i = config["num_hidden_layers"] - 1
    of_layer, at = f"model.layers.{i}", f"model.layers.{i}.self_attn"
    for ours in ("query", "key", "value"):
        # The axes of this kernel are (emb, heads, dims).
        kernel = found[f"decoder-layers-self_attention-{ours}-kernel"][:, i]
        expected = (weights[f"{at}.{ours[0]}_proj.weight"] @ x).reshape(-1, n)
        np.testing.assert_allclose(np.einsum("e,ehd->hd", x, kernel), expected, rtol=1e-6)
    # The axes of this kernel are (heads, dims, emb).
    out = found["decoder-layers-self_attention-out-kernel"][:, i]
    expected = weights[f"{at}.o_proj.weight"] @ np.arange(out.shape[0] * n)
    heads = np.arange(out.shape[0] * n).reshape(-1, n)
    np.testing.assert_allclose(np.einsum("hd,hde->e", heads, out), expected, rtol=1e-6)
    for ours, name in {"wi_0": "gate", "wi_1": "up", "wo": "down"}.items():
        kernel = found[f"decoder-layers-mlp-{ours}-kernel"][:, i]
        np.testing.assert_array_equal(kernel, weights[f"{of_layer}.mlp.{name}_proj.weight"].T)
    vectors = {
        "pre_self_attention_layer_norm-scale": f"{of_layer}.input_layernorm.weight",
        "post_self_attention_layer_norm-scale": f"{of_layer}.post_attention_layernorm.weight",
    }
    if family == "qwen2":
        biases = {f"self_attention-{x}-bias": x for x in ("query", "key", "value")}
        vectors |= {ours: f"{at}.{x[0]}_proj.bias" for ours, x in biases.items()}
    else:
        norms = {f"self_attention-{x}_norm-scale": x for x in ("query", "key")}
        vectors |= {ours: f"{at}.{x[0]}_norm.weight" for ours, x in norms.items()}
    for ours, name in vectors.items():
        vector = found[f"decoder-layers-{ours}"][:, i].ravel()
        np.testing.assert_array_equal(vector, weights[name])
    settings = (tmp_path / "out/config.yml").read_text(encoding="utf-8").splitlines()
    assert settings[0] == 'base_config: "base.yml"'
    assert f"base_emb_dim: {d}" in settings
    assert f'decoder_block: "{family}"' in settings


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_settings_are_those_of_the_configuration(family, newer, tmp_path):
    """In release 5 of `transformers`, the configuration has an entry for rotary positions."""
    changes: dict[str, Any] = {"rope_theta": 300.0, "tie_word_embeddings": newer}
    if newer:
        changes |= {"rope_theta": None, "rope_parameters": {"rope_theta": 700.0}}
    _, config, _ = written(tmp_path, family, **changes)
    lines = (tmp_path / "out/config.yml").read_text(encoding="utf-8").splitlines()
    found = {name: json.loads(value) for name, value in (line.split(": ", 1) for line in lines)}
    assert found == {
        "base_config": "base.yml",
        "decoder_block": family,
        "base_emb_dim": config["hidden_size"],
        "base_num_query_heads": config["num_attention_heads"],
        "base_num_kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "base_mlp_dim": config["intermediate_size"],
        "base_num_decoder_layers": config["num_hidden_layers"],
        "vocab_size": language_models.WORDS,
        "mlp_activations": ["silu", "linear"],
        "normalization_layer_epsilon": config["rms_norm_eps"],
        "rope_max_timescale": 700.0 if newer else 300.0,
        "use_qk_norm": family == "qwen3",
        "attention_bias": family == "qwen2",
        "logits_via_embedding": newer,
        "normalize_embedding_logits": False,
        "scan_layers": True,
        "param_scan_axis": 1,
    }


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", {}, "needs a model of qwen2 or qwen3; got a llama"),
        ("qwen2", {"use_sliding_window": True}, "without sliding windows"),
        ("qwen3", {"attention_bias": True}, "biases that MaxText's qwen3 lacks"),
        ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "scaled positions"),
        ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "scaled positions"),
    ],
)
def test_what_its_sources_have_no_place_for_is_refused(family, change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        written(tmp_path, family, **change)
    assert not (tmp_path / "out").exists()
