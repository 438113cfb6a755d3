"""Properties of decoders that have a default or several spellings in `config.json`."""

import math
from typing import Any

import numpy as np
import pytest

from experiments.cli import InputError
from experiments.language import architecture, removal
from experiments.language.architecture import parse
from tests.support import language_models, smaller_language_models

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
}


def parsed(family, **changes):
    return parse({"model_type": family, **SIZES, **changes})


def test_a_smaller_decoder_has_the_kinds_of_the_layers_that_remain():
    """The smaller decoder's `config.json` names the kinds of attention of the layers it has."""
    config = {"model_type": "gemma3_text", **SIZES, "sliding_window": 5}
    model = parse(config)
    selection = removal.whole(model)._replace(layers=np.array([1, 5, 6]))
    small = removal.smaller_architecture(model, selection)
    assert small.windows == (5, None, 5)
    assert small.rates == (model.rates[1], model.rates[5], model.rates[6])
    assert small.rates[1] != small.rates[0]
    assert parse(removal.rewrite_config(config, small, selection)) == small


def test_a_smaller_decoder_sends_a_token_to_at_most_the_experts_that_remain():
    model = parsed("mixtral", num_local_experts=4, num_experts_per_tok=3)
    for experts, each in (([2], 1), ([0, 3], 2), ([0, 1, 2, 3], 3)):
        selection = removal.whole(model)._replace(experts=[np.array(experts)] * 7)
        small = removal.smaller_architecture(model, selection)
        assert (small.experts, small.experts_per_token) == (len(experts), each)


@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_the_configuration_of_a_smaller_decoder_states_what_the_smaller_sizes_do_not_imply(family):
    """The configuration of the whole decoder leaves out everything that has a default."""
    config = language_models.random_config(family, np.random.default_rng(0)) | {"num_experts": 8}
    needed = ("model_type", "_size", "num_", "n_embd", "n_head", "n_layer")
    config = {name: value for name, value in config.items() if any(x in name for x in needed)}
    for left_out in ("", "num_key_value_heads"):
        given = {name: value for name, value in config.items() if name != left_out}
        model = parse(given)
        selection = smaller_language_models.random_selection(model, np.random.default_rng(1))
        small = removal.smaller_architecture(model, selection)
        assert small != model
        assert parse(removal.rewrite_config(given, small, selection)) == small


@pytest.mark.parametrize(
    ("family", "changes", "sliding"),
    [  # the last value lists which of the seven layers have a sliding window
        ("llama", {"sliding_window": 5}, []),
        ("mistral", {"sliding_window": 5}, range(7)),
        ("mistral", {"sliding_window": None}, []),
        (
            "qwen2",
            {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 4},
            [4, 5, 6],
        ),
        # By default, windows begin at layer 28, so none of the seven layers has a window.
        ("qwen2", {"sliding_window": 5, "use_sliding_window": True}, []),
        ("qwen3", {"sliding_window": 5, "max_window_layers": 0}, []),
        ("gemma2", {"sliding_window": 5}, [0, 2, 4, 6]),
        # By default, every sixth layer attends to all positions.
        ("gemma3_text", {"sliding_window": 5}, [0, 1, 2, 3, 4, 6]),
        ("gemma3_text", {"sliding_window": 5, "sliding_window_pattern": 3}, [0, 1, 3, 4, 6]),
        ("gemma3_text", {"sliding_window": 5, "_sliding_window_pattern": 2}, [0, 2, 4, 6]),
        (
            "gemma3_text",
            {"sliding_window": 5, "layer_types": ["full_attention"] * 6 + ["sliding_attention"]},
            [6],
        ),
    ],
)
def test_layers_have_the_windows_of_their_family(family, changes, sliding):
    found = parsed(family, **changes).windows
    assert found == tuple(5 if i in sliding else None for i in range(7))


