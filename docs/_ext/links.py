"""Links of Markdown files that a forge resolves by itself, and Sphinx would make downloads of.

Results are static files of the site, at the same place. `references.bib` is a page here.
"""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class StaticFiles(SphinxTransform):
    default_priority = 5

    def apply(self) -> None:
        for node in list(self.document.findall(addnodes.download_reference)):
            target = node["reftarget"]
            if target.endswith("references.bib"):
                target = "bibliography.html"
            if target.endswith((".html", ".json", ".jsonl")):
                node.replace_self(nodes.reference("", "", *node.children, refuri=target))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(StaticFiles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
