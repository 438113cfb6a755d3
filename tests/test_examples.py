"""Tests that the notebooks in `examples/` match their scripts, and that the scripts run."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RENDER = runpy.run_path(str(ROOT / "examples/render.py"))
SCRIPTS = sorted((ROOT / "examples").glob("*.py"), key=lambda path: path.stem)
SCRIPTS = [path for path in SCRIPTS if path.stem != "render"]
named = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def outputs(script):
    """The printed lines in a notebook."""
    made = json.loads(script.with_suffix(".ipynb").read_text())
    parts = [part for cell in made["cells"] for part in cell.get("outputs", ())]
    return [line for part in parts for line in part["text"]]


def test_there_are_seven_and_the_documentation_lists_them():
    assert len(SCRIPTS) == 7
    listed = re.findall(r"examples/(\w+)\.ipynb\)", (ROOT / "docs/examples.md").read_text())
    assert sorted(listed) == [script.stem for script in SCRIPTS]


@named
def test_a_notebook_has_the_cells_of_its_script_and_what_they_print(script):
    made = json.loads(script.with_suffix(".ipynb").read_text())
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
    assert found == RENDER["cells"](script.read_text())
    assert len(outputs(script)) >= 3


def test_cells_are_run_one_after_the_other_and_print():
    made = RENDER["notebook"]("# %% [markdown]\n# # Title\n\n# %%\nx = 2\n\n# %%\nprint(x + 1)\n")
    assert [cell["cell_type"] for cell in made["cells"]] == ["markdown", "code", "code"]
    assert "".join(made["cells"][0]["source"]) == "# Title"
    assert made["cells"][1]["outputs"] == []
    assert made["cells"][2]["outputs"][0]["text"] == ["3\n"]


@pytest.mark.slow
@named
def test_a_script_runs(script, tmp_path):
    """A script runs without warnings, and prints as many lines as its notebook shows."""
    if script.stem == "prune_and_time":
        pytest.importorskip("flatbuffers")  # `jax.export` needs this package
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(outputs(script))
