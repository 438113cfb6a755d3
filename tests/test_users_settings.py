"""Runs tests of the numerical core with the settings of users, that is, all XLA optimizations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = (
    "tests/jaxnorm/test_decompose.py",
    "tests/jaxnorm/test_unitize.py",
    "tests/jaxnorm/test_statistics.py",
    "tests/jaxnorm/test_batch_norm.py",
    "tests/pruning/test_criteria.py",
    "tests/pruning/test_ks.py",
    "tests/geometry/test_kernel.py",
    "tests/geometry/test_ranks.py",
    "tests/geometry/test_tree_limits.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("file", CORE)
def test_the_core_holds_as_users_compile_it(file):
    users = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "false"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | users, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_run_has_the_settings_that_it_is_given():
    """The tests' own settings must not replace the settings of the environment."""
    users = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "false"}
    names = tuple(users)
    code = f"import os, conftest; print([os.environ[name] for name in {names}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | users,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['', 'false']"
