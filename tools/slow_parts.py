"""Divide the slow tests into parts that each take at most 15 minutes on two cores.

    make test-slow PART=2

A test is slow if it has the mark `slow`, or if `tests/seconds.txt` has the name of the test's
function. The tests of `tests/seconds.txt` form the part "seconds". `PARTS` defines each other part
by the first letters of its tests' names, and the last part has all remaining tests. `.ci/run` runs
the part "ci". The part "ci" contains the part "seconds", and all other slow tests whose names begin
with an entry of `CI` and with no entry of `NOT_CI`.

To select the tests of `tests/seconds.txt` again, empty the file, and run the commands below until
no name is added. Several runs are needed: if several tests share a slow fixture, only the time of
the first test includes the fixture.

    make test ARGS="--junitxml=out/times.xml"
    python -m tools.slow_parts out/times.xml
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree

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
    "tests/jaxnorm/",
    "tests/pruning/",
    "tests/test_contract.py",
    "tests/test_grid.py",
    "tests/test_package.py::test_the_snippets_of_a_page_run_one_after_the_other",
    "tests/geometry/test_claims.py::test_every_outcome_is_as_recorded",
    "tests/scripts/test_check_theorems.py::test_two_processes_find_what_one_does",
    "tests/scripts/test_train.py::test_two_processes_train_as_one_with_two_devices",
    "tests/scripts/test_faults.py::"
    "test_when_one_process_dies_or_hangs_the_other_says_so_and_ends[0-killed]",
    "tests/scripts/test_faults.py::test_kills_at_random_moments_change_nothing[train]",
    "tests/scripts/test_paired_runs.py::test_an_interrupted_run_ends_with_the_same_bits",
)
# These tests take minutes, so they are not in CI, although their names begin with entries of `CI`.
NOT_CI = (
    "tests/pruning/test_generalized.py::test_false_alarms_are_as_rare_as_stated",
    "tests/pruning/test_hostile_files.py::test_two_thousand_damaged_and_a_hundred_crafted",
)
NAMES = ("ci", "seconds", *(str(number) for number in range(1, len(PARTS) + 1)))
LIST = Path(__file__).parents[1] / "tests" / "seconds.txt"
LISTED = frozenset(LIST.read_text(encoding="utf-8").split())
SECONDS = 0.8


def takes_seconds(test: str) -> bool:
    """Whether the function of the test with this node id is in `tests/seconds.txt`."""
    return test.partition("[")[0] in LISTED


def is_in(part: str, test: str) -> bool:
    """Whether the slow test with this node id belongs to a part."""
    if part == "ci":
        return takes_seconds(test) or (test.startswith(CI) and not test.startswith(NOT_CI))
    return part_of(test) == part


def part_of(test: str) -> str:
    """The name of the part that contains a slow test; the part "ci" does not count."""
    if takes_seconds(test):
        return "seconds"
    named = (number for number, names in enumerate(PARTS, 1) if test.startswith(names))
    return str(next(named, len(PARTS)))


def select(items: list[Any], part: str | None) -> list[Any]:
    """The collected tests that belong to a part; all tests if `part` is None."""
    return [item for item in items if part is None or is_in(part, item.nodeid)]


def slowest(report: Path) -> list[str]:
    """The names of the tests in a JUnit report that take more than `SECONDS` on average.

    The average is over the parameters of a parametrized test. The examples of a docstring count as
    a test of the documented function.
    """
    times = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        file, name = case.attrib["classname"].replace(".", "/"), case.attrib["name"]
        times[f"{file}.py::{name.partition('[')[0]}"].append(float(case.attrib["time"]))
    return sorted(name for name, of_name in times.items() if mean(of_name) > SECONDS)


def main() -> None:
    what = f"Add to tests/seconds.txt the functions whose tests take over {SECONDS} s on average."
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("report", type=Path, help="a JUnit report of pytest")
    names = sorted(LISTED.union(slowest(parser.parse_args().report)))
    LIST.write_text("\n".join(names) + "\n", encoding="utf-8")
    print(f"{LIST.name} has {len(names)} names")


if __name__ == "__main__":
    main()
