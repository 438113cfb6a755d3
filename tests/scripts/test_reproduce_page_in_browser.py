"""A browser shows the whole report on phones and desktops, in light and dark themes."""

import pytest

from experiments.pages import reproduce as reproduce_page
from experiments.pages.page import write
from tests.support.browser import on_phone_and_desktop, open_page
from tests.support.made_up_results import made_up

pytestmark = pytest.mark.fitted_figures


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(made_up(), reproduce_page.render, folder)
    return folder / "index.html"


@on_phone_and_desktop
def test_a_browser_shows_every_figure(page, tmp_path, width, height, dark):
    seen = open_page(page, width, height, dark=dark, scratch=tmp_path)
    assert seen["console"] == []
    assert (seen["width"], seen["dark"]) == (width, dark)
    assert seen["content"] <= width  # nothing is wider than the window
    assert len(seen["figures"]) == 31
    for figure in seen["figures"]:
        assert 0 <= figure["left"] < figure["right"] <= width, figure
        assert figure["height"] > 100, figure
        assert figure["marks"] > 10, figure
        assert figure["text"] >= 9.5, figure  # the text is large enough to read
    colours = {seen["paper"], *(figure["colour"] for figure in seen["figures"])}
    assert len(colours) == 2


def test_the_browser_test_would_see_a_broken_page(tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text('<body style="width: 900px">\n<script>missing()</script></body>')
    seen = open_page(broken, 360, 740, scratch=tmp_path)
    assert seen["content"] > 360
    assert "missing is not defined" in "".join(seen["console"])
    assert seen["figures"] == []
