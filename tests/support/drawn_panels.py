"""Panels of pages as axes whose lines and bars a test reads."""

from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure


def record_panels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> dict[Any, Any]:
    """The axes of all panels that these modules draw from now on, by the keys of their titles."""
    found: dict[Any, Any] = {}

    def panels(paint, titles, **_):
        for key in titles:
            found[key] = Figure().add_subplot()
            paint(found[key], key)
        return []

    for module in modules:
        monkeypatch.setattr(module, "panels", panels)
    return found
