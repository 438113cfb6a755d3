"""Earth mover distances beside SciPy's."""

from collections.abc import Callable

import jax
import numpy as np
import scipy.stats

import jaxnorm
from timing import Pair


def groups() -> dict[str, Callable[[], list[Pair]]]:
    return {"earth mover distances": distances}


def distances() -> list[Pair]:
    """The earth mover distance of all features in one call, beside a loop over SciPy."""
    x, y = jax.random.normal(jax.random.key(1), (2, 4096, 128))
    host = np.asarray(x), np.asarray(y)
    ours = jax.jit(jaxnorm.shift.emd_1d)

    def peer() -> list[float]:
        pairs = zip(*(sample.T for sample in host), strict=True)
        return [scipy.stats.wasserstein_distance(a, b) for a, b in pairs]

    return [Pair("emd_1d (4096,128) / scipy", lambda: ours(x, y), peer)]
