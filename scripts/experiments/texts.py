"""Escape texts, so that a name from a file cannot control a terminal or a page.

Only this module escapes texts. Scripts print only with `say`, `show_table` and `console` of
`experiments.cli` and with the bars of `experiments.progress`, which all escape their texts. Pages
use the function `html`.
"""

from html import escape
from unicodedata import category

# Unicode's categories of control characters, format characters (such as direction marks), lone
# surrogates, line separators and paragraph separators.
CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """The text on one line, with escapes for characters that would control a terminal."""
    return "".join(
        c.encode("unicode_escape").decode() if category(c) in CONTROLS else c for c in text
    )


def shorten(name: str, length: int = 36) -> str:
    """Shorten a name to at most `length` characters; the middle of a long name is left out."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[head + 1 - length :]}"


def html(text: str) -> str:
    """Escape a text of one or more lines for HTML."""
    return "\n".join(escape(printable(line)) for line in text.split("\n"))
