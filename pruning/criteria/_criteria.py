"""Scores the filters of a layer by the criteria of Table 2 of Huang et al. (2020), or by RePr.

By the criteria of Table 2, the filters with the smallest scores are pruned first.

Filters are the rows of a matrix, `(filters, dims)`. Scores are in at least float32 for any dtype of
the filters, because in bfloat16 many filters of a layer would have equal scores. The gradient of a
vector's length is zero at the zero vector, so all gradients are finite. This module compiles
functions with loops by `jit`, because JAX would otherwise compile each loop whenever a function is
called outside `jit`. If all criteria of a layer are computed under one `jit`, the filters' Gram
product is computed only once. If a weight of a layer is not finite, all scores by `fermat`, `gm`
and `repr_score` are NaN. If a weight of a filter is not finite, the scores of the filter by
`l1_norm` and `l2_norm` are not finite.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import auto_sharded, flat_rows, matmul
from pruning._arguments import floating, in_largest, matrix
from pruning.criteria._median import center, geometric_median, lengths, minimum, weiszfeld


def l1_norm(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """The ℓ₁ norm ‖vⱼ‖₁ of every filter vⱼ."""
    return jnp.abs(matrix(filters)).sum(1)


def l2_norm(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """The ℓ₂ norm ‖vⱼ‖₂ of every filter vⱼ, infinite if a weight of the filter is infinite."""
    return lengths(matrix(filters))


@jax.custom_jvp
@auto_sharded
@jax.jit
def fermat(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """The distance of every filter to the `geometric_median` F of all filters: ‖vⱼ − F‖₂.

    If the Gram product of the centered filters is accurate enough, the distances are computed from
    this product. Otherwise, the distances are computed from differences of filters. The relative
    error of a distance is at most 64 times the machine epsilon, except for filters that are much
    nearer to the median than most filters. The distance of a filter near the median has the
    absolute rounding error of the median. If a weight is not finite, the median does not exist, and
    all scores are NaN.
    """
    h, unit = center(matrix(filters))
    near = weiszfeld(matmul(h, h.T))
    return unit * jax.lax.cond(
        near.settled,
        lambda h: jnp.sqrt(near.square),
        lambda h: lengths(h - (end := minimum(h, near)).median(h, end.x)[None, :]),
        h,
    )


@fermat.defjvp
def _fermat_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    @auto_sharded
    def by_differences(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
        h = matrix(filters)
        return lengths(h - geometric_median(h)[None, :])

    return fermat(*primals), jax.jvp(by_differences, primals, tangents)[1]


@jax.custom_jvp
@auto_sharded
@jax.jit
def gm(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """The sum of the distances Σₖ ‖vₖ − vⱼ‖₂ of every filter j to all filters, He et al. (2019).

    Squared distances come from one Gram product of the centered filters. If the product has lost
    digits of a distance of a filter, all distances of the filter are computed again, from
    differences. The relative error of all distances is at most 64 times the machine epsilon. If a
    weight is not finite, all scores are NaN.
    """
    h, unit = center(matrix(filters))
    gram = matmul(h, h.T)
    squares = jnp.diagonal(gram)
    sums = squares[:, None] + squares[None, :]
    square = sums - 2 * gram
    others = ~jnp.eye(len(h), dtype=bool)
    rows = jnp.sqrt(jnp.where(others, jnp.maximum(square, 0), 0)).sum(1)
    near = jnp.any(others & (square < sums / 16), 1)

    def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, near = state
        j = jnp.argmax(near)
        return rows.at[j].set(lengths(h - h[j][None, :]).sum()), near.at[j].set(False)

    return unit * jax.lax.while_loop(lambda state: state[1].any(), again, (rows, near))[0]


@gm.defjvp
def _gm_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The derivative of the sum of distances, row by row, to save memory and avoid cancellation."""

    @auto_sharded
    def by_rows(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
        h = matrix(filters)
        return jax.lax.map(jax.checkpoint(lambda v: lengths(h - v[None, :]).sum()), h)

    return gm(*primals), jax.jvp(by_rows, primals, tangents)[1]


@auto_sharded
def repr_score(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """For every filter vⱼ, the sum of the similarities Σₖ |cos(vⱼ, vₖ)| to all other filters.

    For n filters, the score lies in [0, n − 1]. RePr ranks filters by the score divided by n,
    Prakash et al. (2019). RePr drops the filters with the *largest* scores first, because other
    filters can replace these filters. A zero filter is treated as orthogonal to all filters, and
    has gradient zero.
    """
    h, _ = jax.vmap(in_largest)(matrix(filters))
    norms = lengths(h)
    unit = h / jnp.where(norms == 0, 1, norms)[:, None]
    return jnp.where(jnp.eye(len(h), dtype=bool), 0, jnp.abs(matmul(unit, unit.T))).sum(1)


def filter_matrix(kernel: Float[Array, "*window cin cout"]) -> Float[Array, "cout dims"]:
    """The filters of a kernel as rows of a matrix.

    A row has cin elements for each position of the window. Kernels are laid out as in Flax: HWIO
    for images, (cin, cout) for dense layers. Row j holds `kernel[..., j]` in row-major order. On
    Explicit mesh axes, the filters of a kernel stay sharded, and the other axes of the kernel are
    gathered.

    Example:
      >>> filter_matrix(jnp.ones((3, 3, 16, 64))).shape
      (64, 144)
    """
    floating(kernel, "kernel")
    if kernel.ndim < 2:
        raise ValueError(f"kernel must have shape (*window, cin, cout); got {kernel.shape}")
    return flat_rows(jnp.moveaxis(jnp.asarray(kernel), -1, 0))


class Criteria(dict[str, Callable[..., Array]]):
    """The criteria by name. An unknown name raises an error that lists the known names."""

    def __missing__(self, name: str) -> Callable[..., Array]:
        raise KeyError(f"the criterion must be one of {', '.join(self)}; got {name!r}")


CRITERIA = Criteria(l1=l1_norm, l2=l2_norm, fermat=fermat, gm=gm)
"""The four criteria of Table 2 by name, each a function of filters."""


@auto_sharded
def scores(filters: Float[Array, "filters dims"]) -> dict[str, Float[Array, " filters"]]:
    """A dictionary with the scores of a layer's filters by each criterion of `CRITERIA`.

    To score all layers of a network in one call, use `jax.jit(functools.partial(jax.tree.map,
    scores))(layers)`.
    """
    return {name: criterion(filters) for name, criterion in CRITERIA.items()}
