"""Fixed points of recentering and ReLU at infinite width for n samples, and their stability.

The map of one layer is `mean_field_step`. If all samples except one can be exchanged without a
change of the Gram matrix, the Gram matrix has only four different entries, and the map keeps this
symmetry. The functions compute Python numbers on the host in double precision, so they cannot be
traced. Angles are in radians.
"""

import math
from typing import NamedTuple

from geometry._arguments import whole_number
from jaxnorm.internal import check_eps, check_numeric, host_only


class OddState(NamedTuple):
    """A fixed point with one odd sample and a cluster of n − 1 samples.

    Attributes:
      norm_ratio: The norm of the odd sample divided by the norm of the other samples.
      angle: The angle between the odd sample and the other samples.
      spread: The angle between two samples of the cluster.
    """

    norm_ratio: float
    angle: float
    spread: float


@host_only("arccos of `cosine_step`")
def recentred_angle(n: int | float) -> float:
    """The angle at the fixed point of n samples with equal norms and angles: arccos κ(−1/(n − 1)).

    The function κ is `cosine_step`. Samples with equal norms and angles reach the angle of the
    fixed point after one layer, with or without rescaling. The angle is 90° for two samples, 75.03°
    for nine samples, and arccos(1/π) = 71.44° for n = `math.inf`. Figure 5 of Nachum et al. shows
    75°. Without rescaling, a sample whose norm ratio exceeds `escape_ratio` becomes an odd point.

    Raises:
      ValueError: n is below 2.

    Example:
      >>> [round(math.degrees(recentred_angle(n)), 2) for n in (3, 9, 100, math.inf)]
      [83.74, 75.03, 71.74, 71.44]
    """
    check_numeric(n, "n")
    if not n >= 2:
        raise ValueError(f"n must be at least 2, because an angle needs two samples; got {n}")
    return _angle_after_relu(-1 / (n - 1))


@host_only()
def cluster_growth(n: int) -> float:
    """The growth per layer of the squared spread of a small cluster: n² / (n² − 2n + 2).

    The spread is measured in units of the norm of the odd sample. In the invariant representation
    of Nachum et al., the cluster is a point. Because the growth exceeds 1, the representation is
    unstable, although Theorem 14 suggests that it is stable. Theorem 13 multiplies He's variance of
    the weights by the same number n² / (n² − 2n + 2).

    Raises:
      ValueError: n is not an integer, or is below 2.

    Example:
      >>> round(cluster_growth(10), 4)
      1.2195
    """
    n = whole_number(n, "n")
    if n < 2:
        raise ValueError(
            f"n must be at least 2, one sample in the cluster and one odd point; got {n}"
        )
    return n**2 / (n**2 - 2 * n + 2)


@host_only("`mean_field_step` of a Gram matrix until it changes no more")
def odd_state(n: int) -> OddState:
    """The odd state of n samples at infinite width with ReLU, with one odd sample and a cluster.

    The odd state is stable. For large n, the norm ratio is about n − 1, the odd sample is almost
    orthogonal to the cluster, and the cluster has a spread of about 3π/n. The odd state is the
    corrected form of Theorem 14 of Nachum et al. The function solves three equations by Newton's
    method. For other activations, use `odd_stability`, which also gives the rates at which
    deviations decay.

    Raises:
      ValueError: n is not an integer, or is below 7; for fewer than 7 samples no odd state exists.

    Example:
      >>> state = odd_state(10)
      >>> f"{state.norm_ratio:.2f} {math.degrees(state.angle):.2f} {math.degrees(state.spread):.2f}"
      '7.41 88.71 45.20'
    """
    n = whole_number(n, "n")
    if n < 7:
        raise ValueError(
            f"n must be at least 7, because smaller batches have no odd state; got {n}"
        )
    return _fixed_point(n, OddState(n - 1.5, math.pi / 2 - 0.01, min(3 * math.pi / n, 1.05)))


