"""Measure trained networks: moments, rankings by criteria, and accuracies after masking.

The dictionaries of Python values that functions return are parts of `results.json`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

import pruning
from experiments.measures.analysis import PAIRS, histogram, theory
from experiments.recipes import Recipe
from experiments.training.optimizers import learning_rate
from experiments.training.paired_runs import NORMALIZATIONS, History, Program
from experiments.training.step import State

RATIOS = (0.1, 0.3, 0.5)
OVERLAP = 0.5
MOMENTS = ("mean", "var", "skewness", "kurtosis")
Kernels = dict[str, Float[Array, "h w cin cout"]]


class OverSeeds(TypedDict):
    """A mean over seeds, its standard error and the values; see `mean` for missing entries."""

    mean: float | None
    stderr: float | None
    values: list[Any]


def mean(values: Iterable[float | None]) -> OverSeeds:
    """The mean of values over seeds, and the standard error of the mean.

    Mean and standard error are None if there are no values, or if a value is None or not finite. If
    there is only one value, the standard error is None.
    """
    x = np.asarray(list(values), np.float64)
    is_known = len(x) > 0 and bool(np.isfinite(x).all())
    stderr = float(x.std(ddof=1) / math.sqrt(len(x))) if is_known and len(x) > 1 else None
    return {"mean": float(x.mean()) if is_known else None, "stderr": stderr, "values": x.tolist()}


def training(
    states: dict[str, list[State]], histories: dict[str, list[History]], recipe: Recipe
) -> dict[str, Any]:
    """The accuracies and losses of all runs, and the range of the parameter alpha.

    The entry "difference" is the last test accuracy with unitization, minus the last test accuracy
    with batch norm.
    """
    results: dict[str, Any] = {
        name: {
            "accuracy": mean([run.accuracy[-1] for run in runs]),
            "test_accuracy": [run.accuracy.tolist() for run in runs],
            "train_loss": [run.loss.tolist() for run in runs],
        }
        for name, runs in histories.items()
    }
    final = {name: np.array(results[name]["accuracy"]["values"]) for name in NORMALIZATIONS}
    alpha = np.concatenate([_alphas(state.params) for state in states["unitized"]])
    results["unitized"]["alpha"] = {
        "min": float(alpha.min()),
        "max": float(alpha.max()),
        "outside": float(np.mean((alpha < 0) | (alpha > 1))),
    }
    rates = [learning_rate(recipe, 1, epoch) for epoch in range(recipe.epochs)]
    return results | {
        "difference": mean(final["unitized"] - final["batch_norm"]),
        "learning_rate": rates,
        "drops": [e + 1 for e in range(1, len(rates)) if rates[e] < rates[e - 1]],
    }


def _alphas(params: nnx.State) -> np.ndarray:
    flat = nnx.to_flat_state(params)
    return np.concatenate([np.ravel(leaf[...]) for path, leaf in flat if path[-1] == "alpha"])


def moments(histories: dict[str, list[History]]) -> dict[str, Any]:
    """The quartiles of four moments for each epoch, and how fast skewness and kurtosis change.

    Quartiles are over channels and seeds.
    """
    stacked = {name: np.stack([run.moments for run in runs]) for name, runs in histories.items()}
    return {
        **{name: _quartiles(runs) for name, runs in stacked.items()},
        "layer": "last normalization",
        "channels": stacked["unitized"].shape[-1],
        "change": {moment: _change(stacked, moment) for moment in ("skewness", "kurtosis")},
    }


def _quartiles(runs: Float[np.ndarray, "seeds epochs 4 c"]) -> dict[str, dict[str, list[float]]]:
    quartiles = np.nanquantile(runs, (0.25, 0.5, 0.75), axis=(0, 3))
    return {
        moment: dict(zip(("low", "median", "high"), quartiles[..., i].tolist(), strict=True))
        for i, moment in enumerate(MOMENTS)
    }


def _change(
    stacked: dict[str, Float[np.ndarray, "seeds epochs 4 c"]], moment: str
) -> dict[str, OverSeeds]:
    """The mean absolute change of a moment in one epoch, after the first quarter of training."""
    epochs = stacked["unitized"].shape[1] - 1
    settled = min(math.ceil(epochs / 4), epochs - 1)
    by_seed = {}
    for name, runs in stacked.items():
        steps = np.diff(runs[:, settled:, MOMENTS.index(moment)], axis=1)
        by_seed[name] = np.nanmean(np.abs(steps), axis=(1, 2))
    change = {name: mean(values) for name, values in by_seed.items()}
    return change | {"difference": mean(by_seed["unitized"] - by_seed["batch_norm"])}


def distances(histories: dict[str, list[History]]) -> dict[str, list[list[float]]]:
    """For each seed, earth mover distances between successive epochs, averaged over channels."""
    return {
        name: [run.distances.mean(1, dtype=np.float64).tolist() for run in runs]
        for name, runs in histories.items()
    }


def criteria(
    states: dict[str, list[State]], programs: dict[str, Program], on_network: Callable[[], None]
) -> dict[str, Any]:
    """How similarly criteria rank filters in each convolution, and accuracies after masking."""
    kernels = conv_kernels(states["batch_norm"][0].params)
    shapes = {name: pruning.filter_matrix(kernel).shape for name, kernel in kernels.items()}
    results: dict[str, Any] = {
        "layers": [
            {"name": name, "filters": filters, "dims": dims}
            for name, (filters, dims) in shapes.items()
        ],
        "pairs": PAIRS,
        "overlap_ratio": OVERLAP,
        "expected_spearman": {
            name: [theory(pruning.expected_spearman, *shape, pair) for shape in shapes.values()]
            for name, pair in zip(PAIRS, pruning.ranking.PAIRS, strict=True)
        },
    }
    for name, runs in states.items():
        measured = []
        for state in runs:
            measured.append(_measure(state, programs[name]))
            on_network()
        results[name] = _over_seeds(measured)
    return results


def _measure(state: State, program: Program) -> dict[str, Any]:
    """How similarly criteria rank the filters of one network, and accuracies after masking."""
    ranked = {
        name: jax.device_get(_rank(_scores(kernel)))
        for name, kernel in conv_kernels(state.params).items()
    }
    spearman, overlap = zip(*(alike for alike, _ in ranked.values()), strict=True)

    def masked_accuracy(criterion: str, ratio: float) -> float:
        keep = {name: masks[criterion][ratio] for name, (_, masks) in ranked.items()}
        return program.probe_accuracy(mask_filters(state, keep))

    return {
        "spearman": dict(zip(PAIRS, np.stack(spearman, 1).tolist(), strict=True)),
        "overlap": dict(zip(PAIRS, np.stack(overlap, 1).tolist(), strict=True)),
        "unmasked": program.probe_accuracy(state),
        "masked": {
            criterion: {str(ratio): masked_accuracy(criterion, ratio) for ratio in RATIOS}
            for criterion in pruning.CRITERIA
        },
    }


def _over_seeds(networks: list[dict[str, Any]]) -> dict[str, Any]:
    def by_pair(quantity: str) -> dict[str, list[list[float]]]:
        return {pair: [network[quantity][pair] for network in networks] for pair in PAIRS}

    return {
        "spearman": by_pair("spearman"),
        "overlap": by_pair("overlap"),
        "unmasked": mean(network["unmasked"] for network in networks),
        "masked": {
            criterion: {
                ratio: mean(network["masked"][criterion][ratio] for network in networks)
                for ratio in map(str, RATIOS)
            }
            for criterion in pruning.CRITERIA
        },
    }


@jax.jit
def _scores(kernel: Float[Array, "h w cin cout"]) -> dict[str, Float[Array, " filters"]]:
    return pruning.criteria.scores(pruning.filter_matrix(kernel))


@jax.jit
def _rank(
    scores: dict[str, Float[Array, " filters"]],
) -> tuple[pruning.ranking.Similarity, dict[str, dict[float, Array]]]:
    """The similarity of each pair of criteria, and masks that are true for remaining filters.

    There is a boolean mask for each criterion and ratio.
    """
    keep = {
        name: {ratio: ~pruning.ranking.lowest(score, ratio=ratio) for ratio in RATIOS}
        for name, score in scores.items()
    }
    return pruning.ranking.similarity(scores, ratio=OVERLAP), keep


def conv_kernels(params: nnx.State) -> Kernels:
    """The kernels of all convolutions, with the convolutions' names as keys."""
    return {
        ".".join(map(str, path[:-1])): leaf[...]
        for path, leaf in nnx.to_flat_state(params)
        if path[-1] == "kernel" and leaf[...].ndim == 4
    }


