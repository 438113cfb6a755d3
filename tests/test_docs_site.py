"""Tests the documentation: every public name is documented, and every link has a target."""

import importlib
import inspect
import json
import re
import subprocess
import sys
import typing
import zlib
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.pages import gallery
from tests.support.browser import open_page
from tests.support.web import CSS_URL, Page, is_local, target
from tools.structure import PACKAGES, public_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MARKDOWN = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("results/*.md")]
RESULTS = {name: f"results/{name}/index.html" for name in gallery.PAGES}


def namespaces(name):
    """A package and its public submodules, by name.

    Data in `geometry.claims` are left out.
    """
    module = importlib.import_module(name)
    yield name, module
    for value in public_names(module).values() if name != "geometry.claims" else ():
        if inspect.ismodule(value) and value.__name__.startswith(name + "."):
            yield from namespaces(value.__name__)


# This package is imported when it is first used, so `public_names` does not find the package.
LAZY = ("geometry.claims",)
NAMESPACES = dict(found for package in (*PACKAGES, *LAZY) for found in namespaces(package))


def promised(namespace):
    """The public names of a namespace.

    Names that a namespace of one file only imports are left out.
    """
    module = NAMESPACES[namespace]
    for name, value in public_names(module).items():
        own = getattr(value, "__module__", namespace) == namespace or hasattr(module, "__path__")
        if own and not inspect.ismodule(value) and name not in vars(typing):
            yield name


def file_of(link, page):
    """The file of the repository to which a link of a Markdown page leads, or None."""
    if not is_local(link):
        return None
    return page.parent / link.partition("#")[0]


def links_of(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files(page):
    missing = [k for k in links_of(page) if (file := file_of(k, page)) and not file.exists()]
    assert not missing


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sign_at_the_start_of_a_line_cuts_a_paragraph(page):
    """Markdown would read a line that begins with + as a list, and with % as a comment."""
    text = re.sub(r"(?m)^```.*?^```", "", page.read_text(), flags=re.S)
    assert re.findall(r"(?m)^[^\s|*+<#-][^\n]*[^:\n]\n[+*-] .*|^ *%.*", text) == []


def test_settings_of_a_page_are_read_as_settings():
    """If the settings were in one line, a page would show them as text."""
    for page in MARKDOWN:
        text = page.read_text()
        assert not text.startswith("---") or text.startswith("---\n"), page


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_code_of_a_guide_fits_into_the_page(page):
    """Blocks without a language show what a command prints, so their lines may be longer."""
    blocks = re.findall(r"(?ms)^ *```\w+\n(.*?)^ *```", page.read_text())
    assert [line for block in blocks for line in block.splitlines() if len(line) > 72] == []


def test_a_link_to_nothing_is_noticed():
    file = file_of("nothing.md", DOCS / "index.md")
    assert file is not None
    assert not file.exists()


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_address_is_another_project_s(page):
    """This project has no public address, so its files must be linked by relative paths."""
    addresses = re.findall(r"https?://[^)\s>\"]+", page.read_text(encoding="utf-8"))
    assert [address for address in addresses if "jaxnorm" in address] == []


def test_every_namespace_has_a_page_of_the_reference():
    pages = {page.stem for page in DOCS.glob("reference/*.rst")} - {"index"}
    assert pages == set(NAMESPACES)
    for page in pages:
        assert f".. namespace:: {page}\n" in (DOCS / f"reference/{page}.rst").read_text()


def test_the_index_of_the_reference_has_every_public_name_once_under_a_task():
    text = (DOCS / "reference/index.rst").read_text()
    listed = re.findall(r"^   ((?:jaxnorm|pruning|geometry)\.[\w.]+)$", text, re.M)
    values = [id(_value(name)) for name in listed]
    assert len(set(values)) == len(values)
    for namespace in NAMESPACES:
        missing = [
            name
            for name in promised(namespace)
            if id(getattr(NAMESPACES[namespace], name)) not in values
        ]
        assert not missing, namespace


def _value(name):
    namespace, _, last = name.rpartition(".")
    return getattr(NAMESPACES[namespace], last)


def test_pages_that_the_search_lists_after_the_guides_exist():
    scorer = (DOCS / "_ext/scorer.js").read_text()
    listed = re.search(r"\^\((.+?)\)\$", scorer)
    assert listed
    assert {f"{name}.md" for name in listed[1].split("|")} <= {p.name for p in DOCS.iterdir()}
    assert "errata" in listed[1]


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_of_results_is_listed_with_its_command(name):
    rows = (DOCS / "results/README.md").read_text().splitlines()
    (row,) = [row for row in rows if f"({name}/{gallery.NUMBERS.get(name, 'results.json')})" in row]
    assert re.search(r"\| `(?:scripts/\w+\.py|make) ?[^`]*` \|$", row)


def sphinx():
    """The Python interpreter of `make docs`, or this interpreter if Sphinx is installed in it."""
    own = ROOT / ".venv-docs/bin/python"
    if own.exists():
        return str(own)
    if find_spec("furo") and find_spec("myst_parser"):
        return sys.executable
    pytest.skip("Sphinx is not installed: `make docs` installs it")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sphinx(), "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["-b", "html", "-d", str(folder / "doctrees"), str(DOCS), str(folder / "html")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site):
    found = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) > 50
    return found


