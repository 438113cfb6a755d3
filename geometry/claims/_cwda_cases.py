"""What the checks of the pruning paper draw and compute.

Filters are rows, of standard deviation 1 where no other is said. Functions of a key return draws in
float32, or the values of many cases in float64: differences that should be 0, or excesses over a
bound.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.special
import scipy.stats
from jaxtyping import Array, Float, Key

import geometry
import pruning
from geometry.claims._claim import Values, exponent, generator, normal
from geometry.claims._printed_tables import FINE_TUNED, PRUNED, TABLE_1

DIMS = 9
FILTERS, LONG = 64, 144  # of the layers that are drawn
FIGURE = (128, 576)  # filters and dims of the layer of Figure 1 that is cheaper to draw
RATIO_DIMS = 64
SUMS = (10, 9)  # vectors and dims of Theorem 3
SHARED = (20, 100)  # the same, where vectors share a point
SMALL = 0.05  # a standard deviation that shows wrong units
LEMMA = 20
TESTED = 100  # weights of the Kolmogorov-Smirnov tests
SPREAD = (16, 144)  # filters and dims of the tests of standard deviations
MEAN_TESTED, MARGIN = 500, 0.1


def mean_norm(dims: int | float) -> float:
    """E‖v‖ in float64."""
    return float(pruning.chi_moment(1.0, float(dims), 1))


def norm_cv2(dims: int | float) -> float:
    """Squared coefficient of variation of ‖v‖: q − 1."""
    return float(pruning.chi_variance(1.0, float(dims))) / mean_norm(dims) ** 2


def repr_cv2() -> float:
    """Squared coefficient of variation of RePr's scores in a layer, whose cosines they share."""
    log_mean = scipy.special.gammaln([LONG / 2, (LONG + 1) / 2]) @ [1, -1] - math.log(math.pi) / 2
    of_cosine = math.exp(-2 * log_mean) / LONG - 1
    return of_cosine * (FILTERS - 2) / (FILTERS - 1) ** 2


def l1_mean(dims: int) -> float:
    return dims * float(pruning.half_normal_moment(1.0, 1))


# Draws.


def three_filters(key: Key[Array, ""]) -> Float[Array, "1000 16"]:
    v = normal(key, 1000, 3, DIMS)
    a, b, c = v[:, 0], v[:, 1], v[:, 2]
    norm, other = jnp.linalg.norm(a, axis=1), jnp.linalg.norm(b, axis=1)
    product = (a * b).sum(1)
    cosine = product / (norm * other)
    near, far = jnp.linalg.norm(a - b, axis=1), jnp.linalg.norm(a - c, axis=1)
    l1 = jnp.abs(a).sum(1)
    x, y = (part - part.mean(1, keepdims=True) for part in (a, b))
    correlation = (x * y).sum(1) / (jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(y, axis=1))
    scale = jnp.exp(0.5 * normal(jax.random.fold_in(key, 1), 1000))
    pull = jnp.zeros(DIMS, jnp.float32).at[0].set(2.0)
    return jnp.stack(
        [
            norm,
            jnp.abs(a[:, 0]),
            l1,
            cosine,
            jnp.abs(cosine),
            jnp.arccos(cosine),
            near,
            norm - other,
            near - far,
            (jnp.square(near) - 2 * DIMS) * (jnp.square(far) - 2 * DIMS),
            (l1 / l1_mean_of(DIMS) - 1) * (norm / mean_norm_of(DIMS) - 1),
            0.49 * product / DIMS**0.5,
            jnp.square(correlation),
            scale * norm / mean_norm_of(DIMS),
            jnp.linalg.norm(1.7 * a - pull[None], axis=1),
            -jnp.square(a[:, 0]),
        ],
        axis=1,
    )


def mean_norm_of(dims: int) -> float:
    """`mean_norm` without waking a device while tracing."""
    return 2**0.5 * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))


def l1_mean_of(dims: int) -> float:
    return dims * (2 / math.pi) ** 0.5


