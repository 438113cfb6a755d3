"""The long description and the addresses of a wheel, from one setting.

`address` in `[tool.jaxnorm]` is where the repository's files can be read, such as
https://example.org/jaxnorm/blob/main/. Relative links of README.md are completed by it. Until it
is set, the metadata name no address, and the links stay as they are.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(\]\()(?!https?:|#)")


class AddressHook(MetadataHookInterface):
    """Fills `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Complete the metadata of the project, in place."""
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        address = settings["tool"]["jaxnorm"]["address"]
        if address:
            text = RELATIVE.sub(rf"\g<1>{address.rstrip('/')}/", text)
            metadata["urls"] = {"Repository": address}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
