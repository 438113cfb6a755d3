"""What the checks of the unitization paper draw and compute.

A list of points of equal weight is a distribution: theorems must hold exactly of its exact earth
mover distance, with no error of sampling. Functions of a key return draws in float32, or the values
of many cases in float64: differences that should be 0, or excesses over a bound.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats
from jaxtyping import Array, Float, Key
from scipy.special import hyp1f1

from geometry.claims._claim import Values, generator, normal
from jaxnorm import (
    BatchStatistics,
    batch_statistics,
    bessel,
    moments,
    shift,
    unit_vector,
    unitize,
    unitize_bounded,
    unitized_batch_norm,
)

ALPHA = 0.5
DIMS = 64
SMALL, LARGE = 1.0, 3.0  # standard deviations of two Gaussians
HEIGHT, WIDTH, CHANNELS = 8, 8, 16
SIZE = HEIGHT * WIDTH * CHANNELS
SHIFT = 1.0  # of every pixel, in standard deviations, up in one Gaussian and down in the other

POINTS, FEATURES = 12, 4
CASES = 300


# Draws.


def radial_transport(key: Key[Array, ""]) -> Float[Array, "200 1"]:
    """How far Eq. 10 leaves s₁z from s₂z.

    Samples of equal direction are coupled. No coupling is cheaper: the norm is 1-Lipschitz, and
    the mean norms already differ by as much.
    """
    z = normal(key, 200, DIMS)
    x, y = (unitize(s * z, ALPHA, eps=1e-12) for s in (SMALL, LARGE))
    return jnp.linalg.norm(x - y, axis=1, keepdims=True)


def mean_difference(key: Key[Array, ""]) -> Float[Array, "20 1"]:
    """How much longer images of mean +m u lie along u than images of mean −m u."""
    sign = jnp.asarray([1.0, -1.0], jnp.float32).reshape(2, 1, 1, 1, 1)
    x = sign * SHIFT + normal(key, 2, 20, HEIGHT, WIDTH, CHANNELS)
    one = jnp.ones(CHANNELS, jnp.float32)
    known = BatchStatistics(0 * one, one, jnp.ones((), jnp.float32))

    def along(x: Array) -> Array:
        y, _ = unitized_batch_norm(x, one, statistics=known, eps=0.0)
        return y.sum((1, 2, 3)) / SIZE**0.5

    return (along(x[0]) - along(x[1]))[:, None]


def mean_norm(dims: int) -> float:
    """E‖z‖ of a standard Gaussian, √2 Γ((d+1)/2) / Γ(d/2)."""
    return 2**0.5 * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))


def mean_cosine() -> float:
    """E cos(u, X) of X ~ N(m u, I): (m/√2) Γ((d+1)/2) / Γ(d/2 + 1) ₁F₁(1/2; d/2 + 1; −m²/2)."""
    m = SHIFT * SIZE**0.5
    ratio = math.exp(math.lgamma((SIZE + 1) / 2) - math.lgamma(SIZE / 2 + 1))
    return m / 2**0.5 * ratio * float(hyp1f1(0.5, SIZE / 2 + 1, -(m**2) / 2))


def unitized_kurtosis(key: Key[Array, ""]) -> Float[Array, "500 2"]:
    """x₁⁴ and x₁² of Gaussian vectors of R⁸ after Eq. 10 at alpha 1."""
    x = unitize(normal(key, 500, 8), 1.0, eps=1e-12)
    return jnp.stack([x[:, 0] ** 4, x[:, 0] ** 2], 1)


# Exact distances of many pairs of discrete distributions.


@cache
def _pairs() -> tuple[np.ndarray, np.ndarray]:
    """Heavy-tailed pairs at scales from 0.01 to 100, with exact zeros, and opposite points."""
    rng = np.random.default_rng(0)
    scale = 10 ** rng.uniform(-2, 2, (2, CASES, 1, 1))
    x, y = rng.standard_t(2.1, (2, CASES, POINTS, FEATURES)) * scale
    x[::3] += 3 * rng.normal(size=x[::3, :1].shape)
    y[::7, 0] = 0
    # Every point of one at R e₁ and of the other at −R e₁: where bounds are attained.
    x[:20] = 0
    x[:20, :, 0] = np.geomspace(1e-3, 1e6, 20)[:, None]
    y[:20] = -x[:20]
    return x, y


def _distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Exact earth mover distances, by assignment."""
    costs = np.linalg.norm(x[:, :, None] - y[:, None], axis=-1)
    found = []
    for cost in costs:
        found.append(cost[scipy.optimize.linear_sum_assignment(cost)].mean())
    return np.array(found)


