"""Criteria that score the filters of a layer, Table 2; the smallest scores are pruned first.

Filters are rows, `(filters, dims)`. Scores are in at least float32 whatever the filters' dtype:
neighbouring filters of a layer differ by less than bfloat16 resolves, and would tie. Lengths have
gradient zero at the zero vector, so that all gradients are finite. Functions that loop are
compiled here, as JAX would else compile each loop anew at every call from outside `jit`. Under
`jit` the criteria of one layer share its Gram product.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._numerics import auto_sharded, promote_to_float32
from pruning.criteria._median import (
    centred,
    geometric_median,
    lengths,
    products,
    searched_median,
    weiszfeld,
)


def l1_norm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ‖₁ of every filter."""
    return jnp.abs(promote_to_float32(filters)).sum(1)


def l2_norm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ‖₂ of every filter."""
    return lengths(promote_to_float32(filters))


@jax.custom_jvp
@auto_sharded
@jax.jit
def fermat(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """‖vⱼ − F‖₂ of every filter, F the `geometric_median` of all.

    From the Gram product of the centred filters alone where it knows the median and no distance
    loses digits to it, from differences elsewhere: right to 64 units of rounding.
    """
    h = centred(promote_to_float32(filters))
    near = weiszfeld(products(h))
    return jax.lax.cond(
        near.settled,
        lambda h: jnp.sqrt(near.square),
        lambda h: lengths(h - searched_median(h, near)[None, :]),
        h,
    )


@fermat.defjvp
def _fermat_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    @auto_sharded
    def by_differences(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
        h = promote_to_float32(filters)
        return lengths(h - geometric_median(h)[None, :])

    return fermat(*primals), jax.jvp(by_differences, primals, tangents)[1]


@jax.custom_jvp
@auto_sharded
@jax.jit
def gm(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """Σₖ ‖vₖ − vⱼ‖₂ of every filter: its summed distance to the others, He et al. (2019).

    Squared distances come from one Gram product of the centred filters. Where one of a row is
    below a sixteenth of ‖vⱼ‖² + ‖vₖ‖², and the product has lost digits, the row is computed again
    from differences, so that scores are right to 64 units of rounding whatever the filters.
    """
    h = centred(promote_to_float32(filters))
    gram = products(h)
    squares = jnp.diagonal(gram)
    sums = squares[:, None] + squares[None, :]
    square = sums - 2 * gram
    others = ~jnp.eye(len(h), dtype=bool)
    rows = jnp.sqrt(jnp.where(others, jnp.maximum(square, 0), 0)).sum(1)
    near = jnp.any(others & (square < sums / 16), 1)

    def again(
        state: tuple[Float[Array, " n"], Bool[Array, " n"]],
    ) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
        rows, near = state
        j = jnp.argmax(near)
        return rows.at[j].set(lengths(h - h[j][None, :]).sum()), near.at[j].set(False)

    return jax.lax.while_loop(lambda state: state[1].any(), again, (rows, near))[0]


@gm.defjvp
def _gm_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The derivative of the sum of differences, a row at a time: little memory, no cancellation."""

    @auto_sharded
    def by_rows(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
        h = promote_to_float32(filters)
        return jax.lax.map(jax.checkpoint(lambda v: lengths(h - v[None, :]).sum()), h)

    return gm(*primals), jax.jvp(by_rows, primals, tangents)[1]


@auto_sharded
def repr_score(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """Σₖ |cos(vⱼ, vₖ)| over the other filters: how far a filter is from orthogonal to them.

    RePr's rank, Prakash et al. (2019), times the number of filters; in [0, n − 1]. RePr drops the
    *largest* first, the filters that others express as well. A zero filter is orthogonal to all,
    with gradient zero.
    """
    h = promote_to_float32(filters)
    norms = lengths(h)
    unit = h / jnp.where(norms > 0, norms, 1)[:, None]
    return jnp.where(jnp.eye(len(h), dtype=bool), 0, jnp.abs(products(unit))).sum(1)


CRITERIA = {"l1": l1_norm, "l2": l2_norm, "fermat": fermat, "gm": gm}


@auto_sharded
def scores(filters: Float[Array, "n dims"]) -> dict[str, Float[Array, " n"]]:
    """The scores by all of `CRITERIA`, by name.

    `jax.jit(functools.partial(jax.tree.map, scores))(layers)` scores a network in one call.
    """
    return {name: criterion(filters) for name, criterion in CRITERIA.items()}
