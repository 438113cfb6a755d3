"""Tests run in float64 with every implicit cast, rank promotion and warning an error."""

import os
import shutil
import tempfile

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # most of the time is compilation
jax.config.update("jax_num_cpu_devices", 8)  # for what is spread over devices
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# What one worker or subprocess of a run has compiled, the others need not compile again.
CACHE = "JAX_COMPILATION_CACHE_DIR"
if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="jaxnorm-tests-")
jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):  # the last to leave
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def unchecked():
    """As users have it: no type checker catches wrong arguments first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