def _statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(1), x.var(1)


def _each(bound: Callable, *arguments: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(bound))(*map(jnp.asarray, arguments)))


def _excess(distance: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """By how much the distance exceeds the bound, over the bound."""
    return (distance - bound) / np.maximum(bound, 1e-300)


# Computed.


def exact_distances(key: Key[Array, ""]) -> Values:
    """`emd` less the linear programme, less the dual, and less `emd_1d` in one dimension."""
    rng = generator(key)
    x, y = rng.normal(size=(2, 6, 2))
    found = shift.emd(jnp.asarray(x), jnp.asarray(y))
    line = jnp.asarray(x[:, :1]), jnp.asarray(y[:, :1])
    one = shift.emd(*line) - float(shift.emd_1d(*line)[0])
    primal = float(scipy.stats.wasserstein_distance_nd(x, y))
    return [found / primal - 1, found / _dual(x, y) - 1, one]


def facts(key: Key[Array, ""]) -> Values:
    """The dual with the other sign, and with f(0) = 0, over the dual, less 1."""
    rng = generator(key)
    found = []
    for _ in range(5):
        x, y = rng.normal(size=(2, 6, 2))
        value = _dual(x, y)
        found += [_dual(y, x) / value - 1, _dual(x, y, pinned=True) / value - 1]
    return found


def _dual(x: np.ndarray, y: np.ndarray, *, pinned: bool = False) -> float:
    """sup E f(X) − E f(Y) over 1-Lipschitz f, with f(0) = 0 if pinned: Eq. 3."""
    z = np.concatenate([x, y, np.zeros((1, x.shape[1]))])
    i, j = np.nonzero(~np.eye(len(z), dtype=bool))
    rows = np.zeros((len(i), len(z)))
    rows[np.arange(len(i)), i], rows[np.arange(len(i)), j] = 1, -1
    weights = np.concatenate([-np.ones(len(x)) / len(x), np.ones(len(y)) / len(y), [0]])
    bounds = [(None, None)] * (len(z) - 1) + [(0, 0) if pinned else (None, None)]
    limits = np.linalg.norm(z[i] - z[j], axis=1)
    if not pinned:
        bounds[0] = (0, 0)  # f is known up to a constant
    return -scipy.optimize.linprog(weights, rows, limits, bounds=bounds).fun


def simple_bounds(key: Key[Array, ""]) -> Values:
    """‖μ − μ′‖ less W, and W less the mean displacement of pairs, over W."""
    x, y = _pairs()
    distance = _distances(x, y)
    lower = _each(lambda x, y: shift.mean_lower_bound(x.mean(0), y.mean(0)), x, y)
    upper = _each(shift.paired_upper_bound, x, y)
    return np.concatenate([_excess(lower, distance), _excess(distance, upper)])


def distance_bounds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exact distances of discrete pairs, and both forms of Theorem 1's bound, for a figure."""
    x, y = _pairs()
    parts = (*_statistics(x), *_statistics(y))
    printed = _each(shift.moment_upper_bound, *parts)
    return _distances(x, y), printed, _each(shift.sharp_moment_upper_bound, *parts)


def theorem_1(key: Key[Array, ""]) -> Values:
    x, y = _pairs()
    parts = (*_statistics(x), *_statistics(y))
    return _excess(_distances(x, y), _each(shift.moment_upper_bound, *parts))


def moment_bounds_sharp(key: Key[Array, ""]) -> Values:
    """W over √(S + S′ + D²), less 1; and that over S + S′ + D + 1/4, less 1."""
    x, y = _pairs()
    parts = (*_statistics(x), *_statistics(y))
    sharp = _each(shift.sharp_moment_upper_bound, *parts)
    constant = _each(shift.moment_upper_bound, *parts) - 2 + 0.25
    return np.concatenate([_excess(_distances(x, y), sharp), sharp / constant - 1])


def theorem_1_attained(key: Key[Array, ""]) -> Values:
    """W over the sharp bound, less 1, of ±a e₁ and D e₃ ± b e₂; and of ±½ and 0 over ½."""
    a, b, d = 0.3, 0.4, 2.0
    x = np.array([[a, 0, 0], [-a, 0, 0]])
    y = np.array([[0, b, d], [0, -b, d]])
    return [
        float(_distances(x[None], y[None])[0]) / math.sqrt(a**2 + b**2 + d**2) - 1,
        float(_distances(np.array([[[0.5], [-0.5]]]), np.zeros((1, 2, 1)))[0]) / 0.5 - 1,
    ]


def theorem_1_units(key: Key[Array, ""]) -> Values:
    """The bound of 100 x and 100 y over 100 times that of x and y, less 1."""
    rng = generator(key)
    mean, var = rng.normal(size=(2, 3)), rng.uniform(1, 2, (2, 3))
    bounds = [
        float(
            shift.moment_upper_bound(
                *(
                    jnp.asarray(part)
                    for part in (c * mean[0], c**2 * var[0], c * mean[1], c**2 * var[1])
                )
            )
        )
        for c in (1, 100)
    ]
    return bounds[1] / (100 * bounds[0]) - 1


def equation_4(key: Key[Array, ""]) -> Values:
    """Eq. 4 over Theorem 1 of outputs with variances 1 + v, less 1."""
    rng = generator(key)
    e, f = rng.normal(size=(2, 50, 6))
    v, w = rng.uniform(-0.5, 0.5, (2, 50, 6))
    printed = _each(shift.normalized_upper_bound, e, v, f, w)
    return printed / _each(shift.moment_upper_bound, e, 1 + v, f, 1 + w) - 1


def worst_normalized(key: Key[Array, ""]) -> Values:
    """W of ±(1, …, 1) and ±(1, −1, 1, …) over √(2d), less 1: attained with variances 1."""
    found = []
    for d in (2, 8, 64):
        one, sign = np.ones(d), (-1.0) ** np.arange(d)
        x, y = np.stack([one, -one]), np.stack([sign, -sign])
        found.append(float(_distances(x[None], y[None])[0]) / math.sqrt(2 * d) - 1)
    return found


def unbounded_example(key: Key[Array, ""]) -> Values:
    """Theorem 2's bound less W = 5C′/8 of the example in one dimension, over W, k = 2..7."""
    t = (np.arange(4000) + 0.5) / 4000
    found = []
    for c in (1.0, 50.0):
        x, y = c / 2 * (1 + t), c / 4 * t
        distance = float(shift.emd_1d(jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])[0])
        found += [(2.0**-k - 4.0**-k) * c / k / distance - 1 for k in range(2, 8)]
    return found