@jax.jit
def mask_filters(state: State, keep: dict[str, Bool[Array, " filters"]]) -> State:
    """Set the filters for which `keep` is false, and their channels' other parameters, to zero.

    A normalization follows a block's first convolution. In this normalization, the scale, the bias
    and the running mean of a removed channel are also set to zero, so that the channel is exactly
    absent. A zero filter of a block's second convolution adds nothing to the residual stream.
    """

    def channels_of(path: tuple) -> str:
        name = ".".join(map(str, path[:-1]))
        return name.removesuffix("norm2") + "conv1" if name.endswith("norm2") else name

    def mask(tree: nnx.State) -> nnx.State:
        flat = []
        for path, leaf in nnx.to_flat_state(tree):
            unmasked = keep.get(channels_of(path))
            if unmasked is not None and path[-1] != "var":
                leaf = leaf.replace(jnp.where(unmasked, leaf[...], 0))
            flat.append((path, leaf))
        return nnx.from_flat_state(flat)

    return state._replace(params=mask(state.params), statistics=mask(state.statistics))


def histograms(state: State) -> list[dict[str, Any]]:
    """Histograms of the weights of the first, a middle and the last 3×3 convolution."""
    kernels = [(name, k) for name, k in conv_kernels(state.params).items() if k.shape[0] > 1]
    chosen = (kernels[0], kernels[len(kernels) // 2], kernels[-1])
    return [histogram(name, np.asarray(kernel)) for name, kernel in chosen]
