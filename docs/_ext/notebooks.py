"""Makes pages of the site from the notebooks of `examples`, with texts, code and printed outputs.

Before Sphinx looks for pages, each notebook becomes docs/notebooks/NAME.md, which git ignores.
"""

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx


def page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        printed = "".join(line for part in cell["outputs"] for line in part["text"]).rstrip()
        parts += [f"```text\n{printed}\n```"] if printed else []
    parts.append(f"[This notebook as a file](../../examples/{name}.ipynb)")
    return "\n\n".join(parts) + "\n"


def write(app: Sphinx, config: Any) -> None:
    """Write the pages whose notebooks changed."""
    folder = Path(app.srcdir, "notebooks")
    folder.mkdir(exist_ok=True)
    for path in sorted(Path(app.srcdir).parent.glob("examples/*.ipynb")):
        text = page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        target = folder / f"{path.stem}.md"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