def norm_ratios(key: Key[Array, ""]) -> Float[Array, "500 3"]:
    """l1/l2, l2/l1, and l1/l2 of different filters, all scaled to mean 1."""
    v = normal(key, 500, 2, RATIO_DIMS)
    l1 = jnp.abs(v).sum(2) / l1_mean_of(RATIO_DIMS)
    l2 = jnp.linalg.norm(v, axis=2) / mean_norm_of(RATIO_DIMS)
    return jnp.stack([l1[:, 0] / l2[:, 0], l2[:, 0] / l1[:, 0], l1[:, 0] / l2[:, 1]], 1)


def independent_ratio_variance() -> float:
    """Var of l1(X)/l2(X′) for independent X and X′, both scaled to mean 1."""
    first, second = (
        float(pruning.chi_moment(1.0, float(RATIO_DIMS), -j)) * mean_norm(RATIO_DIMS) ** j
        for j in (1, 2)
    )
    return (1 + (math.pi / 2 - 1) / RATIO_DIMS) * second - first**2


def norm_sums(key: Key[Array, ""]) -> Float[Array, "500 2"]:
    n, dims = SUMS
    norms = jnp.linalg.norm(normal(key, 500, n, dims), axis=2)
    f1, f2 = norms.sum(1) / (n * mean_norm_of(dims)), jnp.square(norms).sum(1) / (n * dims)
    return jnp.stack([f1 / f2, f2 / f1], 1)


def sums_of_a_shared_point(key: Key[Array, ""]) -> Float[Array, "20 1"]:
    n, dims = SHARED
    v = normal(key, 20, n + 1, dims)
    norms = jnp.linalg.norm(v[:, :1] - v[:, 1:], axis=2)
    f1 = norms.sum(1) / (n * 2**0.5 * mean_norm_of(dims))
    return (f1 / (jnp.square(norms).sum(1) / (2 * n * dims)))[:, None]


def _numerator(x: Array, y: Array) -> Array:
    return jnp.square(jnp.square(x).sum(-1) - jnp.square(y).sum(-1))


def lemma_3(key: Key[Array, ""]) -> Float[Array, "500 6"]:
    """A, B, c²A/B, (A/B)², c²B and (‖x‖ − ‖y‖)²/(2‖x‖‖y‖)."""
    x, y = normal(key, 2, 500, LEMMA)
    a = _numerator(x, y)
    norms = jnp.linalg.norm(x, axis=1), jnp.linalg.norm(y, axis=1)
    b = 2 * norms[0] * norms[1]
    small = SMALL**2
    gap = jnp.square(norms[0] - norms[1]) / b
    return jnp.stack([a, b, small * a / b, jnp.square(a / b), small * b, gap], 1)


def lemma_3_in_5(key: Key[Array, ""]) -> Float[Array, "1000 1"]:
    """A in 5 dimensions, where the printed variance is farthest off."""
    return _numerator(*normal(key, 2, 1000, 5))[:, None]


def lemma_3_in_12(key: Key[Array, ""]) -> Float[Array, "1000 1"]:
    """A/B in 12 dimensions."""
    x, y = normal(key, 2, 1000, 12)
    b = 2 * jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(y, axis=1)
    return (_numerator(x, y) / b)[:, None]


def layers(key: Key[Array, ""]) -> Float[Array, "17"]:
    """Of a layer: rank correlations, squared CVs, Fermat point and centroid, covariance."""
    v = normal(key, FILTERS, LONG)
    found = pruning.scores(v)
    ranks = [pruning.spearman(found[a], found[b]) for a, b in pruning.PAIRS]
    every = [*(found[name] for name in ("l1", "l2", "fermat", "gm")), pruning.repr_score(v)]
    spread = [jnp.var(x, ddof=1) / jnp.square(x.mean()) for x in every]
    median, centroid = pruning.geometric_median(v), v.mean(0)
    c = v @ v.T / LONG
    off = jnp.square(c).sum() - jnp.square(jnp.diagonal(c)).sum()
    unrelated = pruning.l2_norm(normal(jax.random.fold_in(key, 1), FILTERS, LONG))
    fermat, gm = (found[name] / found[name].mean() for name in ("fermat", "gm"))
    others = [
        jnp.square(median).sum(),
        jnp.square(centroid).sum(),
        off / (FILTERS * (FILTERS - 1)),
        jnp.linalg.eigvalsh(pruning.covariance(v))[-1],
        pruning.spearman(found["l2"], unrelated),
        jnp.var(fermat / gm),
    ]
    return jnp.stack([x.astype(jnp.float32) for x in (*ranks, *spread, *others)])


