"""Stores the measurements of a long run in a file, from which an interrupted run resumes."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import files
from experiments.measures.provenance import digest, packages


class Finished:
    """The finished parts of a run; each is written to the file at once.

    Attributes:
      parts: Finished parts by name. At first, the finished parts are empty if the file comes from
        other settings, code, versions or another machine.
    """

    def __init__(self, path: Path | None, settings: Sequence[object], code: Iterable[Path] = ()):
        """Read the finished parts.

        Args:
          path: A file, which need not exist, in an existing folder; None to write nothing.
          settings: Settings that decide the parts, as JSON stores them.
          code: Source files that decide the parts, besides the three packages.
        """
        self.path = path
        self._fingerprint = digest(settings, [*packages(), *code])
        content = (None if path is None else files.read_json(path, dict)) or {}
        same = content.get("fingerprint") == self._fingerprint
        self.parts: dict[str, Any] = content["measured"] if same else {}

    def add(self, name: str, part: object) -> None:
        """Add a part, which must be valid in JSON, and write the file."""
        self.parts[name] = part
        if self.path is not None:
            content = {"fingerprint": self._fingerprint, "measured": self.parts}
            files.write(self.path, json.dumps(content))
