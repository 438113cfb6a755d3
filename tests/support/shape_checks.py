"""Arguments are checked where a signature has arrays, and nowhere else.

jaxtyping's import hook wraps every function of a package. Functions inside functions are wrapped
again at each call, which took half of the time of all tests.
"""

import ast

import jaxtyping
from jaxtyping import _import_hook


class _Arrays(_import_hook.JaxtypingTransformer):
    """Leaves functions without arrays, and functions inside functions, unchecked."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802, ast's
        inside = any(isinstance(parent, ast.FunctionDef) for parent in self._parents)
        if inside or not _has_arrays(node):
            return node
        return super().visit_FunctionDef(node)


def _has_arrays(node: ast.FunctionDef) -> bool:
    arguments = ast.walk(node.args)
    annotations = [a.annotation for a in arguments if isinstance(a, ast.arg)] + [node.returns]
    names = (
        name.id
        for annotation in annotations
        if annotation is not None
        for name in ast.walk(annotation)
        if isinstance(name, ast.Name)
    )
    return any(hasattr(jaxtyping, name) for name in names)


def begin() -> None:
    """Start the checks; must be called before the packages are imported."""
    _import_hook.JaxtypingTransformer = _Arrays