LAYER_STATISTICS = {
    name: i
    for i, name in enumerate(
        [
            *("-".join(pair) for pair in pruning.PAIRS),
            *(f"CV² {name}" for name in ("l1", "l2", "fermat", "gm", "repr")),
            *("‖F‖²", "‖G‖²", "off-diagonal", "eigenvalue", "unrelated", "Fermat/GM"),
        ]
    )
}


def figure_1(key: Key[Array, ""]) -> Float[Array, "1"]:
    v = normal(key, *FIGURE)
    return pruning.spearman(pruning.l1_norm(v), pruning.l2_norm(v))[None]


def random_rankings(key: Key[Array, ""]) -> Float[Array, "1"]:
    x = normal(key, 2, 64)
    return pruning.overlap(x[0], x[1], ratio=0.5)[None]


def plain_ks(key: Key[Array, ""]) -> Float[Array, "2"]:
    """Whether √n D exceeds 1.358, with mean and scale known and with both estimated."""
    x = normal(key, TESTED)
    fitted = (x - x.mean()) / jnp.std(x, ddof=1)
    found = jnp.stack([pruning.ks_distance(part, scale=1.0) for part in (x, fitted)])
    return (found * TESTED**0.5 > 1.358).astype(x.dtype)


def ks_size() -> float:
    """Exact size of the plain test with known parameters at the asymptotic 5 % point."""
    return float(scipy.stats.kstwo.sf(1.358 / TESTED**0.5, TESTED))


def exact_ks(key: Key[Array, ""]) -> Float[Array, "1"]:
    """p-value of the test of Lilliefors with 19 fresh samples: uniform on 1/20, …, 1."""
    data, fresh = jax.random.split(key)
    return pruning.lilliefors(fresh, normal(data, 50), samples=19)[1][None]


def std_tests(key: Key[Array, ""]) -> Float[Array, "3"]:
    """σ of one filter, and whether the two tests reject a spread at their margin, at 5 %."""
    v = normal(key, *SPREAD)
    margin = norm_cv_of(SPREAD[1] - 1)
    p_values = (pruning.std_t_test(v, eps=margin)[1], pruning.std_equivalence(v, delta=margin)[1])
    return jnp.stack([pruning.filter_stds(v)[0], *((p < 0.05).astype(v.dtype) for p in p_values)])


def many_stds(key: Key[Array, ""]) -> Float[Array, "1000 1"]:
    return pruning.filter_stds(normal(key, 1000, SPREAD[1]))[:, None]


def norm_cv_of(dims: int) -> float:
    return (dims / mean_norm_of(dims) ** 2 - 1) ** 0.5


def mean_tests(key: Key[Array, ""]) -> Float[Array, "1"]:
    p = pruning.mean_equivalence(normal(key, MEAN_TESTED), eps=MARGIN)[1]
    return (p < 0.05).astype(jnp.float32)[None]


def mean_test_power() -> float:
    """P(|mean| + t S/√n < eps S) at mean 0, exactly: an integral over S."""
    n = MEAN_TESTED
    width = MARGIN * n**0.5 - scipy.stats.t.isf(0.05, n - 1)

    def given(square: float) -> float:
        inside = 2 * scipy.stats.norm.cdf(width * (square / (n - 1)) ** 0.5) - 1
        return float(inside * scipy.stats.chi2.pdf(square, n - 1))

    return scipy.integrate.quad(given, n / 2, 2 * n)[0]


# Computed.


def invariances(key: Key[Array, ""]) -> Values:
    """Scores of permuted and (but for l1) of rotated filters less those of the filters."""
    rng = generator(key)
    v = rng.normal(size=(20, 12))
    rotation, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    run = jax.jit(pruning.scores)
    plain, permuted, rotated = (run(jnp.asarray(x)) for x in (v, v[:, ::-1], v @ rotation))
    gaps = [permuted[name] - plain[name] for name in plain]
    gaps += [rotated[name] - plain[name] for name in plain if name != "l1"]
    return np.concatenate([np.asarray(gap) for gap in gaps])


