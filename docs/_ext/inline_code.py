"""Inline code on a phone: a word such as `--round-to` is not cut, and its comma stays beside it.

`site.css` forbids a break in words of inline code, unless a word has the class "long": a browser
may then break the word, but also the line between the word and the comma after it.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

WIDEST = 34  # characters of a line of a list on a phone of 390 pixels


class LongWords(SphinxTransform):
    default_priority = 7

    def apply(self) -> None:
        for node in self.document.findall(nodes.literal):
            if any(len(word) > WIDEST for word in node.astext().split()):
                node["classes"].append("long")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LongWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
