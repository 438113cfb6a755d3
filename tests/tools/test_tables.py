"""Tables and numbers of the documentation are what the files of results give."""

import re

import pytest

from tools import tables
from tools.tables import COMPUTED, DOCS, WRITERS, write_marks

MARKED = re.compile(r"<!-- ([a-z]+):? ?[^>]*? -->")


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.stem)
def test_writing_a_page_would_change_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert write_marks(text, WRITERS) == text
    kinds = [kind for kind in MARKED.findall(text) if kind != "end"]
    assert kinds
    assert {*kinds} <= {*WRITERS, *COMPUTED}
    for kind in kinds:
        assert text.count(f"<!-- end of {kind} -->") == kinds.count(kind)
    # In Markdown, an HTML comment at the start of a line would end a paragraph.
    assert not re.search("^<!-- number", text, re.MULTILINE)


def test_every_kind_is_on_a_page():
    texts = [page.read_text(encoding="utf-8") for page in tables.pages()]
    assert {*WRITERS, *COMPUTED} <= {kind for text in texts for kind in MARKED.findall(text)}


@pytest.mark.parametrize(
    ("page", "pattern"), [("geometry", r"\d\.\d\d \("), ("training", r"8\d\.\d\d, ")]
)
def test_a_changed_number_is_written_anew(page, pattern):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    first = re.search(r"<!-- (?:bench|accuracies):.*", text, re.DOTALL)
    assert first
    changed = text[: first.start()] + re.sub(pattern, "0.001 (", first[0], count=1)
    assert changed != text
    assert write_marks(changed, WRITERS) == text


def test_a_number_is_found_by_its_path_and_formatted(monkeypatch):
    monkeypatch.setattr(
        tables, "load_result", lambda file: {"file": file, "rows": [{"a": 0.12345}]}
    )
    page = "Of <!-- number: x.json rows/-1/a .1% -->9 %<!-- end of number --> and 9 %."
    assert write_marks(page, WRITERS) == page.replace("9 %<", "12.3 %<")
    assert write_marks(page, {}) == page


def test_a_mark_without_an_end_is_refused_and_no_text_is_lost():
    page = "<!-- number: a.json b .1f --> and <!-- number: a.json c .1f -->9<!-- end of number -->"
    with pytest.raises(ValueError, match=r"a.json b .1f.* has no '<!-- end of"):
        write_marks(page, {"number": lambda argument: "1"})
