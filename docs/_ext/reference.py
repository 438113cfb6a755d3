"""Directives of the reference: `namespace` for a public module, and `task` for a table of names.

Docstrings contain names in backticks, examples, and sections that napoleon reads. All other
characters that are markup in reStructuredText are escaped.
"""

import ast
import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import inspect as sphinx_inspect
from sphinx.util.docutils import SphinxDirective

PACKAGES = ("jaxnorm", "pruning", "geometry")


def public_names(module: ModuleType) -> dict[str, str]:
    """The public names that `module` imports or defines, with the module of each name."""
    tree = ast.parse(inspect.getsource(module))
    names = {
        alias.name: node.module or module.__name__
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = module.__name__
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id: module.__name__ for t in targets if isinstance(t, ast.Name)}
    return {name: origin for name, origin in names.items() if not name.startswith("_")}


def namespaces(package: str) -> dict[str, ModuleType]:
    """A package and all its public modules, by dotted name."""
    module = import_module(package)
    found = {package: module}
    for name in public_names(module):
        if inspect.ismodule(getattr(module, name)):
            found |= namespaces(f"{package}.{name}")
    return found


def home(package: str, name: str) -> str:
    """The module whose page documents a name of `package`: a namespace, or the package itself."""
    value = getattr(import_module(package), name)
    for namespace, module in namespaces(package).items():
        if namespace != package and name in public_names(module) and vars(module)[name] is value:
            return namespace
    return package


class Namespace(SphinxDirective):
    """The docstring of a module, a table of its public names, and an entry for each."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        namespace = self.arguments[0]
        module, package = import_module(namespace), namespace.partition(".")[0]
        origins = public_names(module)
        names = [name for name in origins if not inspect.ismodule(getattr(module, name))]
        lines = [f".. automodule:: {namespace}", ""]
        lines += [".. list-table::", "   :class: names", "   :widths: auto", ""]
        for name in names:
            text = escaped(summary(module, name))
            lines += [f"   * - `~{namespace}.{name}`", f"     - {text}"]
        for name in names:
            if namespace != package or home(package, name) == package:
                lines += entry(module, name, origins[name])
        parsed = self.parse_text_to_nodes("\n".join(lines))
        self._alias(package, namespace)
        return parsed

    def _alias(self, package: str, namespace: str) -> None:
        """Make links and the search also find the short names of functions on this page."""
        domain = self.env.domains.python_domain
        for name in public_names(import_module(package)):
            full = f"{namespace}.{name}"
            if namespace != package and home(package, name) == namespace and full in domain.objects:
                kind = domain.objects[full].objtype
                domain.note_object(f"{package}.{name}", kind, full, aliased=True)


class Task(SphinxDirective):
    """A table of the given names, with the first paragraph of the docstring of each name."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
        for full in filter(None, map(str.strip, self.content)):
            namespace, _, name = full.rpartition(".")
            module = import_module(namespace)
            lines += [f"   * - `~{full}`", f"     - {escaped(summary(module, name))}"]
        return self.parse_text_to_nodes("\n".join(lines))


def summary(module: ModuleType, name: str) -> str:
    """The first paragraph of a docstring, on one line."""
    text = documented(module, name, public_names(module)[name])
    return " ".join(text.split("\n\n")[0].split())


def documented(module: ModuleType, name: str, origin: str) -> str:
    """The docstring of a function or a class, or the string below a constant."""
    value = getattr(module, name)
    if inspect.isclass(value) or is_function(value):
        return inspect.getdoc(value) or ""
    further = public_names(import_module(origin)).get(name, origin)
    if further != origin:
        return documented(module, name, further)
    found = ModuleAnalyzer.for_module(origin).find_attr_docs()
    return "\n".join(found.get(("", name), []))


def entry(module: ModuleType, name: str, origin: str) -> list[str]:
    full, value = f"{module.__name__}.{name}", getattr(module, name)
    if inspect.isclass(value):
        return ["", f".. autoclass:: {full}", "   :members:", "   :special-members: __call__"]
    if is_function(value):
        return ["", f".. autofunction:: {full}"]
    text = escaped(documented(module, name, origin)).splitlines()
    head = ["", f".. py:data:: {name}", f"   :module: {module.__name__}"]
    head += [f"   :value: {value!r}"] if isinstance(value, float) else []
    return [*head, "", *(f"   {line}" for line in text)]


def is_function(value: Any) -> bool:
    return inspect.isfunction(inspect.unwrap(value))


def escaped(text: str) -> str:
    """`text` with escaped markup outside of backticks, and separators around code in backticks.

    Without a separator, code that touches a letter would not be marked up.
    """
    # Without the backslash that this line adds, "x." would begin a list.
    text = re.sub(r"((?:^|: )\s*\w)\.(?=\s|$)", r"\1\.", text)
    pieces = re.split(r"(`+[^`]+`+)", text)
    pieces[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"\\ {piece}\\ " for piece in pieces[1::2]]
    return "".join(pieces)


def escape(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if "Call self as a function." in lines:  # the docstring that Python gives to `__call__`
        lines.clear()
    lines[:] = [x if re.match(r"\s*(>>>|\.\.\.)", x) else escaped(x) for x in lines]


def shorten(
    app: Sphinx, what: str, name: str, value: Any, options: Any, given: str | None, back: str | None
) -> tuple[str | None, str | None]:
    """The signature, with types as in the code, such as Float[Array, 'n d']."""
    if what == "class" and given and ("<" in given or given.startswith("(*args")):
        given = module_signature(value)
    array = "jaxlib._jax.Array"
    return given and given.replace(array, "Array"), back and back.replace(array, "Array")


def module_signature(module: type) -> str:
    """The signature of a Flax module's constructor, without types; the metaclass hides it."""
    signature = sphinx_inspect.signature(module.__init__, bound_method=True)
    text = sphinx_inspect.stringify_signature(
        signature, show_annotation=False, show_return_annotation=False
    )
    text = re.sub(r", parent=<.*", ")", text)  # remove arguments that Linen adds
    return re.sub(r"<(?:class|function) '?(?:\w+\.)*(\w+)'?>", r"\1", text)


def skip(app: Sphinx, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Whether to skip a member: true if the member is not from one of our packages."""
    source = getattr(value, "__module__", None) or type(value).__module__
    return None if source.split(".")[0] in (*PACKAGES, "builtins") else True


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("namespace", Namespace)
    app.add_directive("task", Task)
    # `escape` runs first, because napoleon has the priority 500.
    app.connect("autodoc-process-docstring", escape, priority=400)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
