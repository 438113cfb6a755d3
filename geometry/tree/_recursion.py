"""The recentering tree of one coordinate in O(n) numbers, whatever its depth.

With samples sorted, every neuron is monotone in the sample. A neuron of three or more values is
constant on its first `low` samples and from sample `high` on, and between these the samples keep
the distances that they had at the start: only the two outer gaps ever shrink. Every sample lies
strictly inside at most one neuron. All other neurons take two values, and of these only the sum
of squared heights matters, for each of the n + 1 places where they can jump.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class State(NamedTuple):
    """The tree at one depth.

    Slot i has the neuron in which sample i lies strictly inside, 2**slot_exponent times what is
    kept; it is dead if `below` or `above` is zero. A neuron with k samples inside is held k times.
    Two-valued neurons are summed: `right`[p] has the squared heights of those that are zero on the
    first p samples and positive and equal on the rest, `left`[p] of those that are positive on the
    first p and zero after. Their true sums are 4**exponent / n**(2 depth) times as large; `power`
    and `power_exponent` are mantissa and exponent of n**depth.
    """

    low: Int[Array, " n"]
    high: Int[Array, " n"]
    below: Float[Array, " n"]  # gap from the low samples to the first inside
    above: Float[Array, " n"]  # gap from the last inside to the high samples
    falling: Int[Array, " n"]  # 1 where the high samples are the zeros
    slot_exponent: Int[Array, " n"]
    left: Float[Array, " splits"]
    right: Float[Array, " splits"]
    exponent: Int[Array, ""]
    power: Float[Array, ""]
    power_exponent: Int[Array, ""]


def start(x: Float[Array, " n"]) -> State:
    """Depth 0 of sorted samples in [0, 1] that begin with 0: the level does not matter."""
    n = len(x)
    low, high = (jnp.sum(part, dtype=jnp.int32) for part in (x == 0, x < x[-1]))
    # Two values only: a height and a jump, as of a neuron that is zero below.
    at = (_index(n + 1) == low) & (high <= low)
    right = jnp.where(at, jnp.square(x[-1]), 0)
    i = _index(n)
    inside = (i >= low) & (i < high)
    none = jnp.zeros_like(i)
    return State(
        none + low,
        none + high,
        jnp.where(inside, x[low], 0),
        jnp.where(inside, x[-1] - x[high - 1], 0),
        none,
        none,
        jnp.zeros(n + 1, x.dtype),
        right,
        jnp.zeros((), low.dtype),
        jnp.ones((), x.dtype),
        jnp.zeros((), low.dtype),
    )


def layer(x: Float[Array, " n"], state: State) -> State:
    """All neurons replaced by their children."""
    n = len(x)
    i = _index(n)
    low, high, below, above = state.low, state.high, state.below, state.above
    alive = (below > 0) & (above > 0)
    first, last = x[low], x[high - 1]
    inside = (high - low).astype(x.dtype)
    sums = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(x)])
    # Without spread inside nothing but the gaps counts, and the gaps shrink: keep their digits.
    spread = jnp.where(last > first, sums[high] - sums[low] - inside * first, 0)
    top = below + (last - first) + above
    mean = (inside * below + spread + (n - high).astype(x.dtype) * top) / n
    height = below + (x - first)
    rises, falls = alive & (height > mean), alive & (height < mean)
    # The slot goes on with the child in which its sample is positive; the mean is the new zero.
    new_low = jnp.where(rises, jnp.maximum(low, _last_so_far(alive & ~rises) + 1), low)
    new_high = jnp.where(falls, jnp.minimum(high, _next(alive & ~falls)), high)
    new_below = jnp.where(rises, below + (x[new_low] - first) - mean, below)
    new_above = jnp.where(falls, mean - (below + (x[new_high - 1] - first)), above)
    lives = (rises | falls) & (new_low <= i) & (i < new_high)
    new_below, new_above = (jnp.where(lives, gap, 0) for gap in (new_below, new_above))
    power, more = jnp.frexp(state.power * n)
    power_exponent = state.power_exponent + more
    factor = _factor(alive, state.slot_exponent, state.exponent, power, power_exponent)
    # The last sample inside tells of a child that is zero up to it, the first of the other child.
    zero_up_to = jnp.where(alive & (i == high - 1) & ~rises, factor * jnp.square(top - mean), 0)
    zero_from = jnp.where(alive & (i == low) & ~falls, factor * jnp.square(mean), 0)
    # Heights become p/n or (n - p)/n of themselves: n times that is exact, and no rounding adds up.
    square = jnp.square(_index(n + 1)).astype(x.dtype)
    total = state.left + state.right
    left = square[::-1] * total + jnp.pad(zero_from, (0, 1))
    right = square * total + jnp.pad(zero_up_to, (1, 0))
    alone = x[new_high - 1] == x[new_low]
    _, shift = jnp.frexp(jax.lax.stop_gradient(jnp.where(alone, new_below + new_above, 0)))
    smaller = jnp.ldexp(jnp.ones(n, x.dtype), -shift)
    new = State(
        new_low,
        new_high,
        new_below * smaller,
        new_above * smaller,
        falls.astype(low.dtype),
        state.slot_exponent + shift,
        left,
        right,
        state.exponent,
        power,
        power_exponent,
    )
    return _renormalized(new)


def gram(x: Float[Array, " n"], state: State) -> Float[Array, "n n"]:
    """Gram matrix, 4**-exponent n**(2 depth) times the true one."""
    n = len(x)
    rows, top, weight = _rows(x, state)
    rows = jnp.where(state.falling[:, None] == 1, top[:, None] - rows, rows)
    many = jnp.einsum("s,si,sj->ij", weight, rows, rows, precision="highest")
    below = jnp.cumsum(state.right)[:n]  # sample i is positive where the jump is at most i
    above = jnp.cumsum(state.left[::-1])[::-1][1:]
    i = _index(n)
    return many + below[jnp.minimum(i[:, None], i[None])] + above[jnp.maximum(i[:, None], i[None])]


def squared_distances(x: Float[Array, " n"], state: State) -> Float[Array, "n n"]:
    """Sums of positive terms only: over neurons, and over the jumps between two samples."""
    n = len(x)
    rows, _, weight = _rows(x, state)

    def many(column: Float[Array, " slots"]) -> Float[Array, " n"]:
        return jnp.sum(weight[:, None] * jnp.square(rows - column[:, None]), axis=0)

    total = jnp.triu(jnp.broadcast_to((state.left + state.right)[1:n], (n, n - 1)))
    between = jnp.pad(jnp.cumsum(total, axis=1), ((0, 0), (1, 0)))
    upper = jnp.triu(between, 1)
    return jax.lax.map(many, rows.T) + upper + upper.T


def _rows(x: Float[Array, " n"], state: State) -> tuple[Array, Array, Array]:
    """Heights of all slots above their low samples, their largest, and their weights."""
    n = len(x)
    i = _index(n)
    first, last = x[state.low], x[state.high - 1]
    top = state.below + (last - first) + state.above
    inner = state.below[:, None] + (x[None] - first[:, None])
    rows = jnp.where(i[None] < state.high[:, None], inner, top[:, None])
    rows = jnp.where(i[None] < state.low[:, None], 0, rows)
    alive = (state.below > 0) & (state.above > 0)
    weight = _factor(
        alive & (i == state.low),
        state.slot_exponent,
        state.exponent,
        state.power,
        state.power_exponent,
    )
    return jnp.where(alive[:, None], rows, 0), jnp.where(alive, top, 0), weight


def _factor(
    counted: Array, slot_exponent: Array, exponent: Array, power: Array, power_exponent: Array
) -> Array:
    """What the squares of a slot weigh beside `left` and `right`; 0 where it is not counted."""
    shift = jnp.where(counted, slot_exponent + power_exponent - exponent, 0)
    return jnp.where(counted, jnp.ldexp(jnp.square(power), 2 * shift), 0)


def _renormalized(state: State) -> State:
    """The same state with its largest sum of squares near 1; powers of two cost no digits."""
    alive = (state.below > 0) & (state.above > 0)
    kept = (state.slot_exponent, state.exponent, state.power, state.power_exponent)
    slots = jnp.max(_factor(alive, *kept))
    _, exponent = jnp.frexp(
        jax.lax.stop_gradient(jnp.maximum(jnp.max(state.left + state.right), slots))
    )
    half = exponent // 2
    factor = jnp.ldexp(jnp.ones((), state.left.dtype), -2 * half)
    return state._replace(
        left=state.left * factor, right=state.right * factor, exponent=state.exponent + half
    )


def _index(n: int) -> Int[Array, " n"]:
    return jnp.arange(n, dtype=jnp.int32)


def _last_so_far(marked: Array) -> Int[Array, " n"]:
    """Index of the last marked sample up to each, −1 where there is none."""
    return jax.lax.cummax(jnp.where(marked, _index(len(marked)), -1))


def _next(marked: Array) -> Int[Array, " n"]:
    """Index of the first marked sample from each on, n where there is none."""
    n = len(marked)
    return jax.lax.cummin(jnp.where(marked, _index(n), n), reverse=True)
