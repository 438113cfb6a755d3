"""Records the panels of pages as axes of Matplotlib, so that tests can read lines and bars."""

from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure


def record_panels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> dict[Any, Any]:
    """The axes of all panels that `modules` draw after this call, by the keys of their titles."""
    found: dict[Any, Any] = {}

    def panels(paint, titles, **_):
        for key in titles:
            found[key] = Figure().add_subplot()
            paint(found[key], key)
        return []

    for module in modules:
        monkeypatch.setattr(module, "panels", panels)
    return found
