"""The geometric median of the filters of a layer: the point of least summed distance to them."""

from typing import Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxnorm._numerics import auto_sharded, promote_to_float32


@overload
def geometric_median(filters: Float[Array, "n dims"]) -> Float[Array, " dims"]: ...
@overload
def geometric_median(
    filters: Float[Array, "n dims"], *, gap: Literal[True]
) -> tuple[Float[Array, " dims"], Float[Array, ""]]: ...
@auto_sharded
def geometric_median(
    filters: Float[Array, "n dims"], *, gap: bool = False
) -> Float[Array, " dims"] | tuple[Float[Array, " dims"], Float[Array, ""]]:
    """The Fermat point argmin_x Σⱼ ‖x − vⱼ‖₂, to the rounding of the dtype (at least float32).

    Weiszfeld's steps, with distances from the Gram matrix, come near. Where that is not enough
    Newton's method follows; where its step does not halve the gradient, the best of shorter ones
    and of Weiszfeld's with the rule of Vardi and Zhang (2000) is taken, in at most 100 rounds. A
    filter that is itself the median is found by their condition and returned exactly. Collinear
    filters have as median the middle one, or the midpoint of the middle two (all between is
    minimal).

    The derivative, of any order, is that of the minimum by the implicit function theorem; where
    the median is a filter or a midpoint of two, it is that of those, which a small change of the
    filters need not respect if it breaks a tie of position.

    Args:
      gap: Return also the `optimality_gap` of what was found.

    Example:
      >>> square = jnp.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
      >>> geometric_median(square).round(4).tolist()
      [2.0, 2.0]
    """
    filters = promote_to_float32(filters)
    h = centred(filters)
    place = _locate(jax.lax.stop_gradient(h))
    on = (filters[place.first] + filters[place.last]) / 2
    median = jnp.where(place.on_filters, on, filters.mean(0) + _settled(h, place))
    return (median, optimality_gap(median, filters)) if gap else median


@auto_sharded
def optimality_gap(x: Float[Array, " dims"], filters: Float[Array, "n dims"]) -> Float[Array, ""]:
    """A bound on the share of Σⱼ ‖x − vⱼ‖ that a better x could save: in [0, 1], 0 at the minimum.

    Vectors yⱼ of at most unit length that sum to zero prove that no sum of distances is below
    Σ ⟨yⱼ, x − vⱼ⟩. Here they are the directions from vⱼ to x, less their mean, shrunk to unit
    length; filters at x itself take what balances the others. The bound is itself rounded, to some
    10⁻⁷ in float32. If all filters lie at x it is 0.
    """
    filters = promote_to_float32(filters)
    away = x[None, :] - filters
    directions, _, here = _directions(x, filters)
    pull = directions.sum(0) / jnp.maximum(here, 1)
    balance = -pull / jnp.maximum(lengths(pull), 1)
    y = jnp.where((lengths(away) == 0)[:, None], balance[None, :], directions)
    y = y - y.mean(0)[None, :]
    sizes = lengths(y)
    y = y / jnp.maximum(sizes[sizes.argmax()], 1)
    total = lengths(away).sum()
    gap = 1 - (y * away).sum() / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, jnp.clip(gap, 0, 1), 0)


class _Place(NamedTuple):
    """Where the median is: midway between two filters, or at x; the filters' mean is 0."""

    on_filters: Bool[Array, ""]
    first: Int[Array, ""]
    last: Int[Array, ""]
    x: Float[Array, " dims"]


@jax.custom_jvp
def _settled(h: Float[Array, "n dims"], place: _Place) -> Float[Array, " dims"]:
    """`place.x`, with the derivatives of the minimum: those of a Newton step from it."""
    return place.x


@_settled.defjvp
def _settled_jvp(
    primals: tuple[Array, _Place], tangents: tuple[Array, _Place]
) -> tuple[Array, Array]:
    h, place = primals
    x = _settled(h, place)
    _, tangent = jax.jvp(lambda h: _newton_step(x, h, ~place.on_filters), (h,), tangents[:1])
    return x, tangent


