"""Makes one neuron for each sample, the initialization in the Discussion of Nachum et al.

The neuron ReLU(x w + b) of a sample is zero for all other samples, and exists if and only if the
sample is a vertex of the convex hull of the batch. The functions check on the host, in double
precision, whether samples are vertices. If no simple direction shows that a sample is a vertex, a
linear program decides whether the sample is a vertex. The functions cannot be traced.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from geometry._arguments import as_samples
from jaxnorm.internal import check_positive, host_only

# The smallest margin by which a vertex exceeds all other samples along some unit vector. Margins
# are divided by the largest distance of a sample from the mean.
_MIN_MARGIN = 1e-9


@host_only()
def hull_vertices(x: Float[Array, "n k"]) -> Bool[np.ndarray, " n"]:
    """A mask of the samples that are vertices of the convex hull of the batch.

    A sample that occurs twice is not a vertex. A sample is a vertex if it exceeds all other samples
    along some direction by a positive margin. The function tries a few directions, and then solves
    a linear program. A margin below 1e-9 of the size of the batch counts as zero.

    Example:
      >>> square = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [1.0, 1.0]])
      >>> hull_vertices(square).tolist()
      [True, True, True, True, False]
    """
    _, margins = _directions(_in_float64(x))
    return margins > _MIN_MARGIN


@host_only()
def neuron_per_point(x: Float[Array, "n k"]) -> tuple[Float[Array, "k n"], Float[Array, " n"]]:
    """Kernel and bias with ReLU(x kernel + bias) = I, so neuron i is positive only for sample i.

    The threshold of a neuron is midway between its own sample and the next sample along the
    neuron's direction. Before the ReLU, the neuron's own sample has the value 1, and the next
    sample has the value −1.

    Raises:
      ValueError: A sample is not a vertex of the batch's convex hull.

    Example:
      >>> x = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
      >>> kernel, bias = neuron_per_point(x)
      >>> print(jax.nn.relu(x @ kernel + bias[None]).round(3))
      [[1. 0. 0.]
       [0. 1. 0.]
       [0. 0. 1.]]
    """
    h = _in_float64(x)
    w, margins = _directions(h)
    inside = np.flatnonzero(margins <= _MIN_MARGIN)
    if inside.size:
        indices = ", ".join(map(str, inside[:5])) + ", ..." * (inside.size > 5)
        raise ValueError(
            "every sample must be a vertex of the batch's convex hull; "
            f"{inside.size} of {len(h)} are not: {indices}"
        )
    own, next_one = _own_and_next(h, w)
    scale = 2 / (own - next_one)
    bias = -scale * (own + next_one) / 2
    dtype = jnp.result_type(x)
    return jnp.asarray((scale[:, None] * w).T, dtype), jnp.asarray(bias, dtype)


@host_only()
def point_initializers(
    key: Key[Array, ""], x: Float[Array, "n k"], *, gain: float = 1.0
) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Initializers for the kernel and the bias of an `nnx.Linear`, by `neuron_per_point`.

    If the layer has more neurons than `x` has samples, the additional neurons get He's
    initialization and bias 0. If the layer has fewer neurons than `x` has samples, randomly
    selected samples get one neuron each. To use the two initializers a and b for samples of k
    features, build `nnx.Linear(k, width, kernel_init=a, bias_init=b, ...)`.

    Args:
      key: The key that selects the samples. The layer's own keys draw the weights of additional
        neurons.
      x: Samples that are all vertices of their convex hull.
      gain: The activity of each neuron for its own sample.

    Raises:
      ValueError: A sample is not a vertex, or the layer does not have k inputs.

    Example:
      >>> from flax import nnx
      >>> x = jax.random.normal(jax.random.key(0), (5, 8), jnp.float32)
      >>> kernel, bias = point_initializers(jax.random.key(1), x)
      >>> layer = nnx.Linear(8, 5, kernel_init=kernel, bias_init=bias, rngs=nnx.Rngs(0))
      >>> print((jax.nn.relu(layer(x)) > 0.5).sum())
      5
    """
    w, b = neuron_per_point(x)
    order = np.asarray(jax.random.permutation(key, len(x)))
    gain = check_positive(gain, "gain")
    w, b = gain * w[:, order], gain * b[order]

    def kernel(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        if shape[0] != len(w):
            raise ValueError(
                f"the layer must have {len(w)} inputs, the features of a sample; got the kernel "
                f"shape {shape}"
            )
        he = jax.nn.initializers.he_normal()(key, (shape[0], shape[1]), dtype)
        used = min(shape[1], w.shape[1])
        return he.at[:, :used].set(w[:, :used].astype(dtype))

    def bias(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        used = min(shape[0], len(b))
        return jnp.zeros(shape, dtype).at[:used].set(b[:used].astype(dtype))

    return kernel, bias


def _in_float64(x: Float[Array, "n k"]) -> np.ndarray:
    as_samples(x)  # this call only checks `x`; the result can be less precise than `x`
    return np.asarray(x, np.float64)


def _directions(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each sample, a unit vector along which it exceeds all other samples, and the margin.

    Margins are divided by the largest distance of a sample from the mean. If no unit vector exists
    for a sample, its margin is at most `_MIN_MARGIN`.
    """
    n, k = x.shape
    if n == 1:
        return np.eye(1, k), np.ones(1)
    # The factor is a power of two, so products are exact. Squares neither overflow nor underflow.
    x = np.ldexp(x, -np.frexp(np.abs(x).max())[1])
    h = x - x.mean(0)
    h = h / max(np.linalg.norm(h, axis=1).max(), np.finfo(float).tiny)
    whitened = h @ np.linalg.pinv(h.T @ h)
    best, margins = _units(h), np.full(n, -np.inf)
    for directions in (h, whitened):
        w = _units(directions)
        own, next_one = _own_and_next(h, w)
        better = own - next_one > margins
        best, margins = np.where(better[:, None], w, best), np.maximum(margins, own - next_one)
    for i in np.flatnonzero(margins <= _MIN_MARGIN):
        best[i], margins[i] = _linear_program(h, int(i))
    return best, margins


def _linear_program(x: np.ndarray, i: int) -> tuple[np.ndarray, float]:
    """The direction w with the largest margin minⱼ w (xᵢ − xⱼ), as a unit vector, and its margin.

    The margin is maximized over w in [−1, 1]ᵏ. If no margin is positive, w and the margin are 0.
    """
    # SciPy is imported here, because its import takes longer than all other imports of the package.
    import scipy.optimize

    n, k = x.shape
    others = np.arange(n) != i
    behind = np.concatenate([x[others] - x[i], np.ones((n - 1, 1))], axis=1)
    bounds = [(-1, 1)] * k + [(0, None)]
    solution = scipy.optimize.linprog(
        -np.eye(1, k + 1, k)[0], A_ub=behind, b_ub=np.zeros(n - 1), bounds=bounds
    )
    w, margin = solution.x[:k], solution.x[k]
    norm = np.linalg.norm(w)
    return (w / norm, margin / norm) if norm > 0 else (w, 0.0)


def _own_and_next(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each sample's position along its direction, and the largest position of all other samples."""
    along = w @ x.T
    own = np.diagonal(along).copy()
    np.fill_diagonal(along, -np.inf)
    return own, np.where(len(x) > 1, along.max(1), own - 1)


def _units(x: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)
