"""Unchanged `transformers` loads folders of smaller language models.

pip install -e '.[language]'
python -m pytest -m slow tests/scripts/test_language_transformers.py
"""

import warnings
from functools import partial

import jax
import numpy as np
import pytest

from experiments.language import export, tokens, training
from tests.support import language_models, smaller_language_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
CONFIGS = 50


pytestmark = pytest.mark.usefixtures("users_jax")


def theirs(folder, sequence, removed=()):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",  # torch's grouped products require multiples of 16 bytes
    )
    for layer, experts in enumerate(removed):
        gate = model.model.layers[layer].mlp.gate
        gate.register_forward_hook(partial(without_experts, experts))
    with torch.no_grad():
        return model.eval()(torch.asarray(sequence)[None]).logits[0].numpy()


def without_experts(removed, gate, _, output):
    """The outputs of a router that sends no token to the experts `removed`."""
    logits = output[0].clone()
    logits[:, removed] = -torch.inf
    count = min(gate.top_k, logits.shape[-1] - len(removed))
    values, indices = torch.softmax(logits, -1).topk(count, -1)
    if getattr(gate, "norm_topk_prob", True):
        values = values / values.sum(-1, keepdim=True)
    return logits, values, indices


def check(found, theirs, exact):
    """Compare `found` with `exact`, up to 1e-5 or four times the error of `theirs` in float32."""
    rounding = np.abs(theirs - exact).max()
    assert rounding < 1e-3
    np.testing.assert_allclose(found, exact, rtol=0, atol=max(1e-5, 4 * rounding))


@pytest.mark.parametrize("seed", range(CONFIGS))
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_transformers_gives_a_smaller_folder_the_logits_of_zeros(family, seed, tmp_path):
    rng = np.random.default_rng(1000 + seed)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    sequence = rng.integers(0, language_models.WORDS, 17)
    folder = language_models.write(tmp_path / "whole", config, weights, shards=1 + seed % 2)
    model = smaller_language_models.read(folder)
    selection = smaller_language_models.random_selection(model.architecture, rng, share=0.5)
    out = smaller_language_models.write(model, config, selection, tmp_path / "out")
    zeros = smaller_language_models.masked(config, weights, model.architecture, selection)
    masked = language_models.write(tmp_path / "zeros", *zeros)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn of deprecations in their own code
        whole, small = (theirs(path, sequence) for path in (folder, out))
        expected = theirs(masked, sequence, zeros[0].get("removed_experts", ()))
    ours = smaller_language_models.ours(folder, sequence)
    check(ours, whole, language_models.logits(config, weights, list(sequence)))
    exact = language_models.logits(*zeros, list(sequence))
    # The logits of different words differ, so a wrong logit would be an error.
    assert np.ptp(exact, axis=-1).min() > 0.1
    check(small, expected, exact)


def test_the_tokenizer_of_the_small_model_is_bytes(tmp_path):
    export.write(tmp_path, training.init(jax.random.key(0), training.MODEL, 256))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "def f(x):\n\treturn '\u00e9\u4e2d'  # \x7f"
    found = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert bytes(found) == text.encode()
    assert tokenizer.decode(found) == text
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert tokens.read(tmp_path, tmp_path / "text.txt", 256).tolist() == found
