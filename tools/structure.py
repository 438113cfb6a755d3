"""Check sizes, imports, words and docstrings of the code, for `make lint`.

    python -m tools.structure

The tool prints a table of measures and a line for every fault, and exits with 1 if there is a
fault.
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("jaxnorm", "pruning", "geometry")
MAX_COMMAND, MAX_BODY = 160, 40
MAX_REACH = {
    "pruning.channels.prune": 247,
    "pruning.channels.coupled_channels": 76,
    "pruning.channels.resized": 119,
    "pruning.channels.merge_channels": 127,
}
"""The largest number of definitions of `pruning` that each function may reach."""
MAX_PLACES = 2
PRIMITIVES = {
    *("add", "broadcast_in_dim", "concatenate", "conv_general_dilated", "convert_element_type"),
    *("div", "dot_general", "gather", "mul", "neg", "pad", "reduce_sum", "reshape", "rsqrt"),
    *("select_n", "slice", "sqrt", "squeeze", "sub", "transpose"),
}
MAX_NAMES = 45  # the largest number of public names in a package's own namespace

# Words that must not be names, and for each word the term of the field.
DIALECT = {
    "fence": "optimization_barrier",
    "fenced": "optimization_barrier",
    "kept": "keep_indices, materialized",
    "widen": "promote_to_float32",
    "Place": "the centered batch",
    "place_of": "center_batch",
    "grown": "tangent",
    "moved": "updated, tangent",
    "law": "distribution",
    "laws": "distributions",
    "goes": "removed",
    "gone": "removed",
    "stays": "keep_indices",
    "staying": "keep_indices",
    "meets": "coupled",
    "tell": "log, update",
    "leads": "is_main_process",
    "agreed": "any_process",
    "Resident": "the in-memory loader",
    "Streamed": "the streaming loader",
    "everywhere": "replicate",
    "begin": "init_state",
    "lift": "maybe_vmap",
    "so_many": "n",
    "least": "min",
    "most": "max",
    "of": "the noun itself",
    "those": "the noun itself",
    "each": "the noun itself",
    "which": "the noun itself",
    "words": "the noun itself",
    "arms": "normalizations",
    "ledger": "the paper's own number",
}
PHRASES = {
    r"\bledgers?\b": "the paper's own number",
    r"comes? back\b": "cotangent",
    r"on the way back": "in the backward pass",
    r"side by side": "vectorized or vmapped",
    r"\b[Ff]enc(?:e|ed|es)\b": "optimization barrier",
    r"\b(?:is|are) taken off\b": "subtracted",
}


class Module(NamedTuple):
    name: str  # the full name, as in an import
    path: Path
    text: str
    tree: ast.Module


def main(root: Path) -> int:
    modules = list(read(root))
    of_pruning = [module for module in modules if top(module) == "pruning"]
    faults = [
        *sizes(modules),
        *reaches(of_pruning),
        *primitive_places(modules),
        *package_imports(modules),
        *command_imports(modules),
        *import_cycles(modules),
        *upward_imports(modules),
        *dialect(modules),
        *undocumented(),
    ]
    print(f"{'':22}files  code lines  longest file  longest body")
    for part in (*PACKAGES, "scripts"):
        print(measures(part, [m for m in modules if top(m) == part]))
    for name in MAX_REACH:
        print(f"{name} reaches {len(reach(name, of_pruning))} functions and classes")
    print(*faults, sep="\n")
    print(f"{len(faults)} faults of structure" if faults else "The structure holds")
    return bool(faults)


def read(root: Path) -> Iterator[Module]:
    """The modules of the packages and scripts; a script's name is the name that imports use."""
    for part in (*PACKAGES, "scripts"):
        for path in sorted((root / part).rglob("*.py")):
            inner = path.relative_to(root).with_suffix("")
            names = [name for name in inner.parts if name != "__init__"]
            dotted = ".".join(names[1:] if names[0] == "scripts" else names)
            text = path.read_text(encoding="utf-8")
            yield Module(dotted, path.relative_to(root), text, ast.parse(text))


def measures(part: str, modules: list[Module]) -> str:
    files = [len(m.text.splitlines()) for m in modules]
    bodies = [body_length(node, m) for m in modules for node in functions(m)]
    total = sum(len(code_lines(m)) for m in modules)
    return (
        f"{part:22}{len(files):5}{total:12,}{max(files, default=0):14}{max(bodies, default=0):14}"
    )


