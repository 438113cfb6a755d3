"""The odd state of layers with recentering and any activation, and its stability.

A layer of infinite width recenters the batch, scales the preactivations to the root mean square
`std`, and applies the activation. For ReLU, the result does not depend on `std`. If all samples
except the odd sample are exchangeable, the Gram matrix has four different entries. Two entries are
the variances of the odd sample and of another sample. Two entries are the covariance of the odd
sample with another sample, and the covariance of two other samples. Everything is computed on the
host in double precision.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from geometry._arguments import whole_number
from geometry.mean_field._activation_step import activation_kernel
from geometry.mean_field._kernel_map import Activation, check_elementwise, cubic_term, kernel_map
from geometry.odd_points._odd_state import OddState
from jaxnorm.internal import check_function, check_positive, host_only

# Few terms and nodes suffice, because the activation is expanded at the scale of the samples in the
# cluster.
_TERMS, _NODES = 64, 640


class Stability(NamedTuple):
    """A fixed point of a batch, and the growth per layer of deviations of the Gram matrix.

    Attributes:
      state: The fixed point, with the fields of `OddState`.
      family: The growth of deviations that keep the n − 1 samples exchangeable. Each growth is the
        absolute value of an eigenvalue.
      single: The growth of deviations in which one of the n − 1 samples differs from the other n −
        2, for example because it is longer.
      pairs: The growth of deviations that change only angles between pairs of the n − 1 samples.
      radius: The largest growth of all deviations. If the radius is below 1, the fixed point is
        stable.
    """

    state: OddState
    family: tuple[float, ...]
    single: tuple[float, ...]
    pairs: float
    radius: float


class SpreadDistribution(NamedTuple):
    """The distribution of the cluster's spread at finite width, to first order in n/width.

    Attributes:
      mean: The mean of the spread, which is `cluster_spread` at infinite width.
      shape: The shape of the Gamma distribution; the standard deviation is mean/√shape.
      drift: The mean change of the logarithm of a small cluster's spread in one layer.
      noise: The variance of the change of the spread's logarithm in one layer.
    """

    mean: float
    shape: float
    drift: float
    noise: float


@host_only()
def odd_stability(
    n: int, activation: Activation, kinks: tuple[float, ...] = (), *, std: float = 1.0
) -> Stability | None:
    """The state of an odd sample and a cluster of all other samples, and the state's stability.

    The result is None if no odd state exists. The function applies the map for 40 n layers to a
    batch in which one sample is n − 1.5 times as long as the other samples. Newton's method then
    finds the fixed point. If Newton's method does not converge, or the norms of the samples differ
    by less than 1 % at the fixed point, there is no odd state. For ReLU, the state is `odd_state`.
    Before the activation, the preactivations are scaled to the root mean square `std`. The option
    `kinks` has the same meaning as in `kernel_map`.

    Raises:
      ValueError: n is not an integer, or is below 5.

    Example:
      >>> found = odd_stability(10, jax.nn.relu, (0.0,))
      >>> f"{found.state.norm_ratio:.2f} {found.radius:.3f}"
      '7.41 0.927'
      >>> odd_stability(6, jax.nn.relu, (0.0,)) is None
      True
    """
    n, std = _checked(n, activation, std)
    with jax.enable_x64(True):
        programs = _programs(activation, kinks)
        small = cluster_spread(n, activation, kinks, std=std)
        size = (float(n), float(std))
        g = programs.follow(_entries(n - 1.5, min(small or 0.3, 0.8)), *size)
        for _ in range(8):
            change = programs.layer(g, *size) - g
            g = g + jnp.linalg.solve(jnp.eye(4) - programs.slope(g, *size), change)
        error = float(jnp.abs(programs.layer(g, *size) / g - 1).max())
        if not (_state(g).norm_ratio > 1.01 and error < 1e-9):
            return None
        return _stability(g, *size, programs)


@host_only()
def symmetric_stability(
    n: int, activation: Activation, kinks: tuple[float, ...] = (), *, std: float = 1.0
) -> Stability:
    """The state with equal norms and angles, and the state's stability.

    For the state with ReLU, see `recentred_angle`. If the symmetric state is stable, a sample
    becomes odd only if its initial norm ratio exceeds a threshold (for ReLU `escape_ratio`). If the
    symmetric state is unstable, some arbitrarily small deviations grow. The options are the same as
    for `odd_stability`.

    Raises:
      ValueError: n is not an integer, or is below 5.

    Example:
      >>> print(f"{symmetric_stability(10, jax.nn.relu, (0.0,)).radius:.3f}")
      0.967
    """
    n, std = _checked(n, activation, std)
    with jax.enable_x64(True):
        programs = _programs(activation, kinks)
        g = programs.layer(jnp.asarray([1.0, 0.0, 1.0, 0.0]), float(n), float(std))
        return _stability(g, float(n), float(std), programs)


@host_only()
def cluster_spread(
    n: int, activation: Activation, kinks: tuple[float, ...] = (), *, std: float = 1.0
) -> float | None:
    """The angle between two samples of the cluster, by an expansion for small angles.

    A layer multiplies a small squared angle θ² by g (1 − 2 c θ/κ′), where g is the factor for θ →
    0, and κ′ and c are the coefficients of the expansion 1 − κ(cos θ) = κ′ θ²/2 − c θ³
    (`cubic_term`). For ReLU, g is `cluster_growth`. The spread, κ′ (1 − 1/g)/(2 c), is the angle
    that a layer does not change. For ReLU and large n, the spread is 3π/n. If g ≤ 1, the cluster
    collapses to a point, and the result is 0. If g > 1 and c is 0 or too small, the spread grows
    beyond small angles, and the result is None. The options are the same as for `odd_stability`.

    Raises:
      ValueError: n is not an integer, or is below 5.

    Example:
      >>> print(f"{1000 * cluster_spread(1000, jax.nn.relu, (0.0,)) / (3 * math.pi):.3f}")
      0.999
    """
    n, std = _checked(n, activation, std)
    with jax.enable_x64(True):
        growth = _collapsed(n, activation, kinks, std)[0]
        kernel = kernel_map(activation, kinks, std=std / (n - 1) ** 0.5)
        cubic = float(cubic_term(kernel))
        if growth <= 1:
            return 0.0
        spread = float(kernel.slope) * (1 - 1 / growth) / (2 * cubic) if cubic else math.inf
        return spread if spread < math.pi else None


@host_only()
def spread_distribution(
    n: int, width: int, activation: Activation, kinks: tuple[float, ...] = (), *, std: float = 1.0
) -> SpreadDistribution | None:
    """The distribution of the cluster's spread, the angle between its samples, at a finite width.

    At finite width, the spread of a batch of n samples is θ = n r/R. Here r is the root mean square
    distance of two samples of the cluster, and R is the distance of the odd sample from the
    cluster. Let N be the contribution of one neuron to the squared spread, and D its contribution
    to the squared distance of the odd sample, each divided by the mean contribution. A layer adds ½
    log g + (Var D − Var N)/(4 width) − c θ/κ′ and noise of variance Var(N − D)/(4 width) to log θ.
    For g, c and κ′, see `cluster_spread`. The stationary distribution of θ is a Gamma distribution.
    For ReLU and large n, the shape of the distribution is 1 + width/n, so the spread is close to
    3π/n only if the width is much larger than n. The result is None if `cluster_spread` is None or
    0. For 30 samples, the measured standard deviation of the spread was above the theory, by 3 % at
    width 300 and by 4 % at width 1,000. The standard errors of the two measurements are 1 %. The
    options are the same as for `odd_stability`.

    Raises:
      ValueError: n or `width` is not an integer, n is below 5, or `width` is below 1.

    Example:
      >>> found = spread_distribution(100, 1000, jax.nn.relu, (0.0,))
      >>> print(f"{found.shape:.1f} {found.mean * 100 / (3 * math.pi):.2f}")
      10.9 1.09
    """
    width = whole_number(width, "width")
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    spread = cluster_spread(n, activation, kinks, std=std)
    if not spread:
        return None
    with jax.enable_x64(True):
        growth, of_spread, of_distance, of_both = _collapsed(n, activation, kinks, std)
    infinite = math.log(growth) / 2
    drift = infinite + (of_distance - of_spread) / (4 * width)
    noise = (of_spread + of_distance - 2 * of_both) / (4 * width)
    return SpreadDistribution(spread * drift / infinite, 2 * drift / noise, drift, noise)


def _checked(n: int, activation: Activation, std: float) -> tuple[int, float]:
    """The numbers `n` and `std`, after checks of all arguments."""
    check_function(activation, "activation", "jax.nn.relu")
    check_elementwise(activation, jnp.ones(2))
    std = check_positive(std, "std")
    n = whole_number(n, "n")
    if n < 5:
        raise ValueError(
            f"n must be at least 5, because the stability modes need 5 samples; got {n}"
        )
    return n, std


def _entries(ratio: float, spread: float) -> Float[Array, "4"]:
    """The Gram matrix's four entries for an odd sample at a right angle to all other samples."""
    return jnp.asarray([ratio**2, 0.0, 1.0, math.cos(spread)])


