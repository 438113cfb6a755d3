"""Plant small mistakes in the code, and report which mistakes the tests notice.

    python -m tools.mutants --package pruning --count 50
    python -m tools.mutants --list tools/mistakes/pruning.toml

A mutant is the code with one random change. The change replaces an operator, a comparison, an axis
or a constant, negates a condition, drops a guard, exchanges arguments, or removes a function call.
A list has mistakes that a person thought of; each mistake is a piece of text and its replacement.
The tool plants each mistake in a copy of the code. A fork of this process, which has loaded JAX,
runs tests in the copy until one test fails. Tests that ran the changed line in the last `make
coverage` run first. Next is the test file with the module's name. After this file come the test
files that name the module's definitions most often, and then the module's doctests. A test that
fails on the changed code also runs on the unchanged code. If the test also fails on the unchanged
code, the mutant is not counted. The exit status is 0 even if tests do not notice a mistake.
"""

import argparse
import ast
import atexit
import copy
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import CoverageData
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDERS = {name: ROOT / name for name in ("jaxnorm", "pruning", "geometry", "scripts")}
MOST_FILES = 3  # The largest number of test files for a module, and for the module's commands.
# Whole test files run after the tests that are recorded for a line. At most this number of recorded
# tests run.
MOST_TESTS = 100
CLAIMS = "scripts/claims"  # `OUTCOMES` tests each module in `CLAIMS`.
OWN_CLAIMS = f"{CLAIMS}/own"
OUTCOMES = "tests/geometry/test_claims.py::test_outcomes_of_a_module_are_as_recorded"
DRAWN = "tests/scripts/test_results_pages.py::test_a_page_is_drawn_of_its_numbers"
# Tests that compare committed numbers with the results of commands and experiments.
COMMITTED = "tests/tools/test_results.py"
RECORDED = ROOT / "out" / "coverage" / "data"
UNNOTICED, UNCOUNTED = ("survived", "untested"), "not counted"
PRELOADED = (
    *("flax.nnx", "flax.linen", "optax", "scipy.stats", "scipy.optimize", "hypothesis", "pytest"),
    *("jax.test_util", "jax.experimental.topologies", "orbax.checkpoint", "xdist"),
)
START = time.monotonic()
NO_TESTS = 5  # pytest's exit status if no test ran
_COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
}
_OPERATORS: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Pow: ast.Mult(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
}


class Mutant(NamedTuple):
    """A module with one mistake."""

    path: Path
    line: int
    kind: str
    before: str
    after: str
    source: str
    what: str = ""  # a listed mistake has a description in words


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of one module: each is the module's source with one small mistake."""
    source = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    tree = ast.parse(source)
    idle = _without_effect(tree)
    for node in ast.walk(tree):
        change = None if id(node) in idle else mistake(node)
        if change is not None:
            kind, part, text = change
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            mutated = source[:start] + text.encode() + source[end:]
            before = source[start:end].decode()
            yield Mutant(path, part.lineno, kind, before, text, mutated.decode())


