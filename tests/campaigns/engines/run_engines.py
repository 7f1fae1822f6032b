"""Tests that clusters give the bits of one process, and that killed runs of `lnrnn score` continue.

maps: a Scorer in Dask's map_partitions and Ray's map_batches. spark: a Scorer in Spark's mapInArrow, which
needs pyspark and Java. kills: SIGKILL ends `lnrnn score` over a folder at random moments, 50 times. The
outputs must have the bytes of an undisturbed run. serve: examples/ray_serve.py must give the model's bits; it
needs ray[serve].
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
from ray_serving import serve_with_ray

import lnrnn
import sequence_files
from outcome import Missing, Wrong, needs, run_pytest

HERE = Path(__file__).parent
KILLS, QUICK_KILLS = 50, 2


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


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of all outputs in a folder, without files that killed commands left."""
    found = (path for path in sorted(folder.rglob("*.parquet")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def kills(options) -> dict[str, int]:
    folder, chance = options.folder / "kills", random.Random(options.seed)
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(options.seed)
    for k in range(2 if options.quick else 8):
        path = folder / "in" / f"day={k % 3}" / f"{k}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        sequence_files.write(path, rng, rng.integers(0, 90, 400), 16, row_group_size=50, null=(3,))
    model = folder / "m.safetensors"
    lnrnn.LSTM(16, 128, seed=0).save(model)

    def start(output: str) -> subprocess.Popen:
        words = [model, folder / "in", folder / output, "--column", "x", "--bad", "skip", "--workers", "2"]
        return sequence_files.command("score", *words)

    began = time.monotonic()
    if sequence_files.ended(start("undisturbed"))[0]:
        raise Wrong("the undisturbed run failed")
    seconds = time.monotonic() - began
    want, left = contents(folder / "undisturbed"), QUICK_KILLS if options.quick else KILLS
    figures = {"kills": 0, "complete runs": 0}
    run = start("out")
    while True:
        if left:
            time.sleep(chance.uniform(0, seconds))
        if left and run.poll() is None:
            left -= 1
            run.kill()
            run.communicate()
            figures["kills"] += 1
            run = start("out")
            continue
        code, _, said = sequence_files.ended(run, 600)
        if code:
            raise Wrong(f"exit {code}: {said}")
        if contents(folder / "out") != want:
            raise Wrong("the outputs differ from those of the undisturbed run")
        figures["complete runs"] += 1
        if not left:
            return figures
        shutil.rmtree(folder / "out")
        run = start("out")


PARTS = {"maps": maps, "serve": serve, "spark": spark, "kills": kills}
