"""Tests that clusters give the bits of one process. tests/scoring kills `lnrnn score` before each change.

maps: a Scorer in Dask's map_partitions and Ray's map_batches. spark: a Scorer in Spark's mapInArrow, which
needs pyspark and Java. serve: examples/ray_serve.py must give the model's bits; it needs ray[serve].
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ray_serving import serve_with_ray

from outcome import Missing, needs, run_pytest

HERE = Path(__file__).parent


def maps(options):
    return run_pytest(str(HERE / "maps.py"), options.pytest)


def needs_modules(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Missing(f"needs {name}")


def serve(options):
    needs_modules("ray", "starlette", "fastapi", "grpc_reflection")
    return serve_with_ray(options.seed)


def spark(options):
    needs("java")
    needs_modules("pyspark")
    return run_pytest(str(HERE / "spark.py"), options.pytest)


PARTS = {"maps": maps, "serve": serve, "spark": spark}
