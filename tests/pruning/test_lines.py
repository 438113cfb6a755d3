"""A report names the model's line, wherever JAX and the model are installed."""

import importlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest

from pruning import channels

MODEL = """
import jax

def model(p, x):
    return jax.nn.softmax(x @ p["a"]) @ p["b"]
"""
USE = """
import json, sys
import numpy as np
from pruning.channels import fixed_channels
import a_library.models, b_library.models

params = {"a": np.ones((2, 5), "f"), "b": np.ones((5, 3), "f")}
lines = []
for model in (a_library.models.model, b_library.models.model):
    def apply(p, x):
        return model(p, x)

    reports = fixed_channels(apply, params, np.ones((1, 2), "f"))
    lines += [report.line for report in reports if report.primitive == "reduce_max"]
print(json.dumps(lines))
"""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_model_that_is_a_library_is_named(tmp_path, elsewhere):
    """JAX is installed in this environment, or in a folder on the path of another Python."""
    libraries = [tmp_path / "site-packages" / "a_library", tmp_path / "src" / "b_library"]
    for library in libraries:
        library.mkdir(parents=True)
        (library / "__init__.py").write_text("")
        (library / "models.py").write_text(MODEL)
    (tmp_path / "use.py").write_text(USE)
    here = Path(jax.__file__).parents[1]
    base = Path(sysconfig.get_path("stdlib")).parents[1] / "bin" / "python3"
    python = base if elsewhere and base.exists() else sys.executable
    paths = [*(library.parent for library in libraries), Path(__file__).parents[2], here]
    environment = {"PYTHONPATH": ":".join(map(str, paths)), "JAX_PLATFORMS": "cpu"}
    command = [str(python), str(tmp_path / "use.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = [f"{library / 'models.py'}:5 (model)" for library in libraries]
    assert json.loads(done.stdout) == expected


def test_a_resized_model_has_the_lines_of_the_model():
    def model(p, x):
        return jax.nn.softmax(jax.nn.relu(x @ p["a"]) @ p["b"]) @ p["c"]

    params, x = {"a": np.ones((2, 4)), "b": np.ones((4, 5)), "c": np.ones((5, 3))}, np.ones((1, 2))
    pruned = channels.prune(model, params, x, ratios=[0.5], resize=True)
    large = channels.fixed_channels(model, params, x)
    small = channels.fixed_channels(pruned.apply, pruned.params, x)
    assert [report.line for report in small] == [report.line for report in large]


def test_a_framework_that_is_imported_after_a_report_is_no_model(monkeypatch, tmp_path):
    monkeypatch.setitem(
        sys.modules, "haiku", None
    )  # after the test, pytest then removes the module
    monkeypatch.delitem(sys.modules, "haiku")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "haiku.py").write_text(MODEL)
    params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
    models = [lambda p, x: jax.nn.softmax(x @ p["a"]) @ p["b"]]
    models += [lambda p, x: importlib.import_module("haiku").model(p, x)]
    for model in models:
        report, *_ = channels.fixed_channels(model, params, np.ones((1, 2)))
        assert report.primitive == "reduce_max"
        assert report.line.startswith(f"{__file__}:")
