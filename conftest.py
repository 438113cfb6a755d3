"""Tests run in float64 with every implicit cast, rank promotion and warning an error."""

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # most of the time is compilation
jax.config.update("jax_num_cpu_devices", 8)  # for what is spread over devices
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def unchecked():
    """As users have it: no type checker catches wrong arguments first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
