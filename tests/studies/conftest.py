"""Puts the folder of the studies on the path, because they are scripts that import each other."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "studies"))
if not all(map(find_spec, ("scipy", "sklearn", "tqdm", "matplotlib"))):
    collect_ignore_glob = ["test_*.py"]
