"""Prunes decoders of keras_hub with tiny widths and random weights, also their residual stream.

The decoders compute in float64, except for norms and angles, which keras_hub computes in float32.
In float32 alone, rounding errors reach 1e-6 of the outputs on some processors.
"""

import os

import numpy as np
import pytest

import jax  # isort: skip

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import resized

os.environ.setdefault("KERAS_BACKEND", "jax")
SIZES = {
    "vocabulary_size": 11,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}
FAMILIES = ("Llama", "Mistral", "Qwen", "Phi3")
WORDS = np.random.default_rng(0).integers(1, 11, size=(2, 6))
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_have_it")]


@pytest.fixture
def as_users_have_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def backbone(request, as_users_have_it):
    """A Keras model as a function of its variables, and random values for these variables."""
    pytest.importorskip("keras_hub", reason="needs keras 3, and keras-hub without its tokenizers")
    import keras  # pyright: ignore[reportMissingImports]
    import keras_hub  # pyright: ignore[reportMissingImports]

    keras.utils.set_random_seed(0)
    model = getattr(keras_hub.models, f"{request.param}Backbone")(**SIZES, dtype="float64")
    rng, variables = np.random.default_rng(1), model.trainable_variables
    params = {
        f"{i:02} {v.path}": np.asarray(v) + rng.normal(size=v.shape) / 4
        for i, v in enumerate(variables)
    }
    names = tuple(params)
    params["head"] = rng.normal(size=(16, 3))
    others = [v.value for v in model.non_trainable_variables]

    def apply(params, words):
        inputs = {"token_ids": words, "padding_mask": np.ones(words.shape, "int32")}
        values = [params[name] for name in names]
        return model.stateless_call(values, others, inputs)[0] @ params["head"]

    return apply, params


@pytest.mark.parametrize("backbone", FAMILIES, indirect=True)
@pytest.mark.parametrize("ratio", [0.3, 0.5])
def test_a_decoder_of_keras_hub_is_cut_stream_included(backbone, ratio):
    apply, params = backbone
    groups = coupled_channels(apply, params, WORDS, resize=True)
    stream = [g for g in groups if g.normed and any(p.path == "head" for p in g.positions)]
    assert [group.size for group in stream] == [16]
    rng = np.random.default_rng(0)
    keep = [rng.permutation(g.size) >= min(g.size - 1, round(ratio * g.size)) for g in groups]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    found = jax.jit(resized(apply, groups, keep))(small, WORDS)
    expected = jax.jit(apply)(masked, WORDS)
    assert abs(found - expected).max() <= 1e-6 * abs(expected).max()
    assert abs(jax.jit(apply)(params, WORDS) - expected).max() > 1e-2
    ones = jax.tree.map(np.ones_like, params)
    left = mask_channels(ones, groups, [np.zeros(g.size, bool) for g in groups])
    stays = {path for path, leaf in left.items() if leaf.any()}
    # A backbone does not read the arrays `reverse_embeddings`.
    assert all("reverse_embeddings" in path for path in stays)


@pytest.mark.parametrize("backbone", FAMILIES[:1], indirect=True)
def test_a_decoder_of_keras_hub_is_pruned(backbone):
    """A Keras model has fixed widths, so `prune` raises a short error without `resize=True`."""
    apply, params = backbone
    with pytest.raises(ValueError, match=r"^apply must .*resize=True") as refusal:
        prune(apply, params, WORDS, ratios=[0.5])
    assert len(str(refusal.value)) < 700
    assert prune(apply, params, WORDS, ratios=[0.5], resize=True).params["head"].shape == (8, 3)
