"""Adds the pages of results to the site.

The body of each page of `gallery.PAGES` becomes results/NAME/index.html. The JSON files of
`docs/results` are copied to the site.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

from experiments.pages import gallery
from experiments.pages.gallery import FOLDER

LOCAL = re.compile(r'<a href="(?!data:|https?:|#)([^"#]+)([^>]*)>(.*?)</a>', re.DOTALL)
BODY = re.compile(r"<body>.*?(<header>.*)</body>", re.DOTALL)


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """For each page of results: the name, the title and the body, and the template."""
    style = scoped(Path(gallery.__file__).with_name("page.css").read_text(encoding="utf-8"))
    for name in gallery.PAGES:
        text = gallery.draw(name)
        title, body = re.search(r"<title>(.*?)</title>", text), BODY.search(text)
        assert title
        assert body
        inner = linked(body[1], FOLDER / name, app)
        whole = f'<style>{style}</style><div class="result">{inner}</div>'
        yield f"results/{name}/index", {"title": title[1], "body": whole}, "page.html"


def scoped(css: str) -> str:
    """The style of a page of results, in the typeface and the colours of the site."""
    variables = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    light, dark = variables[:2]
    rules = re.sub(
        r"@media screen and \(prefers-color-scheme: dark\) \{.*?\n\}",
        "",
        css,
        count=1,
        flags=re.DOTALL,
    )
    rules = re.sub(
        r"^(?::root|html|body|h1, h2, h3, nav,|h1) .*?\{.*?\}\n",
        "",
        rules,
        flags=re.DOTALL | re.MULTILINE,
    )
    rules = re.sub(r"system-ui, [^;]*", "var(--font-stack)", rules)
    page, ink = "var(--color-background-primary)", "var(--color-foreground-primary)"
    own = f"--paper: {page}; --ink: {ink};"
    return (
        f".result {{ {light} {own} }}\n"
        f"@media (prefers-color-scheme: dark) "
        f'{{ body:not([data-theme="light"]) .result {{ {dark} {own} }} }}\n'
        f'body[data-theme="dark"] .result {{ {dark} {own} }}\n'
        f".result {{ {rules} }}"
    )


def linked(body: str, folder: Path, app: Sphinx) -> str:
    """The body with its links changed to pages of the site, or to code in `source_repository`."""
    forge = app.config.html_theme_options.get("source_repository")
    root = Path(app.srcdir).parent.resolve()

    def resolved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(FOLDER.resolve()):
            own = link[1] == "results.json"  # is it the file that this page shows?
            address = link[1] if own else gallery.page_of(link[1])
        elif forge:
            address = f"{forge}blob/main/{target.relative_to(root).as_posix()}"
        else:
            return link[3]
        return f'<a href="{address}{link[2]}>{link[3]}</a>'

    return LOCAL.sub(resolved, body)


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Copy the files of numbers to the site."""
    if exception is None and app.builder.format == "html":
        ignored = shutil.ignore_patterns("*.md")
        shutil.copytree(FOLDER, Path(app.outdir, "results"), ignore=ignored, dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-collect-pages", collect)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
