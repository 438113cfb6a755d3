"""Tables of Markdown in pages, found by their headers."""

from collections.abc import Sequence
from pathlib import Path


def write_table(page: Path, header: str, rows: Sequence[str]) -> None:
    """Put rows below their header, in place of those that are there."""
    before, _, rest = page.read_text(encoding="utf-8").partition(header)
    after = rest.split("\n\n", 1)[1] if "\n\n" in rest else ""
    table = "\n".join(rows)
    page.write_text(f"{before}{header}{table}\n\n{after}", encoding="utf-8")


def table_of(page: Path, header: str) -> list[str]:
    """The rows below a header."""
    return page.read_text(encoding="utf-8").split(header)[1].split("\n\n")[0].splitlines()
