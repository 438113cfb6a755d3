"""Checks a tag before a release, and prints the notes of the release.

`python -m tools.release v0.1.0` compares the tag with the version in `jaxnorm/_version.py`,
`pyproject.toml` and `CITATION.cff`, and prints what `CHANGELOG.md` says about the version. The
workflow for releases runs `tools.release`.
"""

import re
import sys
import tomllib
from pathlib import Path

import jaxnorm

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """The version that each of three files gives."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    return {
        "jaxnorm/_version.py": jaxnorm.__version__,
        "pyproject.toml": project["version"],
        "CITATION.cff": citation[1] if citation else "",
    }


def notes(changelog: str, version: str) -> str:
    """The section of the changelog for a version; the section's heading must have a date.

    Raises:
      ValueError: The section does not exist.
    """
    head = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    found = re.search(rf"{head}(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if not found:
        raise ValueError(f"CHANGELOG.md must have a dated section of {version}; it has none")
    return found[1].strip() + "\n"


def check(tag: str) -> str:
    """The version that a tag names; raise an error if a file names a different version.

    Raises:
      ValueError: A file names a version that differs from the tag.
    """
    for file, version in versions().items():
        if tag != f"v{version}":
            raise ValueError(f"the tag must be v{version}, the version in {file}; got {tag}")
    return tag.removeprefix("v")


def main() -> None:
    """Print the release notes, or one sentence about an error."""
    if len(sys.argv) != 2:
        sys.exit("Pass the tag, such as v0.1.0")
    try:
        version = check(sys.argv[1])
        print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version), end="")
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
