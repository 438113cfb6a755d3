"""Write accuracies in percent, with the names that papers use."""

from collections.abc import Mapping

NAMES = {"accuracy": "top-1", "top_5": "top-5"}


def percentages(
    fractions: Mapping[str, float], views: Mapping[str, Mapping[str, float]]
) -> dict[str, str]:
    """A table row of accuracies in percent, by column: first `fractions`, then all `views`."""
    shown = {f"{NAMES[key]}, %": fractions[key] for key in NAMES if key in fractions}
    for view, seen in views.items():
        shown |= {f"{view}: {NAMES[key]}, %": seen[key] for key in NAMES if key in seen}
    return {name: f"{100 * fraction:.2f}" for name, fraction in shown.items()}