@jax.jit
def _locate(h: Float[Array, "n dims"]) -> _Place:
    near = weiszfeld(products(h))

    def regular(h: Float[Array, "n dims"]) -> _Place:
        none = jnp.argmin(h[:, 0])
        return _Place(jnp.array(False), none, none, _dot(h.T, near.weights))

    return jax.lax.cond(near.settled, regular, lambda h: _searched(h, near), h)


def searched_median(h: Float[Array, "n dims"], near: "Weiszfeld") -> Float[Array, " dims"]:
    """The median of filters whose mean is 0, from where Weiszfeld's iteration has come."""
    place = _searched(h, near)
    return jnp.where(place.on_filters, (h[place.first] + h[place.last]) / 2, place.x)


def _searched(h: Float[Array, "n dims"], near: "Weiszfeld") -> _Place:
    collinear, first, last = _collinear_middle(h)
    found = _search(h, _dot(h.T, near.weights), collinear | near.settled)
    first = jnp.where(collinear, first, found.nearest)
    last = jnp.where(collinear, last, found.nearest)
    return _Place(collinear | found.on_filter, first, last, found.x)


class Weiszfeld(NamedTuple):
    """A point Σ λⱼhⱼ of `weights` λ, its squared distance from every filter; `settled` if right."""

    weights: Float[Array, " n"]
    square: Float[Array, " n"]
    settled: Bool[Array, ""]