def mistake(node: ast.AST) -> tuple[str, Any, str] | None:
    """The kind of mistake to plant at `node`, the part of `node` to replace, and the new text."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            return "comparison", node, _text(node, ops=[_COMPARISONS[type(op)]])
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return "sign", node, _text(node, op=_OPERATORS[type(op)])
        case ast.UnaryOp(op=ast.USub()):
            return "sign", node, _text(node.operand)
        case ast.keyword(arg="axis" | "axes", value=ast.Constant(value=int(axis))):
            return "axis", node, f"{node.arg}={-1 - axis}"
        case ast.Constant(value=bool(flag)):
            return "constant", node, repr(not flag)
        case ast.Constant(value=int(number) | float(number)):
            return "constant", node, repr(number * 2 or 1)
        case ast.If(body=[ast.Raise()], orelse=[]):
            return "dropped guard", node.test, "False"
        case ast.If(test=test) | ast.IfExp(test=test):
            return "condition", test, f"(not {_text(test)})"
        case ast.Expr(value=ast.Call()):
            return "removed call", node, "pass"
        case ast.Call(args=[ast.Starred(), *_]):
            return None
        case ast.Call(args=[first, second, *rest]):
            return "exchanged arguments", node, _text(node, args=[second, first, *rest])
        case ast.Call(args=[only], keywords=[]):
            return "removed call", node, _text(only)
    return None


def _text(node: ast.AST, **changes: Any) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


def _without_effect(tree: ast.Module) -> set[int]:
    """The `id()` of each syntax node in which no mistake is planted, because results cannot change.

    The nodes belong to annotations, decorators, `raise`, `assert`, f-strings and `strict=`.
    """
    parts: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                parts += [node.returns, *node.decorator_list]
            case ast.arg() | ast.AnnAssign():
                parts.append(node.annotation)
            case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict"):
                parts.append(node)
    return {id(inner) for part in parts if part is not None for inner in ast.walk(part)}


def listed(path: Path) -> list[Mutant]:
    """The mistakes listed in a TOML file; each replaces a text that occurs once in a module.

    If the module does not contain the text exactly once, the mistake is left out and reported.
    """
    mutants = []
    for mistake in tomllib.loads(path.read_text(encoding="utf-8"))["mistake"]:
        module, before = ROOT / mistake["path"], mistake["before"]
        source = module.read_text(encoding="utf-8") if module.exists() else ""
        if source.count(before) != 1:
            print(f"cannot be planted: {mistake['path']}: {mistake['what']}", flush=True)
            continue
        line = source[: source.index(before)].count("\n") + 1 + before.startswith("\n")
        wrong = source.replace(before, mistake["after"])
        mutants.append(
            Mutant(module, line, mistake["kind"], before, mistake["after"], wrong, mistake["what"])
        )
    return mutants


def files_of_tests(path: Path) -> list[Path]:
    """The test files that name a module's definitions, and the module itself for its doctests.

    First comes the test file with the name of the module. Other test files of the module's package
    follow, and files that name the module's definitions more often come earlier. Test files of
    other packages come last. For a module of `scripts`, the list ends with the test files of the
    scripts that import the module, instead of the module itself.
    """
    tree = ast.parse(path.read_bytes())
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = {node.name.strip("_") for node in defined} | {path.stem.strip("_")}
    word = re.compile(rf"\b_*({'|'.join(sorted(names))})\b")
    counts = {
        test: len(word.findall(test.read_text(encoding="utf-8")))
        for test in (ROOT / "tests").rglob("test_*.py")
    }
    own = ROOT / "tests" / path.relative_to(ROOT).parts[0]
    named = f"test_{path.stem.strip('_')}.py"
    order = sorted(counts, key=lambda t: (not t.is_relative_to(own), t.name != named, -counts[t]))
    chosen = [test for test in order if counts[test]][:MOST_FILES]
    if not path.is_relative_to(FOLDERS["scripts"]):
        return [*chosen, path]
    return list(dict.fromkeys([*chosen, *files_of_commands(path)]))


def files_of_commands(path: Path) -> list[Path]:
    """The test files of all scripts that import the module `path`, directly or indirectly."""
    imported = {path: set(imports(path)) for path in FOLDERS["scripts"].rglob("*.py")}
    reached = {}
    for command in FOLDERS["scripts"].glob("*.py"):
        found, left = set(), {command}
        while left:
            found |= left
            left = set().union(*(imported[module] for module in left)) - found
        reached[command] = found
    few_first = sorted(reached, key=lambda command: len(reached[command]))
    tests = ROOT / "tests" / "scripts"
    files = [tests / f"test_{command.stem}.py" for command in few_first if path in reached[command]]
    return [file for file in files if file.exists()][:MOST_FILES]


def imports(path: Path) -> Iterator[Path]:
    """The modules of `scripts` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            parent = FOLDERS["scripts"].joinpath(*node.module.split("."))
            files = [parent, *(parent / alias.name for alias in node.names)]
            yield from filter(Path.exists, (file.with_suffix(".py") for file in files))


def record(path: Path) -> CoverageData | None:
    """The lines that each test ran, as recorded by `make coverage`; None without a record."""
    if not path.exists():
        return None
    recorded = CoverageData(str(path))
    recorded.read()  # without `read`, the first query would erase the record
    return recorded


