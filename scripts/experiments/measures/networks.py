"""What is measured on trained networks: how criteria rank, what masking costs, the odd point.

Every function returns plain numbers and lists, the parts of `results.json`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

import pruning
from experiments.training.paired_runs import ARMS, History, Program
from experiments.training.recipes import Recipe
from experiments.training.trainer import State, learning_rate

PAIRS = tuple(itertools.combinations(pruning.CRITERIA, 2))
RATIOS = (0.1, 0.3, 0.5)
OVERLAP = 0.5
MOMENTS = ("mean", "var", "skewness", "kurtosis")
Kernels = dict[str, Float[Array, "h w cin cout"]]


def mean(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Mean over seeds and its standard error, none from one seed."""
    x = np.asarray(values, np.float64)
    stderr = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
    return {"mean": float(x.mean()), "stderr": stderr, "values": x.tolist()}


def training(
    states: dict[str, list[State]], histories: dict[str, list[History]], recipe: Recipe
) -> dict[str, Any]:
    """Accuracies by epoch and seed, the paired difference, the range of alpha."""
    found: dict[str, Any] = {
        arm: {
            "accuracy": mean([run.accuracy[-1] for run in runs]),
            "test_accuracy": [run.accuracy.tolist() for run in runs],
            "train_loss": [run.loss.tolist() for run in runs],
        }
        for arm, runs in histories.items()
    }
    final = {arm: np.array(found[arm]["accuracy"]["values"]) for arm in ARMS}
    alpha = np.concatenate([_named(state.params, "alpha") for state in states["unitized"]])
    found["unitized"]["alpha"] = {
        "min": float(alpha.min()),
        "max": float(alpha.max()),
        "outside": float(np.mean((alpha < 0) | (alpha > 1))),
    }
    rates = [learning_rate(recipe, epoch) for epoch in range(recipe.epochs)]
    drops = [e + 1 for e in range(1, len(rates)) if rates[e] < rates[e - 1]]
    difference = mean(final["unitized"] - final["batch_norm"])
    return found | {"difference": difference, "learning_rate": rates, "drops": drops}


def _named(params: nnx.State, name: str) -> np.ndarray:
    leaves = [leaf[...] for path, leaf in nnx.to_flat_state(params) if path[-1] == name]
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def moments(histories: dict[str, list[History]]) -> dict[str, Any]:
    """Quartiles of each moment over channels and seeds by epoch, and how much they still move."""
    stacked = {arm: np.stack([run.moments for run in runs]) for arm, runs in histories.items()}
    found: dict[str, Any] = {arm: {} for arm in stacked}
    for (arm, runs), (i, name) in itertools.product(stacked.items(), enumerate(MOMENTS)):
        low, median, high = np.nanquantile(runs[:, :, i], (0.25, 0.5, 0.75), axis=(0, 2))
        found[arm][name] = {"median": median.tolist(), "low": low.tolist(), "high": high.tolist()}
    epochs = stacked["unitized"].shape[1] - 1
    settled = min(math.ceil(epochs / 4), epochs - 1)
    change: dict[str, Any] = {}
    for name in ("skewness", "kurtosis"):
        by_seed = {
            arm: np.nanmean(
                np.abs(np.diff(runs[:, settled:, MOMENTS.index(name)], axis=1)), axis=(1, 2)
            )
            for arm, runs in stacked.items()
        }
        change[name] = {arm: mean(values) for arm, values in by_seed.items()}
        change[name]["difference"] = mean(by_seed["unitized"] - by_seed["batch_norm"])
    channels = stacked["unitized"].shape[-1]
    return found | {"layer": "last normalization", "channels": channels, "change": change}


def distances(histories: dict[str, list[History]]) -> dict[str, list[list[float]]]:
    """Earth mover distance between consecutive epochs, mean over channels, by seed and epoch."""
    return {
        arm: [run.distances.mean(1, dtype=np.float64).tolist() for run in runs]
        for arm, runs in histories.items()
    }


def criteria(
    states: dict[str, list[State]],
    programs: dict[str, Program],
    on_network: Callable[[], None],
) -> dict[str, Any]:
    """How alike four criteria rank every conv layer's filters, and what masking them costs."""
    kernels = conv_kernels(states["batch_norm"][0].params)
    shapes = {name: pruning.filter_matrix(kernel).shape for name, kernel in kernels.items()}
    found: dict[str, Any] = {
        "layers": [
            {"name": name, "filters": filters, "dims": dims}
            for name, (filters, dims) in shapes.items()
        ],
        "pairs": ["-".join(pair) for pair in PAIRS],
        "overlap_ratio": OVERLAP,
        "expected_spearman": {
            "-".join(pair): [
                float(pruning.expected_spearman(n, dims, pair)) for n, dims in shapes.values()
            ]
            for pair in PAIRS
        },
    }
    for arm, runs in states.items():
        networks = []
        for state in runs:
            networks.append(_network(state, programs[arm]))
            on_network()
        found[arm] = _over_seeds(networks)
    return found


