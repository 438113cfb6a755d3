"""Store a long run's measurements in a file, so that an interrupted run can resume."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import files
from experiments.measures.provenance import digest, packages


class Finished:
    """The finished parts of a run; each part is written to the file as soon as it is finished.

    Attributes:
      parts: Finished parts by name. If the file was written with different settings, code or
        versions, or on a different kind of processor, `parts` is empty at first.
    """

    def __init__(self, path: Path | None, settings: Sequence[object], code: Iterable[Path] = ()):
        """Read the finished parts from the file.

        Args:
          path: The file, which need not exist, in an existing folder. With None, no file is read or
            written.
          settings: The settings on which the results depend; valid in JSON.
          code: The source files on which the results depend, besides the files of the packages.
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
