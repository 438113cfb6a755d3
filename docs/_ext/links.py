"""Changes links of Markdown pages, so that they are right on the site.

A link to a JSON file of results becomes a link to the page of the results. If no page shows the
results, the link becomes a link to the static file. Links to notebooks and to `references.bib`
become links to pages of the site. A public name in backticks becomes a link to its place in the
reference.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from experiments.pages import gallery

PUBLIC_NAME = re.compile(r"((?:jaxnorm|pruning|geometry)(?:\.\w+)+)(?:\(.*\))?")


class StaticFiles(SphinxTransform):
    default_priority = 5

    def apply(self) -> None:
        for node in list(self.document.findall(addnodes.download_reference)):
            target = node["reftarget"]
            if target.endswith("references.bib"):
                target = "bibliography.html"
            if target.endswith(".ipynb") and "notebooks" not in Path(self.document["source"]).parts:
                address = f"notebooks/{Path(target).stem}.html"
                node.replace_self(nodes.reference("", "", *node.children, refuri=address))
            if target.endswith((".html", ".json")):
                address = gallery.page_of(target)
                node.replace_self(nodes.reference("", "", *node.children, refuri=address))


class PublicNames(SphinxTransform):
    default_priority = 6

    def apply(self) -> None:
        for node in list(self.document.findall(nodes.literal)):
            name = PUBLIC_NAME.fullmatch(node.astext())
            if name and isinstance(node.parent, nodes.paragraph | nodes.entry):
                options = {"refdomain": "py", "reftype": "obj", "reftarget": name[1]}
                link = addnodes.pending_xref("", node.deepcopy(), refwarn=False, **options)
                node.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(StaticFiles)
    app.add_transform(PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
