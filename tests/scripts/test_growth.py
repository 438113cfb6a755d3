"""Memory does not grow during long training runs and repeated pruning."""

import gc
import os
from pathlib import Path

import jax
import pytest

import pruning
from experiments.recipes import replace
from experiments.training import loop
from tests.support import prunable
from tests.support.small_runs import SMALL, View, compiled, random_images, train_one

pytestmark = pytest.mark.slow
PAGE, MEGABYTE = os.sysconf("SC_PAGE_SIZE"), 2**20
STEPS, PRUNINGS = 3000, 200
ALLOWED = 24 * MEGABYTE  # each of the last 2000 steps is allowed to add 12 kB


def resident() -> int:
    """The bytes of memory that this process uses."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def size(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


class Watch(View):
    """Records the memory after every hundredth step."""

    def __init__(self):
        super().__init__()
        self.memory = []

    def update(self, steps, description, numbers):
        super().update(steps, description, numbers)
        if steps % 100 == 0:
            self.memory.append(resident())


@pytest.mark.usefixtures("users_jax")
def test_memory_does_not_grow_over_three_thousand_steps(tmp_path, monkeypatch):
    """From step 1000 to step 3000, with many checkpoints, memory grows by at most `ALLOWED`."""
    monkeypatch.setattr(loop, "BETWEEN_CHECKPOINTS", 0.2)
    program = compiled(replace(SMALL, epochs=STEPS // 4), random_images())
    program.steps_per_call = 1
    view = Watch()
    train_one(program, tmp_path, view)
    assert view.steps[-1] == STEPS
    assert view.memory[-1] - view.memory[9] < ALLOWED, view.memory


@pytest.fixture
def programs():
    """A list with an entry for each program that is compiled or read from the cache in a test."""
    found = []

    def listen(event, *_, **__):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", ["resnet, identity", "vgg"])
def test_neither_memory_nor_programs_grow_over_two_hundred_prunings(name, programs):
    """The test compares the last 150 prunings, each of which prunes in two steps."""
    apply, params, x = prunable.model(name)
    memory = []
    for i in range(PRUNINGS):
        if i == PRUNINGS // 4:
            assert programs
            programs.clear()
        pruned = pruning.prune(apply, params, x, ratios=(0.3, 0.5))
        assert size(pruned.params) < size(params)
        memory.append(resident())
    assert not programs
    assert memory[-1] - memory[PRUNINGS // 4] < ALLOWED, memory
