"""The number of ReLU neurons that make samples linearly independent (Nachum et al., Section I).

The representation of samples x by neurons w is ReLU(x wᵀ). A batch norm before the ReLU recenters
the batch and multiplies each neuron by a positive number. Positive factors do not change a rank.
Therefore, if the network has batch norm, pass `jaxnorm.recenter(x)` instead of x.
"""

import math
import sys

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from geometry._angles import angles
from geometry._arguments import as_samples, whole_number
from geometry.cells import cell_volumes_2d
from geometry.ranks._batch import numerical_rank
from jaxnorm import unit_vector
from jaxnorm.internal import (
    auto_sharded,
    check_key,
    check_numeric,
    check_whole,
    host_only,
    matmul,
    replicate,
    unit_of,
    varying_like,
)


def rows_needed(
    key: Key[Array, ""], x: Float[Array, "n d"], *, max_rows: int = 10_000
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The number of Gaussian neurons that are drawn until n samples have rank n, and the rank.

    At most `max_rows` neurons are drawn, so the rank may be below n. If `full_rank_reachable` is
    false, the rank is always below n. The n activities of a neuron form a vector. A new neuron
    increases the rank only if its vector has a large enough part orthogonal to the vectors of
    earlier neurons. The length of this part must be at least about 64 n ε times the length of the
    vector, where ε is the rounding unit.

    Raises:
      ValueError: `max_rows` is below 1, or is 2³¹ or more.

    Example:
      >>> rows, rank = rows_needed(jax.random.key(0), jnp.eye(4))
      >>> print(rank, rows >= 4)
      4 True
    """
    check_key(key)
    check_whole(max_rows=max_rows)
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1; got {max_rows}")
    if max_rows >= 2**31:
        raise ValueError("max_rows must be below 2**31")
    h = replicate(as_samples(x))
    u = jnp.where(jnp.any(h != 0, axis=1, keepdims=True), unit_vector(h), 0)
    return _grow(key, u, max_rows=max_rows)


@auto_sharded
def _grow(
    key: Key[Array, ""], u: Float[Array, "n d"], *, max_rows: int
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The result of `rows_needed` for samples `u` of norm 1 or 0."""
    n, dims = u.shape
    tolerance = 64 * n * float(jnp.finfo(u.dtype).eps)

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        rows, rank, _ = state
        return (rank < n) & (rows < max_rows)

    def draw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rows, rank, basis = state
        w = jax.random.normal(jax.random.fold_in(key, rows), (dims,), u.dtype)
        y = _unit(jax.nn.relu(jnp.einsum("nd,d->n", u, w, precision="highest")))
        new = y - _project(basis, y)
        # The projection is subtracted twice, because rounding errors of the first subtraction leave
        # `new` not quite orthogonal to `basis`.
        new = new - _project(basis, new)
        grows = jnp.linalg.norm(new) > tolerance
        basis = basis.at[rank].set(jnp.where(grows, _unit(new), basis[rank]))
        return rows + 1, rank + grows.astype(rank.dtype), basis

    none = jnp.zeros((), jnp.int32)
    start = varying_like((none, none, jnp.zeros((n, n), u.dtype)), u, key)
    rows, rank, _ = jax.lax.while_loop(unfinished, draw, start)
    return rows, rank


def full_rank_reachable(x: Float[Array, "n d"]) -> Bool[Array, ""]:
    """Whether ReLU neurons exist that make the samples linearly independent.

    The result is true if and only if three conditions hold. No sample is zero, no two samples have
    the same direction, and the directions of the antiparallel pairs are linearly independent. The
    third condition is needed because ReLU(s) − ReLU(−s) = s. Corollary 4 requires that no two
    samples of x are collinear; instead, no two samples of the recentered batch should be collinear.
    An angle between two samples below 64 ε counts as zero. Under `jit`, the result for samples with
    a NaN has no meaning.

    Example:
      >>> x = jnp.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
      >>> print(full_rank_reachable(x), full_rank_reachable(x - x.mean(0)[None]))
      True False
    """
    h = replicate(as_samples(x))
    tolerance = 64 * float(jnp.finfo(h.dtype).eps)
    apart = angles(h)
    above = jnp.triu(jnp.ones_like(apart, bool), 1)
    parallel = above & (apart <= tolerance)
    # If no samples are parallel, `opposite` marks one sample of each pair of opposite samples.
    opposite = jnp.any(above & (apart >= math.pi - tolerance), axis=1)
    directions = jnp.where(opposite[:, None], unit_vector(h), 0)
    independent = numerical_rank(directions) == opposite.sum()
    return jnp.any(h != 0, axis=1).all() & ~parallel.any() & independent


def full_rank_probability(x: Float[Array, "n 2"], neurons: Float[Array, "r 2"]) -> Float[Array, ""]:
    """The probability that one more Gaussian neuron gives n samples in the plane rank n: Lemma 2.

    The r given neurons must give rank n − 1 both to the first n − 1 samples and to all n samples.
    Then there is exactly one relation Σ aⱼ yⱼ = 0 between the samples' representations yⱼ. A neuron
    breaks the relation if Σ aⱼ xⱼ, summed over the samples j for which the neuron is active, is
    nonzero. If the activities in two cells differ only for one sample with aⱼ ≠ 0, the neurons of
    at least one of the two cells break the relation Σ aⱼ yⱼ = 0. The neurons of at least one of the
    two opposite cells also break the relation. Therefore the probability is at least 2γ(x), where
    γ(x) is the smallest probability of a cell (`gamma_2d`). Lemma 2 prints γ instead of 2γ. If the
    condition number of the representations is near the inverse of the rounding unit, rounding
    decides which neurons break the relation. Under `jit`, the result is NaN if samples are not
    finite.

    Raises:
      ValueError: There are fewer than 2 samples.

    Example:
      >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> print(full_rank_probability(x, jnp.array([[1.0, 1.0]])).round(2))
      0.75
    """
    h = replicate(as_samples(x, min_samples=2, columns=2))
    h = h / unit_of(jnp.abs(h).max())  # the probability does not depend on the unit of the samples
    neurons = replicate(as_samples(neurons, columns=2, name="neurons"))
    y = jax.nn.relu(matmul(h, neurons.astype(h.dtype).T))
    relation, error = _relation(jax.lax.stop_gradient(y))
    line = jnp.sort(jnp.mod(jnp.arctan2(h[:, 1], h[:, 0]), math.pi))
    middle = (line + jnp.append(line[1:], line[0] + math.pi) + math.pi) / 2
    turn = jnp.concatenate([middle, middle + math.pi])
    w = jnp.stack([jnp.cos(turn), jnp.sin(turn)])
    active = (matmul(h, w) > 0).astype(h.dtype)
    change = matmul(active.T, relation[:, None] * h)
    breaks = jnp.linalg.norm(change, axis=1) > error * jnp.linalg.norm(h * relation[:, None])
    probability = jnp.sum(cell_volumes_2d(h), where=breaks)
    return jnp.where(jnp.isfinite(change).all(), probability, jnp.nan).astype(jnp.result_type(x))


@host_only()
def mean_rows_bound(n: int, gamma: float) -> float:
    """An upper bound n/(2γ) on the mean of `rows_needed`, for n ≥ 2.

    The number γ is the smallest probability of a cell (`gamma_2d`). For n = 1, the result is n/γ,
    which Theorem 3 prints for all n. The bound n/(2γ) is not sharp. For an odd number n of equally
    spaced points in the plane, the bound is n², but far fewer neurons suffice, such as 27 on
    average for n = 21. `mean_rows_bound` runs on the host.

    Raises:
      ValueError: n is not an integer or is below 1, or γ is not in (0, 1/2].

    Example:
      >>> mean_rows_bound(5, 0.1), mean_rows_bound(1, 0.5)
      (25.0, 2.0)
    """
    _check(n, gamma, 0.5)
    if gamma == 0:
        raise ValueError("gamma must be positive; got 0")
    return n / gamma if n == 1 else n / (2 * gamma)


@host_only()
def rank_tail_bound(n: int, alpha: float, gamma: float) -> float:
    """A lower bound on P(rank n) for ⌊α n/γ⌋ neurons: Equations 7a and 7b of Theorem 3.

    For γ > 0, the bound of Equation 7a is 1 − exp(−n [(α/γ) log(1/α) + (α/γ − 1) log((α − γ)/(1 −
    γ))]). For γ = 0, the bound of Equation 7b is 1 − exp(−n (α − 1 − log α)). This bound holds for
    all γ. The number γ is the smallest probability of a cell. The bound holds for α > 1; the paper
    requires α ≥ 2. `rank_tail_bound` is never above `rank_tail`, and runs on the host.

    Raises:
      ValueError: n is not an integer or is below 1, α is not in (1, ∞), or γ is not in [0, 1/2].

    Example:
      >>> f"{rank_tail_bound(5, 3.0, 0.1):.4f} {rank_tail_bound(5, 3.0, 0.0):.4f}"
      '0.9923 0.9890'
    """
    _check(n, gamma, 0.5)
    check_numeric(alpha, "alpha")
    if not 1 < alpha <= sys.float_info.max:
        raise ValueError(f"alpha must be above 1 and finite; got {alpha}")
    if gamma == 0:
        return -math.expm1(-n * (alpha - 1 - math.log(alpha)))
    excess = math.log1p(-gamma / alpha) - math.log1p(-gamma)
    return -math.expm1(-n * ((alpha / gamma - 1) * excess - math.log(alpha)))


@host_only()
def rank_tail(n: int, gamma: float, rows: int) -> float:
    """A lower bound on P(rank n) for `rows` neurons.

    The bound is the probability of at least n successes in `rows` trials with the success
    probability γ. The number γ is the smallest probability of a cell. The bound `rank_tail` is
    sharper than Equation 7a, which is Chernoff's bound of the same probability. For n ≥ 2, the
    bound holds even with 2γ in place of γ, by `full_rank_probability`. `rank_tail` runs on the
    host.

    Raises:
      ValueError: n or rows is not an integer or is below 1, or γ is not in [0, 1].

    Example:
      >>> round(rank_tail(5, 0.1, 150), 3)
      0.999
    """
    _check(n, gamma, 1.0)
    rows = whole_number(rows, "rows")
    if rows < 1:
        raise ValueError(f"rows must be at least 1; got {rows}")
    # SciPy is imported here, because its import takes longer than all other imports of the package.
    import scipy.stats

    return float(scipy.stats.binom.sf(n - 1, rows, gamma))


def _check(n: int, gamma: float, max_gamma: float) -> None:
    if whole_number(n, "n") < 1:
        raise ValueError(f"n must be at least 1; got {n}")
    check_numeric(gamma, "gamma")
    if not 0 <= gamma <= max_gamma:
        raise ValueError(f"gamma must lie in [0, {max_gamma}]; got {gamma}")


def _relation(y: Float[Array, "n r"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The numbers aⱼ of a relation Σ aⱼ yⱼ = 0 between n rows of rank n − 1; and a relative error.

    The error is a multiple of the rounding unit times the condition number of the rows.
    """
    sizes = jnp.linalg.norm(y, axis=0, keepdims=True)
    basis, values, _ = jnp.linalg.svd(y / jnp.where(sizes == 0, 1, sizes))
    condition = values[0] / values[len(y) - 2]  # the next singular value is zero up to rounding
    return basis[:, -1], 4 * float(jnp.finfo(y.dtype).eps) * condition


def _project(basis: Float[Array, "n n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    return matmul(basis.T, matmul(basis, y))


def _unit(y: Float[Array, " n"]) -> Float[Array, " n"]:
    """The array `y` scaled to length 1; zeros remain zeros."""
    norm = jnp.linalg.norm(y)
    return y / jnp.where(norm > 0, norm, 1)