def against(mutant: Mutant, recorded: CoverageData | None) -> list[str]:
    """The tests that should notice a mutant: tests that ran the changed line, then whole files.

    The test files of the module are added as a whole. JAX runs the Python lines of a function only
    when it compiles the function. If an earlier test has compiled the same function, the record
    does not name the later test. For the claims of a paper, the test of the recorded outcomes comes
    first, and no whole test files are run.
    """
    own = [str(path.relative_to(ROOT)) for path in files_of_tests(mutant.path)]
    name = mutant.path.relative_to(ROOT)
    contexts = {} if recorded is None else recorded.contexts_by_lineno(str(name))
    running = {context.rpartition("|")[0] for context in contexts.get(mutant.line, ())} - {""}
    by_file = sorted(
        running,
        key=lambda test: (not test.startswith("tests"), test.partition("::")[0] not in own, test),
    )
    of_a_paper = name.is_relative_to(CLAIMS) and not name.is_relative_to(OWN_CLAIMS)
    if of_a_paper and re.search(r"\bClaim\b", mutant.source):
        module = name.relative_to("scripts").with_suffix("").parts
        return [f"{OUTCOMES}[{'.'.join(module)}]", *by_file]
    if name.is_relative_to("scripts/experiments/pages"):
        own.append(DRAWN)
    if name.is_relative_to("scripts"):
        own.append(COMMITTED)
    return [*by_file[:MOST_TESTS], *own]


def outcome(mutant: Mutant, tests: list[str], limit: float) -> str:
    """Whether tests notice a mutant: "noticed", "too slow" (also noticed), or one of `UNNOTICED`.

    If the failed test also fails on the unchanged code, the result is "not counted".
    """
    if not tests:
        return "untested"
    said, last = try_module(mutant.path, mutant.source, tests, limit)
    if said == "survived":
        return said
    if last.partition("::")[0] in tests:
        tests = [last.partition("::")[0]]
    return said if _unchanged(mutant.path, tuple(tests), limit, last) == "survived" else UNCOUNTED


@cache
def _unchanged(path: Path, tests: tuple[str, ...], limit: float, last: str) -> str:
    """The outcome of the test `last` if the code is unchanged."""
    return try_module(path, path.read_text(encoding="utf-8"), [*tests], limit, only=last)[0]


