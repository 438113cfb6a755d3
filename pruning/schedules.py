"""Makes schedules of pruning, which are ascending fractions for the option `ratios` of `prune`.

A curve is a function `curve(target, t)`, where t ∈ (0, 1] is the share of the steps that are
completed. The three curves of this module end at `target`.
"""

from collections.abc import Callable

from jaxnorm.internal import check_function, check_numeric, check_on_host, check_whole
from pruning._arguments import at_least, real

__all__ = ["Curve", "cubic", "geometric", "iterative", "linear"]

Curve = Callable[[int | float, float], float]
"""A function `curve(target, t)` that returns the fraction removed after a share t of the steps."""


def linear(target: int | float, t: float) -> float:
    """The fraction target · t, for which each step removes the same number of channels."""
    _check(target, t)
    return target * t


def cubic(target: int | float, t: float) -> float:
    """The fraction of Zhu and Gupta (2017), rising fastest at first: target · (1 − (1 − t)³)."""
    _check(target, t)
    return target * (1 - (1 - t) ** 3)


def geometric(target: int | float, t: float) -> float:
    """The fraction 1 − (1 − target)ᵗ; each step removes the same share of remaining channels."""
    _check(target, t)
    return 1 - (1 - target) ** t


def _check(target: int | float, t: float) -> None:
    for name, x in (("target", target), ("t", t)):
        check_numeric(x, name)
        real(**{name: x})
    if not (0 <= target <= 1 and 0 <= t <= 1):
        raise ValueError(f"target and t must lie in [0, 1]; got target {target} and t {t}")


def iterative(target: int | float, *, steps: int, curve: Curve = geometric) -> tuple[float, ...]:
    """For each step, the fraction of all channels that this step and all earlier steps remove.

    The last fraction is `target`. The fractions are Python numbers, computed on the host.

    Raises:
      TypeError: `curve` returns no number.
      ValueError: `target` lies outside (0, 1), `steps` is less than 1, or the fractions decrease or
        are negative.

    Example:
      >>> print(iterative(0.75, steps=2), iterative(0.75, steps=3, curve=linear))
      (0.5, 0.75) (0.25, 0.5, 0.75)
    """
    instead = "give target and steps as Python numbers"
    check_on_host("iterative", target, steps, instead=instead)
    check_numeric(target, "target")
    if not 0 < target < 1:
        raise ValueError(f"target must lie in (0, 1); got {target}")
    target = float(target)
    check_whole(steps=steps)
    at_least(1, steps=steps)
    check_function(curve, "curve", "pruning.schedules.cubic")
    ratios = (*(curve(target, step / steps) for step in range(1, steps)), target)
    for ratio in ratios:
        check_numeric(ratio, "the fraction that curve returns")
    if list(ratios) != sorted(ratios) or ratios[0] < 0:
        raise ValueError(f"curve must rise from 0 to the target {target}; got {ratios}")
    return ratios
