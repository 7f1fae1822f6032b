"""PyTorch's own test inputs of norms and recurrent modules: the same results, or a listed reason."""

import sys
from pathlib import Path

from outcome import done


def samples(options):
    tests = Path(__file__).with_name("samples.py")
    return done(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), *options.pytest]
    )[-200:]


PARTS = {"samples": samples}