def try_module(
    path: Path, source: str, tests: list[str], limit: float, *, only: str | None = None
) -> tuple[str, str]:
    """The outcome of `tests` if the module `path` has this `source`, and the last test that began.

    With `only`, all tests are collected, but only the named test runs. If `only` is an empty text,
    no test runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy_code(Path(folder))
        Path(folder, path.relative_to(ROOT)).write_text(source, encoding="utf-8")
        began = Path(folder, "began")
        child = os.fork()
        if child == 0:
            os.setsid()
            _run(Path(folder), tests, Begun(began, tests, only))
        try:
            status = _status(child, limit)
        finally:  # also end processes that tests have started
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        last = began.read_text(encoding="utf-8") if began.exists() else ""
    passed = (0, NO_TESTS) if only == "" else (0,)
    return "too slow" if status is None else "survived" if status in passed else "noticed", last


def _status(child: int, limit: float) -> int | None:
    """The exit status of a process, or None if the process does not end within `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


def copy_code(folder: Path) -> None:
    """Fill a folder with the files that tests read: code is copied, other files are linked."""
    for entry in ROOT.iterdir():
        if entry in {*FOLDERS.values(), ROOT / "tests"}:
            shutil.copytree(entry, folder / entry.name)
        elif entry.name == "conftest.py":
            shutil.copy(entry, folder)
        elif entry.name not in (".venv", "out"):
            (folder / entry.name).symlink_to(entry)


class Begun:
    """A pytest plugin that selects tests, and records the last test that began.

    A slow test runs only if the name of the test is given; the name of the test's file does not
    suffice.
    """

    def __init__(self, path: Path, tests: list[str], only: str | None):
        self.path, self.only = path, only
        self.named = tuple(test for test in tests if "::" in test)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("slow") is None or item.nodeid.startswith(self.named)
        ]
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid == self.only]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.path.write_text(nodeid, encoding="utf-8")


def _run(folder: Path, tests: list[str], begun: Begun) -> None:
    """Run the tests in `folder`, and end this process with their status."""
    status = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(folder)
        own = [str(folder), str(folder / "scripts")]
        sys.path[:] = own + [entry for entry in sys.path if Path(entry) not in (ROOT, Path())]
        os.environ["PYTHONPATH"] = os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])
        # Suppress warnings about modules that are already loaded.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *quiet]
        status = int(pytest.main([*options, *tests], plugins=[begun]))
    finally:
        os._exit(status)


def preload() -> None:
    """Import slow modules that are not under test, with the same settings as the tests."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    atexit.register(importlib.import_module("conftest").pytest_unconfigure, None)
    del sys.modules["conftest"]  # a child process imports the conftest of its own copy
    for name in PRELOADED:
        importlib.import_module(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", nargs="+", choices=[*FOLDERS], default=[*FOLDERS])
    parser.add_argument("--path", default="", help="part of the paths of modules, such as _median")
    parser.add_argument(
        "--count", type=int, default=50, help="number of mutants for each package (default 50)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choice (default 0)")
    parser.add_argument(
        "--list", type=Path, nargs="+", help="files of mistakes; every mistake is planted"
    )
    parser.add_argument("--tests", nargs="+", help="tests to run for every mutant")
    parser.add_argument(
        "--limit",
        type=float,
        default=120,
        help="largest number of seconds for a mutant (default 120)",
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the outcomes")
    options = parser.parse_args()
    if options.list:
        chosen = [m for path in options.list for m in listed(path) if options.path in str(m.path)]
        # The list is shuffled, so that an interrupted run has tried a random sample.
        random.Random(options.seed).shuffle(chosen)
    else:
        chosen = [m for name in options.package for m in sampled(name, options)]
    preload()
    recorded, rows = record(RECORDED), earlier(options.out)
    done = {(row["path"], row["line"], row["after"]) for row in rows}
    chosen = [m for m in chosen if (str(m.path.relative_to(ROOT)), m.line, m.after) not in done]
    for mutant in track(chosen, "planting", console=Console(stderr=True)):
        name = mutant.path.relative_to(ROOT)
        row = {"package": name.parts[0]} | mutant._asdict() | {"path": str(name)}
        del row["source"]
        tests = options.tests or against(mutant, recorded)
        row["outcome"] = outcome(mutant, tests, options.limit)
        rows.append(row)
        if row["outcome"] in (*UNNOTICED, UNCOUNTED):
            change = f"{mutant.kind}: {mutant.what or f'{mutant.before} -> {mutant.after}'}"
            print(f"{row['outcome']} {row['path']}:{mutant.line} {change}", flush=True)
        if options.out:
            results = provenance(recorded is not None) | {"seed": options.seed, "mutants": rows}
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for column in ("package", "kind"):
        Console().print(_table(rows, column))


def earlier(out: Path | None) -> list[dict[str, Any]]:
    """The outcomes that the file `out` has from an interrupted run, which can then resume."""
    return json.loads(out.read_text(encoding="utf-8"))["mutants"] if out and out.exists() else []


def sampled(package: str, options: argparse.Namespace) -> list[Mutant]:
    """A random sample of a package's mutants, drawn with the seed."""
    modules = sorted(FOLDERS[package].rglob("*.py"))
    of_path = [path for path in modules if options.path in str(path) and path.stem != "__init__"]
    every = [mutant for path in of_path for mutant in mutants_of(path)]
    return random.Random(options.seed).sample(every, min(options.count, len(every)))


def provenance(has_lines: bool) -> dict[str, Any]:
    """How the outcomes were made; `has_lines` says whether recorded lines selected the tests."""
    return {
        "command": " ".join(["python -m tools.mutants", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "seconds": time.monotonic() - START,
        "tests by line": has_lines,
    }


@cache
def environment() -> dict[str, Any]:
    """The versions, the device and the commit, found by another process.

    JAX starts threads when a process lists JAX's devices. A process with such threads must not be
    forked, because the forked process would wait forever for locks that the missing threads held.
    """
    ask = "import json; from experiments import cli; print(json.dumps(cli.environment()))"
    command, paths = (
        [sys.executable, "-c", ask],
        os.pathsep.join([str(ROOT / "scripts"), str(ROOT)]),
    )
    return json.loads(
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True
        ).stdout
    )


def _table(rows: list[dict[str, Any]], column: str) -> Table:
    """A table that counts outcomes by package or kind of mistake, without "not counted" mutants."""
    table = Table(column, "planted", "noticed", "survived", title="Mutants")
    rows = [row for row in rows if row["outcome"] != UNCOUNTED]
    planted = Counter(row[column] for row in rows)
    survived = Counter(row[column] for row in rows if row["outcome"] in UNNOTICED)
    planted["all"], survived["all"] = planted.total(), survived.total()
    for name, number in planted.items():
        table.add_row(name, f"{number}", f"{number - survived[name]}", f"{survived[name]}")
    return table


if __name__ == "__main__":
    main()
