"""The font of formulas has the tables that browsers need, and all letters of the guides."""

import re
from html import unescape
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont

from experiments.pages import mathematics
from tools.math_font import CHARACTERS, FONT, NAME

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def font():
    return TTFont(FONT)


def test_parentheses_and_roots_grow_and_hats_stretch(font):
    variants = font["MATH"].table.MathVariants
    names = font.getBestCmap()
    tall, wide = variants.VertGlyphCoverage.glyphs, variants.HorizGlyphCoverage.glyphs
    assert {names[ord(sign)] for sign in "()[]{}‖√"} <= set(tall)
    assert {names[ord(accent)] for accent in "\u0302\u0303"} <= set(wide)


def test_the_font_is_small_renamed_and_has_its_licence(font):
    assert FONT.stat().st_size < 120_000
    assert font["name"].getDebugName(1) == NAME
    assert "GUST Font License" in FONT.with_suffix(".txt").read_text()
    sheet = (DOCS / "_static/site.css").read_text()
    assert f'@font-face {{ font-family: "{NAME}"; src: url({FONT.name})' in sheet


def test_the_font_has_every_letter_and_sign_of_the_guides(font):
    names = font.getBestCmap()
    assert not {sign for sign in CHARACTERS if ord(sign) not in names}
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    formulas = re.findall(r"\$\$(.+?)\$\$|(?<!\$)\$([^$`]+)\$(?!\$)", text, re.S)
    assert len(formulas) > 20
    for block, inline in formulas:
        drawn = mathematics.html(f"${' '.join((block or inline).split())}$")
        signs = set(unescape(re.sub(r"<[^>]+>", "", drawn)))
        assert not {sign for sign in signs if ord(sign) not in names}, block or inline


def test_a_bar_is_an_accent_of_full_size():
    assert '<mover accent="true"><mi>x</mi>' in mathematics.html(r"$\bar x$")