def _network(state: State, functions: Program) -> dict[Any, Any]:
    ranked = {
        name: jax.device_get(_ranked(_scores(kernel)))
        for name, kernel in conv_kernels(state.params).items()
    }
    found: dict[Any, Any] = {
        name: {
            "-".join(pair): [float(layer[name][i]) for layer in ranked.values()]
            for i, pair in enumerate(PAIRS)
        }
        for name in ("spearman", "overlap")
    }
    found["unmasked"] = functions.probed(state)
    for (i, criterion), (j, ratio) in itertools.product(
        enumerate(pruning.CRITERIA), enumerate(RATIOS)
    ):
        keep = {name: layer["keep"][i, j] for name, layer in ranked.items()}
        found[criterion, ratio] = functions.probed(masked(state, keep))
    return found


def _over_seeds(networks: list[dict[Any, Any]]) -> dict[str, Any]:
    by_pair = {
        name: {"-".join(pair): [run[name]["-".join(pair)] for run in networks] for pair in PAIRS}
        for name in ("spearman", "overlap")
    }
    masks = {
        criterion: {
            str(ratio): mean([run[criterion, ratio] for run in networks]) for ratio in RATIOS
        }
        for criterion in pruning.CRITERIA
    }
    return by_pair | {"unmasked": mean([run["unmasked"] for run in networks]), "masked": masks}


@jax.jit
def _scores(kernel: Float[Array, "h w cin cout"]) -> Float[Array, "criteria filters"]:
    filters = pruning.filter_matrix(kernel)
    return jnp.stack([criterion(filters) for criterion in pruning.CRITERIA.values()])


@jax.jit
def _ranked(scores: Float[Array, "criteria filters"]) -> dict[str, Array]:
    """How alike each pair of criteria ranks, and what each criterion keeps at each ratio."""
    firsts, seconds = jnp.array(list(itertools.combinations(range(len(scores)), 2))).T
    a, b = scores[firsts], scores[seconds]
    return {
        "spearman": jax.vmap(pruning.spearman)(a, b),
        "overlap": jax.vmap(partial(pruning.overlap, ratio=OVERLAP))(a, b),
        "keep": jnp.stack(
            [~jax.vmap(partial(pruning.lowest, ratio=ratio))(scores) for ratio in RATIOS], 1
        ),
    }


def conv_kernels(params: nnx.State) -> Kernels:
    """Kernels of the convolutions, by the name of their layer."""
    return {
        ".".join(map(str, path[:-1])): leaf[...]
        for path, leaf in nnx.to_flat_state(params)
        if path[-1] == "kernel" and leaf[...].ndim == 4
    }


@jax.jit
def masked(state: State, keep: dict[str, Bool[Array, " filters"]]) -> State:
    """The network with filters set to zero, with all that they feed.

    A block's first convolution reaches the second only through a normalization, whose scale, bias
    and running mean of that channel are zeroed too: the channel is then exactly absent. Filters
    that add to the residual stream add nothing.
    """

    def channels_of(path: tuple) -> str:
        name = ".".join(map(str, path[:-1]))
        return name.removesuffix("norm2") + "conv1" if name.endswith("norm2") else name

    def mask(tree: nnx.State) -> nnx.State:
        flat = []
        for path, leaf in nnx.to_flat_state(tree):
            kept = keep.get(channels_of(path))
            if kept is not None and path[-1] != "var":
                leaf = leaf.replace(jnp.where(kept, leaf[...], 0))
            flat.append((path, leaf))
        return nnx.from_flat_state(flat)

    return state._replace(params=mask(state.params), statistics=mask(state.statistics))


def histograms(state: State) -> list[dict[str, Any]]:
    """Weights of the first, a middle and the last 3×3 layer, with the Gaussian of equal width."""
    kernels = [(name, k) for name, k in conv_kernels(state.params).items() if k.shape[0] > 1]
    found = []
    for name, kernel in (kernels[0], kernels[len(kernels) // 2], kernels[-1]):
        weights = np.ravel(kernel)
        density, edges = np.histogram(weights, bins=min(60, 8 + len(weights) // 40), density=True)
        statistic, _ = pruning.ks_normal(jnp.asarray(weights))
        found.append(
            {
                "layer": name,
                "edges": edges.tolist(),
                "density": density.tolist(),
                "sigma": float(np.sqrt(np.mean(np.square(weights, dtype=np.float64)))),
                "ks": float(statistic),
                "weights": len(weights),
            }
        )
    return found
