"""Runs the recipe that quantizes a pruned model with Qwix, if Qwix is installed."""

import re
from pathlib import Path

import jax
import pytest

RECIPES = Path(__file__).parents[2] / "docs" / "your_issue.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Qwix causes such warnings
def test_a_pruned_model_is_quantized(capsys):
    pytest.importorskip("qwix", reason="needs qwix")
    (code,) = re.findall(r"```py\n(.*?)```", RECIPES.read_text(encoding="utf-8"), re.DOTALL)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, "docs/your_issue.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 0.02  # int8 has an error near 1/127
