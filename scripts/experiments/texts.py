"""Texts as a terminal or a page shows them: a name from a file controls neither.

The only place that escapes: commands print by `say`, `show_table` and `console` of
`experiments.cli` and by the bars of `experiments.progress`; pages are made with `html`.
"""

from html import escape
from unicodedata import category

# Unicode categories of control and format characters (such as direction marks), lone surrogates
# and line separators.
CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """A text in one line, what would control a terminal escaped."""
    return "".join(
        c.encode("unicode_escape").decode() if category(c) in CONTROLS else c for c in text
    )


def shorten(name: str, length: int = 36) -> str:
    """A name of at most `length` characters: of a longer one the middle is left out."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[head + 1 - length :]}"


def html(text: str) -> str:
    """A text as HTML, in one or more lines."""
    return "\n".join(escape(printable(line)) for line in text.split("\n"))
