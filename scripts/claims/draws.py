"""Draw random numbers, and fit the exponent of an error, for claims of all papers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key


def normal(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    """Standard normal numbers in float32."""
    # Numbers are drawn along one axis, because XLA compiles a draw with several axes much more
    # slowly.
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def generator(key: Key[Array, ""]) -> np.random.Generator:
    """A NumPy generator of random numbers, seeded by the key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def exponent(sizes: Any, errors: Any) -> float:
    """The slope of a line fitted to log |error| as a function of log size."""
    return float(np.polyfit(np.log(sizes), np.log(np.abs(np.asarray(errors, float))), 1)[0])
