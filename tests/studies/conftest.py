"""Studies are scripts that import each other: their folder is on the path, as it is when one of them runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "studies"))
