"""Chooses channels within a budget of milliseconds, multiply-accumulates or bytes.

The choice is a knapsack problem: minimize the total loss under the constraint that the cost is at
most the budget.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxnorm.internal import check_flags, check_numeric, check_on_host
from pruning._arguments import at_least
from pruning.channels._cost.cost_at import Widths
from pruning.channels._selection.choice import (
    Masks,
    Scores,
    check_score_vectors,
    keep_largest,
    multiples,
)

CostOf = Callable[[Widths], int | float]
Values = Float[np.ndarray, " _"]
"""For n = 0, 1, ..., a constant minus the loss of a group that keeps its n best channels."""


def select_within(
    scores: Scores,
    *,
    budget: int | float,
    cost: CostOf,
    price: CostOf | None = None,
    widths: Sequence[Sequence[int]] | None = None,
    min_channels: int = 1,
    round_to: int | Sequence[int] = 1,
    normalize: bool = True,
) -> Masks:
    """Choose the channels to keep such that the cost of the network is at most `budget`.

    The algorithm is greedy: each step removes channels of the group in which the loss of score
    divided by the saved cost is smallest. The algorithm stops at the first widths whose cost is at
    most the budget. Without `price`, steps with a large loss are then undone while the cost does
    not exceed the budget. Without `price`, the budget that remains is less than the saving of the
    last step of each group. The loss of a group is −log(sum of the kept scores / sum of all scores
    of the group), so scores of different layers need not have the same unit. Because of the
    logarithm, the removal of a channel increases the loss more if the group has already lost many
    channels. This protects the network from bottlenecks. Under two conditions, the loss exceeds the
    smallest possible loss by at most the loss of the last step, Dantzig (1957). The conditions are
    that the cost is a sum over groups, and that each removed channel saves no more than the
    previously removed channel of its group. If a layer connects two groups, the cost is not a sum
    over groups.

    `select_within` runs on the host. With `price`, the algorithm chooses steps by `price`, and
    calls `cost` only about log₂(number of steps) times. Therefore, with `price`, a slow `cost` is
    acceptable, such as a function that compiles and times the network.

    Args:
      scores: One vector of nonnegative scores for each group; −∞ for channels that were removed
        earlier, and ∞ for channels that must be kept.
      budget: The largest allowed cost, in the unit of `cost`.
      cost: A function from the width of each group to the cost of the network. For example, pass
        `lambda widths: at(widths).macs` with `at = cost_at(apply, params, groups, x)`. A wider
        network must not cost less than a narrower network.
      price: A faster function that estimates the cost, such as multiply-accumulates if `cost` is in
        milliseconds. The default is `cost`.
      widths: For each group, the allowed widths, such as the widths that `widths_for` marks. The
        whole width is always allowed. By default, all widths are allowed.
      min_channels: The smallest number of channels that a group keeps. A group with fewer channels
        than `min_channels` keeps all channels.
      round_to: The number of kept channels of each group is a multiple of `round_to`, as in
        `select_layerwise`.
      normalize: If false, the loss is the sum of the scores of all removed channels.

    Raises:
      ValueError: `cost` exceeds the budget even with the fewest channels. An option is out of
        range. A score is negative and `normalize` is true. A score is NaN, or `scores` does not
        hold one vector for each group.

    Example:
      >>> scores = [jnp.array([3.0, 1.0, 2.0]), jnp.array([5.0, 4.0])]
      >>> cost = lambda widths: widths[0] + 4 * widths[1]
      >>> print([m.tolist() for m in select_within(scores, budget=7, cost=cost)])
      [[True, True, True], [True, False]]
    """
    check_on_host("select_within", scores, instead="use lowest, a mask of removed scores")
    check_score_vectors(scores)
    at_least(1, min_channels=min_channels)
    check_flags(normalize=normalize)
    vectors = [jnp.asarray(vector) for vector in scores]
    values = [_values(np.sort(np.asarray(vector, np.float64)), normalize) for vector in vectors]
    sizes = [value.size - 1 for value in values]
    allowed = list(map(range, sizes)) if widths is None else widths
    if len(allowed) != len(sizes):
        raise ValueError(f"widths must hold {len(sizes)} lists, one per group; got {len(allowed)}")
    multiple = multiples(round_to, len(sizes))
    minimum = [max(min_channels, np.isposinf(vector).sum()) for vector in vectors]
    narrower = [
        sorted({n for n in own if fewest <= n < size and n % step == 0}, reverse=True)
        for own, fewest, size, step in zip(allowed, minimum, sizes, multiple, strict=True)
    ]
    name, estimate = ("cost", cost) if price is None else ("price", price)
    check_numeric(estimate(sizes), f"the result of {name}")
    path = _path(values, narrower, estimate)
    smallest = cost(path[-1])
    check_numeric(smallest, "the result of cost")
    if not smallest <= budget:
        raise ValueError(
            f"budget must be at least {smallest:g}, the cost of the network with the fewest "
            f"channels; got {budget:g}: choose a larger budget, or let more channels be removed "
            "(for prune, a budget below 1 is a share of the cost, and resize=True removes more)"
        )
    first = bisect_left(path, True, hi=len(path) - 1, key=lambda widths: cost(widths) <= budget)
    chosen = path[first]
    if price is None:
        chosen = _undo_steps(path[: first + 1], values, budget, cost)
    return list(map(keep_largest, vectors, chosen))


def _values(ascending: Float[np.ndarray, " n"], normalize: bool) -> Values:
    """The `Values` of a group, computed from the group's scores in ascending order."""
    descending = ascending[ascending > -np.inf][::-1]
    finite = descending[descending < np.inf]
    # Channels with the score ∞ are always kept, so a finite score can replace ∞.
    descending = np.minimum(descending, finite.max(initial=0))
    if not normalize:
        return np.cumsum([0.0, *descending])
    if descending.size and descending[-1] < 0:
        raise ValueError(
            "scores must not be negative, because normalize divides them by their sum; got "
            f"{descending[-1]:g}: pass normalize=False"
        )
    if not descending.any():
        descending = np.ones_like(descending)
    sums = np.cumsum(descending)
    return np.concatenate([[-np.inf], np.log(sums / sums[-1])]) if sums.size else np.zeros(1)