def table_1(key: Key[Array, ""]) -> Values:
    """Filters that each two criteria share, less those that the ledger counted."""
    expected = ((5, 7, 7, 6, 6, 8), (8,) * 6)
    found = []
    for lists, counts in zip(TABLE_1.values(), expected, strict=True):
        pairs = itertools.combinations([set(chosen) for chosen in lists], 2)
        found += [len(a & b) - count for (a, b), count in zip(pairs, counts, strict=True)]
    return found


def table_1_overlap(key: Key[Array, ""]) -> Values:
    return float(pruning.expected_overlap(256, 2304, ("l1", "l2"), ratio=8 / 256))


def medians(key: Key[Array, ""]) -> Values:
    """Fermat points of known place, and the share of Σ‖x − v‖ that a better one could save."""
    rng = generator(key)
    find = jax.jit(pruning.geometric_median)
    turn = 2 * math.pi * np.arange(3) / 3
    inner = np.array([[0.0, 0], [4, 0], [0, 4], [1, 1]])
    square = np.array([[0.0, 0], [2, 0], [3, 3], [0, 1]])
    # The diagonals of the second quadrilateral, from (0, 0) to (3, 3) and from (2, 0) to (0, 1).
    known = (
        (np.stack([np.cos(turn), np.sin(turn)], 1), (0, 0)),
        (np.array([[0.0, 0], [5, 0.1], [-5, 0.1]]), (0, 0)),
        (inner, (1, 1)),
        (square, (2 / 3, 2 / 3)),
    )
    gaps = [np.asarray(find(jnp.asarray(v))) - place for v, place in known]
    layer = rng.standard_t(2, (10, 4))
    both = jnp.asarray(np.concatenate([layer, -layer]))
    gaps.append(np.asarray(find(both)))
    spread = jnp.asarray(rng.standard_t(2, (20, 4)))
    gaps.append(np.atleast_1d(pruning.optimality_gap(find(spread), spread)))
    return np.concatenate(gaps)


def overlap_at_one_half(key: Key[Array, ""]) -> Values:
    """Φ₂(0, 0; ρ)/½ less ½ + asin(ρ)/π."""
    rho = float(pruning.l1_l2_correlation(64.0))
    found = float(pruning.expected_overlap(64, 64.0, ("l1", "l2"), ratio=0.5))
    return [found - 0.5 - math.asin(rho) / math.pi]


def least_overlap(key: Key[Array, ""]) -> Values:
    """max(0, 2 − 1/p) less the overlap, of unrelated and of opposite rankings."""
    scores = jnp.asarray(generator(key).normal(size=(200, 20)))
    found = [
        jax.jit(jax.vmap(lambda x, y, ratio=ratio: pruning.overlap(x, y, ratio=ratio)))(
            scores, other
        )
        for ratio in (0.3, 0.8)
        for other in (scores[::-1], -scores)
    ]
    least = [max(0, 2 - 1 / ratio) for ratio in (0.3, 0.3, 0.8, 0.8)]
    return np.concatenate([b - np.asarray(a) for a, b in zip(found, least, strict=True)])


def distances_to_a_gaussian(key: Key[Array, ""]) -> Values:
    """Of a uniform and of a normal law truncated at 2 σ, less those of the ledger."""
    x = np.linspace(-4, 4, 2_000_001)
    normal_law = scipy.stats.norm.cdf(x)
    uniform = np.clip(x / 12**0.5 + 0.5, 0, 1)
    cut = scipy.stats.truncnorm(-2, 2)
    truncated = cut.cdf(x * cut.std())
    return [
        float(np.abs(law - normal_law).max() - expected)
        for law, expected in ((uniform, 0.057207), (truncated, 0.016665))
    ]


def units_of_the_literal_test(key: Key[Array, ""]) -> Values:
    """p-value of weights of deviation 0.02 less that of the same weights in another unit."""
    return _change_with_unit(pruning.mean_t_test, key)


