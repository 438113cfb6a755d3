"""Every citation in code and docs has one entry in references.bib, and every entry has a link."""

import calendar
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SURNAME = r"\b[A-ZÀ-ÖØ-Þ][a-zà-öø-ÿ][\w'’-]*"
YEAR = r",? \(?((?:18|19|20)\d\d)([a-z]?)\b"
ET_AL = re.compile(rf"({SURNAME}) et al\.(?:{YEAR})?")
ALL_NAMES = re.compile(rf"({SURNAME}(?:, {SURNAME})*(?:,? and {SURNAME})?){YEAR}")
LINKS = {"doi": r"10\.\d{4,}/\S+", "eprint": r"\d{4}\.\d{4,5}", "url": r"https?://\S+"}


class Citation(NamedTuple):
    """The surnames, or the first surname before "et al.", and the year with its letter."""

    surnames: tuple[str, ...]
    et_al: bool
    year: str
    letter: str


def citations(text):
    text = re.sub(r"\s*\n[\s#]*", " ", text)  # a citation can continue on the next line
    for name, year, letter in ET_AL.findall(text):
        yield Citation((name,), True, year, letter)
    for names, year, letter in ALL_NAMES.findall(text):
        if names not in calendar.month_name:
            yield Citation(tuple(re.split(r",? and |, ", names)), False, year, letter)


def read_entries():
    """The fields of each entry of references.bib, by key."""
    text = (ROOT / "references.bib").read_text()
    bodies = re.findall(r"^@\w+\{(\S+),\n(.*?)^\}$", text, re.M | re.S)
    assert len(bodies) == text.count("@") == len(dict(bodies))
    return {key: dict(re.findall(r"^ +(\w+) += \{(.*)\},$", body, re.M)) for key, body in bodies}


ENTRIES = read_entries()


def keys_of(citation):
    """The keys of the entries that match a citation."""
    for key, fields in ENTRIES.items():
        authors = tuple(author.split(",")[0] for author in fields["author"].split(" and "))
        if citation.et_al:
            named = len(authors) > 2 and authors[:1] == citation.surnames
        else:
            named = authors == citation.surnames
        dated = citation.year in ("", fields["year"])
        if named and dated and key.endswith(citation.letter):
            yield key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the blocks of He et al. (2016b).", ("He",)),
        ("as Holm (1979): those", ("Holm",)),
        ("a kernel (Cho and Saul, 2009) of", ("Cho", "Saul")),
        ("VGG, Simonyan and\n    Zisserman (2015)", ("Simonyan", "Zisserman")),
        ("# merged as in Chan, Golub\n# and LeVeque (1979).", ("Chan", "Golub", "LeVeque")),
        ("merged as in Pébay\n    (2008): right", ("Pébay",)),
        ("Eq. 11 of Nachum et al.", ("Nachum",)),
        ("in March 2020, with JAX 2026", None),
    ],
)
def test_citations_are_read_in_every_form(text, expected):
    surnames = [citation.surnames for citation in citations(text)]
    assert surnames == ([expected] if expected else [])


def test_a_citation_of_another_year_author_or_number_of_authors_has_no_entry():
    for names, year in (("Holm", 1980), ("Holm and Nobody", 1979), ("Vardi et al.", 2000)):
        (citation,) = citations(f"{names} ({year})")
        assert not list(keys_of(citation))
    (ambiguous,) = citations("He et al. (2016)")
    assert len(list(keys_of(ambiguous))) == 2


def pages():
    """The Python and Markdown files, except the files of `tools`."""
    for folder in ("jaxnorm", "pruning", "geometry", "scripts", "tests", "docs", "examples"):
        yield from (ROOT / folder).rglob("*.py")
        yield from (ROOT / folder).rglob("*.md")
    yield from ROOT.glob("*.md")


def test_every_citation_has_one_entry():
    wrong, cited = [], set()
    for page in set(pages()) - {Path(__file__)}:
        for citation in citations(page.read_text()):
            keys = list(keys_of(citation))
            cited.update(keys)
            if not keys or (citation.year and len(keys) > 1):
                wrong.append((str(page.relative_to(ROOT)), citation, keys))
    assert not wrong
    # If there were fewer citations, the search itself would be broken.
    assert len(cited) > 15


@pytest.mark.parametrize("key", ENTRIES)
def test_every_entry_has_a_year_and_a_link(key):
    fields = ENTRIES[key]
    links = {name: fields[name] for name in LINKS if name in fields}
    assert fields["title"]
    assert fields["year"].isdigit()
    assert links
    for name, link in links.items():
        assert re.fullmatch(LINKS[name], link)
    assert ("eprint" in fields) == (fields.get("archiveprefix") == "arXiv")


def test_the_citation_file_names_this_version_and_the_three_papers():
    text = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in text
    assert f"\nlicense: {project['license']}\n" in text
    papers = [ENTRIES[key] for key in ("huang_yu_unitization", "huang_cwda")]
    papers.append(ENTRIES["batch_norm_decomposed"])
    assert re.findall(r"value: arXiv:(\S+)", text) == [paper["eprint"] for paper in papers]
    for paper in papers:
        assert f'title: "{paper["title"]}"' in text
        for author in paper["author"].split(" and "):
            family, given = author.split(", ")
            assert f"family-names: {family}\n        given-names: {given}\n" in text
