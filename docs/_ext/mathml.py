"""Writes formulas as MathML, which browsers draw without scripts."""

from typing import Any

from docutils.nodes import SkipNode
from sphinx.application import Sphinx

from experiments.pages import mathematics


def inline(translator: Any, node: Any) -> None:
    translator.body.append(mathematics.html(f"${node.astext()}$"))
    raise SkipNode


def block(translator: Any, node: Any) -> None:
    formula = mathematics.html(f"${node.astext()}$").replace('"inline"', '"block"', 1)
    translator.body.append(f'<div class="equation">{formula}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
