"""Tests of the settings of the tests, such as the programs that are stored for later runs."""

import ast
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxlib.mlir import ir

from tests.support import ir_contexts, kept_programs

ROOT = Path(__file__).parents[1]
WHOLE = zlib.compress(b"program")


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_users_own_cache_stays_as_it_is(is_ours, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "program").write_text("compiled")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
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
    assert [path.name for path in tmp_path.rglob("*")] == ["cache", "program"]


def test_the_next_run_has_what_the_last_one_compiled(tmp_path):
    first = kept_programs.begin(tmp_path)
    (first / "a").write_bytes(WHOLE)
    (first / "cut").write_bytes(WHOLE[:-1])
    kept_programs.end(first)
    second, at_once = kept_programs.begin(tmp_path), kept_programs.begin(tmp_path)
    assert [path.name for path in second.iterdir()] == ["a"]
    (second / "b").write_bytes(WHOLE)
    kept_programs.end(second)
    kept_programs.end(at_once)
    third = kept_programs.begin(tmp_path)
    assert {path.name: path.read_bytes() for path in third.iterdir()} == {"a": WHOLE, "b": WHOLE}


def test_what_a_killed_run_left_is_removed_after_a_day(tmp_path):
    left = [kept_programs.begin(tmp_path) for _ in range(2)]
    os.utime(left[0], (0, 0))
    kept_programs.end(kept_programs.begin(tmp_path))
    assert [path.exists() for path in left] == [False, True]


def test_of_too_many_programs_the_newest_are_kept(tmp_path):
    run = kept_programs.begin(tmp_path)
    for age in range(4):
        (run / f"{age}").write_bytes(WHOLE)
        os.utime(run / f"{age}", (0, 1000 - age))
    kept_programs.end(run)
    kept_programs.end(kept_programs.begin(tmp_path), most_bytes=2 * len(WHOLE))
    left = kept_programs.begin(tmp_path)
    assert {path.name for path in left.iterdir()} == {"0", "1"}


@contextmanager
def cached_in(folder):
    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()


def third():
    return jax.jit(lambda x: x / 3)  # each call makes a new function with the same program


def test_a_program_that_another_worker_has_half_written_is_compiled(tmp_path):
    with cached_in(tmp_path):
        third()(6.0)
        (program,) = tmp_path.glob("*-cache")
        program.write_bytes(program.read_bytes()[:-1])
        assert third()(6.0) == 2


def test_a_program_has_the_same_name_in_the_folder_of_every_run(tmp_path):
    runs = [kept_programs.begin(tmp_path) for _ in range(2)]
    for run in runs:
        with cached_in(run):
            third()(6.0)
    first, second = ({path.name for path in run.glob("*-cache")} for run in runs)
    assert first == second
    assert len(first) == 1


def gradient_tests():
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if any(name_of(call) == "check_grads" for call in ast.walk(node)):
                yield f"{path.stem}.{node.name}", node


def name_of(node):
    return getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""


def test_derivatives_are_compared_at_the_points_of_several_keys():
    assert [name for name, test in gradient_tests() if not uses_several_keys(test)] == []


def uses_several_keys(test):
    """Whether a test has the decorator `several_keys` or checks gradients in a loop over keys."""
    decorated = any("several_keys" in ast.unparse(one) for one in test.decorator_list)
    loops = [node for node in ast.walk(test) if isinstance(node, ast.For)]
    looped = any(
        "jax.random.split" in ast.unparse(loop.iter)
        and any(name_of(call) == "check_grads" for call in ast.walk(loop))
        for loop in loops
    )
    names = {node.id for part in test.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    return (decorated or looped) and "key" in names


def test_programs_share_a_context_for_a_while_in_each_thread():
    made = []
    context = ir_contexts.shared(lambda: made.append(len(made)) or made[-1])
    assert [context() for _ in range(2 * ir_contexts.PROGRAMS)] == (
        [0] * ir_contexts.PROGRAMS + [1] * ir_contexts.PROGRAMS
    )
    with ThreadPoolExecutor(1) as other:
        assert other.submit(context).result() == 2
    with ir.Context():
        assert context() == 3
