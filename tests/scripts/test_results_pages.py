"""The pages of docs/results are complete, and are drawn from the stored numbers."""

import hashlib
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.pages import gallery, plots
from tests.support.recorded import assert_as_recorded

CELL = re.compile(r"(?s)<(?:td|th|dd|dt)[^>]*>(.*?)</(?:td|th|dd|dt)>")
LETTERS = str.maketrans("0123456789", "ghijklmnop")
FIGURES = []  # the contents of the figures of the current page


@pytest.fixture(scope="module")
def drawn():
    """A function that draws a page once, and returns the page and the contents of its figures."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(plots, "Figure", RecordedFigure)
        yield cache(draw)


class RecordedFigure(Figure):
    """A figure that records the contents of its axes, and writes an empty drawing.

    Matplotlib needs most of a page's time to draw its figures.
    """

    def savefig(self, fname: Any, **kwargs):
        FIGURES.extend(map(shown, self.axes))
        fname.write('<svg viewBox="0 0 1 1"></svg>')


class LooseText(HTMLParser):
    """Collects the text of a page that stands in no paragraph, list, table or similar element.

    Outside these elements, text would have neither the width nor the margins of a paragraph.
    """

    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br", "img", "col", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if data.strip() and self.open[-1] in ("body", "header", "main", "section", "figure"):
            self.texts.append(data.strip())


def draw(name):
    FIGURES.clear()
    return gallery.draw(name), list(FIGURES)


def shown(axes):
    """Labels, scales, limits, styles and data of the lines, bars, points and bands in `axes`."""
    data = [np.asarray(line.get_xydata(), float) for line in axes.lines]
    data += [bar.get_patch_transform().transform(bar.get_path().vertices) for bar in axes.patches]
    data += [np.asarray(points.get_offsets(), float) for points in axes.collections]
    data += [path.vertices for each in axes.collections for path in each.get_paths()]
    data += [] if axes.get_autoscalex_on() else [np.asarray(axes.get_xlim())]
    data += [] if axes.get_autoscaley_on() else [np.asarray(axes.get_ylim())]
    numbers = [f"{number:.6g}" for array in data for number in np.ravel(array)]
    legend = axes.get_legend()
    texts = [*axes.texts, *(legend.get_texts() if legend else [])]
    words = [text.get_text() for text in texts] + [line.get_color() for line in axes.lines]
    words += [f"{line.get_marker()}{line.is_dashed()}" for line in axes.lines]
    words += [axes.get_title("left"), axes.get_xlabel(), axes.get_xscale(), axes.get_yscale()]
    return f"{words}{numbers}"


def numbers(text):
    """The table cells in a part of a page, and all its words that contain a digit."""
    words = re.sub(r"<[^>]*>", " ", text).split()
    return f"{CELL.findall(text)}{[word for word in words if re.search('[0-9]', word)]}"


def digest(text):
    """The first ten digits of a hash of the text, written as letters."""
    return hashlib.sha256(text.encode()).hexdigest().translate(LETTERS)[:10]


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("shift/results.json", "shift/index.html"),
        ("../results/shift/results.json", "../results/shift/index.html"),
        ("../my-shift/results.json", "../my-shift/results.json"),
        ("shift/other.json", "shift/other.json"),
    ],
)
def test_a_link_to_the_numbers_of_a_page_leads_to_the_page(link, target):
    assert gallery.page_of(link) == target


@pytest.mark.parametrize("name", gallery.PAGES)
def test_a_page_is_drawn_of_its_numbers(name, drawn):
    text, figures = drawn(name)
    assert gallery.numbers(name)["command"] in text.replace("&#x27;", "'")
    assert "<script" not in text
    assert not re.search(r"<(?:td|dd)[^>]*>\s*(nan|None|inf)\s*<", text)
    assert LooseText(text).texts == []
    top, *sections = re.sub(r"(?s)<(style|svg).*?</\1>", "", text).split("<section id=")
    parts = {"top": top} | {section.split('"')[1]: section for section in sections}
    found: dict = {part: digest(numbers(text)) for part, text in parts.items()}
    found["figures"] = [digest(figure) for figure in figures]
    assert_as_recorded(f"pages/{name.replace('/', '-')}", found)


def test_every_page_has_a_title_of_its_own_and_says_what_criteria_it_names():
    pages = {name: gallery.draw(name) for name in gallery.PAGES}
    titles = [re.search("<title>(.*?)</title>", page)[1] for page in pages.values()]  # pyright: ignore[reportOptionalSubscript]
    alike = {title for title in titles if titles.count(title) > 1}
    assert all("Pruned networks" in title for title in alike)
    for name in ("report", "resnet20", "prune/digits", "settings", "repair"):
        assert (
            "Fermat is the distance between the filter and the geometric median of all filters"
            in pages[name]
        )