def distance_of_the_example(key: Key[Array, ""]) -> Values:
    t = (np.arange(4000) + 0.5) / 4000
    x, y = (1 + t) / 2, t / 4
    return float(shift.emd_1d(jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])[0])


def lipschitz_constant(key: Key[Array, ""]) -> Values:
    """|f(v) − f(w)|/‖v − w‖ of f of Theorem 2, less 1, along the corner too; p = 2..5."""
    rng = generator(key)
    v, w = 2 * rng.normal(size=(2, 4000, 3))
    v[:500], w[:500] = 1.0, 1 - 10 ** rng.uniform(-6, -1, (500, 1))
    lengths = np.linalg.norm(v - w, axis=1)
    found = []
    for p in (2, 3, 4, 5):
        f = jax.jit(partial(shift.clipped_power, radius=1.0, p=p))
        found.append(np.abs(f(jnp.asarray(v)) - f(jnp.asarray(w))) / lengths - 1)
    return np.concatenate(found)


def theorem_2(key: Key[Array, ""]) -> Values:
    x, y = _pairs()
    distance = _distances(x, y)
    found = []
    for p, radius in ((2, 1.0), (3, 0.5), (5, 5.0)):
        lower = _each(partial(shift.moment_lower_bound, radius=radius, p=p), x, y)
        found.append(_excess(lower, distance))
    return np.concatenate(found)


def equation_5(key: Key[Array, ""]) -> Values:
    """Eq. 5 less Theorem 2 at p = 2, with C the largest entry."""
    rng = generator(key)
    x, y = rng.normal(size=(2, 40, 9, 3))
    return np.array(
        [
            _equation_5(a, b, max(np.abs(a).max(), np.abs(b).max()))
            for a, b in zip(x, y, strict=True)
        ]
    )


