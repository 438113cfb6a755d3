"""Computes the geometric median of filters, the point with the smallest sum of distances."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxnorm.internal import auto_sharded, matmul, norm, varying_like
from pruning._arguments import floating, in_largest, matrix

Filters = Float[Array, "filters dims"]
Point = Float[Array, " dims"]


@auto_sharded
def geometric_median(filters: Float[Array, "filters dims"]) -> Float[Array, " dims"]:
    """The point with the smallest sum of distances to all filters, argmin_x Σⱼ ‖x − vⱼ‖₂.

    The geometric median is also called the Fermat point. The result is exact up to rounding in the
    dtype of the filters (at least float32).

    The algorithm is Weiszfeld's iteration, followed by Newton's method if the point is not exact
    enough. If a filter is the median by the condition of Vardi and Zhang (2000), the filter is
    returned exactly. The median of collinear filters is the middle filter, or the midpoint of the
    middle two filters.

    Derivatives of any order are the derivatives of the minimum, by the implicit function theorem.
    If the median is a filter or the midpoint of two filters, its derivative is the derivative of
    the filter or of the midpoint. If several filters are equal, derivatives in directions that make
    these filters different may be wrong.

    Example:
      >>> square = jnp.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
      >>> geometric_median(square).round(4).tolist()
      [2.0, 2.0]
    """
    filters = matrix(filters)
    h, unit = center(filters)
    constant = jax.lax.stop_gradient(h)
    solution = minimum(constant, weiszfeld(matmul(constant, constant.T)))
    x = filters.mean(0) + _differentiable(unit * h, unit, solution)
    return solution.median(filters, x)


@auto_sharded
def optimality_gap(
    x: Float[Array, " dims"], filters: Float[Array, "filters dims"]
) -> Float[Array, ""]:
    """An upper bound on the share of the sum Σⱼ ‖x − vⱼ‖ by which the sum exceeds its minimum.

    The upper bound lies in [0, 1], and is 0 at the minimum of the sum of distances. If vectors yⱼ
    of length at most 1 sum to zero, the sum of distances is at least Σ ⟨yⱼ, x − vⱼ⟩ for every x.
    For yⱼ, the function uses the unit vectors from vⱼ to x minus their mean, scaled to lengths of
    at most 1. For filters at x itself, yⱼ is chosen such that the sum of all yⱼ is as small as
    possible. The rounding error of the bound is about 10⁻⁷ in float32. If all filters are at x, the
    bound is 0.
    """
    filters, x = matrix(filters), floating(x, "x")
    if x.shape != filters.shape[1:]:
        raise ValueError(f"x must have the shape {filters.shape[1:]} of a filter; got {x.shape}")
    differences = x[None, :] - filters
    directions, _, at_x = _directions(x, filters)
    pull = directions.sum(0) / jnp.maximum(at_x, 1)
    balance = -pull / jnp.maximum(lengths(pull), 1)
    y = jnp.where((lengths(differences) == 0)[:, None], balance[None, :], directions)
    y = y - y.mean(0)[None, :]
    sizes = lengths(y)
    y = y / jnp.maximum(sizes[sizes.argmax()], 1)
    total = lengths(differences).sum()
    gap = 1 - (y * differences).sum() / jnp.where(total > 0, total, 1)
    return jnp.where(total == 0, 0, jnp.clip(gap, 0, 1))


class Solution(NamedTuple):
    """The median, the midpoint of filters `first` and `last` if `on_filters`, otherwise `x`."""

    on_filters: Bool[Array, ""]
    first: Int[Array, ""]
    last: Int[Array, ""]
    x: Point

    def median(self, filters: Filters, x: Point) -> Point:
        """The midpoint of filters `first` and `last` if `on_filters`, otherwise the given `x`."""
        return jnp.where(self.on_filters, (filters[self.first] + filters[self.last]) / 2, x)


@jax.custom_jvp
def _differentiable(h: Filters, unit: Float[Array, ""], solution: Solution) -> Point:
    """The point `unit * solution.x`, whose derivative is the derivative of a Newton step."""
    return unit * solution.x


@_differentiable.defjvp
def _differentiable_jvp(
    primals: tuple[Array, Array, Solution], tangents: tuple[Array, Array, Solution]
) -> tuple[Array, Array]:
    h, unit, solution = primals
    x = _differentiable(*primals)
    step = lambda h: _newton_step(x / unit, h, ~solution.on_filters)  # noqa: E731
    # The Newton step is homogeneous of degree 1 in the filters and x, so the derivative of the step
    # does not change if the filters and x are divided by `unit`.
    return x, jax.jvp(step, (h / unit,), tangents[:1])[1]


@jax.jit
def minimum(h: Filters, near: "Weiszfeld") -> Solution:
    """The median of filters with mean 0, by a search that starts from the point of `weiszfeld`."""
    collinear, first, last = _collinear_middle(h)
    end = _search(h, matmul(h.T, near.weights), collinear | near.settled)
    first = jnp.where(collinear, first, end.nearest)
    last = jnp.where(collinear, last, end.nearest)
    return Solution(collinear | end.on_filter, first, last, end.x)


class Weiszfeld(NamedTuple):
    """A point Σ λⱼhⱼ with `weights` λ, and its squared distances to the filters hⱼ.

    If `settled` is true, the point is the median.
    """

    weights: Float[Array, " filters"]
    square: Float[Array, " filters"]
    settled: Bool[Array, ""]


def weiszfeld(gram: Float[Array, "filters filters"]) -> Weiszfeld:
    """The median of filters with mean 0, from their Gram matrix only.

    Weiszfeld's iteration λⱼ ∝ 1/‖x − hⱼ‖ runs for at most 100 rounds. The result is `settled` if
    the gradient is as small as a rounding error, and the filters are clearly not collinear. In
    addition, no filter may be so near x that its distance has lost digits.
    """
    n, squares = len(gram), jnp.diagonal(gram)
    scale = squares.mean()
    smallest = jnp.where(scale > 0, jnp.finfo(gram.dtype).eps * scale, 1)

    def distances(share: Array, product: Array) -> Array:
        return jnp.maximum(squares - 2 * product + jnp.sum(share * product), smallest)

    def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        share, product, _, steps = state
        inverse = jax.lax.rsqrt(distances(share, product))
        total = inverse.sum()
        products = matmul(gram, inverse)
        pull = jnp.sum((total * share - inverse) * (total * product - products))
        return inverse / total, products / total, pull, steps + 1

    rounding = (_tolerance(gram) / 4) ** 2
    share, product = jnp.full(n, 1 / n, gram.dtype), gram.mean(1)
    start = varying_like((share, product, jnp.array(jnp.inf, gram.dtype), jnp.array(0)), gram)
    share, product, pull, _ = jax.lax.while_loop(
        lambda state: (state[2] > rounding) & (state[3] < 100), step, start
    )
    square = distances(share, product)
    precise = jnp.all(16 * square > squares + scale)
    longest = jnp.argmax(squares)
    area = squares * squares[longest] - jnp.square(gram[longest])
    plane = jnp.max(area) > 1e-3 * jnp.square(squares[longest])
    return Weiszfeld(share, square, (pull <= rounding) & precise & plane)


class _Search(NamedTuple):
    x: Point
    nearest: Int[Array, ""]
    on_filter: Bool[Array, ""]
    done: Bool[Array, ""]
    steps: Int[Array, ""]


def _search(h: Filters, x: Point, done: Bool[Array, ""]) -> _Search:
    """Minimize Σ ‖x − hⱼ‖, starting from `x`.

    If `on_filter` is true, the minimum is the filter `nearest`.
    """
    shares = 0.5 ** jnp.arange(10, dtype=h.dtype)

    def step(state: _Search) -> _Search:
        x = state.x
        nearest = jnp.argmin(lengths(h - x[None, :]))
        on_filter = _slope(h[nearest], h) <= _tolerance(h)
        newton = _newton_step(x, h, jnp.array(True))
        shorter = x[None, :] + shares[:, None] * (newton - x)[None, :]
        trials = jnp.concatenate([_weiszfeld_step(x, h)[None, :], shorter])
        best = trials[jnp.nanargmin(lengths(trials[:, None, :] - h[None, :, :]).sum(1))]
        x = jnp.where(_slope(newton, h) < _slope(x, h) / 2, newton, best)
        done = on_filter | (_slope(x, h) <= _tolerance(h))
        return _Search(x, nearest, on_filter, done, state.steps + 1)

    start = varying_like(_Search(x, jnp.array(0), jnp.array(False), done, jnp.array(0)), h)
    return jax.lax.while_loop(lambda state: ~state.done & (state.steps < 100), step, start)


def _tolerance(h: Float[Array, "filters _"]) -> float:
    """The length below which a gradient is a rounding error."""
    return 16 * float(jnp.finfo(h.dtype).eps) * len(h)


def _slope(x: Point, h: Filters) -> Float[Array, ""]:
    """The length of the smallest subgradient of Σ ‖x − hⱼ‖ at x, which is zero only at the minimum.

    In the sum of the unit vectors from the filters to x, filters at x itself count as zero. If k
    filters are at x, the smallest subgradient is k shorter than the sum of unit vectors, or zero.
    """
    directions, _, at_x = _directions(x, h)
    return jnp.maximum(lengths(directions.sum(0)) - at_x, 0)


def _weiszfeld_step(x: Point, h: Filters) -> Point:
    """Weiszfeld's step: the mean of filters with weights 1/‖x − hⱼ‖.

    If filters are at x itself, the step is shorter than the step to the weighted mean.
    """
    directions, inverse, at_x = _directions(x, h)
    pull = directions.sum(0)
    length = lengths(pull)
    share = jnp.maximum(1 - at_x / jnp.where(length > 0, length, 1), 0)
    total = inverse.sum()
    return x - share * pull / jnp.where(total > 0, total, 1)


def _newton_step(x: Point, h: Filters, regular: Bool[Array, ""]) -> Point:
    """The Newton step x − H⁻¹g with g = Σ uⱼ and H = Σ (I − uⱼuⱼᵀ)/‖x − hⱼ‖.

    The vectors uⱼ are the unit vectors from filter j to x. If `regular` is false, H is I.
    """
    directions, inverse, _ = _directions(x, h)

    def hessian(y: Point) -> Point:
        along = inverse * matmul(directions, y)
        product = inverse.sum() * y - matmul(directions.T, along)
        return jnp.where(regular, product, y)

    step, _ = jax.scipy.sparse.linalg.cg(
        hessian, directions.sum(0), tol=float(jnp.finfo(h.dtype).eps), maxiter=100
    )
    return x - step


def _collinear_middle(h: Filters) -> tuple[Bool[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Whether all filters lie on a line through 0, and the indices of the two middle filters."""
    norms = lengths(h)
    longest = norms.max()
    axis = h[norms.argmax()] / jnp.where(longest > 0, longest, 1)
    along = matmul(h, axis)
    rounding = 8 * jnp.finfo(h.dtype).eps * longest
    middle = jnp.argsort(along)
    n = len(h)
    collinear = lengths(h - along[:, None] * axis[None, :]).max() <= rounding
    return collinear, middle[(n - 1) // 2], middle[n // 2]


def _directions(x: Point, h: Filters) -> tuple[Filters, Float[Array, " filters"], Float[Array, ""]]:
    """Unit vectors from the filters to x, inverse distances, and the number of filters at x.

    The vectors and the inverse distances are 0 for filters at x.
    """
    differences = x[None, :] - h
    distances = lengths(differences)
    at_x = distances == 0
    inverse = jnp.where(at_x, 0, 1 / jnp.where(at_x, 1, distances))
    return differences * inverse[:, None], inverse, at_x.sum(dtype=h.dtype)


def center(filters: Filters) -> tuple[Filters, Float[Array, ""]]:
    """The filters' deviations from their mean, divided by the largest element, and the divisor."""
    return in_largest(filters - filters.mean(0)[None, :])


@jax.jit  # `jit` compiles one program instead of one for each operation
def lengths(x: Float[Array, "*batch dims"]) -> Float[Array, "*batch"]:
    """The Euclidean lengths along the last axis. The gradient of a zero length is zero."""
    return norm(x).squeeze(-1)