def inventory(site):
    """The names of Python objects, with the addresses where they are documented."""
    head, _, body = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    for line in zlib.decompress(body).decode().splitlines():
        name, domain, _, address, _ = line.split(" ", 4)
        if domain.startswith("py:"):
            yield name, address.replace("$", name)


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site, pages):
    known = dict(inventory(site))
    for namespace in NAMESPACES:
        assert set(known) >= {f"{namespace}.{name}" for name in promised(namespace)}
    summaries = re.findall(r"<td>(.*?)</td>", (site / "reference/pruning.html").read_text(), re.S)
    assert len(summaries) > 60
    assert all(re.sub(r"<[^>]+>", "", summary).strip() for summary in summaries)
    for address in known.values():
        file, anchor = target(site.resolve() / "index.html", address)
        assert anchor in pages[file].names


@pytest.mark.slow
def test_pages_load_nothing_from_the_network(site, pages):
    for path, page in pages.items():
        assert not [load for load in page.loads if not is_local(load)], path
        files = [target(path, load)[0] for load in page.loads if not load.startswith("data:")]
        assert all(file.is_file() for file in files), path
    for sheet in site.rglob("*.css"):
        assert not [url for url in CSS_URL.findall(sheet.read_text()) if not is_local(url)], sheet


@pytest.mark.slow
def test_links_within_the_site_lead_to_places(pages):
    for path, page in pages.items():
        for link in filter(is_local, page.links):
            file, anchor = target(path, link)
            assert file.is_file(), f"{path}: {link}"
            assert anchor in pages[file].names if file in pages else not anchor, f"{path}: {link}"


@pytest.mark.slow
def test_every_page_of_results_is_in_the_shell_of_the_site(site, pages):
    for page in RESULTS.values():
        links = [
            target((site / page).resolve(), k)[0]
            for k in pages[(site / page).resolve()].links
            if is_local(k)
        ]
        assert {(site / f"{name}.html").resolve() for name in ("layers", "results/README")} <= set(
            links
        )


@pytest.mark.slow
def test_names_in_a_guide_link_to_the_reference(pages, site):
    links = pages[(site / "layers.html").resolve()].links
    assert "reference/jaxnorm.nnx.html#jaxnorm.nnx.UnitizedBatchNorm" in links
    links = pages[(site / "your_issue.html").resolve()].links
    assert "reference/pruning.channels.html#pruning.channels.cost" in links


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(ROOT.glob("examples/*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_is_a_page_with_its_outputs(site, notebook):
    text = unescape(re.sub(r"<[^>]+>", "", (site / f"notebooks/{notebook.stem}.html").read_text()))
    cells = json.loads(notebook.read_text())["cells"]
    printed = [
        line.strip() for c in cells for part in c.get("outputs", ()) for line in part["text"]
    ]
    assert printed
    assert not [line for line in printed if line not in text]
    assert f"notebooks/{notebook.stem}.html" in (site / "examples.html").read_text()


@pytest.mark.slow
def test_formulas_are_mathml(site):
    assert "<math" in (site / "get_started.html").read_text()
    for page in site.glob("*.html"):
        assert "$$" not in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("index", 3),
        ("layers", 0),
        ("reference/pruning.channels", 0),
        ("results/README", 0),
        ("results/atlas/index", 3),
    ],
)
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_a_phone_and_follows_the_theme(site, page, figures, dark, tmp_path):
    shown = open_page(site / f"{page}.html", 390, 844, dark=dark, scratch=tmp_path)
    assert max(shown["content"], shown["captions"]) <= shown["width"]
    assert len(set(shown["fonts"])) == 1
    assert shown["dark"] is dark
    red, green, blue = map(int, re.findall(r"\d+", shown["paper"])[:3])
    assert (red + green + blue < 300) is dark
    assert not shown["console"]
    assert len(shown["figures"]) == figures