def test_what_a_configuration_leaves_out_has_the_value_of_its_family():
    llama, gemma2, gemma3 = (parsed(family) for family in ("llama", "gemma2", "gemma3_text"))
    assert (llama.head_dim, llama.groups, llama.eps) == (4, 6, 1e-6)
    assert llama.score_scale == pytest.approx(1 / 2)
    assert (llama.score_cap, llama.logit_cap, llama.activation) == (None, None, "silu")
    assert (gemma2.score_cap, gemma2.logit_cap) == (50.0, 30.0)
    assert (gemma3.score_cap, gemma3.logit_cap) == (None, None)
    for gemma in (gemma2, gemma3):
        assert (gemma.head_dim, gemma.activation) == (256, "gelu_pytorch_tanh")
        assert gemma.score_scale == pytest.approx(1 / 16)
    scaled = parsed("gemma2", query_pre_attn_scalar=100, head_dim=8)
    assert scaled.score_scale == pytest.approx(1 / 10)
    other = parsed("llama", head_dim=10, num_key_value_heads=2)
    assert (other.head_dim, other.groups) == (10, 2)
    assert parsed("llama", num_key_value_heads=None, head_dim=None) == llama
    assert other.score_scale == pytest.approx(10**-0.5)
    mixtral = parsed("mixtral", num_local_experts=4, num_experts_per_tok=9)
    assert (mixtral.eps, mixtral.experts, mixtral.experts_per_token) == (1e-5, 4, 4)
    assert mixtral.shares_sum_to_one
    qwen = parsed("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=3)
    assert (qwen.intermediate, qwen.experts_per_token) == (3, 2)
    assert not qwen.shares_sum_to_one
    gpt2 = parse({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3})
    assert (gpt2.intermediate, gpt2.eps, gpt2.activation) == (96, 1e-5, "gelu_new")
    assert gpt2.rates == ((), ())


@pytest.mark.parametrize(
    ("family", "changes", "base"),
    [
        ("llama", {}, 1e4),
        ("llama", {"rope_theta": 500.0}, 500.0),
        ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1}, 1e6),
        ("qwen3", {"rope_parameters": {"rope_theta": 700.0}}, 700.0),
    ],
)
def test_positions_turn_by_powers_of_the_base(family, changes, base):
    """For head width 8 and base b, the angles per position are 1, b^(−1/4), b^(−1/2), b^(−3/4)."""
    found = parsed(family, head_dim=8, **changes).rates
    for rates in found:
        np.testing.assert_allclose(rates, [1, base**-0.25, base**-0.5, base**-0.75], rtol=1e-12)


def test_sliding_layers_of_gemma_3_have_a_base_of_their_own():
    local, full = 1e4, 1e6
    rates = parsed("gemma3_text", head_dim=4, sliding_window=5).rates
    for i, found in enumerate(rates):
        np.testing.assert_allclose(found, [1, (full if i == 5 else local) ** -0.5], rtol=1e-12)
    scaled = parsed(
        "gemma3_text",
        head_dim=4,
        sliding_window=5,
        rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ).rates
    np.testing.assert_allclose(scaled[0], [1, 0.1], rtol=1e-12)
    np.testing.assert_allclose(scaled[5], [1 / 8, 1e-3 / 8], rtol=1e-12)
    known = {"sliding_attention": None, "full_attention": {"rope_theta": 100.0}}
    rates = parsed("gemma3_text", head_dim=4, sliding_window=5, rope_parameters=known).rates
    np.testing.assert_allclose(rates[4:6], [[1, 0.01], [1, 0.1]], rtol=1e-12)


def test_long_waves_of_llama_3_are_stretched_and_short_ones_are_not():
    """Rates are divided by 8 at wavelengths above 32, and do not change below 32/4.

    Between the wavelengths 32/4 and 32, the rate is interpolated.
    """
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    found = architecture.frequencies(rope, 8)
    for rate, plain in zip(found, [1, 0.1, 0.01, 0.001], strict=True):
        wave = 2 * math.pi / plain
        if wave < 32 / 4:
            expected = plain
        elif wave > 32:
            expected = plain / 8
        else:
            smooth = (32 / wave - 1) / (4 - 1)
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert rate == pytest.approx(expected)
    # Without scaling, the rates would be 1, ½, ¼ and ⅛.
    rates = np.array(architecture.frequencies(rope | {"rope_theta": 16.0}, 8))
    turns = np.array([0.5, 0.25, 0.125]) * 32 / (2 * math.pi)
    share = np.clip((turns - 1) / 3, 0, 1)
    assert 0 < share[0] < 1
    np.testing.assert_allclose(
        rates[1:], np.array([0.5, 0.25, 0.125]) * (share + (1 - share) / 8), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("llama", {"hidden_size": 0}, "positive whole number hidden_size; got 0"),
        (
            "qwen3_moe",
            {"moe_intermediate_size": 8, "mlp_only_layers": [1]},
            r"mlp_only_layers \[1\]",
        ),
        ("mixtral", {}, "positive whole number num_local_experts; got None"),
        ("llama", {"layer_types": ["full_attention"] * 6 + ["linear"]}, "got 7 entries, .*linear"),
        ("llama", {"use_bidirectional_attention": True}, "attention must be causal"),
    ],
)
def test_an_architecture_that_cannot_be_is_refused(family, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        parsed(family, **changes)
