"""Folders of smaller language models as stock `transformers` loads them.

pip install -e '.[language]'
python -m pytest -m slow tests/scripts/test_language_transformers.py
"""

import warnings

import numpy as np
import pytest

from tests.support import language_models, smaller_language_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what these libraries deprecate is theirs
]
CONFIGS = 50


@pytest.fixture(autouse=True)
def float32(users_jax):
    """As the command runs."""


def theirs(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(torch.asarray(tokens)[None]).logits[0].numpy()


@pytest.mark.parametrize("seed", range(CONFIGS))
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_transformers_gives_a_smaller_folder_the_logits_of_zeros(family, seed, tmp_path):
    rng = np.random.default_rng(1000 + seed)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    tokens = rng.integers(0, language_models.WORDS, 17)
    folder = language_models.write(tmp_path / "whole", config, weights, shards=1 + seed % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = theirs(folder, tokens)
        np.testing.assert_allclose(
            smaller_language_models.ours(folder, tokens), whole, rtol=0, atol=1e-5
        )
        model = smaller_language_models.read(folder)
        selection = smaller_language_models.random_selection(model.architecture, rng, share=0.5)
        out = smaller_language_models.write(model, config, selection, tmp_path / "out")
        zeros = smaller_language_models.masked(config, weights, model.architecture, selection)
        expected = theirs(language_models.write(tmp_path / "zeros", *zeros), tokens)
        small = theirs(out, tokens)
    assert np.ptp(expected, axis=-1).min() > 0.1  # a wrong program would be seen
    np.testing.assert_allclose(small, expected, rtol=0, atol=1e-5)
