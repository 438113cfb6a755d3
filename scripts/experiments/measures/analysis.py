"""Measure a network's layers by rankings of filters, distances to a Gaussian, and tests.

The function `measure` returns a part of the file `results.json` that `pages.analysis` reads.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pruning

PAIRS = ["-".join(pair) for pair in pruning.ranking.PAIRS]
# The significance level of every test. For independent weights, `ks_bound` is at least the distance
# between a Gaussian and the distribution of the weights, with probability 1 − LEVEL.
LEVEL = 0.05
# The test whether the mean weight is nearly 0 has this margin, in standard deviations of weights.
MEAN_MARGIN = 0.05
BAND = (0.025, 0.975)  # the ends of a band are these quantiles over random layers
TESTS = {
    "normal": "weights are N(0, c²) (Kolmogorov-Smirnov)",
    "symmetry": "weights are symmetric about 0",
    "homogeneity": "filters have one standard deviation (Bartlett)",
    "uncorrelated": "filters are uncorrelated",
    "spherical": "the covariance of the filters is c² I",
    "spearman": "l1 and l2 rank as for Gaussian filters",
}
SHOWN = 64  # The figure shows the covariance matrix of at most this number of filters.
# The programs of this module run only a few times, so compiling takes longer than running. XLA's
# older loop emitters, which JAX 0.11.2 no longer has, compile in half the time.
QUICK: dict[str, bool | int] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    QUICK |= {"xla_cpu_use_fusion_emitters": False}


def measure(
    parameters: Mapping[str, np.ndarray], *, ratio: float, gaussian_layers: int
) -> dict[str, Any]:
    """Rank and test all layers, measure how Gaussian they are, and show a few layers in detail."""
    kind, kernels = kernels_of(parameters)
    ranked = rankings(kernels, ratio=ratio, gaussian_layers=gaussian_layers)
    names = [layer["name"] for layer in ranked["layers"]]
    chosen = list(dict.fromkeys(names[i] for i in (0, len(names) // 2, -1))) if names else []
    others = {name: w for name, w in parameters.items() if name not in kernels and w.size >= 16}
    return ranked | {
        "kind": kind,
        "chosen": chosen,
        "histograms": [histogram(name, kernels[name]) for name in chosen],
        "covariances": [correlations(name, kernels[name]) for name in chosen],
        "others": [histogram(name, w) for name, w in others.items()],
    }


def kernels_of(parameters: Mapping[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    """The kind of layers to analyze (convolutions, otherwise dense layers), and their kernels."""
    convolutions = {name: w for name, w in parameters.items() if w.ndim > 2}
    dense = {name: w for name, w in parameters.items() if w.ndim == 2}
    return ("dense layers", dense) if dense and not convolutions else ("convolutions", convolutions)


def above(results: dict[str, Any], threshold: float = 0.9) -> dict[str, tuple[int, int]]:
    """For each pair of criteria, how many layers have a large Spearman's ρ, and of how many layers.

    Spearman's ρ is large if it exceeds `threshold`.
    """
    layers = results["layers"]
    return {
        pair: (sum(layer["spearman"][pair] > threshold for layer in layers), len(layers))
        for pair in PAIRS
    }


def rankings(
    kernels: Mapping[str, np.ndarray], *, ratio: float, gaussian_layers: int
) -> dict[str, Any]:
    """The rankings and tests of all layers and, for each shape, quantiles over Gaussian layers."""
    filters = {
        name: np.asarray(pruning.filter_matrix(jnp.asarray(kernel, jnp.float32)))
        for name, kernel in kernels.items()
    }
    left_out = {name: why for name, v in filters.items() if (why := unfit(v, ratio)) is not None}
    filters = {name: v for name, v in filters.items() if name not in left_out}
    by_shape: dict[tuple[int, ...], dict[str, np.ndarray]] = {}
    for name, v in filters.items():
        by_shape.setdefault(v.shape, {})[name] = v

    def group(layers: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
        return shape_group(layers, ratio=ratio, gaussian_layers=gaussian_layers)

    with ThreadPoolExecutor() as pool:  # the threads compile several programs at the same time
        groups = dict(zip(by_shape, pool.map(group, by_shape.values()), strict=True))
    layers = [groups[v.shape][0][name] for name, v in filters.items()]
    judge(layers)
    bands = {"x".join(map(str, shape)): band for shape, (_, band) in groups.items()}
    return {"layers": layers, "gaussian": bands, "left_out": left_out}


def unfit(v: np.ndarray, ratio: float) -> str | None:
    """The reason why a layer's filters cannot be ranked, or None if they can be ranked."""
    if not np.isfinite(v).all():
        return "holds weights that are not finite"
    if v.shape[0] < 4 or v.shape[1] < 3:
        return f"has {v.shape[0]} filters of {v.shape[1]} dims; 4 and 3 are needed"
    if ratio * v.shape[0] < 1:
        return f"has {v.shape[0]} filters, too few for one to be in the lowest {ratio}"
    return "holds nothing but zeros" if not v.any() else None


