"""What the checks of "Batch Normalization Decomposed" draw and compute.

Samples are rows. Functions of a key return draws in float32, or the values of many cases in
float64: differences that should be 0, or excesses over a bound.
"""

import math
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import geometry
from geometry.claims._claim import Values, exponent, generator, normal
from jaxnorm import recenter, rescale, rescale_rms, standardize

POINTS = 5  # on the circle, and in the batch of Theorems 13 and 14
WIDTH = 20
CASES = 200

BATCH = ((1.0, 2.0, 0.5), (-0.5, 1.0, 1.5), (0.3, -1.0, 0.2), (2.0, 0.1, -0.7))


def circle(n: int) -> Float[Array, "n 2"]:
    turn = 2 * math.pi * np.arange(n) / n
    return jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1))


def parts_of_batch_norm(key: Key[Array, ""]) -> Values:
    z = jnp.asarray(generator(key).normal(3, 2, (CASES, 12, 7)))
    whole = standardize(z, axis=1)
    return jnp.concatenate(
        [
            jnp.ravel(gap)
            for gap in (
                whole.mean(1),
                jnp.square(whole).mean(1) - 1,
                rescale(recenter(z, axis=1), axis=1) - whole,
                standardize(z + 5, axis=1) - whole,
            )
        ]
    )


def rescaled_cosines(key: Key[Array, ""]) -> Float[Array, "1"]:
    """Mean |cos| of 5 points after 100 linear layers of width 50 with rescaling alone."""
    return _rescaled_cosine(key, 50)[None]


def _rescaled_cosine(key: Array, width: int) -> Array:
    net = geometry.random_network(
        key,
        jnp.eye(5, dtype=jnp.float32),
        depth=100,
        width=width,
        normalization=rescale_rms,
        nonlinearity=lambda x: x,
        homogeneous=False,
        layers=(100,),
    )
    apart = geometry.angles(net.x)[np.triu_indices(5, 1)]
    return jnp.abs(jnp.cos(apart)).mean()


def decay_with_width(key: Key[Array, ""]) -> Values:
    widths = (25, 50, 100)
    keys = jax.random.split(key, 24)
    found = [
        jax.jit(jax.vmap(lambda key, width=width: _rescaled_cosine(key, width)))(keys).mean()
        for width in widths
    ]
    return exponent(widths, found)


def rank_of_products(key: Key[Array, ""]) -> Values:
    """Rank of AB less the smaller of the ranks of A and B.

    Of integers: a product that nearly vanishes has no rounding that could pass for rank.
    """
    rng = generator(key)

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float64)

    excess = []
    for _ in range(CASES):
        inner = rng.integers(1, 5, 2).tolist()
        a, b = drawn(6, inner[0]) @ drawn(inner[0], 5), drawn(5, inner[1]) @ drawn(inner[1], 4)
        ranks = [int(np.linalg.matrix_rank(m)) for m in (a @ b, a, b)]
        excess.append(ranks[0] - min(ranks[1:]))
    return excess


def volumes_of_cells(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(CASES, 6, 2)))
    volumes = np.asarray(jax.jit(jax.vmap(geometry.cell_volumes_2d))(x))
    return np.concatenate([volumes.sum(1) - 1, np.ravel(volumes[:, :6] - volumes[:, 6:])])


def gamma_of_the_circle(key: Key[Array, ""]) -> Values:
    gamma = jax.jit(geometry.gamma_2d)
    return [float(gamma(circle(n))) * 2 * n for n in (5, 9)]


def in_the_first_cell(key: Key[Array, ""]) -> Float[Array, "2000 1"]:
    """1 if a Gaussian w lies in the same cell as the first of the points on the circle."""
    x = circle(POINTS).astype(jnp.float32)
    signs = jnp.sign(normal(key, 2000, 2) @ x.T)
    return jnp.all(signs == jnp.sign(x[:1] @ x.T), axis=1, keepdims=True).astype(jnp.float32)


