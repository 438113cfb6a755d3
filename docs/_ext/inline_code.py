"""Marks inline code with long words, in which a browser on a phone may break the line.

In inline code with the class "long", `site.css` allows line breaks inside words. In all other
inline code, `site.css` forbids line breaks inside words such as `--round-to`.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

WIDEST = 34  # a phone whose screen is 390 pixels wide shows 34 characters per line of a list


class LongWords(SphinxTransform):
    default_priority = 7

    def apply(self) -> None:
        for node in self.document.findall(nodes.literal):
            if any(len(word) > WIDEST for word in node.astext().split()):
                node["classes"].append("long")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LongWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