def units_of_the_test(key: Key[Array, ""]) -> Values:
    return _change_with_unit(pruning.mean_equivalence, key)


def _change_with_unit(test: object, key: Array) -> float:
    x = generator(key).normal(size=4000)
    run = jax.jit(lambda x: test(x, eps=0.05)[1])  # pyright: ignore[reportCallIssue]
    return float(run(jnp.asarray(x)) - run(jnp.asarray(0.02 * x)))


def log_ratios(key: Key[Array, ""]) -> Values:
    """√(1 − η²) less Pearson's correlation of two logs, η² = Var(log x/y)/Var(log y)."""
    rng = generator(key)
    found = []
    for share in np.geomspace(1e-3, 1, 40):
        y, noise = rng.standard_t(4, (2, 50))
        x = y + share * noise
        if np.var(x - y) <= np.var(y):
            eta2 = np.var(x - y) / np.var(y)
            found.append(math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1]))
    return found


def theorem_1_bound(key: Key[Array, ""]) -> Values:
    """n times the larger ratio variance, less 1: printed as ≲ 1/n."""
    return [n * max(pruning.l1_l2_ratio_variance(n)) - 1 for n in _SIZES]


def theorem_1_sharp(key: Key[Array, ""]) -> Values:
    return [2 * n * max(pruning.l1_l2_ratio_variance(n)) - (math.pi - 3) for n in _SIZES]


def theorem_1_rate(key: Key[Array, ""]) -> Values:
    """Exponents with which n Var tends to (π − 3)/2, of both ratios."""
    found = np.array([pruning.l1_l2_ratio_variance(n) for n in _SIZES[3:]])
    sizes = np.array(_SIZES[3:])
    return [exponent(sizes, sizes * var - (math.pi - 3) / 2) for var in found.T]


_SIZES = (2, 3, 9, 64, 256, 576, 2304)


def delta_method_rate(key: Key[Array, ""]) -> Values:
    """Exponent of the relative error of Lemma 1 for l1/l2."""
    sizes = np.array([64, 256, 1024, 4096])
    approximate = np.array([(math.pi / 2 - 1) / n - norm_cv2(n) for n in sizes])
    exact = np.array([pruning.l1_l2_ratio_variance(int(n))[0] for n in sizes])
    return exponent(sizes, approximate / exact - 1)


def correlation_rate(key: Key[Array, ""]) -> Values:
    sizes = (16, 64, 256, 1024)
    limit = 1 / math.sqrt(math.pi - 2)
    return exponent(sizes, [float(pruning.l1_l2_correlation(float(n))) - limit for n in sizes])


def limit_of_spearman(key: Key[Array, ""]) -> Values:
    """Of l1 and l2, many filters in many dimensions."""
    return float(pruning.expected_spearman(10**6, 1e6, ("l1", "l2")))


def distance_grows(key: Key[Array, ""]) -> Values:
    """E‖F − v‖ nearer the centre less that farther away."""
    lengths = jnp.linspace(0, 40, 81)
    run = jax.jit(jax.vmap(pruning.expected_distance, (0, None, None)))
    found = [np.asarray(run(lengths, 1.3, dims)) for dims in (1.0, 9.0, 576.0)]
    return np.concatenate([-np.diff(x) for x in found])


def theorem_3_rate(key: Key[Array, ""]) -> Values:
    """Exponents with which 2nk Var tends to 1 as k grows, n = 10."""
    sizes = (50, 100, 200, 400)
    found = np.array([pruning.norm_sum_ratio_variance(10, k) for k in sizes])
    return [exponent(sizes, 20 * np.array(sizes) * var - 1) for var in found.T]


def theorem_3_units(key: Key[Array, ""]) -> Values:
    """F₁/F₂ of vectors of deviation 0.01 and of 10, over their values at 1."""
    v = generator(key).normal(size=(50, 10, 9))

    def ratio(c: float) -> np.ndarray:
        norms = np.linalg.norm(c * v, axis=2)
        return norms.sum(1) / c / (np.square(norms).sum(1) / c**2)

    return np.concatenate([ratio(c) / ratio(1.0) - 1 for c in (0.01, 10.0)])