def shape_group(
    layers: dict[str, np.ndarray], *, ratio: float, gaussian_layers: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The measurements of all layers of one shape, and quantiles over equal Gaussian layers.

    JAX compiles each function only once for all layers of the shape.
    """
    n, dims = next(iter(layers.values())).shape
    rng = np.random.default_rng(0)
    gaussian = (rng.standard_normal((n, dims), np.float32) for _ in range(gaussian_layers))
    drawn = [_similarity(_scores(v), ratio) for v in gaussian]
    drawn = jax.tree.map(lambda *layers: jnp.stack(layers), *drawn)
    measured = {name: _layer(name, v, ratio, drawn) for name, v in layers.items()}
    bands = {
        name: {
            "expected_spearman": theory(pruning.expected_spearman, n, dims, pair),
            "expected_overlap": theory(
                pruning.gaussian.expected_overlap, n, dims, pair, ratio=ratio
            ),
            "spearman": np.quantile(drawn.spearman[:, i], BAND),
            "overlap": np.quantile(drawn.overlap[:, i], BAND),
        }
        for i, (name, pair) in enumerate(zip(PAIRS, pruning.ranking.PAIRS, strict=True))
    }
    return measured, bands


def _layer(
    name: str, v: np.ndarray, ratio: float, drawn: pruning.ranking.Similarity
) -> dict[str, Any]:
    """The rankings and tests of a layer.

    `drawn` has the similarities between criteria in Gaussian layers of the same shape.
    """
    scores = _scores(v)
    alike = _similarity(scores, ratio)
    z = np.asarray(pruning.ranking.spearman_z_score(alike.spearman, drawn.spearman))
    scores, alike = jax.device_get((scores, alike))
    tested = jax.device_get(_tested(v))
    tested["spearman"] = 2 * float(jax.scipy.stats.norm.sf(abs(z[0])))
    return {
        "name": name,
        "filters": v.shape[0],
        "dims": v.shape[1],
        "scores": scores,
        "first": {c: np.argsort(s, kind="stable")[:8] for c, s in scores.items()},
        "spearman": dict(zip(PAIRS, alike.spearman, strict=True)),
        "overlap": dict(zip(PAIRS, alike.overlap, strict=True)),
        "spearman_z": dict(zip(PAIRS, z, strict=True)),
        "dead": int(np.sum(scores["l2"] <= 1e-6 * scores["l2"].max())),
        **{key: float(value) for key, value in tested.items() if key not in TESTS},
        "p_values": {key: float(tested[key]) for key in TESTS},
    }


def theory(expected: Callable[..., Array], *arguments: Any, **options: Any) -> float | None:
    """The value of the formula `expected` for Gaussian filters; None for unsupported criteria."""
    try:
        return float(expected(*arguments, **options))
    except ValueError:
        return None


_scores = jax.jit(pruning.criteria.scores, compiler_options=QUICK)


@partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def _similarity(scores: dict[str, Array], ratio: float) -> pruning.ranking.Similarity:
    return pruning.ranking.similarity(scores, ratio=ratio)


def tests_of(v: Float[Array, "n dims"]) -> dict[str, Array]:
    """The p-values and the effect sizes of those `TESTS` that need no random samples."""
    covariance = pruning.weight_tests.covariance_report(v)
    stds = pruning.weight_tests.filter_stds(v)
    distance, normal = pruning.ks_normal(v)

    def two_sided(z: Float[Array, ""]) -> Float[Array, ""]:
        return 2 * jax.scipy.stats.norm.sf(jnp.abs(z))

    return {
        "sigma": jnp.sqrt(jnp.square(v).mean()),
        "ks": distance,
        "ks_bound": distance + (math.log(2 / LEVEL) / (2 * v.size)) ** 0.5,
        "std_spread": stds.std(ddof=1) / stds.mean(),
        "mean": v.mean() / v.std(),
        "mean_equivalence_p_value": pruning.mean_equivalence(v, margin=MEAN_MARGIN)[1],
        "off_diagonal_z": covariance.off_diagonal,
        "sphericity_z": covariance.sphericity,
        "diagonal_z": covariance.diagonal,
        "smallest_eigenvalue": covariance.smallest,
        "largest_eigenvalue": covariance.largest,
        "low_edge": covariance.low,
        "high_edge": covariance.high,
        "normal": normal,
        "symmetry": pruning.weight_tests.symmetry(v)[1],
        "homogeneity": pruning.std_homogeneity(v)[1],
        "uncorrelated": two_sided(covariance.off_diagonal),
        "spherical": two_sided(covariance.sphericity),
    }


_tested = jax.jit(tests_of, compiler_options=QUICK)


def judge(layers: list[dict[str, Any]]) -> None:
    """Add to each layer the names of the tests that reject for this layer at level `LEVEL`.

    For each test, Holm's correction covers all layers. The name "mean" is added if a test of
    equivalence, without Holm's correction, does not show that the mean weight is near 0.
    """
    for layer in layers:
        layer["fails"] = []
    for test in TESTS if layers else ():
        p_values = np.array([layer["p_values"][test] for layer in layers])
        adjusted = np.asarray(
            pruning.weight_tests.holm(jnp.asarray(np.nan_to_num(p_values, nan=1.0)))
        )
        for layer, p_value in zip(layers, adjusted, strict=True):
            if p_value < LEVEL:
                layer["fails"].append(test)
    for layer in layers:
        if layer["mean_equivalence_p_value"] >= LEVEL:
            layer["fails"].append("mean")


def histogram(name: str, weights: np.ndarray) -> dict[str, Any]:
    """A histogram (density) of a layer's weights, and their distance from a Gaussian.

    The Gaussian has mean 0, and its standard deviation is the root mean square of the weights.
    """
    x = np.asarray(weights, np.float32)
    density, edges = np.histogram(x, bins=min(60, 8 + x.size // 40), density=True)
    distance, p_value = _ks(x)
    sigma = float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))
    return {
        "layer": name,
        "edges": edges.tolist(),
        "density": density.tolist(),
        "sigma": sigma,
        "ks": float(distance),
        "p_value": float(p_value),
        "weights": x.size,
    }


# The function is compiled as a whole, because eager mode would compile every operation
# separately.
_ks = jax.jit(pruning.ks_normal, compiler_options=QUICK)


def correlations(name: str, kernel: np.ndarray) -> dict[str, Any]:
    """The covariance matrix of a layer's first filters, divided by their mean variance."""
    v = pruning.filter_matrix(jnp.asarray(kernel, jnp.float32))[:SHOWN]
    c = np.asarray(pruning.weight_tests.covariance(v), float)
    return {
        "layer": name,
        "dims": v.shape[1],
        "covariance": (c / np.diag(c).mean()).round(4).tolist(),
    }
