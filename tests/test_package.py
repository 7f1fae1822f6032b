"""What `lnrnn` itself shows: its public names, and advice that works."""

from __future__ import annotations

import re
from pathlib import Path

import lnrnn


def test_dir_shows_the_public_names_and_nothing_else():
    shown = [name for name in dir(lnrnn) if not (name.startswith("__") and name.endswith("__"))]
    assert sorted(shown) == sorted([*lnrnn.__all__, "torch"])
    assert {"__version__", "__doc__", "__file__"} <= set(dir(lnrnn))
    assert all(hasattr(lnrnn, name) for name in lnrnn.__all__)


def test_no_message_advises_to_install_what_is_not_published():
    for path in Path(lnrnn.__file__).parent.rglob("*.py"):
        assert not re.search(r"pip install\W+lnrnn", path.read_text()), path