def lemma_2(key: Key[Array, ""]) -> Values:
    """γ less the probability that one more neuron gives full rank, in units of γ."""
    rng = generator(key)
    x, rows = rng.normal(size=(CASES * 5, 4, 2)), rng.normal(size=(CASES * 5, 3, 2))
    y = np.maximum(np.einsum("ind,ird->inr", x, rows), 0)
    fits = (np.linalg.matrix_rank(y[:, :3]) == 3) & (np.linalg.cond(y[:, :3]) < 1e4)
    x, rows = (jnp.asarray(part[fits][:CASES]) for part in (x, rows))
    gamma = jax.jit(jax.vmap(geometry.gamma_2d))(x)
    found = jax.jit(jax.vmap(geometry.lemma_2_probability))(x, rows)
    return 1 - np.asarray(found / gamma)


def rows_for_full_rank(key: Key[Array, ""]) -> Float[Array, "3"]:
    """Neurons until full rank: two orthogonal points, two opposite ones, five on the circle."""
    batches = (jnp.eye(2), jnp.array([[1.0], [-1.0]]), circle(POINTS))
    rows = [geometry.rows_needed(key, x.astype(jnp.float32), most=2000)[0] for x in batches]
    return jnp.stack(rows).astype(jnp.float32)


def rank_tails(key: Key[Array, ""]) -> Values:
    """Excess of Eq. 7b over Eq. 7a, and of that over the exact tail."""
    excess = []
    for n in (1, 2, 5, 10, 50):
        for alpha in (1.2, 2.5, 4.0):
            for gamma in (1e-4, 0.01, 0.1, 0.25):
                printed = geometry.rank_tail_bound(n, alpha, gamma)
                exact = geometry.rank_tail(n, gamma, math.floor(alpha * n / gamma))
                excess += [geometry.rank_tail_bound(n, alpha, 0.0) - printed, printed - exact]
    return excess


def missing_rank(key: Key[Array, ""]) -> Values:
    """Rank missing after 400 neurons and batch norm, of batches no two columns of which align."""
    return [_missing(generator(key), x) for x in _ALIGNED_ONCE_CENTRED]


def reachable_rank(key: Key[Array, ""]) -> Values:
    """Whether full rank is reached, less whether it is said to be."""
    rng = generator(key)
    reachable = jax.jit(lambda x: geometry.full_rank_reachable(recenter(x)))
    batches = [_ALIGNED_ONCE_CENTRED[1], *rng.normal(size=(20, 6, 2))]
    return [float(_missing(rng, x) == 0) - bool(reachable(jnp.asarray(x))) for x in batches]


_U, _V = np.array([1.0, 0.3]), np.array([-0.2, 1.0])
_ALIGNED_ONCE_CENTRED = (
    np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]),
    np.array([3.0, 5.0]) + np.stack([_U, -_U, _V, -_V, _U + _V, -_U - _V]),
)


def _missing(rng: np.random.Generator, x: np.ndarray) -> int:
    y = np.maximum((x - x.mean(0)) @ rng.normal(size=(x.shape[1], 400)), 0)
    return len(x) - int(np.linalg.matrix_rank(y, tol=1e-9))


