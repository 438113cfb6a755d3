"""The label, colour and marker of each normalization and criterion.

All pages use the same labels, colours and markers.
"""

from collections.abc import Iterable

import pruning
from experiments.pages.plots import SERIES, Series

NORMALIZATIONS = {
    "batch_norm": Series("batch norm", SERIES[0], "o"),
    "unitized": Series("unitized batch norm", SERIES[1], "s", filled=False),
}
# By this factor, a unitized layer multiplies the outputs of batch norm (Equations 10 and 9).
FACTORS = {"unitized": "α/‖x̂‖ + 1 − α", "bounded": "1/(α‖x̂‖ + 1 − α)"}
LABELS = {"fermat": "Fermat", "gm": "GM"}
COLOURS, MARKERS = SERIES[2:], ("o", "s", "^", "D", "*")
MOMENTS = {"mean": "mean", "var": "variance", "skewness": "skewness", "kurtosis": "kurtosis"}


def criterion_series(names: Iterable[str]) -> dict[str, Series]:
    """A line style for each criterion; a fifth criterion has the first colour and a new marker."""
    return {
        name: Series(
            LABELS.get(name, name),
            COLOURS[i % len(COLOURS)],
            MARKERS[i % len(MARKERS)],
            filled=i % 2 == 0,
        )
        for i, name in enumerate(names)
    }


CRITERIA = criterion_series(pruning.CRITERIA)


def pair_label(pair: str) -> str:
    """The name of a pair of criteria in words; for example, `"l1-fermat"` becomes l1 and Fermat."""
    return " and ".join(LABELS.get(name, name) for name in pair.split("-"))


def unitized_defined(normalization: str = "unitized") -> str:
    """Sentences that define unitized batch norm with a factor of `FACTORS`."""
    return (
        "Unitized batch norm multiplies the outputs x̂ of batch norm, sample by sample, by "
        f"{FACTORS[normalization]}. Here ‖x̂‖ is a norm of the outputs for the sample, and α is "
        "learned for each channel. If α is 0, the layer is batch norm."
    )
