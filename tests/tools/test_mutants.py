"""The mistakes that `make mutants` plants."""

import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from coverage import CoverageData

from claims import ALL
from tools import mutants
from tools.mutants import (
    FOLDERS,
    OUTCOMES,
    ROOT,
    Mutant,
    against,
    files_of_tests,
    mutants_of,
    record,
)

MODULE = '''
"""A docstring with 1 < 2."""

def f(x: int, *, axis: int = 0) -> int:
    if x < 0:
        raise ValueError(f"x must be 0 or more; got {x - 1}")
    y = zip(x, strict=True)
    return g(x, -x + 2).sum(axis=0)
'''


def test_each_mutant_has_one_mistake_and_messages_annotations_and_strict_have_none(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    found = {(mutant.kind, mutant.before, mutant.after) for mutant in mutants_of(path)}
    assert found == {
        ("constant", "0", "1"),
        ("dropped guard", "x < 0", "False"),
        ("comparison", "x < 0", "(x <= 0)"),
        ("exchanged arguments", "g(x, -x + 2)", "(g(-x + 2, x))"),
        ("sign", "-x + 2", "(-x - 2)"),
        ("sign", "-x", "(x)"),
        ("constant", "2", "4"),
        ("axis", "axis=0", "axis=-1"),
    }
    for mutant in mutants_of(path):
        assert mutant.source != MODULE
        compile(mutant.source, "module.py", "exec")


LIST = """
[[mistake]]
path = "tools/slow_parts.py"
kind = "other"
what = "another word"
before = "def select("
after = "def choose("

[[mistake]]
path = "tools/slow_parts.py"
kind = "other"
what = "something that nobody wrote"
before = "a text that is nowhere in it"
after = ""
"""


def test_a_list_plants_each_mistake_where_its_text_is_and_says_which_text_is_gone(tmp_path, capsys):
    source = (ROOT / "tools" / "slow_parts.py").read_text()
    path = tmp_path / "list.toml"
    path.write_text(LIST)
    (planted,) = mutants.listed(path)
    assert (planted.kind, planted.what) == ("other", "another word")
    assert source.splitlines()[planted.line - 1].startswith("def select(")
    assert planted.source == source.replace("def select(", "def choose(")
    assert capsys.readouterr().out == (
        "cannot be planted: tools/slow_parts.py: something that nobody wrote\n"
    )


@pytest.mark.parametrize("name", FOLDERS)
def test_mistakes_of_a_list_are_of_its_package_differ_and_can_be_planted(name):
    mistakes = tomllib.loads((ROOT / "tools/mistakes" / f"{name}.toml").read_text())["mistake"]
    changes = [(m["path"], m["before"].strip(), m["after"].strip()) for m in mistakes]
    assert len(set(changes)) == len(changes)
    for mistake in mistakes:
        assert mistake["path"].startswith(f"{name}/")
        assert mistake["kind"] in ("options", "second", "neutral", "other")
        assert mistake["before"] != mistake["after"]
        assert (ROOT / mistake["path"]).read_text(encoding="utf-8").count(mistake["before"]) == 1


def test_outcomes_that_a_file_holds_are_not_planted_again(tmp_path):
    path = tmp_path / "out.json"
    assert mutants.earlier(None) == mutants.earlier(path) == []
    path.write_text('{"mutants": [{"path": "a.py", "line": 3}]}')
    assert mutants.earlier(path) == [{"path": "a.py", "line": 3}]


def test_a_module_is_tested_by_what_names_it_and_last_by_its_doctests():
    module = ROOT / "jaxnorm" / "_decompose.py"
    first, *_, last = files_of_tests(module)
    assert (first, last) == (ROOT / "tests" / "jaxnorm" / "test_decompose.py", module)


def test_a_line_is_tested_by_what_runs_it_its_own_files_first(tmp_path):
    recorded = CoverageData(str(tmp_path / "data"))
    doctest = "jaxnorm/_decompose.py::jaxnorm._decompose.recenter"
    own_test = "tests/jaxnorm/test_decompose.py::test_y"
    for context in ("tests/a.py::test_x|run", f"{own_test}|setup", f"{doctest}|run", ""):
        recorded.set_context(context)
        recorded.add_lines({"jaxnorm/_decompose.py": [9 if context else 3]})
    recorded.close()
    module = ROOT / "jaxnorm" / "_decompose.py"
    mutants = [Mutant(module, line, "sign", "", "", "") for line in (3, 9)]
    by_line = {mutant.line: against(mutant, record(tmp_path / "data")) for mutant in mutants}
    assert record(tmp_path / "none") is None
    own = [str(path.relative_to(ROOT)) for path in files_of_tests(module)]
    assert by_line[9] == [own_test, "tests/a.py::test_x", doctest, *own]
    assert by_line[3] == own


def test_a_slow_test_runs_if_it_is_named_itself(tmp_path):
    def item(nodeid, *, slow):
        return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda _: slow or None)

    fast, slow = item("a.py::test_x", slow=False), item("a.py::test_y[1]", slow=True)
    named = item("b.py::test_z[net]", slow=True)
    for tests, chosen in ((["a.py"], [fast]), (["b.py::test_z", "a.py"], [fast, named])):
        items = [fast, slow, named]
        mutants.Begun(tmp_path, tests, None).pytest_collection_modifyitems(items)
        assert items == chosen


