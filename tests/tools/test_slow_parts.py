"""The parts of `make test-slow` have every slow test once, and `.ci/run` runs some of them."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tools.slow_parts import CI, LISTED, NAMES, NOT_CI, PARTS, is_in, select, slowest

ROOT = Path(__file__).parents[2]


class Item(NamedTuple):
    nodeid: str
    marks: Any = ()

    def add_marker(self, name):
        self.marks.append(name)


@cache
def functions() -> dict[str, str]:
    """The marks of each test function as text, by its node id. Slow modules add the mark "slow"."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        all_slow = re.search(r"^pytestmark = .*pytest\.mark\.slow", text, re.MULTILINE) is not None
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = "".join(map(ast.unparse, node.decorator_list)) + "slow" * all_slow
                found[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = marks
    return found


def test_every_test_is_in_one_part():
    parts = [name for name in NAMES if name != "ci"]
    assert len(parts) == len(PARTS) + 1
    times = Counter(test for test in functions() for part in parts if is_in(part, test))
    assert times == dict.fromkeys(functions(), 1)


@pytest.mark.parametrize("name", [name for names in (*PARTS, CI, NOT_CI) for name in names])
def test_what_a_part_names_exists(name):
    assert any(test.startswith(name.split("[")[0]) for test in functions())


def test_each_test_that_takes_seconds_exists_and_is_in_ci():
    assert {name for name in LISTED if name.startswith("tests/")} <= set(functions())
    assert all((ROOT / name.partition("::")[0]).is_file() for name in LISTED)
    assert all(is_in("ci", test) and is_in("seconds", f"{test}[1]") for test in LISTED)


def test_functions_with_long_tests_are_read_from_a_report(tmp_path):
    cases = (
        ("tests.a.test_b", "test_long[1]", 0.75),
        ("tests.a.test_b", "test_long[2]", 0.9),
        ("tests.a.test_b", "test_short[1]", 0.9),
        ("tests.a.test_b", "test_short[2]", 0.2),
        ("pruning.order", "pruning.order", 3.0),
    )
    lines = (f'<testcase classname="{f}" name="{n}" time="{t}"/>' for f, n, t in cases)
    (tmp_path / "times.xml").write_text(f"<testsuite>{''.join(lines)}</testsuite>")
    found = slowest(tmp_path / "times.xml")
    assert found == ["pruning/order.py::pruning.order", "tests/a/test_b.py::test_long"]


def test_a_test_of_the_list_is_slow(pytestconfig, monkeypatch):
    items = [Item(f"{min(LISTED)}[a]", []), Item("tests/test_other.py::test_short", [])]
    (hook,) = (p for p in pytestconfig.pluginmanager.get_plugins() if hasattr(p, "TRACED"))
    hook.pytest_collection_modifyitems(pytestconfig, items)
    assert [item.marks for item in items] == [["slow"], []]


def test_ci_runs_slow_tests():
    slow = [test for test, marks in functions().items() if "slow" in marks]
    for name in CI:
        assert any(test.startswith(name.partition("[")[0]) for test in slow), name
    assert all(name.startswith(CI) and not is_in("ci", name) for name in NOT_CI)
    assert "make test-slow PART=ci" in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", [None, *NAMES])
def test_a_part_is_what_is_collected(part):
    items = [Item(test) for test in [*functions(), *CI]]
    found = {item.nodeid for item in select(items, part)}
    assert found == {test for test in [*functions(), *CI] if part is None or is_in(part, test)}
    assert found
