"""The recentering tree of one coordinate at any depth, stored in O(n) numbers.

If samples are sorted, every neuron is a monotone function of the sample. A neuron that takes three
or more values is constant on its first `low` samples, and constant from sample `high` on. Samples
`low` to `high` − 1 are inside the neuron. Values of samples inside a neuron keep their initial
distances, so only the two outer gaps of the neuron shrink. Every sample is inside at most one
neuron. Therefore n slots store all neurons with three or more values: slot i is for the neuron that
has sample i inside. All other neurons take two values, and jump at one of n + 1 positions. For each
position, only the sum of the squared heights of the jumps is needed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from geometry.tree._float_exp import FloatExp, add, at_exponent, multiply, renormalize, top_exponent
from jaxnorm.internal import matmul


class Slots(NamedTuple):
    """Neurons whose values at the samples are three or more numbers.

    A sample is inside a neuron if its value is neither the neuron's lowest nor the highest. Sample
    i is inside the neuron of slot i. A slot is dead, that is, not used, if one of its gaps is zero.
    A neuron with k samples inside has k equal slots. The true heights of slot i are
    2**gaps.exponent[0, i] times the heights from the mantissas of its gaps.

    Attributes:
      low: The number of samples at the lowest value.
      high: The index of the first sample at the highest value.
      gaps: Two gaps of each neuron: from the low samples to the first sample inside, and from the
        last sample inside to the high samples.
      falling: 1 if the neuron is zero on the high samples, otherwise 0.
    """

    low: Int[Array, " n"]
    high: Int[Array, " n"]
    gaps: FloatExp
    falling: Int[Array, " n"]


class State(NamedTuple):
    """The neurons of the tree at one depth.

    Each layer multiplies heights by the number n of samples, so that no mean over samples needs a
    division by n. The heights in `sums` are multiplied by these factors n; the heights in `slots`
    are not.

    Attributes:
      slots: The neurons of three or more values.
      sums: For each p, the sums of the squared heights of two-valued neurons that jump after p
        samples. Row 0 is for neurons that are positive on the first p samples and zero on all other
        samples. Row 1 is for neurons that are zero on the first p samples and positive on all other
        samples.
      power: The factor n**depth, which the heights in `slots` do not contain.
    """

    slots: Slots
    sums: FloatExp
    power: FloatExp


def start(x: Float[Array, " n"]) -> State:
    """The state at depth 0, for sorted samples in [0, 1]; the first sample is 0."""
    n = len(x)
    i, zero = _index(n), jnp.zeros((), jnp.int32)
    low, high = (jnp.sum(part, dtype=jnp.int32) for part in (x == 0, x < x[-1]))
    # At depth 0, the samples are the values of the only neuron. If there are only two values, the
    # neuron jumps once, and is zero at the samples before the jump.
    jump = (_index(n + 1) == low) & (high <= low)
    sums = jnp.stack([jnp.zeros(n + 1, x.dtype), jnp.where(jump, jnp.square(x[-1]), 0)])
    inside = (i >= low) & (i < high)
    gaps = [jnp.where(inside, gap, 0) for gap in (x[low], x[-1] - x[high - 1])]
    slots = Slots(0 * i + low, 0 * i + high, FloatExp(jnp.stack(gaps), 0 * i[None]), 0 * i)
    return State(slots, FloatExp(sums, zero), FloatExp(jnp.ones((), x.dtype), zero))


def layer(x: Float[Array, " n"], state: State) -> State:
    """The state after one more layer, with the children of all neurons."""
    slots = state.slots
    alive, (mean, top) = _alive(slots), _mean_and_top(x, slots)
    height = slots.gaps.mantissa[0] + (x - x[slots.low])
    rises, falls = alive & (height > mean), alive & (height < mean)
    power = state.power
    power = renormalize(power._replace(mantissa=power.mantissa * len(x)))
    # A neuron has the lowest value at its low samples, and the highest at its high samples. If the
    # values at all other samples are not below the neuron's mean, one child is positive only at the
    # low samples. This child is added to `sums` once, at the first of the other samples. If the
    # values at all other samples are not above the mean, one child is positive only at the high
    # samples. This child is added to `sums` once, at the last of the other samples.
    i = _index(len(x))
    zero_from = jnp.where(alive & (i == slots.low) & ~falls, mean, 0)
    zero_up_to = jnp.where(alive & (i == slots.high - 1) & ~rises, top - mean, 0)
    heights = FloatExp(jnp.stack([zero_from, zero_up_to]), slots.gaps.exponent)
    sums = add(_two_valued_children(state.sums), _jumps(multiply(heights, power)))
    return State(_slot_children(x, slots, mean, rises, falls), renormalize(sums), power)


def gram(x: Float[Array, " n"], state: State) -> FloatExp:
    """The Gram matrix of the tree in the given state, multiplied by n**(2 depth)."""
    slots, i = state.slots, _index(len(x))
    rows, (_, top) = _heights(x, slots), _mean_and_top(x, slots)
    rows = jnp.where(slots.falling[:, None] == 1, top[:, None] - rows, rows)
    rows = jnp.where(_alive(slots)[:, None], rows, 0)
    weight, exponent = _weights(state)
    slot_part = FloatExp(matmul(rows.T, weight[:, None] * rows), exponent)
    left, right = state.sums.mantissa
    # Entry i of each array is a sum over the two-valued neurons that are positive at sample i. The
    # neurons of `below` jump up at sample i or an earlier sample. The neurons of `above` jump down
    # after sample i.
    below = jnp.cumsum(right)[:-1]
    above = jnp.cumsum(left[::-1])[::-1][1:]
    first, last = jnp.minimum(i[:, None], i[None]), jnp.maximum(i[:, None], i[None])
    return add(slot_part, FloatExp(below[first] + above[last], state.sums.exponent))


def squared_distances(x: Float[Array, " n"], state: State) -> FloatExp:
    """The squared distances of all samples, as sums of positive terms.

    The terms come from the neurons in slots, and from two-valued neurons that jump between the two
    samples.
    """
    n, rows = len(x), _heights(x, state.slots)
    weight, exponent = _weights(state)

    def of_slots(column: Float[Array, " slots"]) -> Float[Array, " n"]:
        return matmul(weight, jnp.square(rows - column[:, None]))

    total = jnp.triu(jnp.broadcast_to(state.sums.mantissa.sum(0)[1:n], (n, n - 1)))
    between = jnp.pad(jnp.cumsum(total, axis=1), ((0, 0), (1, 0)))
    upper = jnp.triu(between, 1)
    slot_part = FloatExp(jax.lax.map(of_slots, rows.T), exponent)
    return add(slot_part, FloatExp(upper + upper.T, state.sums.exponent))


def _mean_and_top(x: Float[Array, " n"], slots: Slots) -> tuple[Array, Array]:
    """The mean height and the largest height of every slot's neuron.

    Heights are relative to the low samples of the neuron.
    """
    n, (low, high, gaps, _) = len(x), slots
    below, above = gaps.mantissa
    first, last = x[low], x[high - 1]
    inside = (high - low).astype(x.dtype)
    sums = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(x)])
    # If the samples `low` to `high` of a neuron are equal, the mean is computed from the gaps
    # alone. The gaps shrink, so a difference of samples would lose digits.
    spread = jnp.where(last > first, sums[high] - sums[low] - inside * first, 0)
    top = below + (last - first) + above
    return (inside * below + spread + (n - high).astype(x.dtype) * top) / n, top


def _slot_children(
    x: Float[Array, " n"],
    slots: Slots,
    mean: Float[Array, " n"],
    rises: Bool[Array, " n"],
    falls: Bool[Array, " n"],
) -> Slots:
    """For every slot, the child of its neuron that is positive at the slot's sample."""
    alive, i, (low, high, gaps, _) = _alive(slots), _index(len(x)), slots
    below, above = gaps.mantissa
    new_low = jnp.where(rises, jnp.maximum(low, _last_so_far(alive & ~rises) + 1), low)
    new_high = jnp.where(falls, jnp.minimum(high, _next(alive & ~falls)), high)
    # If the height of a sample is the mean, rounding decides in which child the sample is positive.
    # A gap of this child is at least `smallest_gap`, because the difference `rise` or `fall` can
    # round to zero, and a gap of zero would mark the child as dead.
    smallest_gap = jnp.finfo(x.dtype).eps * mean
    rise = below + (x[new_low] - x[low]) - mean
    fall = mean - (below + (x[new_high - 1] - x[low]))
    new_below = jnp.where(rises, jnp.maximum(rise, smallest_gap), below)
    new_above = jnp.where(falls, jnp.maximum(fall, smallest_gap), above)
    lives = (rises | falls) & (new_low <= i) & (i < new_high)
    new_gaps = jnp.where(lives[None], jnp.stack([new_below, new_above]), 0)
    # If the samples `new_low` to `new_high` of a neuron are equal, its heights depend only on the
    # gaps below and above these samples. Therefore the gaps can be divided by a power of two, whose
    # exponent is stored.
    alone = x[new_high - 1] == x[new_low]
    gaps = renormalize(FloatExp(new_gaps, gaps.exponent), axis=0, where=alone[None])
    return Slots(new_low, new_high, gaps, falls.astype(low.dtype))