def transitivity(key: Key[Array, ""]) -> Values:
    """r₁₂ r₂₃ − √((1 − r₁₂²)(1 − r₂₃²)) less r₁₃, of ranks of random and of tilted triples."""
    rng = generator(key)
    found = []
    for tilt in np.linspace(0, 1.5, 60):
        base = rng.normal(size=(3, 30))
        noise = base[1] * math.sin(tilt)
        triple = np.stack([base[0] + noise, base[0], base[0] - noise])
        r = np.corrcoef(scipy.stats.rankdata(triple, axis=1))
        found.append(
            r[0, 1] * r[1, 2] - math.sqrt((1 - r[0, 1] ** 2) * (1 - r[1, 2] ** 2)) - r[0, 2]
        )
    return found


def leibniz(key: Key[Array, ""]) -> Values:
    """Relative gap of Theorem 4's sides: many, few, flat, equal, single, heavy-tailed points."""
    rng = generator(key)
    clouds = (
        rng.normal(size=(9, 4)),
        rng.normal(size=(3, 7)),
        rng.normal(size=(9, 2)) @ np.ones((2, 6)),
        np.outer(np.arange(5.0), [1.0, 2.0, -1.0]),
        np.ones((6, 3)),
        np.ones((1, 3)),
        rng.standard_cauchy((20, 5)),
    )
    found = []
    for v in clouds:
        centroid = v.mean(0)
        for p in (centroid, v[0], rng.normal(size=v.shape[1])):
            sides = (
                np.square(v - p).sum(),
                np.square(v - centroid).sum() + len(v) * np.square(p - centroid).sum(),
            )
            found.append((sides[0] - sides[1]) / max(*sides, 1e-300))
    return found


def table_4(key: Key[Array, ""]) -> Values:
    """Largest and mean spread over criteria, and Friedman's p, less the ledger's."""
    found = []
    for table in (FINE_TUNED, PRUNED):
        rows = np.reshape(table, (18, 3))
        spread = np.ptp(rows, axis=1)
        p = scipy.stats.friedmanchisquare(*rows.T).pvalue
        found += [spread.max(), spread.mean(), p]
    return list(np.array(found) - [0.35, 0.1956, 0.126, 8.32, 1.79, 0.0286])


def alike_before_tuning(key: Key[Array, ""]) -> Values:
    """Largest spread of the criteria over that after fine-tuning, less a factor of 3."""
    return float(np.ptp(np.reshape(PRUNED, (18, 3)), axis=1).max()) / 0.35 - 3


def covariance_of_filters(key: Key[Array, ""]) -> Values:
    v = generator(key).normal(0.3, 1, (20, 50))
    mean = v.mean(1)
    return np.asarray(pruning.covariance(jnp.asarray(v))) * 49 / 50 - (
        v @ v.T / 50 - np.outer(mean, mean)
    )


def largest_cosine(key: Key[Array, ""]) -> Values:
    """Welch's bound less max|cos|, of Gaussian filters and of a simplex, where it is attained."""
    rng = generator(key)
    simplex = np.eye(6) - 1 / 6
    basis = np.linalg.svd(simplex)[0][:, :5]
    found = []
    for v in (*rng.normal(size=(40, 12, 5)), simplex @ basis):
        unit = v / np.linalg.norm(v, axis=1, keepdims=True)
        largest = np.abs(unit @ unit.T - np.eye(len(v))).max()
        found.append(geometry.welch_bound(*v.shape) - largest)
    return found


def norms_alike_rate(key: Key[Array, ""]) -> Values:
    """Exponent with which the CV of a norm falls with the dimension."""
    sizes = (64, 256, 1024)
    return exponent(sizes, [math.sqrt(norm_cv2(d)) for d in sizes])


def constant_gains(key: Key[Array, ""]) -> Values:
    return float(pruning.ks_distance(jnp.asarray(np.ones(512))))


