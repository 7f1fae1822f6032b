"""``python -m lnrnn`` is the command ``lnrnn``."""

from __future__ import annotations

import sys

from lnrnn.cli import main

sys.exit(main())
