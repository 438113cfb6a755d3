"""The pages of docs/results: drawn from their numbers, complete, at home on a phone."""

import re

import pytest

from experiments.pages import gallery
from tests.support.browser import open_page

pytestmark = pytest.mark.fitted_figures


@pytest.fixture(scope="module")
def drawn():
    return {name: gallery.draw(name) for name in gallery.PAGES}


@pytest.mark.parametrize("name", gallery.PAGES)
def test_a_page_is_drawn_of_its_numbers(name, drawn):
    text = drawn[name]
    assert gallery.numbers(name)["command"] in text.replace("&#x27;", "'")
    assert "<script" not in text
    assert not re.search(r"<(?:td|dd)[^>]*>\s*(nan|None|inf)\s*<", text)


def test_every_file_of_numbers_for_a_page_has_one():
    pages = {path.parent for path in gallery.FOLDER.rglob("results.json")}
    assert pages <= {gallery.FOLDER / name for name in gallery.PAGES}


def test_every_page_has_a_title_of_its_own_and_says_what_criteria_it_names(drawn):
    titles = [re.search("<title>(.*?)</title>", text)[1] for text in drawn.values()]  # pyright: ignore[reportOptionalSubscript]
    alike = {title for title in titles if titles.count(title) > 1}
    assert all("Pruned networks" in title for title in alike)
    for name in ("report", "resnet20", "prune/digits", "settings", "repair"):
        assert "Fermat, its distance to the geometric median of all filters; GM," in drawn[name]


@pytest.fixture
def page(request, drawn, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(drawn[request.param])
    (tmp_path / "browser").mkdir()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("page", ["compiled", "geometry"], indirect=True)
def test_no_table_is_much_wider_than_a_desk(page):
    """Cells of words wrap: the frame has the width of a window, and no table scrolls far in it."""
    text = page.read_text()
    page.write_text(text.replace("</style>", ".scroll { overflow: visible !important; }</style>"))
    seen = open_page(page, 1280, 900, scratch=page.parent / "browser")
    assert seen["content"] <= 1280


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", gallery.PAGES, indirect=True)
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(page, dark):
    seen = open_page(page, 390, 800, dark=dark, scratch=page.parent / "browser")
    assert seen["console"] == []
    assert seen["content"] <= 390
    assert all(figure["text"] > 10.5 for figure in seen["figures"])