def amoroso(key: Key[Array, ""]) -> Values:
    """Moments by quadrature over `amoroso_moment`, less 1."""
    found = []
    for theta, alpha, beta in ((1.5, 1.5, 2.0), (2.0, 0.7, 1.3), (0.5, 4.5, 2.0)):
        for order in (1, 2):

            def moved(z: float, order: int = order, a: float = alpha, b: float = beta) -> float:
                return z ** (order + a * b - 1) * math.exp(-(z**b)) * b / math.gamma(a)

            integral = theta**order * scipy.integrate.quad(moved, 0, 30)[0]
            found.append(integral / float(pruning.amoroso_moment(0, theta, alpha, beta, order)) - 1)
    return found


def amoroso_without_variance(key: Key[Array, ""]) -> Values:
    """The printed second moment where the integral diverges: it should not be negative."""
    theta, alpha, beta = 1.5, 1.5, -1.0
    first, second = (math.gamma(alpha + j / beta) / math.gamma(alpha) for j in (1, 2))
    return -(theta**2) * (second - first**2)


def amoroso_infinite(key: Key[Array, ""]) -> Values:
    """1 unless the second moment is said to be infinite."""
    return float(np.isfinite(float(pruning.amoroso_moment(0, 1.5, 1.5, -1.0, 2))))


def half_normal(key: Key[Array, ""]) -> Values:
    return [
        float(pruning.half_normal_moment(1.7, j))
        / (1.7**j * 2 ** (j / 2) * math.gamma((j + 1) / 2) / math.pi**0.5)
        - 1
        for j in (1, 2, 3, 4, 5.5)
    ]


def chi_law(key: Key[Array, ""]) -> Values:
    """Moments and variance against SciPy's chi, and h(k) < 1/4 growing."""
    found = []
    for k in (1, 2, 9, 64):
        law = scipy.stats.chi(k, scale=1.3)
        found.append(float(pruning.chi_moment(1.3, float(k), 1)) / law.mean() - 1)
        found.append(float(pruning.chi_variance(1.3, float(k))) / law.var() - 1)
    return found


def chi_defects(key: Key[Array, ""]) -> Values:
    """Var‖v‖/2 = h(k) less 1/4, and less that of the next dimension."""
    h = np.asarray(pruning.chi_variance(1.0, jnp.arange(1, 2001).astype(float))) / 2
    return np.concatenate([h - 0.25, -np.diff(h)])


def stirling(key: Key[Array, ""]) -> Values:
    """Exponent of Stirling's relative error."""
    x = np.array([10.0, 30, 100, 300])
    ratio = scipy.special.gammaln(x + 1) - (0.5 * np.log(2 * math.pi * x) + x * (np.log(x) - 1))
    return exponent(list(x), np.expm1(ratio))


def gamma_ratios(key: Key[Array, ""]) -> Values:
    """Exponents with which R²/x tends to 1/2 and x/2 − R² to 1/4."""
    x = np.array([20.0, 80, 320, 1280])
    h = np.asarray(pruning.chi_variance(1.0, jnp.asarray(x))) / 2
    return [exponent(list(x), (x / 2 - h) / x - 0.5), exponent(list(x), h - 0.25)]


def laguerre(key: Key[Array, ""]) -> Values:
    """−L_{−1/2}^{(k/2)}(−y), which the slope of E‖F − v‖ is in proportion to."""
    y = np.linspace(0, 50, 60)
    values = [scipy.special.hyp1f1(0.5, a + 1, -y) for a in (-0.4, 0.5, 4.5, 32.0)]
    return -np.concatenate(values)


def lemma_3_units(key: Key[Array, ""]) -> Values:
    """A/B over c² of small and of large vectors, over one another, less 1."""
    x, y = generator(key).normal(size=(2, 300, 30))

    def ratio(c: float) -> np.ndarray:
        u, v = np.square(c * x).sum(1), np.square(c * y).sum(1)
        return (u - v) ** 2 / (2 * np.sqrt(u * v)) / c**2

    return ratio(0.01) / ratio(10.0) - 1


def lagrange_printed(key: Key[Array, ""]) -> Values:
    """n Σa² − (Σa)² − Σ(a² − b²)² over n Σa²."""
    return _lagrange(key, 2)


def lagrange(key: Key[Array, ""]) -> Values:
    return _lagrange(key, 1)