def _two_valued_children(sums: FloatExp) -> FloatExp:
    """The sums for the two-valued children of two-valued neurons: heights times p/n or (n − p)/n.

    The code multiplies by p or n − p without the division by n.
    """
    total = sums.mantissa.sum(0)
    square = jnp.square(_index(len(total))).astype(total.dtype)
    return sums._replace(mantissa=jnp.stack([square[::-1] * total, square * total]))


def _jumps(heights: FloatExp) -> FloatExp:
    """The squared heights (2, n) of new two-valued neurons, at the positions of their jumps."""
    squares = multiply(heights, heights)
    top = top_exponent(squares)
    zero_from, zero_up_to = at_exponent(squares, top)
    return FloatExp(jnp.stack([jnp.pad(zero_from, (0, 1)), jnp.pad(zero_up_to, (1, 0))]), top)


def _heights(x: Float[Array, " n"], slots: Slots) -> Float[Array, "slots n"]:
    """The heights of all samples in all slots, relative to the low samples.

    Dead slots have zeros.
    """
    i, (_, top) = _index(len(x)), _mean_and_top(x, slots)
    inner = slots.gaps.mantissa[0][:, None] + (x[None] - x[slots.low][:, None])
    rows = jnp.where(i[None] < slots.high[:, None], inner, top[:, None])
    rows = jnp.where(i[None] < slots.low[:, None], 0, rows)
    return jnp.where(_alive(slots)[:, None], rows, 0)


