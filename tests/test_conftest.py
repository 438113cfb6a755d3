"""The tests remove the cache that they made, and no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("is_ours", [True, False])
def test_only_a_cache_of_our_own_is_removed(is_ours, tmp_path):
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    cache.mkdir()
    temporary.mkdir()
    (cache / "program").write_text("compiled")
    environment = os.environ | {"TMPDIR": str(temporary)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if not is_ours:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/test_conftest.py"],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert (cache / "program").exists()
    assert not list(temporary.glob("jaxnorm-tests-*"))