def weiszfeld(gram: Float[Array, "n n"]) -> Weiszfeld:
    """The median of filters whose mean is 0, from their Gram matrix alone.

    Weiszfeld's iteration λⱼ ∝ 1/‖x − hⱼ‖, at most 100 rounds. It has settled if its pull is
    rounding, no filter is so near x that a distance has lost digits, and the filters are clearly
    not on one line.
    """
    n, squares = len(gram), jnp.diagonal(gram)
    scale = squares.mean()
    floor = jnp.where(scale > 0, jnp.finfo(gram.dtype).eps * scale, 1)

    def distances(share: Float[Array, " n"], product: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.maximum(squares - 2 * product + jnp.sum(share * product), floor)

    def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        share, product, _, steps = state
        inverse = jax.lax.rsqrt(distances(share, product))
        total = inverse.sum()
        moved = _dot(gram, inverse)
        pull = jnp.sum((total * share - inverse) * (total * product - moved))
        return inverse / total, moved / total, pull, steps + 1

    enough = (_tolerance(gram) / 4) ** 2
    share, product = jnp.full(n, 1 / n, gram.dtype), gram.mean(1)
    start = share, product, jnp.array(jnp.inf, gram.dtype), jnp.array(0)
    share, product, pull, _ = jax.lax.while_loop(
        lambda state: (state[2] > enough) & (state[3] < 100), step, start
    )
    square = distances(share, product)
    precise = jnp.all(16 * square > squares + scale)
    far = jnp.argmax(squares)
    aside = squares * squares[far] - jnp.square(gram[far])
    plane = jnp.max(aside) > 1e-3 * jnp.square(squares[far])
    return Weiszfeld(share, square, (pull <= enough) & precise & plane)


class _Search(NamedTuple):
    x: Float[Array, " dims"]
    nearest: Int[Array, ""]
    on_filter: Bool[Array, ""]
    done: Bool[Array, ""]
    steps: Int[Array, ""]


def _search(h: Float[Array, "n dims"], x: Float[Array, " dims"], done: Bool[Array, ""]) -> _Search:
    """Minimise Σ ‖x − hⱼ‖ from `x`; `on_filter` if the minimum is the filter `nearest`."""
    shares = 0.5 ** jnp.arange(10, dtype=h.dtype)

    def total(x: Float[Array, " dims"]) -> Float[Array, ""]:
        return lengths(x[None, :] - h).sum()

    def step(state: _Search) -> _Search:
        x = state.x
        nearest = jnp.argmin(lengths(h - x[None, :]))
        on_filter = _slope(h[nearest], h) <= _tolerance(h)
        newton = _newton_step(x, h, jnp.array(True))
        shorter = x[None, :] + shares[:, None] * (newton - x)[None, :]
        trials = jnp.concatenate([_weiszfeld_step(x, h)[None, :], shorter])
        best = trials[jnp.nanargmin(jax.vmap(total)(trials))]
        x = jnp.where(_slope(newton, h) < _slope(x, h) / 2, newton, best)
        done = on_filter | (_slope(x, h) <= _tolerance(h))
        return _Search(x, nearest, on_filter, done, state.steps + 1)

    start = _Search(x, jnp.array(0), jnp.array(False), done, jnp.array(0))
    return jax.lax.while_loop(lambda state: ~state.done & (state.steps < 100), step, start)


def _tolerance(h: Float[Array, "n _"]) -> float:
    """Gradients below this are rounding."""
    return 16 * float(jnp.finfo(h.dtype).eps) * len(h)


def _slope(x: Float[Array, " dims"], h: Float[Array, "n dims"]) -> Float[Array, ""]:
    """Length of the smallest subgradient of Σ ‖x − hⱼ‖ at x: zero at the minimum and only there.

    The filters at x itself, whose directions are zero here, can balance a pull of their number.
    """
    directions, _, here = _directions(x, h)
    return jnp.maximum(lengths(directions.sum(0)) - here, 0)


def _weiszfeld_step(x: Float[Array, " dims"], h: Float[Array, "n dims"]) -> Float[Array, " dims"]:
    """Weighted mean of the filters, weights 1/‖x − hⱼ‖, held back by the filters at x itself."""
    directions, inverse, here = _directions(x, h)
    pull = directions.sum(0)
    length = lengths(pull)
    share = jnp.maximum(1 - here / jnp.where(length > 0, length, 1), 0)
    total = inverse.sum()
    return x - share * pull / jnp.where(total > 0, total, 1)


def _newton_step(
    x: Float[Array, " dims"], h: Float[Array, "n dims"], regular: Bool[Array, ""]
) -> Float[Array, " dims"]:
    """x − H⁻¹g, where g = Σ uⱼ and H = Σ (I − uⱼuⱼᵀ)/‖x − hⱼ‖; H = I unless `regular`."""
    directions, inverse, _ = _directions(x, h)

    def hessian(y: Float[Array, " dims"]) -> Float[Array, " dims"]:
        along = inverse * _dot(directions, y)
        product = inverse.sum() * y - _dot(directions.T, along)
        return jnp.where(regular, product, y)

    step, _ = jax.scipy.sparse.linalg.cg(
        hessian, directions.sum(0), tol=float(jnp.finfo(h.dtype).eps), maxiter=100
    )
    return x - step


def _collinear_middle(
    h: Float[Array, "n dims"],
) -> tuple[Bool[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Whether the filters lie on one line but for rounding; the middle two along their longest."""
    norms = lengths(h)
    longest = norms.max()
    axis = h[norms.argmax()] / jnp.where(longest > 0, longest, 1)
    along = _dot(h, axis)
    rounding = 8 * jnp.finfo(h.dtype).eps * longest
    middle = jnp.argsort(along)
    n = len(h)
    collinear = lengths(h - along[:, None] * axis[None, :]).max() <= rounding
    return collinear, middle[(n - 1) // 2], middle[n // 2]


def _directions(
    x: Float[Array, " dims"], h: Float[Array, "n dims"]
) -> tuple[Float[Array, "n dims"], Float[Array, " n"], Float[Array, ""]]:
    """(x − hⱼ)/‖x − hⱼ‖ and 1/‖x − hⱼ‖, zero for the filters at x, and the number of those."""
    away = x[None, :] - h
    distances = lengths(away)
    here = distances == 0
    inverse = jnp.where(here, 0, 1 / jnp.where(here, 1, distances))
    return away * inverse[:, None], inverse, here.sum(dtype=h.dtype)


def centred(filters: Float[Array, "n dims"]) -> Float[Array, "n dims"]:
    return filters - filters.mean(0)[None, :]


def products(h: Float[Array, "n dims"]) -> Float[Array, "n n"]:
    """The Gram matrix hhᵀ."""
    return jnp.matmul(h, h.T, precision="highest")


def lengths(x: Float[Array, "*batch dims"]) -> Float[Array, "*batch"]:
    """Euclidean lengths along the last axis, with gradient zero where they are zero."""
    square = jnp.square(x).sum(-1)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _dot(a: Float[Array, "n m"], b: Float[Array, " m"]) -> Float[Array, " n"]:
    return jnp.matmul(a, b, precision="highest")
