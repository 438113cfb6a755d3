"""Measure how far small networks' filters are from Gaussian, for each training setting."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pruning
from experiments.data.datasets import Images, identity
from experiments.measures import analysis, filter_settings, filter_training
from experiments.measures.filter_training import Setting
from experiments.measures.finished import Finished
from experiments.measures.networks import mean

# The distribution of the rank correlation is estimated from this number of random Gaussian layers.
GAUSSIAN_LAYERS = 400
# Measures of a layer, which are averaged over layers and seeds. For many Gaussian filters, `shape`
# is near 2, `std_spread` and `largest` are near 1, and the other measures are near 0.
SIZES = ("ks", "shape", "std_spread", "mean", "largest", "spearman")

Row = dict[str, Any]


def measure(
    settings: Mapping[str, Setting],
    images: Images,
    seeds: int,
    *,
    path: Path,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Train networks with every setting, and test their filters before and after training.

    Args:
      settings: The settings by name.
      images: Training and test images.
      seeds: Number of networks of each setting.
      path: A file for finished settings; an interrupted run resumes after the settings in this
        file.
      log: A function that is called with the name of each setting.
    """
    code = (filter_settings, filter_training, analysis)
    sources = [Path(__file__), *(Path(str(module.__file__)) for module in code)]
    done = Finished(path, [identity(images), seeds], sources)
    for name, setting in settings.items():
        log(name)
        if name not in done.parts:
            start = time.perf_counter()
            before, after, accuracy = jax.device_get(filter_training.run(setting, images, seeds))
            rows = {"before": list(run_tests(before)), "after": list(run_tests(after))}
            seconds = time.perf_counter() - start
            own = {"group": setting.group, "accuracy": accuracy.tolist(), "seconds": seconds}
            done.add(name, own | rows)
    return summaries({name: done.parts[name] for name in settings})


def run_tests(kernels: list[Float[np.ndarray, "seeds 3 3 cin cout"]]) -> Iterator[Row]:
    """Yield a row with tests and effect sizes for each seed and each convolution except the first.

    The first convolution is left out, because its filters have only 9 weights.
    """
    for layer, stacked in enumerate(kernels[1:], start=2):
        filters = jax.vmap(pruning.filter_matrix)(jnp.asarray(stacked))
        n, dims = filters.shape[1:]
        drawn, expected = gaussian(n, dims)
        values = jax.device_get(_measure(filters, drawn))
        for seed in range(len(filters)):
            own = {name: float(value[seed]) for name, value in values.items()}
            yield {
                "seed": seed,
                "layer": layer,
                "ks": own["ks"],
                "shape": own["shape"],
                "std_spread": own["std_spread"] * math.sqrt(2 * dims),
                "mean": abs(own["mean"]),
                "largest": own["largest_eigenvalue"] / own["high_edge"],
                "spearman": own["l1_l2"] - expected,
                "mean_equivalence_p_value": own["mean_equivalence_p_value"],
                "p_values": {test: own[f"p_{test}"] for test in analysis.TESTS},
            }


@cache
def gaussian(n: int, dims: int) -> tuple[Float[Array, " draws"], float]:
    """Spearman's ρ between l1 and l2 in each of many Gaussian layers, and the expected ρ."""
    v = jax.random.normal(jax.random.key(0), (GAUSSIAN_LAYERS, n, dims), jnp.float32)
    return _rank_correlation(v), float(pruning.expected_spearman(n, dims, ("l1", "l2")))


@jax.jit
def _rank_correlation(v: Float[Array, "layers n dims"]) -> Float[Array, " layers"]:
    return jax.vmap(lambda v: pruning.spearman(pruning.l1_norm(v), pruning.l2_norm(v)))(v)


@partial(jax.jit, compiler_options=analysis.QUICK)
def _measure(v: Float[Array, "seeds n dims"], drawn: Float[Array, " draws"]) -> dict[str, Array]:
    values = jax.vmap(analysis.tests_of)(v)
    rank = _rank_correlation(v)
    draws = jnp.broadcast_to(drawn[:, None], (drawn.size, rank.size))
    z = pruning.ranking.spearman_z_score(rank, draws)
    p_values = values | {"spearman": 2 * jax.scipy.stats.norm.sf(jnp.abs(z))}
    shape = jax.vmap(lambda v: pruning.weight_tests.fit_generalized_gaussian(v).shape)(v)
    return (
        values
        | {"shape": shape, "l1_l2": rank}
        | {f"p_{test}": p_values[test] for test in analysis.TESTS}
    )


def summaries(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The summary of every setting; Holm's correction of p-values covers all settings' layers."""
    for when in ("before", "after"):
        analysis.judge([row for setting in found.values() for row in setting[when]])
    return {name: summary(setting) for name, setting in found.items()}


def summary(setting: dict[str, Any]) -> dict[str, Any]:
    """The mean of each measure over layers and seeds, and how many layers each test rejects."""
    seeds = range(len(setting["accuracy"]))

    def over(rows: list[Row]) -> dict[str, Any]:
        values = {
            name: mean(fmean(r[name] for r in rows if r["seed"] == seed) for seed in seeds)
            for name in SIZES
        }
        fails = {test: sum(test in r["fails"] for r in rows) for test in analysis.TESTS}
        return values | {"layers": len(rows), "fails": fails}

    parts = {when: over(setting[when]) for when in ("before", "after")}
    own = {name: setting[name] for name in ("group", "seconds")}
    return own | {"accuracy": mean(setting["accuracy"])} | parts
