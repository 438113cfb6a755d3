"""Runs the code of the guide that prunes a Keras model and copies the arrays back."""

import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")


def test_a_model_of_keras_is_pruned_and_built_again():
    pytest.importorskip("keras", reason="needs keras 3")
    text = (Path(__file__).parents[2] / "docs" / "pruning.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, "docs/pruning.md", "exec"), names)
        images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
        small, pruned = names["small"], names["pruned"]
        expected = pruned.apply(pruned.params, images)
        np.testing.assert_allclose(small(images), expected, rtol=1e-5, atol=1e-6)
    assert small.count_params() < 0.6 * names["model"].count_params()
