"""Keys for tests that compare derivatives with finite differences, at several random points.

At a single point, a wrong derivative may be right by chance. For example, a derivative of a sort
that does not permute the tangents is right at every sorted point.
"""

import jax
import pytest

KEYS = 3

several_keys = pytest.mark.parametrize("key", [jax.random.key(i) for i in range(KEYS)], ids=str)
"""Replaces the fixture `key` in tests that call `check_grads`."""
