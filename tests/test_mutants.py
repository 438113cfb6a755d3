"""The mistakes that `make mutants` plants."""

from coverage import CoverageData

from tests.support.mutants import ROOT, Mutant, against, files_of_tests, mutants_of, record

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


def test_a_module_is_tested_by_its_doctests_and_by_what_names_it():
    module = ROOT / "jaxnorm" / "_decompose.py"
    assert files_of_tests(module)[:2] == [module, ROOT / "tests" / "jaxnorm" / "test_decompose.py"]


def test_a_line_is_tested_by_what_runs_it_its_own_files_first(tmp_path):
    recorded = CoverageData(str(tmp_path / "data"))
    for context in ("tests/a.py::test_x|run", "tests/jaxnorm/test_decompose.py::test_y|setup", ""):
        recorded.set_context(context)
        recorded.add_lines({"jaxnorm/_decompose.py": [9 if context else 3]})
    recorded.close()
    module = ROOT / "jaxnorm" / "_decompose.py"
    mutants = [Mutant(module, line, "sign", "", "", "") for line in (3, 9)]
    by_line = {mutant.line: against(mutant, record(tmp_path / "data")) for mutant in mutants}
    assert record(tmp_path / "none") is None
    own = [str(path.relative_to(ROOT)) for path in files_of_tests(module)]
    assert by_line[9] == ["tests/jaxnorm/test_decompose.py::test_y", "tests/a.py::test_x", *own]
    assert by_line[3] == own
