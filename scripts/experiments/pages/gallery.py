"""Make the pages of the results in `docs/results`.

The repository stores only the numbers, not the pages.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.pages import (
    activation_states,
    analysis,
    atlas,
    compiled as compiled_page,
    filter_models,
    filter_settings,
    geometry,
    prune,
    repair,
    reproduce,
    shift,
    theorems,
    train,
)

FOLDER = Path(__file__).parents[3] / "docs" / "results"
# For each folder of docs/results, the function that makes the page of its file `results.json`.
RENDER: dict[str, Callable[[Any], str]] = {
    "report": reproduce.render,
    "theorems": partial(theorems.render, out=FOLDER / "theorems"),
    "resnet20": analysis.render,
    "mnist-mlp": analysis.render,
    "cifar10-preact20": analysis.render,
    "settings": filter_settings.render,
    "filter_models": filter_models.render,
    "odd_states": activation_states.render,
    "atlas": atlas.render,
    "shift": shift.render,
    "geometry": geometry.render,
    "prune": prune.render,
    "train": train.render,
    "compiled": compiled_page.render,
}
PAGES = {
    path.parent.relative_to(FOLDER).as_posix(): RENDER[path.relative_to(FOLDER).parts[0]]
    for path in sorted(FOLDER.rglob("results.json"))
}
PAGES["repair"] = lambda digits: repair.render(digits, _read("repair/resnet20.json"))
NUMBERS = {"repair": "digits.json"}  # the file of a page's numbers, if its name is not results.json


def numbers(name: str) -> Any:
    """The contents of the JSON file from which the page of a result is made."""
    return _read(f"{name}/{NUMBERS.get(name, 'results.json')}")


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def draw(name: str) -> str:
    """The page of a result; the script that measured the result writes the same page."""
    return PAGES[name](numbers(name))


def page_of(link: str) -> str:
    """Turn a link to numbers into a link to the page of these numbers; keep other links."""
    for name in PAGES:
        file = f"{name}/{NUMBERS.get(name, 'results.json')}"
        if link == file or link.endswith(f"/{file}"):
            return link.removesuffix(file) + f"{name}/index.html"
    return link
