"""Records the panels of pages as axes of Matplotlib, and reads lines, bands and cells of tables."""

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

NBSP = "\N{NO-BREAK SPACE}"


def record_panels(
    monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, replaced: tuple[str, ...] = ("panels",)
) -> dict[Any, Any]:
    """The axes of all panels that `modules` draw after this call, by the keys of their titles.

    Panels that are drawn one by one are recorded by their titles, if `replaced` has "draw".
    """
    found: dict[Any, Any] = {}

    def draw(paint, *, title, **_):
        found[title] = Figure().add_subplot()
        paint(found[title])
        return ""

    def panels(paint, titles, **_):
        for key in titles:
            draw(lambda axes, key=key: paint(axes, key), title=key)
        return []

    for module in modules:
        for name in replaced:
            if name in vars(module):
                monkeypatch.setattr(module, name, {"draw": draw, "panels": panels}[name])
    return found


def x_of(line) -> Any:
    return np.asarray(line.get_xdata())


def y_of(line) -> Any:
    return np.asarray(line.get_ydata())


def ends_of(band) -> Any:
    """The lower and the upper end of a band at each x, in ascending order of x."""
    corners = np.asarray(band.get_paths()[0].vertices)
    return [
        (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max())
        for x in np.unique(corners[:, 0])
    ]


def cells_of(text: str) -> list[list[str]]:
    """The cells of all tables in a part of a page, row by row, as text."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text.replace(NBSP, " "), flags=re.DOTALL)
    found = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in found]