def _lagrange(key: Array, power: int) -> list[float]:
    found = []
    for a in generator(key).uniform(size=(50, 7)):
        pairs = sum((x**power - y**power) ** 2 for x, y in itertools.combinations(a, 2))
        whole = 7 * np.square(a).sum()
        found.append(float((whole - a.sum() ** 2 - pairs) / whole))
    return found


def theorem_3_chain(key: Key[Array, ""]) -> Values:
    """2nk × squared CV of Σr/Σr², n/Σr, Σr²/Σr and Σr/n over first-order theory, n = 50, k = 10."""
    n, k = 50, 10
    r = np.sqrt(generator(key).chisquare(k, (200_000, n)))
    s1, s2 = r.sum(1), np.square(r).sum(1)
    theory = norm_cv2(float(k)) / n
    return [float(np.var(x) / np.mean(x) ** 2 / theory) for x in (s1 / s2, n / s1, s2 / s1, s1 / n)]


def ranks_of_gaussian_matrices(key: Key[Array, ""]) -> Values:
    """Rank less min(n, m), of entries and of differences from the first row."""
    rng = generator(key)
    found = []
    for n, m in ((5, 9), (9, 5), (64, 64), (30, 29)):
        v = rng.normal(size=(n, m))
        found.append(int(np.linalg.matrix_rank(v)) - min(n, m))
        found.append(int(np.linalg.matrix_rank(v[1:] - v[0])) - min(n - 1, m))
    return found


def _barycentric(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
    """Coordinates λ of least norm with Σλ = 1, and what is left of x."""
    system = np.vstack([v.T, np.ones(len(v))])
    weights = np.linalg.lstsq(system, np.append(x, 1), rcond=None)[0]
    return weights, float(np.linalg.norm(system @ weights - np.append(x, 1)))


def barycentric(key: Key[Array, ""]) -> Values:
    """Residuals of points of R⁷ for 8 or more points v."""
    rng = generator(key)
    return [_barycentric(rng.normal(size=7), rng.normal(size=(n, 7)))[1] for n in (8, 9, 15)]


def barycentric_of_few(key: Key[Array, ""]) -> Values:
    """The same for 4 points, which the printed condition k ≤ n admits."""
    rng = generator(key)
    return _barycentric(rng.normal(size=7), rng.normal(size=(4, 7)))[1]


def distance_form(key: Key[Array, ""]) -> Values:
    """‖a − b‖² less wᵀ D w for barycentric coordinates, relative."""
    rng = generator(key)
    found = []
    for n in (8, 12):
        v, a, b = rng.normal(size=(n, 7)), *rng.normal(size=(2, 7))
        w = _barycentric(a, v)[0] - _barycentric(b, v)[0]
        d = -np.square(v[:, None] - v).sum(-1) / 2
        found.append(float(w @ d @ w / np.square(a - b).sum()) - 1)
    return found


def spans(key: Key[Array, ""]) -> Values:
    """Dimension of the span of 20 points of v₀ + W in R⁶, dim W = 5, less 5 and 6."""
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    inside, outside = rng.normal(size=5) @ w, rng.normal(size=6)
    points = rng.normal(size=(20, 5)) @ w
    ranks = [int(np.linalg.matrix_rank(points + v)) for v in (inside, outside)]
    return [ranks[0] - 5, ranks[1] - 6]


def completed_bases(key: Key[Array, ""]) -> Values:
    """Rank of k given vectors and n − k random points of a hyperplane, less n = 6."""
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    found = []
    for k, origin in ((1, rng.normal(size=6)), (3, rng.normal(size=6)), (2, np.zeros(6))):
        points = origin + rng.normal(size=(6 - k, 5)) @ w
        rows = np.vstack([rng.normal(size=(k, 6)), points])
        found.append(int(np.linalg.matrix_rank(rows)) - 6)
    return found


def concentrated_norms(key: Key[Array, ""]) -> Values:
    """P(|r − E r| > c √(M/2)) less 1/M for every dimension tried, exactly."""
    found = []
    for k in (1, 2, 9, 100):
        law = scipy.stats.chi(k)
        for m in (2.5, 5, 20):
            half = math.sqrt(m / 2)
            mean = law.mean()
            found.append(float(law.sf(mean + half) + law.cdf(mean - half)) - 1 / m)
    return found