def _weights(state: State) -> tuple[Float[Array, " slots"], Int[Array, ""]]:
    """Weights by which the squared heights of all slots are summed, with a common exponent.

    If a neuron has several slots, only one of its slots has a weight above zero.
    """
    slots = state.slots
    counted = _alive(slots) & (_index(len(slots.low)) == slots.low)
    one = FloatExp(counted.astype(state.power.mantissa.dtype), slots.gaps.exponent[0])
    weights = multiply(multiply(one, state.power), multiply(one, state.power))
    top = top_exponent(weights)
    return at_exponent(weights, top), top


def _alive(slots: Slots) -> Bool[Array, " n"]:
    return jnp.all(slots.gaps.mantissa > 0, axis=0)


def _index(n: int) -> Int[Array, " n"]:
    return jnp.arange(n, dtype=jnp.int32)


def _last_so_far(marked: Array) -> Int[Array, " n"]:
    """For each i, the last marked index that is at most i; −1 if there is none."""
    return jax.lax.cummax(jnp.where(marked, _index(len(marked)), -1))


def _next(marked: Array) -> Int[Array, " n"]:
    """For each i, the first marked index that is at least i; the length n if there is none."""
    n = len(marked)
    return jax.lax.cummin(jnp.where(marked, _index(n), n), reverse=True)
