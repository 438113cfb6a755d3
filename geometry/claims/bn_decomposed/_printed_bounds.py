"""The bounds of Theorem 11 as printed, which `geometry.tree.end_bounds` sharpens."""

import math

from geometry.tree import EndBounds


def printed_end_bounds(n: int) -> EndBounds:
    """3/(n − 2) and π/2 − √2 π/(n − 2), for n samples; vacuous for n = 3 and 4.

    Raises:
      ValueError: n is below 3.

    Example:
      >>> print(f"{printed_end_bounds(5).norm_ratio:.1f}")
      1.0
    """
    if n < 3:
        raise ValueError(f"a tree with a cluster needs at least 3 samples; got {n}")
    return EndBounds(3 / (n - 2), math.pi / 2 - 2**0.5 * math.pi / (n - 2))
