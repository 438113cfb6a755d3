"""Copies the pages of `docs/results` into the site, each with a way back."""

import os
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

BAR = (
    '<p class="kicker"><a href="{home}/index.html">jaxnorm</a> · '
    '<a href="{home}/results/README.html">all results</a></p>'
)
LOCAL = re.compile(r'(?<=href=")(?!data:|https?:|#)([^"#]+)')


def copy(app: Sphinx, exception: Exception | None) -> None:
    source, site = Path(app.srcdir, "results"), Path(app.outdir)
    if exception is None and app.builder.format == "html":
        ignored = shutil.ignore_patterns("*.md")
        shutil.copytree(source, site / "results", ignore=ignored, dirs_exist_ok=True)
        for page in source.rglob("*.html"):
            copied = site / "results" / page.relative_to(source)
            text = page.read_text(encoding="utf-8")
            copied.write_text(with_way_back(text, page, copied, site, app), encoding="utf-8")


def with_way_back(text: str, page: Path, copied: Path, site: Path, app: Sphinx) -> str:
    """The page with a line of links at its top; links to code lead to the forge."""
    forge = app.config.html_theme_options["source_repository"] + "blob/main"
    root = Path(app.srcdir).parent.resolve()

    def resolved(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        inside = target.is_relative_to(Path(app.srcdir, "results").resolve())
        return link[1] if inside else f"{forge}/{target.relative_to(root).as_posix()}"

    home = os.path.relpath(site, copied.parent)
    bar = BAR.format(home=Path(home).as_posix())
    return LOCAL.sub(resolved, text).replace("<body>", f"<body>\n{bar}", 1)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