def sizes(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        length = len(module.text.splitlines())
        if length > MAX_COMMAND and is_command(module):
            yield f"{module.path}: {length} lines; at most {MAX_COMMAND}"
        for node in functions(module):
            length = body_length(node, module)
            if length > MAX_BODY:
                place = f"{module.path}:{node.lineno}: {node.name}"
                yield f"{place} has {length} lines of code; at most {MAX_BODY}"


def reaches(modules: list[Module]) -> Iterator[str]:
    """Yield a fault for each function in `MAX_REACH` that uses too many definitions.

    The definitions that other definitions use also count.
    """
    for name, limit in MAX_REACH.items():
        count = len(reach(name, modules))
        if count > limit:
            yield f"{name} reaches {count} functions and classes of pruning; at most {limit}"


def reach(name: str, modules: list[Module]) -> set[str]:
    """The functions, classes and methods that a function calls, directly or indirectly.

    Calls are found by names alone. A method counts if the method's class is reached and an
    attribute in the reached code has the method's name. Functions that are only reached through a
    table (a name in capitals) do not count, because a reader reads a table row by row.
    """
    imported = {m.name: imported_names(m) for m in modules}
    found = {n: node for m in modules for n, node in definitions(m)}
    names = {m.name for m in modules}
    module, _, first = name.rpartition(".")
    seen, asked, attributes = set(), set(), set()
    left = [imported.get(module, {}).get(first, name)]
    while left or (left := methods(seen, attributes, found)):
        package, _, last = (path := left.pop()).rpartition(".")
        if path in asked:
            continue
        asked.add(path)
        if path not in found:
            left += [imported[package][last]] if last in imported.get(package, {}) else []
            continue
        seen.add(path)
        place = package if package in names else package.rpartition(".")[0]
        for node in ast.walk(found[path]):
            if isinstance(node, ast.Name):
                left.append(imported[place].get(node.id, f"{place}.{node.id}"))
            elif isinstance(node, ast.Attribute):
                attributes.add(node.attr)
                if isinstance(node.value, ast.Name) and node.value.id in imported[place]:
                    left.append(f"{imported[place][node.value.id]}.{node.attr}")
    return seen


def methods(seen: set[str], attributes: set[str], found: dict[str, ast.AST]) -> list[str]:
    """Methods of reached classes whose name occurs as an attribute in the reached code."""
    parts = {path: path.rpartition(".") for path in found.keys() - seen}
    return [
        path for path, (owner, _, name) in parts.items() if owner in seen and name in attributes
    ]


def definitions(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the dotted path and the syntax node of each function, class and method of a module."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield f"{module.name}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{module.name}.{node.name}.{inner.name}", inner


def imported_names(module: Module) -> dict[str, str]:
    """The full name of each name that a module imports."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def primitive_places(modules: list[Module]) -> Iterator[str]:
    """Yield a fault for each of `PRIMITIVES` that `pruning.channels` names in too many places."""
    places: dict[str, list[str]] = {}
    for module in (m for m in modules if m.name.startswith("pruning.channels.")):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr.endswith("_p"):
                name = node.attr.removesuffix("_p")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            else:
                continue
            places.setdefault(name, []).append(f"{module.path}:{node.lineno}")
    for name in sorted(PRIMITIVES):
        if len(found := places.get(name, [])) > MAX_PLACES:
            yield f"{name} is named at {', '.join(found)}; at most at {MAX_PLACES} places"


def package_imports(modules: list[Module]) -> Iterator[str]:
    """Yield a fault for each forbidden import from another package.

    No module may import a private name of another package. The packages `pruning` and `geometry`
    may import only `jaxnorm`; scripts may import any package.
    """
    for module in modules:
        for name in sorted(set(imports(module, {m.name for m in modules}))):
            package, *rest = name.split(".")
            if package not in PACKAGES or package == top(module):
                continue
            if any(part.startswith("_") for part in rest):
                yield f"{module.path}: imports {name}, which is private: see jaxnorm.internal"
            if top(module) in PACKAGES and package != "jaxnorm":
                yield f"{module.path}: imports {name}; packages import jaxnorm alone"


def command_imports(modules: list[Module]) -> Iterator[str]:
    commands = {module.name for module in modules if is_command(module)}
    for module in modules:
        if top(module) == "scripts":
            for name in commands & set(imports(module, commands)):
                yield f"{module.path}: imports the command {name}"


def import_cycles(modules: list[Module]) -> Iterator[str]:
    """Yield a fault that names the modules that import each other in a cycle at load time."""
    names = {module.name for module in modules}
    graph = {m.name: set(imports(m, names)) & names - {m.name} for m in modules}
    if cycle := in_cycles(graph):
        yield f"import cycle among {', '.join(cycle)}"


def upward_imports(modules: list[Module]) -> Iterator[str]:
    """Yield a fault for every set of folders that import each other in a cycle.

    If folder A imports folder B, B is below A, and B must not import A. Imports inside functions
    count too. Between the three packages, only imports at load time count, because `jaxnorm`
    imports the other packages lazily.
    """
    names = {module.name for module in modules}
    of_modules = [m.name if m.path.name == "__init__.py" else parent(m.name) for m in modules]
    folders = {""}
    for name in of_modules:
        while name not in folders:
            folders.add(name)
            name = parent(name)
    ever = {m.name: set(imports(m, names, at_run)) for m in modules}
    at_first = {m.name: set(imports(m, names, at_load)) for m in modules}
    for folder in sorted(folders):
        inner = {name for name in folders if name and parent(name) == folder}
        graph: dict[str, set[str]] = {name: set() for name in inner}
        for module in modules:
            for name in (ever if folder else at_first)[module.name]:
                user, used = (ancestor(n, inner) for n in (module.name, name))
                if user and used and user != used:
                    graph[user].add(used)
        if cycle := in_cycles(graph):
            yield f"imports go up and down between the folders {', '.join(cycle)}"


def in_cycles(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a graph that are on a cycle or on a path between two cycles, sorted."""
    while graph:
        free = {name for name, needs in graph.items() if not needs & graph.keys()}
        users = {name for name in graph if not any(name in needs for needs in graph.values())}
        if not free | users:
            return sorted(graph)
        graph = {name: needs for name, needs in graph.items() if name not in free | users}
    return []


def parent(name: str) -> str:
    return name.rpartition(".")[0]


def ancestor(name: str, folders: set[str]) -> str | None:
    """The folder in `folders` that contains a module, or None if no folder contains it."""
    return next((f for f in folders if name == f or name.startswith(f + ".")), None)


def dialect(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for name, line in bound_names(module.tree):
            if name.lstrip("_") in DIALECT:
                yield f"{module.path}:{line}: {name}: say {DIALECT[name.lstrip('_')]}"
        for number, text in enumerate(module.text.splitlines(), 1):
            for pattern, word in PHRASES.items():
                if found := re.search(pattern, text):
                    yield f"{module.path}:{number}: {found[0]!r}: say {word}"


def undocumented() -> Iterator[str]:
    for package in PACKAGES:
        top_level = public_names(importlib.import_module(package))
        if len(top_level) > MAX_NAMES:
            yield f"{package}: {len(top_level)} names at the top; at most {MAX_NAMES}"
        yield from undocumented_names(package)


def undocumented_names(namespace: str) -> Iterator[str]:
    module = importlib.import_module(namespace)
    if not module.__doc__:
        yield f"{namespace} has no docstring"
    for name, value in public_names(module).items():
        if inspect.ismodule(value):
            if value.__name__.startswith(namespace + "."):
                yield from undocumented_names(value.__name__)
        elif (inspect.isfunction(value) or inspect.isclass(value)) and not inspect.getdoc(value):
            yield f"{namespace}.{name} has no docstring"
        elif inspect.isfunction(value) and (missing := undocumented_options(value)):
            yield f"{namespace}.{name}: the docstring does not name {', '.join(missing)}"


def undocumented_options(function: Callable[..., Any]) -> list[str]:
    """The names of a function's options that its docstring does not mention.

    The list is empty if the docstring refers to a different docstring for its options.

    Only keyword-only arguments are options. Positional arguments need no description.
    """
    text = " ".join((inspect.getdoc(function) or "").split())
    if re.search(r"([Aa]rguments|[Oo]ptions)\b[^.]* (those of|as in|of|for) `", text):
        return []
    options = (
        p for p in inspect.signature(function).parameters.values() if p.kind == p.KEYWORD_ONLY
    )
    return [option.name for option in options if not re.search(rf"\b{option.name}\b", text)]


def public_names(module: object) -> dict[str, object]:
    """The public names of a module that are defined in the module's package."""
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    values = {name: getattr(module, name) for name in names}
    own = module.__name__.split(".")[0]  # pyright: ignore[reportAttributeAccessIssue]
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "__module__", getattr(value, "__name__", own)).split(".")[0] == own
    }


def imports(
    module: Module, names: set[str], nodes: Callable[[ast.AST], Iterator[ast.AST]] | None = None
) -> Iterator[str]:
    """Yield the modules that `module` imports at load time, or in the nodes that `nodes` yields."""
    for node in (nodes or at_load)(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module


def at_load(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run at load time, outside of functions and of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not checking and not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from at_load(node)


def at_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes outside of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from at_run(node)


def functions(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and line number of each function, class, parameter, variable and alias."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def body_length(function: ast.FunctionDef, module: Module) -> int:
    first = function.body[min(len(function.body) - 1, has_docstring(function))]
    lines = code_lines(module)
    return sum(first.lineno <= line <= (function.end_lineno or 0) for line in lines)


def code_lines(module: Module) -> list[int]:
    """The numbers of the lines that contain code, not only a blank, a comment or a docstring."""
    documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, documented) and has_docstring(node):
            skipped |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(module.text.splitlines(), 1)
    return [n for n, t in lines if n not in skipped and t.strip() and t.strip()[0] != "#"]


def has_docstring(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def is_command(module: Module) -> bool:
    return module.path.parent == Path("scripts")


def top(module: Module) -> str:
    return module.path.parts[0]


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    sys.exit(main(Path(__file__).parents[1]))
