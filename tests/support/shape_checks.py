"""Checks arguments only of functions whose signature has arrays.

jaxtyping's import hook would wrap every function of a package. The hook would wrap functions inside
functions again at each call, which would take half of the time of all tests.
"""

import ast

import jaxtyping
from jaxtyping import _import_hook


class _Arrays(_import_hook.JaxtypingTransformer):
    """Does not check functions without arrays, nor functions inside functions."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802, named by ast
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
    """Start the checks. Call `begin` before the packages are imported."""
    _import_hook.JaxtypingTransformer = _Arrays
