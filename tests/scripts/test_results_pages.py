"""The pages of docs/results: drawn from their numbers, and complete."""

import re
from functools import cache

import pytest

from experiments.pages import gallery


@pytest.fixture(scope="module")
def drawn():
    """A page by its name, drawn once."""
    return cache(gallery.draw)


@pytest.mark.parametrize("name", gallery.PAGES)
def test_a_page_is_drawn_of_its_numbers(name, drawn):
    text = drawn(name)
    assert gallery.numbers(name)["command"] in text.replace("&#x27;", "'")
    assert "<script" not in text
    assert not re.search(r"<(?:td|dd)[^>]*>\s*(nan|None|inf)\s*<", text)


def test_every_page_has_a_title_of_its_own_and_says_what_criteria_it_names(drawn):
    titles = [re.search("<title>(.*?)</title>", drawn(name))[1] for name in gallery.PAGES]  # pyright: ignore[reportOptionalSubscript]
    alike = {title for title in titles if titles.count(title) > 1}
    assert all("Pruned networks" in title for title in alike)
    for name in ("report", "resnet20", "prune/digits", "settings", "repair"):
        assert "Fermat is its distance to the geometric median of all filters; GM" in drawn(name)
