"""Make docs/_static/math.woff, the font for formulas, from Latin Modern Math.

Run `python -m tools.math_font latinmodern-math.otf`. Debian's package fonts-lmodern contains the
file `latinmodern-math.otf`. The font's MATH table tells browsers how to draw tall parentheses, bars
and hats. The new font has the letters and signs of `CHARACTERS` in all their sizes. The new font
has a new name, as the licence of the original font requests (docs/_static/math.txt).
"""

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

FONT = Path(__file__).parents[1] / "docs/_static/math.woff"
NAME = "Jaxnorm Math"
SIGNS = (
    "ϑϕϖϱϵ\N{NO-BREAK SPACE}¯±·×ˆ˜˙‐–—‖†…′″ℎℓℕℙℝℤ←→↑↓↔↦⇒⇔∀∂"
    "∃∅∇∈∉∏∑−∓∗∘√∝∞∣∥∧∨∩∪∫∼≃≅≈≔≠≡≤≥≪≫≲≳⊂⊆⊕⊗⊙⊤⊥⋅⋯⌈⌉⌊⌋⟨⟩"
    "\u0302\u0303\u0304\u0305\u0307"
)
RANGES = (
    (0x20, 0x7E),  # ASCII.
    (0x391, 0x3A1),  # Greek.
    (0x3A3, 0x3A9),
    (0x3B1, 0x3C9),
    (0x1D434, 0x1D454),  # italic letters, which browsers use for variables of one letter
    (0x1D456, 0x1D467),
    (0x1D6E2, 0x1D71B),  # italic Greek letters
)
CHARACTERS = SIGNS + "".join(chr(code) for a, b in RANGES for code in range(a, b + 1))


def subset(source: Path) -> TTFont:
    """The font reduced to `CHARACTERS`, with its new name."""
    font = TTFont(source)
    options = Options(layout_features=["ssty"], name_IDs=[*range(7), 13, 14], hinting=False)
    subsetter = Subsetter(options)
    subsetter.populate(text=CHARACTERS)
    subsetter.subset(font)
    for record in list(font["name"].names):
        if record.nameID in (1, 3, 4, 6):
            name = NAME.replace(" ", "") if record.nameID == 6 else NAME
            where = record.platformID, record.platEncID, record.langID
            font["name"].setName(name, record.nameID, *where)
    font["CFF "].cff.fontNames = [NAME.replace(" ", "")]
    font.flavor = "woff"
    return font


def main() -> None:
    """Write the new font to docs/_static/math.woff."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("Pass the path of latinmodern-math.otf")
    subset(Path(sys.argv[1])).save(FONT)
    print(f"{FONT}: {FONT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