class Step(NamedTuple):
    """A step of the greedy algorithm, which makes one group narrower.

    Steps are ordered by `rate`, the loss of the step divided by the saved price. `number` counts
    the earlier steps of the group. `widths` are the widths of all groups after the step, and
    `price` is the price of the network after the step.
    """

    rate: float
    group: int
    number: int
    widths: tuple[int, ...]
    price: float


def _path(
    values: Sequence[Values], narrower: Sequence[Sequence[int]], price: CostOf
) -> list[tuple[int, ...]]:
    """The widths of all groups after each step, from the widest network to the narrowest.

    How much a step saves depends on all earlier steps. Therefore the saving of a step is computed
    again before the step is taken.
    """
    path = [tuple(own.size - 1 for own in values)]
    now = price(path[0])

    def step(group: int, number: int) -> Step:
        widths = _replace(path[-1], group, narrower[group][number])
        new = price(widths)
        lost = values[group][path[-1][group]] - values[group][widths[group]]
        return Step(lost / (now - new) if now > new else math.inf, group, number, widths, new)

    steps = [step(group, 0) for group, own in enumerate(narrower) if own]
    heapq.heapify(steps)
    while steps:
        _, group, number, *_ = heapq.heappop(steps)
        best = step(group, number)
        if steps and best.rate > steps[0].rate:
            heapq.heappush(steps, best)
            continue
        path.append(best.widths)
        now = best.price
        if number + 1 < len(narrower[group]):
            heapq.heappush(steps, step(group, number + 1))
    return path


def _undo_steps(
    path: Sequence[tuple[int, ...]], values: Sequence[Values], budget: int | float, cost: CostOf
) -> tuple[int, ...]:
    """The widths after steps of `path` are undone while the cost does not exceed the budget.

    The step with the largest loss is undone first.
    """
    widths = path[-1]
    steps = [sorted({before[group] for before in path}) for group in range(len(values))]
    while True:
        wider = []
        for group, own in enumerate(steps):
            for width in own[own.index(widths[group]) + 1 :][:1]:
                gained = values[group][width] - values[group][widths[group]]
                wider.append((gained, _replace(widths, group, width)))
        fitting = [pair for pair in wider if cost(pair[1]) <= budget]
        if not fitting:
            return widths
        _, widths = max(fitting)


def _replace(widths: tuple[int, ...], group: int, width: int) -> tuple[int, ...]:
    return (*widths[:group], width, *widths[group + 1 :])
