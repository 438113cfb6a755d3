"""Write sentences with results of our trained networks, to compare with the paper's numbers.

A number in parentheses is a standard deviation over layers. It is not a standard error of the mean,
because the layers of one network are not independent runs.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from geometry.claims import Result

Layers = Sequence[dict[str, Any]]


class Network(NamedTuple):
    """A network whose layers were measured by `scripts/analyze.py`.

    Attributes:
      page: The file of the results.
      name: The name of the network at the end of a sentence.
      filters: If given, only layers with this number of filters are used.
    """

    page: str
    name: str
    filters: int | None = None


RESNET20 = Network("docs/results/resnet20/results.json", "one trained ResNet-20")
# The last network has only dense layers. The paper is about filters of convolutions, so every
# sentence about this network names the dense layers.
OTHERS = (
    Network(
        "docs/results/cifar10-preact20/results.json",
        "one pre-activation ResNet-20 trained for 200 epochs on JPEG-recompressed CIFAR-10",
    ),
    Network(
        "docs/results/mnist-mlp/results.json",
        "one dense network on MNIST, which has no convolutions, unlike the networks of the paper",
        filters=100,
    ),
)
REPORT = "docs/results/report/results.json"
MEASURES = {"spearman": "Spearman's ρ", "overlap": "the overlap"}
SETTINGS = "docs/results/settings/results.json"


def of_resnet20(printed: str, sentence: Callable[[Any], str]) -> Result:
    """A `Result` about the trained ResNet-20, worded by the function `sentence`."""
    return Result(sentence, printed, RESNET20.page)


def of_networks(printed: str, sentence: Callable[[Layers], str]) -> tuple[Result, ...]:
    """For each network, a `Result` with a sentence on its layers; the ResNet-20 is the first."""
    return tuple(
        Result(
            lambda found, network=network: (
                f"{sentence(_layers(found, network))}; {len(_layers(found, network))} layers"
                f"{f' of {network.filters} neurons' if network.filters else ''} of {network.name}"
            ),
            printed if network is RESNET20 else "the network is not in the paper",
            network.page,
        )
        for network in (RESNET20, *OTHERS)
    )


def of_the_report(sentence: Callable[[dict[str, Any]], str]) -> Result:
    """A `Result` with a sentence on the networks that `scripts/reproduce.py` has trained.

    Some networks have batch norm, and some have unitized batch norm.
    """

    def both(found: Any) -> str:
        kinds = {"batch_norm": "with batch norm", "unitized": "with unitization"}
        said = [f"{label}: {sentence(found['pruning'][kind])}" for kind, label in kinds.items()]
        return f"{'; '.join(said)}; three pre-activation ResNet-20 networks of each kind, on digits"

    return Result(both, "the networks are not in the paper", REPORT)


def pairs_of(measure: str, *pairs: str) -> Callable[[Layers], str]:
    """A function that writes a sentence with means and spreads over layers, by pair of criteria."""

    def sentence(layers: Layers) -> str:
        found = ((pair, [layer[measure][pair] for layer in layers]) for pair in pairs)
        said = (f"{spread(values)} for {in_english(pair)}" for pair, values in found)
        return f"{MEASURES[measure]} is {', '.join(said)}"

    return sentence


def pairs_in_the_report(measure: str, *pairs: str) -> Callable[[dict[str, Any]], str]:
    """A function that writes a sentence on how similarly the criteria of each pair rank filters.

    The sentence gives the mean over networks and layers, with the standard error over networks.
    """

    def sentence(found: dict[str, Any]) -> str:
        by_network = ((pair, np.mean(found[measure][pair], 1).tolist()) for pair in pairs)
        said = (
            f"{statistics.mean(values):.3f} ± "
            f"{statistics.stdev(values) / len(values) ** 0.5:.3f} for {in_english(pair)}"
            for pair, values in by_network
        )
        return f"{MEASURES[measure]} is {', '.join(said)}"

    return sentence


def above(limit: float, values: dict[str, Sequence[float]]) -> str:
    """A sentence that says in how many layers Spearman's ρ of each pair is above `limit`."""
    counts = (
        f"{sum(rho > limit for rho in found)} of {len(found)} layers for {in_english(pair)}"
        for pair, found in values.items()
    )
    return f"Spearman's ρ is above {limit} in {', in '.join(counts)}"


def in_english(pair: str) -> str:
    """The name of a pair of criteria in English; for example, "l2-gm" becomes "l2 and GM"."""
    return " and ".join({"gm": "GM", "fermat": "Fermat"}.get(a, a) for a in pair.split("-"))


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A text with the mean of `values` over layers, and their standard deviation in parentheses."""
    return f"{statistics.mean(values):.{digits}f} (spread {statistics.stdev(values):.{digits}f})"


def failing(layers: Layers, test: str) -> int:
    """The number of layers in which `test` rejects at 5 %, after Holm's correction."""
    return sum(test in layer["fails"] for layer in layers)


def _layers(found: Any, network: Network) -> Layers:
    return [layer for layer in found["layers"] if network.filters in (None, layer["filters"])]
