"""Compare how l1 and l2 rank trained filters with the predictions of three models.

The first model assumes Gaussian filters. The second model assumes independent weights, and fits the
shape of the weights' distribution and the spread of the filters' scales. The third model also fits
an effective dimension of the filters. For comparison, a fourth model, `logs`, has two normal
variables with the measured correlation of log l1 and log l2. The errors of `logs` come from chance
and from the assumption that log l1 and log l2 are normal.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import pruning
from claims.cwda import accuracies
from experiments.measures.analysis import QUICK
from pruning import gaussian

MODELS = {
    "gaussian": "Gaussian filters",
    "two": "shape and spread",
    "three": "shape, spread and effective dimension",
    "logs": "measured correlation of the logarithms",
}
RATIO, DRAWS, RESAMPLES, LEVEL = 0.5, 2000, 1000, 0.95
# The expected overlaps are computed for a layer with 64 filters of 576 weights.
SIZE = (64, 576)
STAGES = ("pruned", "recalibrated", "fine-tuned")


@partial(jax.jit, compiler_options=QUICK)
def _fit(v: jax.Array) -> dict[str, Any]:
    fit = gaussian.fit_filter_model(v)
    correlation = partial(
        gaussian.scaled_l1_l2_correlation, v.shape[1], shape=fit.shape, spread=fit.spread
    )
    three = correlation(effective_dims=fit.effective_dims)
    alone = gaussian.fit_filter_model(v, correlated=False)
    two = gaussian.scaled_l1_l2_correlation(v.shape[1], shape=alone.shape, spread=alone.spread)
    return {**fit._asdict(), "correlation": {"two": two, "three": three}}


def layer(v: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """How similarly l1 and l2 rank the filters of a layer, as measured and as predicted."""
    n, dims = v.shape
    l1, l2 = np.abs(v).sum(1, dtype=float), np.sqrt(np.square(v, dtype=float).sum(1))
    fit = jax.device_get(_fit(jnp.asarray(v)))
    correlations = {
        "gaussian": float(pruning.l1_l2_correlation(dims)),
        **fit.pop("correlation"),
        "logs": np.corrcoef(np.log(l1), np.log(l2))[0, 1],
    }
    chosen = rng.integers(n, size=(RESAMPLES, n))
    resampled = [scipy.stats.spearmanr(l1[i], l2[i])[0] for i in chosen]
    return {
        "filters": n,
        "dims": dims,
        **{key: float(value) for key, value in fit.items()},
        "measured": {
            "spearman": scipy.stats.spearmanr(l1, l2)[0],
            "interval": _interval(np.asarray(resampled)),
            "kendall": scipy.stats.kendalltau(l1, l2)[0],
            "overlap": float(pruning.overlap(jnp.asarray(l1), jnp.asarray(l2), ratio=RATIO)),
        },
        "predicted": {name: predict(float(rho), n, rng) for name, rho in correlations.items()},
    }


def predict(rho: float, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Expected rank statistics of n draws of two normal variables with the correlation `rho`."""
    x = rng.standard_normal((DRAWS, 2, n))
    pair = np.stack([x[:, 0], rho * x[:, 0] + (1 - rho**2) ** 0.5 * x[:, 1]], 1)
    ranks = pair.argsort(-1).argsort(-1) - (n - 1) / 2
    drawn = (ranks[:, 0] * ranks[:, 1]).sum(1) / (n * (n**2 - 1) / 12)
    return {
        "spearman": float(gaussian.normal_spearman(rho, n)),
        "interval": _interval(drawn),
        "kendall": float(gaussian.normal_kendall(rho)),
        "overlap": float(gaussian.normal_overlap(rho, ratio=RATIO)),
    }


def network(kernels: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Measured and predicted similarities in each layer of a network, and the models' errors."""
    rng = np.random.default_rng(0)
    layers = {
        name: layer(np.asarray(pruning.filter_matrix(jnp.asarray(kernel, jnp.float32))), rng)
        for name, kernel in kernels.items()
    }
    return {"layers": layers, "models": {name: _errors(layers, name) for name in MODELS}}


def table_4(others: Mapping[str, Any]) -> dict[str, Any]:
    """How well expected overlaps explain the accuracy differences between criteria.

    Args:
      others: Results of `scripts/prune.py`, with a name for each. These results are added to the
        results of the paper's Table 4.
    """
    names = ("l1", "l2", "gm")
    printed = {"pruned": accuracies.PRUNED, "fine-tuned": accuracies.FINE_TUNED}
    blocks: dict[str, dict[str, np.ndarray]] = {
        f"Table_4:{stage}": dict(zip(names, np.reshape(rows, (18, 3)).T, strict=True))
        for stage, rows in printed.items()
    }
    for task, found in others.items():
        by_criterion = found["accuracy"]["by criterion"]
        for stage in STAGES:
            blocks[f"{task}:{stage}"] = {
                name: 100 * np.asarray(part[stage]["values"])
                for name, part in by_criterion.items()
                if name in pruning.CRITERIA
            }
    return {name: explain(block) for name, block in blocks.items()}


def explain(accuracy: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The share of the variance of absolute accuracy differences that the overlap explains.

    For each pair of criteria, the differences in accuracy are predicted from 1 minus the expected
    overlap of the pair. The share `by_pair` is the largest share that any function of the pair of
    criteria could explain. The p-value comes from permutations of the pairs within each network. If
    all differences are equal, the correlation, the shares and the p-value are None.
    """
    pairs = [pair for pair in pruning.ranking.PAIRS if set(pair) <= accuracy.keys()]
    apart = np.array([1 - gaussian.expected_overlap(*SIZE, pair, ratio=RATIO) for pair in pairs])
    differences = np.array([np.abs(accuracy[a] - accuracy[b]) for a, b in pairs]).T

    def share(rows: np.ndarray) -> float:
        return float(np.corrcoef(np.tile(apart, len(rows)), rows.ravel())[0, 1])

    measured = {
        "networks": len(differences),
        "disjoint": dict(zip(map("-".join, pairs), apart, strict=True)),
        "points": dict(zip(map("-".join, pairs), differences.mean(0), strict=True)),
    }
    if np.ptp(differences) == 0:
        return measured | dict.fromkeys(("correlation", "explained", "by_pair", "p_value"))
    rng, found = np.random.default_rng(0), share(differences)
    permuted = [share(rng.permuted(differences, axis=1)) for _ in range(RESAMPLES)]
    return measured | {
        "correlation": found,
        "explained": found**2,
        "by_pair": float(differences.mean(0).var() / differences.var()),
        "p_value": (1 + sum(one >= found for one in permuted)) / (1 + RESAMPLES),
    }


def _interval(values: np.ndarray) -> list[float]:
    return np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()


def _errors(layers: Mapping[str, Any], model: str) -> dict[str, Any]:
    rows: Sequence[Any] = list(layers.values())
    measured = np.array([row["measured"]["spearman"] for row in rows])
    expected = np.array([row["predicted"][model]["spearman"] for row in rows])
    low, high = np.array([row["predicted"][model]["interval"] for row in rows]).T
    errors = np.abs(expected - measured)
    return {
        "error": errors.mean(),
        "stderr": errors.std(ddof=1) / len(errors) ** 0.5,
        "within": int(((low <= measured) & (measured <= high)).sum()),
        "layers": len(rows),
    }
