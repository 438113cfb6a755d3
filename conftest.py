"""Settings of all tests: float64, and errors for implicit casts, rank promotion and warnings."""

import gc
import importlib
import os
from pathlib import Path

from tests.support import kept_programs, shape_checks
from tools import slow_parts

# All workers and subprocesses, of this run and of the next run, share one cache of programs.
CACHE = "JAX_COMPILATION_CACHE_DIR"
OWN_CACHE = None if CACHE in os.environ else kept_programs.begin()
if OWN_CACHE:
    os.environ[CACHE] = str(OWN_CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# With XLA's own caches, the key of a stored program would contain the folder's name, which differs
# from run to run.
os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # compiling takes most of the time

# XLA needs more threads than there are devices, here 8. Otherwise, devices that call LAPACK in a
# loop wait for each other forever.
os.environ.setdefault("NPROC", "16")

# Python's garbage collector runs less often than by default, which saves a fifteenth of the time,
# because tracing makes many small objects.
gc.set_threshold(200_000, 20, 100)

import jax  # noqa: E402, JAX reads the environment at import
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

from tests.support import ir_contexts  # noqa: E402

# XLA's older loop emitters, which JAX 0.11.2 removed, compile in a third of the time. One thread
# generates the code of a program, because the workers already use all cores.
if jax.__version_info__ < (0, 11):
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )

shape_checks.begin()
ir_contexts.begin()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 8)  # some tests need several devices
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


ROOT = Path(__file__).parent
TRACED = []  # tests that ran since JAX's caches were last cleared


def pytest_addoption(parser):
    parser.addoption("--kills", default="5", help="signals to each command that resumes (slow)")
    parser.addoption("--part", choices=slow_parts.NAMES, help="of the slow tests")


@pytest.hookimpl(tryfirst=True)  # this hook runs before pytest selects tests by their marks
def pytest_collection_modifyitems(config, items):
    items[:] = slow_parts.select(items, config.getoption("part"))
    for item in items:
        if slow_parts.takes_seconds(item.nodeid):
            item.add_marker("slow")


def pytest_collect_file(file_path):
    """Import a module with doctests by its name, or else pytest would import it a second time."""
    name = file_path.relative_to(ROOT).with_suffix("")
    if name.parts[0] in ("jaxnorm", "pruning", "geometry") and file_path.suffix == ".py":
        importlib.import_module(".".join(name.parts).removesuffix(".__init__"))


def pytest_collection_finish():
    # Modules and tests are needed until the end, so the garbage collector can skip them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    # JAX's caches of traced programs would grow to gigabytes, and the next file reuses little.
    TRACED.append(item)
    if len(TRACED) >= 400 and (nextitem is None or nextitem.path != item.path):
        TRACED.clear()
        jax.clear_caches()


def pytest_unconfigure(config):
    # Only the process that made the folder removes it; workers get the folder from the environment.
    if OWN_CACHE:
        kept_programs.end(OWN_CACHE)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def unchecked():
    """Disable the type checker, so that functions themselves must refuse wrong arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
