"""Commands that generate or check files of the project: `python -m tools.NAME --help`."""

import sys
from pathlib import Path

# Tools import the packages `experiments` and `claims` from `scripts`.
SCRIPTS = str(Path(__file__).parents[1] / "scripts")
if SCRIPTS not in sys.path:
    sys.path.insert(1, SCRIPTS)