@host_only("`mean_field_step` of Gram matrices")
def escape_ratio(n: int) -> float:
    """The norm ratio above which the longest sample of a symmetric batch becomes an odd point.

    The n − 1 other samples have equal norms, and all angles are `recentred_angle(n)`. For large n,
    the escape ratio is about 1 + 1.14/n. The difference between the escape ratio and 1 is accurate
    to four digits. The bisection takes O(n) operations. A norm ratio below the escape ratio returns
    to 1 in later layers.

    Raises:
      ValueError: n is not an integer, or is below 7; for fewer than 7 samples every ratio returns
        to 1.

    Example:
      >>> round(escape_ratio(10), 3)
      1.22
    """
    n = whole_number(n, "n")
    if n < 7:
        raise ValueError(
            f"n must be at least 7, because smaller batches have no odd state; got {n}"
        )
    angle = recentred_angle(n)
    # The unstable fixed point separates norm ratios that grow from norm ratios that return to 1.
    fixed = _fixed_point(n, OddState(1 + 1.15 / n, angle, angle)).norm_ratio - 1
    low, high = 0.5 * fixed, 1.5 * fixed
    while high - low > 1e-4 * fixed:
        middle = state_ratio = (low + high) / 2
        state = OddState(1 + middle, angle, angle)
        while 0.4 * fixed < state_ratio < 1.6 * fixed:
            state = _layer(n, state)
            state_ratio = state.norm_ratio - 1
        low, high = (low, middle) if state_ratio > fixed else (middle, high)
    return 1 + (low + high) / 2


@host_only()
def escape_step(norm_ratio: float) -> float:
    """The norm ratio of one of infinitely many samples after a layer: √(s² + (s − 1)²/(π − 1)).

    The number s is `norm_ratio`, the norm of the sample before the layer divided by the norm of
    each other sample. A norm ratio above 1 grows by a factor that tends to √1.467 in later layers.
    A norm ratio below 1 returns to 1.

    Raises:
      ValueError: `norm_ratio` is negative or not finite.

    Example:
      >>> escape_step(1.0), round(escape_step(2.0), 4)
      (1.0, 2.1135)
    """
    norm_ratio = check_eps(norm_ratio, "norm_ratio")
    return math.hypot(norm_ratio, (norm_ratio - 1) / math.sqrt(math.pi - 1))


def _angle_after_relu(cosine: float) -> float:
    """The angle arccos κ(ρ), where κ is `cosine_step` in double precision for any default dtype."""
    kappa = (math.sqrt(1 - cosine * cosine) + (math.pi - math.acos(cosine)) * cosine) / math.pi
    return math.acos(kappa)


def _layer(n: int, state: OddState) -> OddState:
    """The state after one layer, with recentering, the arc-cosine kernel and a scaling.

    The Gram matrix is scaled so that all samples except the odd sample have norm 1.
    """
    return _next_state(n, _relative_variance(n, state))


def _relative_variance(n: int, state: OddState) -> float:
    """n² times the variance of the cluster, divided by its squared distance from the odd sample."""
    variance = 2 * math.sin(state.spread / 2) ** 2 * (n - 2) / (n - 1)
    product = state.norm_ratio * math.cos(state.angle)
    return n**2 * variance / (state.norm_ratio**2 - 2 * product + 1 - variance)


def _next_state(n: int, relative_variance: float) -> OddState:
    """The state after a layer, from `_relative_variance` before the layer.

    No formula subtracts nearly equal numbers, so a small spread has all digits for every n.
    """
    whole = 1 + relative_variance
    versine = relative_variance * (n - 1) / (n - 2) / whole  # this is 1 − cos θ after recentering
    angle = 2 * math.asin(math.sqrt(versine / 2))
    versine -= _cosine_gain(angle)
    return OddState(
        (n - 1) / math.sqrt(whole),
        _angle_after_relu(-1 / math.sqrt(whole)),
        2 * math.asin(math.sqrt(versine / 2)),
    )


def _cosine_gain(angle: float) -> float:
    """κ(cos θ) − cos θ = (sin θ − θ cos θ)/π, by a series for a small angle θ."""
    if angle > 0.1:
        return (math.sin(angle) - angle * math.cos(angle)) / math.pi
    square = angle**2
    series = 1 - square / 10 * (1 - square / 28 * (1 - square / 54))
    return angle**3 / 3 * series / math.pi


def _fixed_point(n: int, start: OddState) -> OddState:
    # SciPy is imported here, because its import takes longer than all other imports of the package.
    import scipy.optimize

    angle = recentred_angle(n)
    first, symmetric = (
        math.log(_relative_variance(n, s)) for s in (start, OddState(1.0, angle, angle))
    )

    def change(log_variance: float) -> float:
        after = math.log(_relative_variance(n, _next_state(n, math.exp(log_variance))))
        # The division keeps the solver away from the symmetric fixed point.
        return (after - log_variance) / (log_variance - symmetric)

    # The slope of `change` is about 1/n, so the rounding error of the fixed point grows with n.
    second, tol = first + 0.1 * (first - symmetric), max(1e-13, 1e-15 * n)
    return _next_state(n, math.exp(scipy.optimize.newton(change, first, x1=second, tol=tol)))