def test_a_module_of_claims_is_tested_by_its_recorded_outcomes():
    path, _, name = OUTCOMES.partition("::")
    test = f'@pytest.mark.slow\n@pytest.mark.parametrize("module", MODULES)\ndef {name}('
    assert test in (ROOT / path).read_text()
    modules = {part.function.__module__ for claim in ALL for part in claim.checks}
    for module in (
        "claims.unitization.bounded",
        "claims.cwda.moments",
        "claims.bn_decomposed.tree",
    ):
        assert module in modules
        file = (ROOT / "scripts" / module.replace(".", "/")).with_suffix(".py")
        assert against(next(mutants_of(file)), None)[0] == f"{OUTCOMES}[{module}]"


@pytest.mark.parametrize(
    ("mutated", "of_unchanged", "counted"),
    [
        (("survived", "t"), None, "survived"),
        (("noticed", "t"), "survived", "noticed"),
        (("too slow", "t"), "survived", "too slow"),
        (("noticed", ""), "survived", "noticed"),
        (("noticed", "t"), "noticed", "not counted"),
        (("too slow", "t"), "too slow", "not counted"),
    ],
)
def test_only_what_the_unchanged_code_survives_is_counted(
    mutated, of_unchanged, counted, monkeypatch
):
    module, calls = ROOT / "jaxnorm" / "_decompose.py", []

    def tried(path, source, tests, limit, *, only=None):
        calls.append((source == module.read_text(), only))
        return (of_unchanged, only) if len(calls) > 1 else mutated

    mutants._unchanged.cache_clear()
    monkeypatch.setattr(mutants, "try_module", tried)
    mutant = Mutant(module, 1, "sign", "", "", "1 / 0")
    assert mutants.outcome(mutant, ["tests/a.py"], 1.0) == counted
    assert calls[1:] == ([] if of_unchanged is None else [(True, mutated[1])])
    assert mutants.outcome(mutant, [], 1.0) == "untested"


RUN = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from tools import mutants
mutants.preload()
path = mutants.ROOT / "jaxnorm" / "shift" / "_emd.py"
source = path.read_text()
wrong = mutants.Mutant(path, 1, "", "", "", source + "1 / 0")
same = mutants.Mutant(path, 1, "", "", "", source)
tests = ["jaxnorm/shift/_emd.py"]
mutants.provenance(False)  # as after the first mistake: no thread of JAX may be left by it
print([mutants.outcome(mutant, tests, 300.0) for mutant in (same, wrong)])
"""


@pytest.mark.slow
def test_unchanged_code_survives_and_a_module_that_fails_is_noticed():
    """The only tests are the doctests of the module."""
    found = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout.splitlines()[-1:] == ["['survived', 'noticed']"], found.stderr
