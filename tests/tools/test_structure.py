"""Each check of `make lint` notices the faults for which it was written."""

from pathlib import Path

import pytest

from tools import structure

ROOT = Path(__file__).parents[2]
LONG_BODY = "def long():\n" + "    print()\n" * 41
REACHING = "".join(f"def f{k}():\n    f{k + 1}()\n" for k in range(300))
REACHING += "class A:\n    def b(self): ...\ndef prune():\n    f0(A().b())\n"
IMPORT = "from pruning.channels._a import prune as prune\n"
# Each row has the faulty files, the check, and words that must occur in the one line that the check
# returns.
FAULTS = [
    (
        {"scripts/long.py": "x = 1\n" * (structure.MAX_COMMAND + 1)},
        structure.sizes,
        f"{structure.MAX_COMMAND + 1} lines; at most {structure.MAX_COMMAND}",
    ),
    ({"jaxnorm/_body.py": LONG_BODY}, structure.sizes, "long has 41 lines of code; at most 40"),
    (
        {"pruning/channels/_a.py": REACHING, "pruning/channels/__init__.py": IMPORT},
        structure.reaches,
        "pruning.channels.prune reaches 303 functions and classes of pruning; at most",
    ),
    (
        {"pruning/channels/_a.py": "x = ['neg', p.neg_p, p.neg_p]\n"},
        structure.primitive_places,
        "neg is named at pruning/channels/_a.py:1, pruning/channels/_a.py:1",
    ),
    (
        {"geometry/_a.py": "from jaxnorm._statistics import replicated\n"},
        structure.package_imports,
        "imports jaxnorm._statistics, which is private",
    ),
    (
        {"geometry/_a.py": "from pruning import spearman\n", "pruning/__init__.py": ""},
        structure.package_imports,
        "imports pruning; packages import jaxnorm alone",
    ),
    (
        {"scripts/a.py": "import b\n", "scripts/b.py": ""},
        structure.command_imports,
        "scripts/a.py: imports the command b",
    ),
    (
        {
            "geometry/_a.py": "from geometry import _b\n",
            "geometry/_b.py": "from geometry._c import x\n",
            "geometry/_c.py": "import geometry._a\n",
        },
        structure.import_cycles,
        "import cycle among geometry._a, geometry._b, geometry._c",
    ),
    (
        {
            "scripts/experiments/data/a.py": "def load():\n    from experiments.pages import b\n",
            "scripts/experiments/pages/b.py": "",
            "scripts/experiments/pages/c.py": "from experiments.data.d import x\n",
            "scripts/experiments/data/d.py": "x = 1\n",
        },
        structure.upward_imports,
        "between the folders experiments.data, experiments.pages",
    ),
    ({"jaxnorm/_a.py": "def widen(x): ...\n"}, structure.dialect, "say promote_to_float32"),
    ({"jaxnorm/_a.py": "# As the ledger has it.\n"}, structure.dialect, "'ledger': say"),
]
FINE = {
    "jaxnorm/_a.py": "x = 1\n\n" * 150,
    "jaxnorm/internal/__init__.py": "from jaxnorm import _a\n",
    "geometry/_b.py": "from jaxnorm.internal import matmul\n",
    "scripts/command.py": '"""Doc."""\nfrom experiments import cli\n',
    "scripts/experiments/cli.py": "def load():\n    import command\n",
}
CHECKS = {check for _, check, _ in FAULTS}


def read(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(structure.read(root))


@pytest.mark.parametrize(("files", "check", "line"), FAULTS)
def test_a_fault_of_structure_is_one_line(files, check, line, tmp_path):
    modules = read(tmp_path, files)
    (fault,) = check(modules)
    assert line in fault
    for other in CHECKS - {check}:
        assert not list(other(modules))


def test_code_within_the_limits_has_no_fault(tmp_path):
    modules = read(tmp_path, FINE)
    assert [fault for check in CHECKS for fault in check(modules)] == []


def test_comments_blank_lines_and_docstrings_are_no_code(tmp_path):
    text = '"""Doc\nstring."""\n\n# comment\ndef f():\n    """Doc."""\n    return 1  # one\n'
    (module,) = read(tmp_path, {"jaxnorm/_a.py": text})
    assert structure.code_lines(module) == [5, 7]


def test_a_public_function_without_a_docstring_is_named(monkeypatch):
    import jaxnorm

    monkeypatch.setattr(jaxnorm.recenter, "__doc__", None)
    assert list(structure.undocumented_names("jaxnorm")) == ["jaxnorm.recenter has no docstring"]


def test_an_option_that_no_sentence_names_is_named(monkeypatch):
    import jaxnorm

    monkeypatch.setattr(jaxnorm.recenter, "__doc__", "x minus its mean.")
    missing = "jaxnorm.recenter: the docstring does not name axis"
    assert list(structure.undocumented_names("jaxnorm")) == [missing]
    monkeypatch.setattr(jaxnorm.recenter, "__doc__", "The same. Options are those of `rescale`.")
    assert list(structure.undocumented_names("jaxnorm")) == []
