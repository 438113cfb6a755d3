"""Run the scripts of this folder and write each as a notebook with its outputs.

    python examples/render.py                 # all
    python examples/render.py odd_point       # one

A cell of a script begins with `# %%`. A cell that begins with `# %% [markdown]` is text in comments.
Only printed outputs are shown.
"""

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path != Path(__file__))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells(script: str) -> list[tuple[str, str]]:
    """For each cell of a script, the kind ("markdown" or "code") and the text."""
    found = []
    for head, body in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", script, re.M):
        kind = "markdown" if "[markdown]" in head else "code"
        text = re.sub(r"^# ?", "", body, flags=re.M) if kind == "markdown" else body
        found.append((kind, text.strip("\n")))
    return found


def notebook(script: str) -> dict:
    """Run the cells of a script in order; return a notebook with the cells and their outputs."""
    namespace: dict = {"__name__": "__main__"}
    made = []
    for i, (kind, text) in enumerate(cells(script)):
        cell: dict = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"cell {i}", "exec"), namespace)
            lines = printed.getvalue().splitlines(keepends=True)
            output = {"name": "stdout", "output_type": "stream", "text": lines}
            cell |= {"execution_count": None, "outputs": [output] if lines else []}
        made.append(cell)
    return {"cells": made, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def main(names: list[str]) -> None:
    """Run each script in its own process, and write its notebook."""
    if len(names) != 1:
        for name in names or NAMES:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    (name,) = names
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        made = notebook((FOLDER / f"{name}.py").read_text())
    text = json.dumps(made, ensure_ascii=False, indent=1)
    (FOLDER / f"{name}.ipynb").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