def _equation_5(a: np.ndarray, b: np.ndarray, radius: float) -> float:
    parts = (a.mean(0), a.var(0) - 1, b.mean(0), b.var(0) - 1)
    found = shift.normalized_lower_bound(*map(jnp.asarray, parts), radius=float(radius))
    f = [np.mean(np.sum(x**2, 1)) / (2 * radius * 3**0.5) for x in (a, b)]
    return float(found) - abs(f[0] - f[1])


def equation_5_outside(key: Key[Array, ""]) -> Values:
    """Eq. 5 with C = 1 less W, of one-dimensional samples that leave [−1, 1]."""
    rng = generator(key)
    x, y = rng.standard_t(2.2, (200, 30)), 0.1 * rng.normal(size=(200, 30))
    distance = np.abs(np.sort(x) - np.sort(y)).mean(1)
    printed = np.abs(np.mean(x**2, 1) - np.mean(y**2, 1)) / 2
    return printed - distance


def unit_vectors(key: Key[Array, ""]) -> Values:
    """‖g(x)‖ − 1 of Eq. 6, g(3x) − g(x), and the gradient at 0, which must be finite."""
    x = jnp.asarray(np.vstack([np.zeros(4), generator(key).normal(size=(50, 4))]))
    g = unit_vector(x)
    gradient = jax.grad(lambda x: unit_vector(x).sum())(x)
    gaps = [np.linalg.norm(g, axis=1) - 1, unit_vector(3 * x) - g, 0 * gradient]
    return list(np.concatenate([np.ravel(gap) for gap in gaps]))


