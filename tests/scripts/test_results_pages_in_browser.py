"""The pages of docs/results fit the windows of phones and desktops in a browser."""

import pytest

from experiments.pages import gallery
from tests.support.browser import open_page

pytestmark = [pytest.mark.fitted_figures, pytest.mark.slow]


@pytest.fixture
def page(request, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(gallery.draw(request.param))
    (tmp_path / "browser").mkdir()
    return path


@pytest.mark.parametrize("page", ["compiled", "geometry"], indirect=True)
def test_no_table_is_much_wider_than_a_desk(page):
    """The cells of tables wrap, so tables are not wider than a desktop window."""
    text = page.read_text()
    page.write_text(text.replace("</style>", ".scroll { overflow: visible !important; }</style>"))
    seen = open_page(page, 1280, 900, scratch=page.parent / "browser")
    assert seen["content"] <= 1280


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", gallery.PAGES, indirect=True)
def test_no_page_is_wider_than_a_phone(page, dark):
    seen = open_page(page, 390, 800, dark=dark, scratch=page.parent / "browser")
    assert seen["console"] == []
    assert seen["content"] <= 390
    assert all(figure["text"] > 10.5 for figure in seen["figures"])
