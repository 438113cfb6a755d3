"""Criteria that score the filters of a layer, Table 2; the smallest scores are pruned first.

Filters are rows, `(filters, dims)`. Scores are in at least float32 whatever the filters' dtype:
neighbouring filters of a layer differ by less than bfloat16 resolves, and would tie. Lengths have
gradient zero at the zero vector, so that all gradients are finite; `geometric_median` says what
its own is. Functions that loop are compiled here, as JAX would else compile each loop anew at
every call from outside `jit`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxnorm._statistics import widen


def l1_norm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ‖₁ of every filter."""
    return jnp.abs(widen(filters)).sum(1)


def l2_norm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ‖₂ of every filter."""
    return _lengths(widen(filters))


def fermat(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ − F‖₂ of every filter, F the `geometric_median` of all."""
    h = widen(filters)
    return _lengths(h - geometric_median(h)[None, :])


@jax.jit
def gm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """Σₖ ‖vₖ − vⱼ‖₂ of every filter: its summed distance to the others, He et al. (2019).

    Differences are formed before they are squared, a row at a time: filters that nearly coincide
    keep their distance, which a Gram product would round away.
    """
    h = widen(filters)
    row = jax.checkpoint(lambda v: _lengths(h - v[None, :]).sum())
    return jax.lax.map(row, h)


CRITERIA = {"l1": l1_norm, "l2": l2_norm, "fermat": fermat, "gm": gm}


@jax.jit
def geometric_median(filters: Float[Array, "n dims"]) -> Float[Array, " dims"]:
    """The Fermat point argmin_x Σⱼ ‖x − vⱼ‖₂, to the rounding of the dtype (at least float32).

    Newton's method; where a step does not halve the gradient, the best of shorter ones and of
    Weiszfeld's with the rule of Vardi and Zhang (2000) is taken, in at most 100 rounds. A filter
    that is itself the median is found by their condition and returned exactly. Collinear filters
    have as median the middle one, or the midpoint of the middle two (all between is minimal).

    The derivative is that of the minimum by the implicit function theorem, right to second order;
    where the median is a filter or a midpoint of two, it is that of those, which a small
    change of the filters need not respect if it breaks a tie of position.

    Example:
      >>> square = jnp.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
      >>> geometric_median(square).round(4).tolist()
      [2.0, 2.0]
    """
    filters = widen(filters)
    centre = jax.lax.stop_gradient(filters.mean(0))
    h = filters - centre[None, :]
    collinear, first, last = _collinear_middle(jax.lax.stop_gradient(filters), centre)
    found = _search(jax.lax.stop_gradient(h), collinear)
    on_filters = collinear | found.on_filter
    first = jnp.where(collinear, first, found.nearest)
    last = jnp.where(collinear, last, found.nearest)
    # Two Newton steps from a constant within O(ε) of the minimum leave O(ε⁴): they polish its
    # value and carry its first and second derivatives.
    x = _newton_step(found.x, h, ~on_filters)
    x = _newton_step(x, h, ~on_filters)
    return jnp.where(on_filters, (filters[first] + filters[last]) / 2, centre + x)


class _Search(NamedTuple):
    x: Float[Array, " dims"]
    nearest: Int[Array, ""]
    on_filter: Bool[Array, ""]
    done: Bool[Array, ""]
    steps: Int[Array, ""]


def _search(h: Float[Array, "n dims"], done: Bool[Array, ""]) -> _Search:
    """Minimise Σ ‖x − hⱼ‖ from the mean; `on_filter` if the minimum is the filter `nearest`."""
    tolerance = 16 * jnp.finfo(h.dtype).eps * len(h)
    shares = 0.5 ** jnp.arange(10, dtype=h.dtype)

    def total(x: Float[Array, " dims"]) -> Float[Array, ""]:
        return _lengths(x[None, :] - h).sum()

    def step(state: _Search) -> _Search:
        x = state.x
        nearest = jnp.argmin(_lengths(h - x[None, :]))
        on_filter = _slope(h[nearest], h) <= tolerance
        newton = _newton_step(x, h, jnp.array(True))
        shorter = x[None, :] + shares[:, None] * (newton - x)[None, :]
        trials = jnp.concatenate([_weiszfeld_step(x, h)[None, :], shorter])
        best = trials[jnp.nanargmin(jax.vmap(total)(trials))]
        x = jnp.where(_slope(newton, h) < _slope(x, h) / 2, newton, best)
        done = on_filter | (_slope(x, h) <= tolerance)
        return _Search(x, nearest, on_filter, done, state.steps + 1)

    start = _Search(jnp.zeros_like(h[0]), jnp.array(0), jnp.array(False), done, jnp.array(0))
    return jax.lax.while_loop(lambda state: ~state.done & (state.steps < 100), step, start)


def _slope(x: Float[Array, " dims"], h: Float[Array, "n dims"]) -> Float[Array, ""]:
    """Length of the smallest subgradient of Σ ‖x − hⱼ‖ at x: zero at the minimum and only there.

    The filters at x itself, whose directions are zero here, can balance a pull of their number.
    """
    directions, _, here = _directions(x, h)
    return jnp.maximum(_lengths(directions.sum(0)) - here, 0)


def _weiszfeld_step(x: Float[Array, " dims"], h: Float[Array, "n dims"]) -> Float[Array, " dims"]:
    """Weighted mean of the filters, weights 1/‖x − hⱼ‖, held back by the filters at x itself."""
    directions, inverse, here = _directions(x, h)
    pull = directions.sum(0)
    length = _lengths(pull)
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
    filters: Float[Array, "n dims"], centre: Float[Array, " dims"]
) -> tuple[Bool[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Whether the filters lie on one line but for rounding; the middle two along their longest."""
    h = filters - centre[None, :]
    lengths = _lengths(h)
    longest = lengths.max()
    axis = h[lengths.argmax()] / jnp.where(longest > 0, longest, 1)
    along = _dot(h, axis)
    rounding = 8 * jnp.finfo(h.dtype).eps * (longest + _lengths(centre))
    middle = jnp.argsort(along)
    n = len(h)
    collinear = _lengths(h - along[:, None] * axis[None, :]).max() <= rounding
    return collinear, middle[(n - 1) // 2], middle[n // 2]


def _directions(
    x: Float[Array, " dims"], h: Float[Array, "n dims"]
) -> tuple[Float[Array, "n dims"], Float[Array, " n"], Float[Array, ""]]:
    """(x − hⱼ)/‖x − hⱼ‖ and 1/‖x − hⱼ‖, zero for the filters at x, and the number of those."""
    away = x[None, :] - h
    lengths = _lengths(away)
    here = lengths == 0
    inverse = jnp.where(here, 0, 1 / jnp.where(here, 1, lengths))
    return away * inverse[:, None], inverse, here.sum(dtype=h.dtype)


def _lengths(x: Float[Array, "*batch dims"]) -> Float[Array, "*batch"]:
    """Euclidean lengths along the last axis, with gradient zero where they are zero."""
    square = jnp.square(x).sum(-1)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _dot(a: Float[Array, "n m"], b: Float[Array, " m"]) -> Float[Array, " n"]:
    return jnp.matmul(a, b, precision="highest")