def _state(g: Float[Array, "4"]) -> OddState:
    odd, both, other, pair = map(float, g)
    if not min(odd, other) > 0:
        return OddState(math.nan, math.nan, math.nan)
    cosine = both / math.sqrt(odd * other)
    return OddState(
        math.sqrt(odd / other),
        math.acos(max(-1.0, min(1.0, cosine))),
        math.acos(max(-1.0, min(1.0, pair / other))),
    )


class _Programs(NamedTuple):
    """Functions of an activation, compiled once for all n and std."""

    layer: Callable[..., Array]
    follow: Callable[..., Array]
    slope: Callable[..., Array]
    entries: Callable[..., Any]


@lru_cache(maxsize=16)
def _programs(activation: Activation, kinks: tuple[float, ...]) -> _Programs:
    kernel = partial(
        activation_kernel, activation=activation, kinks=kinks, terms=_TERMS, nodes=_NODES
    )

    def layer(g: Array, n: Array, std: Array) -> Array:
        """The four entries of the Gram matrix after a layer, from the entries before the layer.

        The result does not change if all four entries are multiplied by one factor.
        """
        odd, both, other, pair = _recentred(g, n, std)[0]
        rows = [[odd, both, both], [both, other, pair], [both, pair, other]]
        after = kernel(jnp.stack([jnp.stack(row) for row in rows]))
        return jnp.stack([after[0, 0], after[0, 1], after[1, 1], after[1, 2]])

    def follow(g: Array, n: Array, std: Array) -> Array:
        return jax.lax.fori_loop(0, (40 * n).astype(int), lambda _, g: layer(g, n, std), g)

    def entries(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        after = kernel(jnp.stack([jnp.stack([a, c]), jnp.stack([c, b])]))
        return after[0, 1], after[1, 1]

    derivatives = jax.jit(jax.jacfwd(layer)), jax.jit(jax.jacfwd(entries, (0, 1, 2)))
    return _Programs(jax.jit(layer), jax.jit(follow), *derivatives)


def _recentred(g: Float[Array, "4"], n: Any, std: Any) -> tuple[Array, Array]:
    """The four entries for the recentered and rescaled batch, and the factor of the rescaling."""
    odd, both, other, pair = g
    # `first`, `rest` and `mean` are the means of the odd sample's row of the Gram matrix, of any
    # other row, and of all elements.
    first = (odd + (n - 1) * both) / n
    rest = (both + other + (n - 2) * pair) / n
    mean = (first + (n - 1) * rest) / n
    h = g + mean - jnp.stack([2 * first, first + rest, 2 * rest, 2 * rest])
    scale = std**2 * n / (h[0] + (n - 1) * h[2])
    return scale * h, scale


def _stability(g: Float[Array, "4"], n: float, std: float, programs: _Programs) -> Stability:
    """The `Stability` of the fixed point with the four entries `g`.

    Besides deviations of the four entries, there are two kinds of deviation of the n − 1 samples.
    For numbers x, y, w and cᵢ with Σ cᵢ = 0, the first kind deviates by x cᵢ in variances, by y cᵢ
    in covariances with the odd sample, and by w (cᵢ + cⱼ) in other covariances. Deviations of the
    second kind change only covariances of pairs, and their rows sum to zero. A layer maps
    deviations of each kind to deviations of the same kind. Recentering does not change deviations
    of the second kind.
    """
    (odd, both, other, pair), scale = _recentred(g, n, std)
    (_, by_other, by_both), (_, variance, _) = programs.entries(odd, other, both)
    (by_first, _, by_pair), _ = programs.entries(other, other, pair)
    mean = np.array([1, 1, n - 3]) / n
    recentred = float(scale) * (np.eye(3) - np.outer([2, 1, 1], mean))
    kernel = np.array([[variance, 0, 0], [by_other, by_both, 0], [by_first, 0, by_pair]], float)
    family, single = (
        np.sort(np.abs(np.linalg.eigvals(matrix)))[::-1].tolist()
        for matrix in (np.asarray(programs.slope(g, n, std)), kernel @ recentred)
    )
    # The fourth eigenvalue is left out, because it belongs to the scale of the batch and is zero.
    family = family[:3]
    pairs = abs(float(scale * by_pair))
    return Stability(_state(g), tuple(family), tuple(single), pairs, max(*family, *single, pairs))


def _collapsed(
    n: int, activation: Activation, kinks: tuple[float, ...], std: float
) -> tuple[float, float, float, float]:
    """The growth of a tiny squared spread, and Var N, Var D, Cov(N, D) of `spread_distribution`.

    After recentering, each sample of a collapsed cluster is −1/(n − 1) times the odd sample.
    """
    other = std / (n - 1) ** 0.5
    odd = (n - 1) * other
    cuts = sorted({t / s for t in kinks for s in (odd, -other)} | {-12.0, 12.0})
    nodes, weights = np.polynomial.legendre.leggauss(400)
    ends = np.array([t for t in cuts if abs(t) <= 12])
    half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
    x = (middle[:, None] + half[:, None] * nodes).ravel()
    density = (half[:, None] * weights).ravel() * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    points = jnp.asarray(-other * x)
    value, slope = jax.jvp(activation, (points,), (jnp.ones_like(points),))
    distance = np.asarray(activation(jnp.asarray(odd * x)) - value) ** 2
    squares = np.asarray(slope) ** 2
    mean_square, mean_distance = density @ squares, density @ distance
    growth = n**2 * other**2 * mean_square / mean_distance
    spread = density @ squares**2 * (1 + 2 / (n - 2)) / mean_square**2 - 1
    of_distance = density @ distance**2 / mean_distance**2 - 1
    both = density @ (squares * distance) / (mean_square * mean_distance) - 1
    return float(growth), float(spread), float(of_distance), float(both)
