"""Clusters of Dask and Ray give the bits of one process, even if a worker is killed."""

import sys
from pathlib import Path

from outcome import done


def clusters(options):
    tests = Path(__file__).with_name("clusters.py")
    return done(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), *options.pytest]
    )[-200:]


PARTS = {"clusters": clusters}
