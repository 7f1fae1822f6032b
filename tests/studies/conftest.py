"""Puts the folder of the studies on the path, because they are scripts that import each other."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "studies"))
