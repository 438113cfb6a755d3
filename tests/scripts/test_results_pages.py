"""The pages of docs/results: what their numbers give, linked to each other, at home on a phone."""

import json
import re

import numpy as np
import pytest

from experiments.pages import figures
from experiments.pages.mathematics import plain
from experiments.pages.papers import papers
from experiments.texts import html
from tests.support import results_pages
from tests.support.browser import open_page
from tests.support.web import Page

pytestmark = pytest.mark.fitted_figures

COMMITTED = [results_pages.FOLDER / name / "index.html" for name in ("", *results_pages.PAGES)]


@pytest.fixture(scope="module")
def drawn():
    return results_pages.drawn()


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
FIGURE = re.compile(r"<svg.*?</svg>", re.S)


def numbers(text):
    return np.array(NUMBER.findall(text), float)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_a_page_is_what_its_numbers_give(path, drawn):
    before, after = path.read_text(), drawn[path]
    assert FIGURE.sub("", before) == FIGURE.sub("", after)
    for figure, again in zip(FIGURE.findall(before), FIGURE.findall(after), strict=True):
        assert NUMBER.sub("0", figure) == NUMBER.sub("0", again)
        np.testing.assert_allclose(numbers(figure), numbers(again), atol=0.05)  # pixels


def test_every_page_has_numbers_and_is_in_the_index():
    named = {path.parent for path in COMMITTED[1:]}
    assert named == {path.parent for path in results_pages.FOLDER.glob("*/**/index.html")}


def test_the_index_has_every_figure_and_table_of_the_papers():
    results = json.loads((results_pages.FOLDER / "theorems" / "results.json").read_text())
    index = (results_pages.FOLDER / "index.html").read_text()
    sections = re.findall(r"<section.*?</section>", index, re.S)
    for paper, section in zip(papers(), sections, strict=True):
        claims = [claim for claim in results["claims"] if claim["paper"] == paper.short]
        named = {name for claim in claims for name in figures.figures(claim)}
        assert named == set(re.findall(r'<th scope="row">((?:Figure|Table) \d+)</th>', section))
        assert len(named) >= 7
        for claim in claims:
            for result in claim["results"] if figures.figures(claim) else ():
                assert html(plain(result["ours"])) in section


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_pages_lead_to_each_other(path):
    links = [link for link in Page(path.read_text()).links if link.endswith("index.html")]
    targets = {(path.parent / link).resolve() for link in links if "://" not in link}
    assert set(COMMITTED) - {path} <= targets
    assert all(target.is_file() for target in targets)


def test_every_page_has_a_title_of_its_own_and_says_what_criteria_it_names():
    texts = {path: path.read_text() for path in COMMITTED}
    titles = [re.search("<title>(.*?)</title>", text)[1] for text in texts.values()]  # pyright: ignore[reportOptionalSubscript]
    alike = {title for title in titles if titles.count(title) > 1}
    assert all("Pruned networks" in title for title in alike)
    for name in ("report", "resnet20", "prune/digits", "settings", "repair"):
        text = texts[results_pages.FOLDER / name / "index.html"]
        assert "Fermat, its distance to the geometric median of all filters; GM," in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compiled", "geometry"])
def test_no_table_is_much_wider_than_a_desk(name, tmp_path):
    """Cells of words wrap: the frame has the width of a window, and no table scrolls far in it."""
    text = (results_pages.FOLDER / name / "index.html").read_text()
    wide = tmp_path / "index.html"
    wide.write_text(text.replace("</style>", ".scroll { overflow: visible !important; }</style>"))
    (tmp_path / "browser").mkdir()
    assert open_page(wide, 1280, 900, scratch=tmp_path / "browser")["content"] <= 1280


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(path, dark, tmp_path):
    seen = open_page(path, 390, 800, dark=dark, scratch=tmp_path)
    assert seen["console"] == []
    assert seen["content"] <= 390
    assert all(figure["text"] > 10.5 for figure in seen["figures"])
