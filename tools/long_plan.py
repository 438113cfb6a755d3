"""Networks of the papers' tables and figures that train for hours, and their training order.

For tables, the first seeds of all networks are trained before any second seed, so that the results
are useful even if the training stops early. Networks with batches of two images are trained last,
with all their seeds.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SEEDS = (1, 3, 5)
PRUNED_SEEDS = 3  # the number of seeds for each network that is pruned later
GROUPS = (1, 2, 4, 8, 16)


class Network(NamedTuple):
    """A network of a table, or all networks of a figure, with the command line that trains it.

    Attributes:
      name: Name of the folder and of the file of results.
      shows: The table or the figure, and the part that the network reproduces.
      command: The script in `scripts` and its options; --seeds, --data-dir and --out are added. In
        the command, RUN is replaced by the folder of the network that `after` names.
      printed: The number that the paper prints.
      measured: Function that takes the contents of results.json and returns our number as a text.
      dataset: Data set of the network.
      runs: The paper's number of seeds; 0 if the script sets the number itself.
      hours: Hours for one seed on two cores; None if an accelerator is needed.
      after: Name of a network that must be trained first.
      differs: Differences from the paper that the results do not mention.
    """

    name: str
    shows: str
    command: str
    printed: str
    measured: Callable[[dict[str, Any]], str]
    dataset: str = "cifar10"
    runs: int = 0
    hours: float | None = None
    after: str | None = None
    differs: str = ""


class Job(NamedTuple):
    """A network and its number of seeds; the number is 0 if the script sets the number itself."""

    network: Network
    seeds: int


def share(value: dict[str, Any], unit: str = "%") -> str:
    """A mean in percent, or a difference in percentage points, with its standard error."""
    error = "" if value["stderr"] is None else f" ± {100 * value['stderr']:.2f}"
    return f"{100 * value['mean']:.2f}{error} {unit}"


def accuracy(results: dict[str, Any]) -> str:
    median = f"median {100 * results['accuracy']['median']:.2f} %, "
    return (median if len(results["seeds"]) > 1 else "") + share(results["accuracy"])


def spread(results: dict[str, Any]) -> str:
    """The mean range of accuracies over criteria, before and after fine-tuning, as text."""
    found = results["accuracy"]["spread"]
    return ", ".join(
        f"{share(found[stage], 'points')} {stage}" for stage in ("pruned", "fine-tuned")
    )


def movement(results: dict[str, Any]) -> str:
    """The change of each moment during an epoch, if layers use statistics of the whole set."""

    def moved(record: dict[str, Any], normalization: str) -> str:
        value = record[normalization]
        return f"{value['mean']:.4f} ± {value['stderr']:.4f} {normalization.replace('_', ' ')}"

    return "; ".join(
        f"{r['moment']} ({r['order']}) {moved(r, 'batch_norm')}, {moved(r, 'unitized')}"
        for r in results["findings"]["movement"]
        if r["kind"] == "whole set" and r["schedule"] == "drops"
    )


def deepest(results: dict[str, Any]) -> str:
    """The accuracies and ranks of the deepest networks of Figure 2, for each initialization."""
    figure = results["figure_2"]
    parts = []
    for start in ("default", "he", "batch_norm", "batch_norm_sgd"):
        values, ranks = figure[start]["accuracy"][-1], figure[start]["rank"][-1]
        mean = sum(values) / len(values)
        square = sum((x - mean) ** 2 for x in values) / max(len(values) - 1, 1)
        error = (square / len(values)) ** 0.5
        parts.append(
            f"{start} {mean:.3f} ± {error:.3f} from rank {'/'.join(f'{r:g}' for r in ranks)}"
        )
    return f"{figure['depths'][-1] + 1} hidden layers: " + "; ".join(parts)


def _table_1(depth: int, printed: dict[str, str], hours: float | None = None) -> list[Network]:
    return [
        Network(
            f"cifar10-resnet{depth}-{normalization}",
            f"Unitization, Table 1: ResNet-{depth}, {normalization.replace('_', ' ')}",
            f"train.py cifar10-resnet{depth} --normalization {normalization}",
            f"{value} %, median of 5",
            accuracy,
            runs=5,
            hours=hours,
        )
        for normalization, value in printed.items()
    ]


def _table_4() -> list[Network]:
    printed = dict(zip(GROUPS, ("10.00", "10.00", "10.00", "71.63", "73.76"), strict=True))
    channels = dict(zip(GROUPS, ("79.54", "73.58", "70.68", "72.04", "10.00"), strict=True))
    presets = {
        "": {"batch_norm": "71.50", "unitized": "81.88"},
        **{f"-g{count}": {"group_norm": value} for count, value in printed.items()},
        **{f"-c{count}": {"group_norm": value} for count, value in channels.items()},
    }
    return [
        Network(
            f"cifar10-resnet110-micro{short}-{normalization}",
            f"Unitization, Table 4: {normalization.replace('_', ' ')}{short.replace('-', ', ')}",
            f"train.py cifar10-resnet110-micro{short} --normalization {normalization}",
            f"{value} %, median of 3",
            accuracy,
            runs=3,
        )
        for short, values in presets.items()
        for normalization, value in values.items()
    ]


def _pruned(preset: str, dataset: str, trained: str) -> list[Network]:
    shows = f"Pruning paper, Table 4: {preset}"
    train = f"train.py {preset} --vmap-seeds no"
    return [
        Network(preset, f"{shows}, trained", train, trained, accuracy, dataset, PRUNED_SEEDS),
        Network(
            f"{preset}-pruned",
            f"{shows}, pruned by each criterion",
            "prune.py RUN --ratio 0.5 --fine-tune 20",
            "criteria differ by at most 8.32 points pruned, 0.35 fine-tuned",
            spread,
            dataset,
            after=preset,
            differs="the paper prints neither its ratio nor its epochs",
        ),
    ]


FIGURES = [
    Network(
        "mnist-moments",
        "Unitization, Figure 2: moments through 200 epochs",
        "covariate_shift.py --dataset mnist --epochs 200 --seeds 5",
        "steadier unitized; curves, no number",
        movement,
        "mnist",
        hours=6.7,  # 20 networks took 200 minutes, and the plan has 40 networks
        differs="seeds: the paper has one",
    ),
    Network(
        "depth",
        "Batch Normalization Decomposed, Figure 2: 17 depths, 3 runs",
        "reproduce_geometry.py --figure-2 full",
        "deep networks learn with He's start and with batch norm; no number in the text",
        deepest,
        "fashion_mnist",
        # 5 depths with 1,000 steps and 2 runs take 8 minutes. The plan has 180 times as much
        # training.
        hours=24.0,
    ),
]
TABLES = [
    # In docs/results/train, 4 epochs took 1,817 seconds while another run used the same 2 cores.
    *_table_1(20, {"batch_norm": "91.79", "unitized": "92.21"}, hours=25.2),
    *_table_1(110, {"batch_norm": "93.99", "unitized": "94.12"}),
]
PRUNED = [
    *_pruned("cifar10-resnet56", "cifar10", "92.98, 92.97, 93.01 %"),
    *_pruned("cifar10-vgg16", "cifar10", "93.61, 93.21, 93.26 %"),
    *_pruned("cifar100-vgg16", "cifar100", "72.67, 72.99, 72.56 %"),
]
MICRO = _table_4()


def jobs(*, accelerated: bool) -> list[Job]:
    """All training jobs in order; networks with batches of two images come last and take days.

    On a CPU, figures come first, because a CPU can train few of the tables' networks. With an
    accelerator, figures come after the tables.
    """
    figures, tables = [Job(network, 0) for network in FIGURES], _by_seeds([*TABLES, *PRUNED])
    first = [*tables, *figures] if accelerated else [*figures, *tables]
    return [*first, *_by_seeds(MICRO)]


def _by_seeds(networks: list[Network]) -> Iterator[Job]:
    for seeds, network in itertools.product(SEEDS, networks):
        if seeds <= network.runs:
            yield Job(network, seeds)
        elif not network.runs and seeds == PRUNED_SEEDS:
            yield Job(network, 0)
