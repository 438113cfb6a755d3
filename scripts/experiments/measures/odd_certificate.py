"""Certify whether an odd state is stable, by its spectral radius in 50 digits (mpmath).

This module confirms the numbers of `odd_points.odd_stability`, and shares no code with
`odd_stability`. The certificate covers two kinds of states, which need at most one integral over
one Gaussian variable. The first kind of state has a piecewise linear activation with a kink at 0,
for which the arc-cosine kernel suffices. The second kind of state has a smooth activation and a
cluster of equal samples. After recentering, the odd sample and the samples of the cluster then have
opposite directions.

An odd state is a Gram matrix that a layer does not change, and in which one sample (the odd sample)
differs from all others (the cluster). The Gram matrix has four distinct entries. Two entries are
the variances of the odd sample and of a cluster's sample. The other two entries are covariances: of
the odd sample with a cluster's sample, and of two samples in the cluster. Before the activation,
the root mean square of the samples is 1.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath

from geometry.odd_points import OddState

DIGITS = 50
# the slope of each piecewise linear activation below zero
SLOPES = {"ReLU": "0", "leaky ReLU, slope 0.1": "0.1", "absolute value": "-1"}

Number = Any  # A number of mpmath, which has no type annotations.
Matrix = Any  # A matrix of mpmath.
Function = Callable[[Number], Number]


class Certificate(NamedTuple):
    """The certified stability of an odd state.

    Attributes:
      radius: The spectral radius, written with 40 digits. It is the largest factor by which a layer
        enlarges a small deviation of the Gram matrix.
      residual: The largest relative change of an element of the Gram matrix in a layer.
    """

    radius: str
    residual: float


class Moment(NamedTuple):
    """The mean E φ(u) φ(v), where u and v are Gaussian, and the derivatives of this mean."""

    value: Number  # The mean E φ(u) φ(v).
    by_first: Number  # The derivative of `value` with respect to the variance of u.
    by_second: Number  # The derivative of `value` with respect to the variance of v.
    by_both: Number  # The derivative of `value` with respect to the covariance of u and v.

    @property
    def by_common(self) -> Number:
        """The derivative of `value` with respect to the variance of u, if v equals u."""
        return self.by_first + self.by_second + self.by_both


Kernel = Callable[[Number, Number, Number], Moment]  # a function of two variances and a covariance


def certificate(name: str, n: int, state: OddState) -> Certificate | None:
    """The certificate of the odd state near `state`, for an activation of this module.

    If this module does not have the activation, the result is None. The result is also None if the
    activation is smooth and the cluster has a spread of at least 1e-6.

    Args:
      name: Name of an activation; this module knows the names in `SLOPES` and `smooth_functions`.
      n: Number of samples of the batch.
      state: The state that `odd_stability` finds in double precision.
    """
    with mpmath.workdps(DIGITS):
        smooth = smooth_functions()
        if name in SLOPES:
            kernel = piecewise_linear(mpmath.mpf(SLOPES[name]))
            entries = _solve(n, state, kernel)
        elif name in smooth and state.spread < 1e-6:
            kernel = opposite_or_equal(*smooth[name])
            # After recentering, the odd sample is 1 − n times each other sample.
            entries = [(n - 1) ** 2, 1 - n, 1, 1]
        else:
            return None
        entries, _, _ = layer(entries, n, kernel)
        after, slope, single = layer(entries, n, kernel)
        residual = max(abs(x / y - 1) for x, y in zip(after, entries, strict=True))
        sizes = [abs(x) for matrix in (slope, single) for x in mpmath.eig(matrix, right=False)]
        return Certificate(str(mpmath.nstr(max(sizes), 40)), float(residual))


def _solve(n: int, state: OddState, kernel: Kernel) -> list[Number]:
    """The four entries of the Gram matrix at the fixed point of `layer`.

    Entries are divided by the variance of the samples in the cluster.
    """

    def change(odd: Number, both: Number, pair: Number) -> list[Number]:
        (a, c, b, d), _, _ = layer([odd, both, 1, pair], n, kernel)
        return [a / b - odd, c / b - both, d / b - pair]

    ratio = mpmath.mpf(state.norm_ratio)
    start = [ratio**2, ratio * mpmath.cos(state.angle), mpmath.cos(state.spread)]
    odd, both, pair = mpmath.findroot(change, start, tol=mpmath.mpf(10) ** (-1.8 * DIGITS))
    return [odd, both, 1, pair]


def layer(entries: Sequence[Number], n: int, kernel: Kernel) -> tuple[list[Number], Matrix, Matrix]:
    """The four entries after a layer, and two matrices by which the layer maps deviations.

    The first matrix maps deviations of the four entries; after such a deviation, the n − 1 samples
    of the cluster still have equal entries. The second matrix maps deviations that differ between
    the samples i of the cluster. For numbers cᵢ with Σ cᵢ = 0, the variance of i deviates by x cᵢ,
    the covariance of i with the odd sample by y cᵢ, and the covariance of i and j by w (cᵢ + cⱼ).
    The first three rows and columns of the second matrix map the numbers x, y and w. The last row
    and column map deviations of the covariances of i and j that sum to 0 over j.
    """
    # The mean `first` of the odd sample's row of the Gram matrix, and the mean `rest` of any other
    # row, are linear functions of the four entries.
    first = mpmath.matrix([[1, n - 1, 0, 0]]) / n
    rest = mpmath.matrix([[0, 1, 1, n - 2]]) / n
    mean = (first + (n - 1) * rest) / n
    rows = (mean - 2 * first, mean - first - rest, mean - 2 * rest, mean - 2 * rest)
    centre = mpmath.eye(4) + mpmath.matrix([list(row) for row in rows])
    h = centre * mpmath.matrix(list(entries))
    weights = mpmath.matrix([[1, 0, n - 1, 0]]) / n
    scale = 1 / (weights * h)[0]
    a, c, b, d = (scale * x for x in h)
    outer, pair = kernel(a, b, c), kernel(b, b, d)
    odd, other = kernel(a, a, a), kernel(b, b, b)
    after = [odd.value, outer.value, other.value, pair.value]
    by_entries = mpmath.matrix(
        [
            [odd.by_common, 0, 0, 0],
            [outer.by_first, outer.by_both, outer.by_second, 0],
            [0, 0, other.by_common, 0],
            [0, 0, pair.by_first + pair.by_second, pair.by_both],
        ]
    )
    slope = by_entries * scale * (centre - scale * h * (weights * centre))
    by_sample = mpmath.matrix(
        [
            [other.by_common, 0, 0],
            [outer.by_second, outer.by_both, 0],
            [pair.by_first, 0, pair.by_both],
        ]
    )
    means = mpmath.matrix([2, 1, 1]) * mpmath.matrix([[1, 1, n - 3]]) / n
    single = scale * pair.by_both * mpmath.eye(4)
    single[:3, :3] = scale * by_sample * (mpmath.eye(3) - means)
    return after, slope, single


def piecewise_linear(slope: Number) -> Kernel:
    """The kernel function of a piecewise linear activation (Cho and Saul, 2009, degree one).

    The activation is x for x > 0, and `slope` · x for x < 0.
    """

    def kernel(first: Number, second: Number, both: Number) -> Moment:
        angle = mpmath.acos(both / mpmath.sqrt(first * second))
        like = (1 + slope**2) * (mpmath.pi - angle) + 2 * slope * angle
        by_both = like / (2 * mpmath.pi)  # this is E φ′(u) φ′(v)
        sine = mpmath.sqrt(first * second) * mpmath.sin(angle)
        value = (1 - slope) ** 2 * sine / (2 * mpmath.pi) + by_both * both
        # By Euler's theorem, `value` is the sum of first · ∂value/∂first, second · ∂value/∂second
        # and both · by_both. The first two terms are equal, and `rest` is one of them.
        rest = (value - both * by_both) / 2
        return Moment(value, rest / first, rest / second, by_both)

    return kernel


def opposite_or_equal(value: Function, slope: Function, curvature: Function) -> Kernel:
    """The kernel function of a smooth activation, only for correlations of 1 and −1.

    Each mean is an integral over one variable. The error of the trapezoidal rule decreases
    exponentially as its step tends to zero. Here, the step is 1/40. The error is then below 1e-50
    if the function of the standardized variable is analytic up to a distance of 0.5 from the real
    line.
    """
    nodes = [mpmath.mpf(k) / 40 for k in range(-640, 641)]
    weights = [mpmath.npdf(x) / 40 for x in nodes]

    def kernel(first: Number, second: Number, both: Number) -> Moment:
        u = [mpmath.sqrt(first) * x for x in nodes]
        v = [mpmath.sign(both) * mpmath.sqrt(second) * x for x in nodes]

        def mean(f: Function, g: Function) -> Number:
            return mpmath.fsum(w * f(x) * g(y) for w, x, y in zip(weights, u, v, strict=True))

        return Moment(
            mean(value, value),
            mean(curvature, value) / 2,
            mean(value, curvature) / 2,
            mean(slope, slope),
        )

    return kernel


def smooth_functions() -> dict[str, tuple[Function, Function, Function]]:
    """Each smooth activation with its first and second derivatives; the names are the keys."""

    def sigmoid(x: Number) -> Number:
        return 1 / (1 + mpmath.exp(-x))

    def sigmoid_slope(x: Number) -> Number:
        return sigmoid(x) * sigmoid(-x)

    def sigmoid_curvature(x: Number) -> Number:
        return sigmoid_slope(x) * (1 - 2 * sigmoid(x))

    return {
        "GELU": (
            lambda x: x * mpmath.ncdf(x),
            lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x),
            lambda x: (2 - x**2) * mpmath.npdf(x),
        ),
        "SiLU": (
            lambda x: x * sigmoid(x),
            lambda x: sigmoid(x) + x * sigmoid_slope(x),
            lambda x: 2 * sigmoid_slope(x) + x * sigmoid_curvature(x),
        ),
        "softplus": (lambda x: mpmath.log1p(mpmath.exp(x)), sigmoid, sigmoid_slope),
    }