def _unitized(alpha: float | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs, and their exact distance after Eq. 6, 8 or 9."""
    x, y = _pairs()
    given = jnp.asarray(alpha)
    f, g = (np.asarray(unitize_bounded(jnp.asarray(part), given)) for part in (x, y))
    if np.ndim(alpha) == 0 and alpha == 1:
        f, g = (np.asarray(unit_vector(jnp.asarray(part))) for part in (x, y))
    return x, y, _distances(f, g)


def transported_distances(key: Key[Array, ""]) -> Values:
    """W of the outputs less the value of the dual for them: Eq. 7."""
    rng = generator(key)
    x, y = (np.asarray(unit_vector(jnp.asarray(rng.normal(size=(6, 2))))) for _ in range(2))
    return [shift.emd(jnp.asarray(x), jnp.asarray(y)) / _dual(x, y) - 1]


def theorem_31(key: Key[Array, ""]) -> Values:
    return _unitized(1.0)[2] / 2 - 1


def theorem_31_sharp(key: Key[Array, ""]) -> Values:
    """W less √(2 − 2⟨E g(X), E g(Y)⟩)."""
    x, y, distance = _unitized(1.0)
    m, n = (np.asarray(unit_vector(jnp.asarray(part))).mean(1) for part in (x, y))
    return distance - np.sqrt(np.maximum(2 - 2 * (m * n).sum(1), 0))


def stretch(key: Key[Array, ""]) -> Values:
    """W of Eq. 8's outputs over W/(1 − alpha), less 1."""
    x, y = _pairs()
    return np.concatenate(
        [_excess(_unitized(a)[2], _distances(x, y) / (1 - a)) for a in (0.0, 0.3, 0.9)]
    )


def increases(key: Key[Array, ""]) -> Values:
    """W of ±10⁻³ e₁ after Eq. 8 at alpha 0.9 over W: printed as a reduction, at most 1."""
    x = jnp.asarray([[1e-3, 0.0]])
    y = unitize_bounded(x, jnp.asarray(0.9)), unitize_bounded(-x, jnp.asarray(0.9))
    return shift.emd(*y) / shift.emd(x, -x) - 1


def _upper(bound: Callable, alphas: tuple) -> Iterator[np.ndarray]:
    for alpha in alphas:
        x, y, distance = _unitized(np.asarray(alpha))
        yield _excess(distance, _each(partial(bound, jnp.asarray(alpha)), x, y))


_SCALARS = (0.0, 0.1, 0.5, 0.9)
_VECTORS = ((0.0, 1.0, 0.5, 0.2), (0.3, 0.9, 1.0, 0.4), (0.0, 0.0, 0.1, 0.0))


def theorem_32(key: Key[Array, ""]) -> Values:
    return np.concatenate(list(_upper(shift.unitized_upper_bound, _SCALARS)))


def theorem_32_sharp(key: Key[Array, ""]) -> Values:
    return np.concatenate(list(_upper(shift.sharp_unitized_upper_bound, _SCALARS)))


def theorem_33(key: Key[Array, ""]) -> Values:
    return np.concatenate(list(_upper(shift.unitized_upper_bound, _VECTORS)))


def theorem_33_sharp(key: Key[Array, ""]) -> Values:
    return np.concatenate(list(_upper(shift.sharp_unitized_upper_bound, _VECTORS)))


def two_is_needed(key: Key[Array, ""]) -> Values:
    """W of (0, ±δ) at alpha (0, 1): 2, while E‖X‖ + E‖Y‖ = 2δ."""
    x = jnp.asarray([[0.0, 1e-6]])
    y = (unitize_bounded(part, jnp.asarray([0.0, 1.0])) for part in (x, -x))
    return shift.emd(*y)


def different_alphas(key: Key[Array, ""]) -> Values:
    """W of outputs of alpha 0.3 and 0.8 over 1/0.3 + 1/0.8, less 1."""
    x, y = (jnp.asarray(part) for part in _pairs())
    f, g = unitize_bounded(x, jnp.asarray(0.3)), unitize_bounded(y, jnp.asarray(0.8))
    return _distances(np.asarray(f), np.asarray(g)) / (1 / 0.3 + 1 / 0.8) - 1


def singular_radii(key: Key[Array, ""]) -> Values:
    """1 + alpha (r − 1) at r = 1 − 1/alpha for alpha outside [0, 1], and excess of min(1, r)."""
    zeros = [1 + a * (1 - 1 / a - 1) for a in (-0.5, 2.0, -3.0)]
    rng = generator(key)
    a, r = rng.uniform(0, 1, 1000), 10 ** rng.uniform(-3, 3, 1000)
    below = np.maximum(np.minimum(1, r) - (1 + a * (r - 1)), 0)
    return [*zeros, float(below.max())]


def harmonic_and_arithmetic(key: Key[Array, ""]) -> Values:
    """|Eq. 9| less |Eq. 10| for alpha in [0, 1]: Eq. 10 is never smaller."""
    rng = generator(key)
    x = rng.standard_t(2, (500, 4))
    alpha = jnp.asarray(rng.uniform(0, 1, 4))
    nine, ten = unitize_bounded(jnp.asarray(x), alpha), unitize(jnp.asarray(x), alpha, eps=1e-14)
    return np.asarray((jnp.abs(nine) - jnp.abs(ten)) / jnp.abs(nine))


def uncovered(key: Key[Array, ""]) -> Values:
    """W of Eq. 10's outputs over 2/alpha, less 1, of points ±R e₁."""
    found = []
    for alpha, length in ((0.5, 100.0), (0.9, 1e4)):
        _, _, distance = shift.interpolation_counterexample(alpha, length=length)
        found.append(distance / (2 / alpha) - 1)
    return found


def interpolated_bound(key: Key[Array, ""]) -> Values:
    x, y = _pairs()
    found = []
    for alpha in (0.0, 0.5, 1.0, _VECTORS[1]):
        f, g = (
            np.asarray(unitize(jnp.asarray(part), jnp.asarray(alpha), eps=0.0))
            if alpha != 0.0
            else part
            for part in (x, y)
        )
        bound = _each(partial(shift.interpolated_upper_bound, jnp.asarray(alpha)), x, y)
        found.append(_excess(_distances(np.nan_to_num(f), np.nan_to_num(g)), bound))
    return np.concatenate(found)


def counterexample(key: Key[Array, ""]) -> Values:
    """W of Eq. 10's outputs over 2(alpha + (1 − alpha)R), less 1."""
    found = []
    for alpha in (0.2, 0.5, 0.9):
        x, y, distance = shift.interpolation_counterexample(alpha, length=30.0)
        moved = (unitize(part, alpha, eps=1e-14) for part in (x, y))
        found.append(shift.emd(*moved) / distance - 1)
    return found


def algorithm_1(key: Key[Array, ""]) -> Values:
    """The layer less Algorithm 1 line by line; and at alpha 0, whose variance is 1."""
    rng = generator(key)
    x, alpha, gamma, beta = rng.normal(2, 3, (20, 5)), *rng.uniform(0, 1, (3, 5))
    data, *parameters = map(jnp.asarray, (x, alpha, gamma, beta))
    y, _ = unitized_batch_norm(data, parameters[0], *parameters[1:], eps=1e-3)  # pyright: ignore[reportArgumentType]
    hat = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    p = 1 / np.sqrt(np.square(hat).sum(1, keepdims=True) + 1e-3)
    return np.asarray(y) - (gamma * (p * alpha + 1 - alpha) * hat + beta)


def algorithm_2(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, alpha = rng.normal(2, 3, (6, 4, 3, 5)), rng.uniform(0, 1, 5)
    y, _ = unitized_batch_norm(jnp.asarray(x), jnp.asarray(alpha), eps=1e-3)
    hat = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3)
    s = np.square(hat).sum((1, 2, 3), keepdims=True) / 12**2
    p = 1 / np.sqrt(s + 1e-3)
    return np.asarray(y) - (p * alpha + 1 - alpha) * hat


def norms_of_images(key: Key[Array, ""]) -> Values:
    """Norms of images at alpha 1 over HW, less 1: Theorem 3.1 would have 1 in place of HW."""
    x = jnp.asarray(generator(key).normal(size=(7, HEIGHT, WIDTH, 3)))
    y, _ = unitized_batch_norm(x, jnp.ones(3), eps=1e-12)
    return np.asarray(jnp.sqrt(jnp.square(y).sum((1, 2, 3)))) / (HEIGHT * WIDTH) - 1


def permuted_pixels(key: Key[Array, ""]) -> Values:
    """Figure 1 (c): the layer of permuted pixels less the permuted layer."""
    x = jnp.asarray(generator(key).normal(size=(5, 4, 4, 3)))
    alpha = jnp.asarray([0.2, 0.5, 1.0])
    y, other = (unitized_batch_norm(part, alpha)[0] for part in (x, x[:, ::-1, ::-1]))
    return np.asarray(other - y[:, ::-1, ::-1])


def running_variance(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(size=(9, 3))
    found = batch_statistics(jnp.asarray(x))
    corrected = found.var * bessel(found.count)
    return list(np.asarray(corrected) - x.var(0, ddof=1))


def recovered_norms(key: Key[Array, ""]) -> Values:
    """r recovered from the norms after Eqs. 8 and 10 over r, less 1, alpha < 1."""
    r = 10 ** generator(key).uniform(-2, 2, 300)
    x = jnp.asarray(r)[:, None]
    found = []
    for alpha in (0.2, 0.9):
        t = np.asarray(unitize_bounded(x, jnp.asarray(alpha)))[:, 0]
        u = np.asarray(unitize(x, alpha, eps=1e-14))[:, 0]
        found += [(1 - alpha) * t / (1 - alpha * t) / r - 1, (u - alpha) / (1 - alpha) / r - 1]
    return np.concatenate(found)


def moments_of_a_sample(key: Key[Array, ""]) -> Values:
    """Skewness and kurtosis against SciPy's."""
    x = generator(key).gamma(2, size=500)
    found = moments(jnp.asarray(x))
    return [
        float(found.skewness) - scipy.stats.skew(x),
        float(found.kurtosis) - scipy.stats.kurtosis(x, fisher=False),
    ]


def table_differences(key: Key[Array, ""]) -> Values:
    """Gains of Tables 1 and 2, less those in the text."""
    pairs = (
        (91.79, 92.21),
        (93.99, 94.12),
        (94.34, 94.62),
        (66.43, 67.49),
        (72.27, 73.31),
        (76.56, 77.58),
    )
    text = (0.42, 0.13, 0.28, 1.06, 1.04, 1.02)
    return [b - a - gain for (a, b), gain in zip(pairs, text, strict=True)]


def top_five(key: Key[Array, ""]) -> Values:
    """Batch norm's top-5 accuracy less unitization's in Table 3's first evaluation, in points."""
    return 93.45 - 93.22


def micro_batches(key: Key[Array, ""]) -> Values:
    """Best group norm of Table 4 less unitization, in points."""
    return max(71.63, 73.76, 79.54, 73.58, 70.68, 72.04) - 81.88


def critic(key: Key[Array, ""]) -> Values:
    """The value of Algorithm 3 over the distance, 8, of two samples that are a shift apart."""
    y = normal(key, 128, 2)
    x = y + 8 / 2**0.5
    found = shift.emd_critic(jax.random.fold_in(key, 1), x, y, x, y, steps=20)
    return float(found) / 8
