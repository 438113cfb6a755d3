"""A release has one version, and the notes of that version."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxnorm
from tools import release

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

- A feature of tomorrow.

## [0.2.0] - 2027-01-02

### Added

- A feature.

## [0.1.0] - 2026-01-02

- The first.
"""


def test_the_notes_are_those_of_the_version():
    assert release.notes(CHANGELOG, "0.2.0") == "### Added\n\n- A feature.\n"
    assert release.notes(CHANGELOG, "0.1.0") == "- The first.\n"


@pytest.mark.parametrize("version", ["0.3.0", "0.2", "Unreleased"])
def test_a_version_without_notes_is_refused(version):
    with pytest.raises(ValueError, match="must have a dated section"):
        release.notes(CHANGELOG, version)


def test_a_tag_is_the_version_of_every_file():
    assert release.check(f"v{jaxnorm.__version__}") == jaxnorm.__version__
    with pytest.raises(ValueError, match=r"the tag must be v.*, the version in jaxnorm"):
        release.check("v9.9.9")


def test_the_command_ends_with_a_sentence_for_a_wrong_tag():
    command = [sys.executable, "-m", "tools.release", "v9.9.9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"error: the tag must be v\S+, .*; got v9\.9\.9\n", done.stderr)


def test_the_workflow_runs_on_tags_and_calls_the_command():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert 'tags: ["v*"]' in text
    assert "tools.release" in text