def recentering_once(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, a, b = (rng.normal(size=shape) for shape in ((CASES, 6, 5), (5, 7), (7, 4)))
    once, twice = recenter(jnp.asarray(x), axis=1), recenter(jnp.asarray(x @ a), axis=1)
    return np.asarray(recenter(jnp.asarray(np.asarray(twice) @ b), axis=1)) - once @ (a @ b)


def children(key: Key[Array, ""]) -> Values:
    """Children of c x + s, of −x, and their product, of random rows."""
    x = jnp.asarray(generator(key).normal(size=(9, CASES)))
    up, down = geometry.positive(x), geometry.negative(x)
    gaps = (
        geometry.positive(2 * x + 3) - 2 * up,
        geometry.positive(-x) - down,
        up * down,
        geometry.tree_step(x) - jnp.concatenate([up, down], 1),
    )
    return np.concatenate([np.ravel(gap) for gap in gaps])


def expansion_of_the_tree(key: Key[Array, ""]) -> Values:
    """How much farther apart in Frobenius norm a tree ends than its inputs began."""
    rng = generator(key)
    run = jax.jit(lambda x: geometry.tree(x, 6))
    found = []
    for scale in (1e-3, 1.0, 30.0):
        x, y = rng.normal(size=(2, 6)) * scale
        apart = np.linalg.norm(run(jnp.asarray(x)) - run(jnp.asarray(y)))
        found.append(float(apart / np.linalg.norm(x - y)) - 1)
    return found


def growth_of_clusters(key: Key[Array, ""]) -> Values:
    """Clusters of children less those of Lemma 7, and against one more than lie on either side."""
    found = []
    for x in generator(key).integers(0, 6, (60, 7)).astype(float):
        if np.ptp(x) == 0:
            continue
        sides = np.unique(x[x > x.mean()]), np.unique(x[x < x.mean()])
        pair = geometry.positive(jnp.asarray(x)), geometry.negative(jnp.asarray(x))
        for child, side in zip(pair, sides, strict=True):
            clusters = len(np.unique(np.asarray(child)))
            found += [clusters - len(np.unique(x)), abs(clusters - len(side) - 1)]
    return found


def unstable_rows(key: Key[Array, ""]) -> Values:
    """Rows of more than three clusters at the depth from which there should be none."""
    rng = generator(key)
    batches = [*rng.normal(size=(40, 4)), *rng.uniform(size=(20, 5)), np.array([0.0, 1, 1.01, 5])]
    found = []
    for x in batches:
        depth = math.ceil(float(geometry.tree_depth_bound(jnp.asarray(x))))
        rows = x[None]
        for _ in range(min(depth, 60)):
            rows = _children(rows)
            rows = rows[_clusters(rows) > 3]  # the others stay stable
        found.append(len(rows))
    return found


def conserved_clusters(key: Key[Array, ""]) -> Values:
    """Σ (clusters − 2) over the rows of each layer, less n − 2."""
    found = []
    for x in generator(key).normal(size=(10, 7)):
        rows = x[None]
        for _ in range(9):
            rows = _children(rows)
            found.append(int((_clusters(rows) - 2).sum()) - 5)
    return found


def _children(rows: np.ndarray) -> np.ndarray:
    apart = rows - rows.mean(1, keepdims=True)
    return np.maximum(np.concatenate([apart, -apart]), 0)


def _clusters(rows: np.ndarray) -> np.ndarray:
    return 1 + (np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(1)


def fast_tree(key: Key[Array, ""]) -> Values:
    """Gram matrix in polynomial time less that of all 2¹⁰ rows, over its largest entry."""
    x = jnp.asarray(generator(key).normal(size=(5, 7)))

    def gap(x: Array) -> Array:
        found, rows = geometry.tree_gram(x, 10), geometry.tree(x, 10)
        expected = geometry.gram(rows)
        return (jnp.exp(2 * found.log_scale) * found.gram - expected) / expected.max()

    return np.asarray(jax.jit(jax.vmap(gap))(x))


def angles_from_products(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(size=(30, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = np.cos(geometry.angles(jnp.asarray(x))) - unit @ unit.T
    return np.asarray(cosine)


DEEP, DEEP_POINTS = 4000, 6


@cache
def _deep_trees() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, norms and r of sorted Gaussian points at depth 4,000: several checks read them."""
    x = np.sort(np.random.default_rng(0).normal(size=(60, DEEP_POINTS)), axis=1)
    x[0] = np.arange(DEEP_POINTS)  # symmetric: where the sharp constants are attained

    def run(x: Array) -> tuple[Array, Array, Array]:
        found = geometry.tree_gram(x, DEEP)
        norms = jnp.sqrt(jnp.diagonal(found.gram))
        cosines = found.gram / norms[:, None] / norms[None]
        square = found.squared_distances
        return cosines, norms, square[-1, -2] / square[1, 0]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(jnp.asarray(x)))


def orthogonal_ends(key: Key[Array, ""]) -> Values:
    return _deep_trees()[0][:, 0, -1]


def merged_interior(key: Key[Array, ""]) -> Values:
    return 1 - _deep_trees()[0][:, 1:-1, 1:-1]


def printed_ratio(key: Key[Array, ""]) -> Values:
    """Norm ratio of the better end over the printed bound, less 1; n = 6."""
    return _better_ends()[0] / geometry.printed_end_bounds(DEEP_POINTS).norm_ratio - 1


def printed_angle(key: Key[Array, ""]) -> Values:
    return geometry.printed_end_bounds(DEEP_POINTS).angle - _better_ends()[1]


def sharp_ends(key: Key[Array, ""]) -> Values:
    ratio, angle = _better_ends()
    sharp = geometry.end_bounds(DEEP_POINTS)
    return np.concatenate([ratio - sharp.norm_ratio, sharp.angle - angle])


def _better_ends() -> tuple[np.ndarray, np.ndarray]:
    cosines, norms, _ = _deep_trees()
    ratios = norms[:, 2, None] / norms[:, [0, -1]]
    return ratios.min(1), np.arccos(cosines[:, 2, [0, -1]]).max(1)


def limits_of_the_tree(key: Key[Array, ""]) -> Values:
    """Norm ratios and cosines less those that r gives."""
    cosines, norms, r = _deep_trees()
    limits = jax.jit(jax.vmap(lambda r: geometry.tree_limits(DEEP_POINTS, r)))(jnp.asarray(r))
    ratios = norms[:, 2, None] / norms[:, [0, -1]] - np.asarray(limits.norm_ratios)
    return np.concatenate([ratios, cosines[:, 2, [0, -1]] - np.cos(limits.angles)])


def decay_in_the_tree(key: Key[Array, ""]) -> Values:
    """Factor a layer by which 1 − cos(x₂, x₃) falls, over λ₂/λ₁, eight points."""
    x = jnp.asarray(np.sort(generator(key).normal(size=(5, 8)), axis=1))

    def gap(x: Array, depth: int) -> Array:
        found = geometry.tree_gram(x, depth)
        square = found.squared_distances[1, 2]
        return square / found.gram[1, 1]

    last, before = (jax.jit(jax.vmap(partial(gap, depth=t)))(x) for t in (301, 300))
    rates = [(p**2 + (8 - p) ** 2) / 64 for p in (1, 2)]
    return np.asarray(last) / np.asarray(before) / (rates[1] / rates[0])


def dominating_pair(key: Key[Array, ""]) -> Values:
    """Cosine of a pair that is extreme in each of three coordinates, and of the others' gaps."""
    x = generator(key).uniform(-1, 1, (6, 3))
    x[0], x[-1] = (-2.0, 3.0, -4.0), (2.0, -3.0, 4.0)
    found = jax.jit(lambda x: geometry.tree_gram(x, 2000))(jnp.asarray(x))
    g = np.asarray(found.gram)
    cosines = g / np.sqrt(np.outer(np.diag(g), np.diag(g)))
    return np.append(np.ravel(1 - cosines[1:-1, 1:-1]), cosines[0, -1])


def two_clusters(key: Key[Array, ""]) -> Values:
    """Heights of the children of a row of two values less (new zero group)/n times its height."""
    found = []
    for zeros in range(1, 7):
        x = jnp.asarray([0.0] * zeros + [1.5] * (7 - zeros))
        found.append(float(geometry.positive(x).max()) / 1.5 - zeros / 7)
        found.append(float(geometry.negative(x).max()) / 1.5 - (7 - zeros) / 7)
    return found


def descendants(key: Key[Array, ""]) -> Values:
    """Σ c² of a two-cluster row's descendants over Eqs. 39, 40 and 43, less 1; n = 7."""
    found = []
    run = jax.jit(lambda x: geometry.tree(x, 6))
    for high in range(1, 7):
        rows = np.asarray(run(jnp.asarray([0.0] * (7 - high) + [1.5] * high)))
        share, rest = high / 7, 1 - high / 7
        rate = (share**2 + rest**2) ** 5
        found.append(float(np.square(rows[-1]).sum()) / (1.5**2 * rest**2 * rate) - 1)
        found.append(float(np.square(rows[0]).sum()) / (1.5**2 * share**2 * rate) - 1)
    return found


def shapes_of_children(key: Key[Array, ""]) -> Values:
    """Clusters of the children of a row of two and of three values, less (2, 2) and (3, 2)."""
    counts = []
    for row in ([0.0, 0, 0, 1, 1], [0.0, 0, 1, 4, 4]):
        x = jnp.asarray(row)
        pair = geometry.positive(x), geometry.negative(x)
        counts += sorted(len(np.unique(np.asarray(child))) for child in pair)
    return [found - expected for found, expected in zip(counts, (2, 2, 2, 3), strict=True)]


def kernel_products(key: Key[Array, ""]) -> Float[Array, "500 3"]:
    """ReLU(w x̃ᵢ) ReLU(w x̃ⱼ) of a recentred batch, and ‖ReLU(w x)‖² of one sample over ‖x‖²."""
    x = jnp.asarray(BATCH, jnp.float32)
    z = jax.nn.relu(normal(key, 500, 3) @ (x - x.mean(0, keepdims=True)).T)
    raw = jax.nn.relu(normal(jax.random.fold_in(key, 1), 500, 3) @ x.T)
    single = jnp.square(raw[:, 0]) / jnp.square(x[0]).sum()
    return jnp.stack([z[:, 0] * z[:, 1], 2 * single, raw[:, 0] * raw[:, 1]], 1)


def kernel_of_the_batch(recentred: bool) -> float:
    """E ReLU(w xᵢ) ReLU(w xⱼ) by the arc-cosine kernel, which is of weights of variance 2."""
    g = geometry.gram(jnp.asarray(BATCH))
    step = geometry.mean_field_step if recentred else geometry.arccosine_kernel
    return float(step(g)[0, 1]) / 2


def next_layer(key: Key[Array, ""]) -> Float[Array, "5"]:
    """Norms after one layer of an invariant representation, squared and not, and mean entries."""
    n = POINTS
    x = geometry.invariant_representation(n, 2).astype(jnp.float32)
    w = normal(key, 2, WIDTH) * (2 * geometry.cluster_growth(n) / WIDTH) ** 0.5
    y = jax.nn.relu(recenter(x @ w))
    odd, other = jnp.square(y[0]).sum(), jnp.square(y[1]).sum() * (n - 1) ** 2
    return jnp.stack([odd, jnp.sqrt(odd), other, jnp.sqrt(other), y[0].mean() * WIDTH**0.5])


def expected_entry() -> float:
    x = geometry.invariant_representation(POINTS, 2).astype(jnp.float64)
    gain = geometry.cluster_growth(POINTS)
    return WIDTH**0.5 * float(geometry.expected_entries(x, WIDTH, gain=gain)[0])


def centred_geometry(key: Key[Array, ""]) -> Values:
    """x̃₁ + (n − 1) ν̃ of random batches: opposite, with norms n − 1 to one."""
    x = generator(key).normal(size=(CASES, 7, 4))
    apart = x - x.mean(1, keepdims=True)
    return apart[:, 0] + 6 * apart[:, 1:].mean(1)


def _invariant(n: int) -> Array:
    """In float64, without the compilation of each of its operations."""
    x = np.zeros((n, 3))
    x[0, 0], x[1:, 1] = 1, 1 / (n - 1)
    return jnp.asarray(x)


def definition_12(key: Key[Array, ""]) -> Values:
    """Whether it is no invariant representation, of several sizes."""
    invariant = jax.jit(lambda x: geometry.is_invariant(geometry.gram(x)))
    return [not invariant(_invariant(n)) for n in (2, 7)]


def radius_of_invariant(key: Key[Array, ""]) -> Values:
    """R of an invariant representation less n/(n − 1): Theorem 14 asks for more than 0."""
    n = np.arange(2, 1000)
    return n / (n - 1) - np.sqrt(n**2 - 2 * n + 2) / (n - 1)


def expected_gram(key: Key[Array, ""]) -> Values:
    """Expected Gram matrix after a layer of an invariant representation less its own."""
    gap = jax.jit(lambda x: geometry.theorem_14(x).gram[:-1, :-1] - geometry.gram(x))
    return np.concatenate([np.ravel(gap(_invariant(n))) for n in (3, 12)])


def inner_product_after_a_layer(key: Key[Array, ""]) -> Values:
    """x₁′ · ν̂ of random batches and weights."""
    rng = generator(key)
    x = np.asarray(recenter(jnp.asarray(rng.normal(size=(CASES, 6, 4))), axis=1))
    every = np.stack([x[:, 0], x[:, 1:].mean(1)], 1)
    y = np.maximum(every @ rng.normal(size=(4, 30)), 0)
    return (y[:, 0] * y[:, 1]).sum(1)


def distances_after_a_layer(key: Key[Array, ""]) -> Values:
    """E‖xᵢ′ − xⱼ′‖²/‖xᵢ − xⱼ‖² − 1 of the cluster and its centre, R from n/(n − 1) on."""
    rng = generator(key)
    n = 6
    x = rng.normal(size=(CASES, n, 3)) / n**2
    x[:, 0] = x[:, 1:].mean(1) + _directions(rng, CASES, 3) * rng.uniform(1, 3, (CASES, 1)) * n / 5
    every = np.concatenate([x, x[:, 1:].mean(1, keepdims=True)], 1)
    square = np.square(every[:, :, None] - every[:, None]).sum(-1)
    g = np.asarray(jax.jit(jax.vmap(geometry.theorem_14))(jnp.asarray(x)).gram)
    norms = np.diagonal(g, axis1=1, axis2=2)
    after = norms[:, :, None] + norms[:, None] - 2 * g
    pairs = np.triu_indices(n, 1)
    return (after[:, 1:, 1:] / np.where(square > 0, square, 1)[:, 1:, 1:])[:, *pairs] - 1


def _directions(rng: np.random.Generator, n: int, dims: int) -> np.ndarray:
    x = rng.normal(size=(n, dims))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def growth_of_a_cluster(key: Key[Array, ""]) -> Values:
    """Growth of the relative squared spread of a tiny cluster, over what is predicted."""
    found = []
    step = jax.jit(geometry.mean_field_step)
    for n in (4, 20):
        x = np.array(_invariant(n))
        x[1:] += 1e-4 * generator(key).normal(size=(n - 1, 3)) / n
        g = x @ x.T
        spreads = [_relative_spread(np.asarray(h)) for h in (g, step(jnp.asarray(g)))]
        found.append(spreads[1] / spreads[0] / geometry.cluster_growth(n))
    return found


def _relative_spread(g: np.ndarray) -> float:
    """Mean squared distance of the cluster from its centre, over that of the odd sample."""
    n = len(g)
    weights = np.full(n, 1 / (n - 1))
    weights[0] = 0
    centre = weights @ g @ weights
    square = np.diag(g) - 2 * g @ weights + centre
    return float(square[1:].mean() / square[0])


def _kernel_excess(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x·y − K(x, y) over ‖x‖ ‖y‖, at σ² = 2/d."""
    pairs = np.stack([x, y], 1)
    g = pairs @ pairs.swapaxes(1, 2)
    kernel = np.asarray(jax.jit(jax.vmap(geometry.arccosine_kernel))(jnp.asarray(g)))
    return (g - kernel)[:, 0, 1] / np.sqrt(g[:, 0, 0] * g[:, 1, 1])


def kernel_of_parallel(key: Key[Array, ""]) -> Values:
    """How far K(x, c x) is from lying above x·(c x): printed as positive."""
    x = generator(key).normal(size=(CASES, 5))
    return _kernel_excess(x, 3.7 * x) + 1e-6


def kernel_above_product(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, y = rng.normal(size=(2, 5 * CASES, 5))
    near = x + 1e-3 * y
    return _kernel_excess(np.concatenate([x, x, x]), np.concatenate([y, near, -x]))


def symmetric_batch(key: Key[Array, ""]) -> Values:
    """Angle after one and after two layers of an orthonormal batch, less the predicted one."""
    found = []
    step = jax.jit(geometry.mean_field_step)
    for n in (3, 9):
        g = step(jnp.asarray(np.eye(n)))
        for h in (g, step(g)):
            found.append(math.acos(float(h[0, 1] / h[0, 0])) - geometry.recentred_angle(n))
    return found


def odd_is_longest(key: Key[Array, ""]) -> Values:
    """Whether the odd point at infinite width is not the sample of largest centred norm."""
    x = jnp.asarray(generator(key).normal(size=(20, 10, 10)))

    def misses(x: Array) -> Array:
        def layer(g: Array, _: None) -> tuple[Array, None]:
            g = geometry.mean_field_step(g)
            return g / jnp.trace(g), None

        g, _ = jax.lax.scan(layer, geometry.gram(x), length=2000)
        longest = jnp.argmax(jnp.linalg.norm(x - x.mean(0, keepdims=True), axis=1))
        return geometry.is_odd(g) & (geometry.odd_point(g).index != longest)

    return np.asarray(jax.jit(jax.vmap(misses))(x)).astype(float)


def spread_of_the_odd_state(key: Key[Array, ""]) -> Values:
    return math.degrees(geometry.odd_state(50).spread)


def spread_over_its_law(key: Key[Array, ""]) -> Values:
    """Angle inside the cluster over 3π/n: tends to 1."""
    return [geometry.odd_state(n).spread * n / (3 * math.pi) for n in (300, 1000)]


def angle_of_figure_5(key: Key[Array, ""]) -> Values:
    """With both parts of batch norm, degrees at infinite width, 100 samples."""
    step = jax.jit(geometry.mean_field_standardize)
    g = jnp.asarray(np.eye(100))
    for _ in range(5):
        g = step(g)
    return [math.degrees(math.acos(float(g[0, 1] / g[0, 0])))]


def angle_without_recentering(key: Key[Array, ""]) -> Values:
    """With rescaling about zero alone: the fixed point, in degrees."""
    step = jax.jit(geometry.rms_cosine_step)
    cosine = jnp.asarray(0.3)
    for _ in range(40):
        cosine = step(cosine)
    return [math.degrees(math.acos(float(cosine))), math.degrees(geometry.rms_angle())]


def answering_neurons(key: Key[Array, ""]) -> Values:
    """Share of neurons that answer 90 % of inputs with recentering, less that without."""
    shares = [_always(_network_of_figure_6(part)) for part in (standardize, rescale_rms)]
    return [shares[0], shares[0] - shares[1] + 0.005]


def zeros_of_neurons(key: Key[Array, ""]) -> Values:
    return float((_network_of_figure_6(standardize) == 0).mean())


def _always(y: np.ndarray) -> float:
    return float(((y > 0.1 * y.max(0)).mean(0) > 0.9).mean())


@cache
def _network_of_figure_6(normalization: Callable[[Array], Array]) -> np.ndarray:
    inputs, weights = jax.random.split(jax.random.key(6))
    net = jax.jit(
        lambda key, x: (
            geometry.random_network(
                key,
                x,
                depth=30,
                width=400,
                normalization=normalization,
                homogeneous=False,
                layers=(30,),
            ).x
        )
    )
    return np.asarray(net(weights, normal(inputs, 50, 50)))


def one_neuron_a_point(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(_directions(generator(key), 12, 4))
    w, b = geometry.neuron_per_point(x)
    return np.asarray(jax.nn.relu(x @ w + b[None]) - jnp.eye(12))
