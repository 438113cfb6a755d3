"""Divides the slow tests into parts that each take at most 15 minutes on two cores.

    make test-slow PART=2

A part is defined by the beginnings of its tests' names. Tests with other beginnings are in the last
part. `.ci/run` runs the part "ci", a fixed selection from the other parts.
"""

from typing import Any

PARTS: tuple[tuple[str, ...], ...] = (
    ("tests/geometry/test_claims.py::test_of_200_runs",),
    ("tests/geometry/test_claims.py", "tests/scripts/test_check_theorems.py"),
    ("tests/scripts/test_faults.py",),
    ("tests/geometry/",),
    ("tests/pruning/",),
    ("tests/scripts/test_train.py", "tests/scripts/test_compile_only.py"),
    ("tests/scripts/",),
    (),
)
CI = (
    "tests/geometry/test_claims.py::test_every_outcome_is_as_recorded",
    "tests/scripts/test_check_theorems.py::test_two_processes_find_what_one_does",
    "tests/scripts/test_train.py::test_two_processes_train_as_one_with_two_devices",
    "tests/scripts/test_faults.py::"
    "test_when_one_process_dies_or_hangs_the_other_says_so_and_ends[0-killed]",
    "tests/scripts/test_faults.py::test_kills_at_random_moments_change_nothing[train]",
    "tests/scripts/test_paired_runs.py::test_an_interrupted_run_ends_with_the_same_bits",
)
NAMES = ("ci", *(str(number) for number in range(1, len(PARTS) + 1)))


def is_in(part: str, test: str) -> bool:
    """Whether the test with this node id belongs to a part."""
    return test.startswith(CI) if part == "ci" else str(part_of(test)) == part


def part_of(test: str) -> int:
    """The number of the part that contains a slow test."""
    named = (number for number, names in enumerate(PARTS, 1) if test.startswith(names))
    return next(named, len(PARTS))


def select(items: list[Any], part: str | None) -> list[Any]:
    """The collected tests that belong to a part; all tests if `part` is None."""
    return [item for item in items if part is None or is_in(part, item.nodeid)]
