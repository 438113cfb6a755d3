"""Sets the long description and the addresses of a wheel.

`address` in `[tool.jaxnorm]` is the address of the repository's files, such as
https://example.org/jaxnorm/blob/main/. Relative links of README.md become links to this address.
If `address` is empty, the metadata have no address, and the links do not change.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(\]\()(?!https?:|#)")


class AddressHook(MetadataHookInterface):
    """Fills `readme` in the metadata of the project, and `urls` if there is an address."""

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
