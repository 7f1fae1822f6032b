"""Writes the first inputs of every fuzzer into folders with their names.

python tests/fuzz/seeds.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "support"))

import lnrnn  # noqa: E402
from graph_cases import FOLDER, read  # noqa: E402
from networks import VARIANTS, WITH_INNER_BIASES, network, sparse  # noqa: E402
from onnx_files import recurrent  # noqa: E402


def model_files(folder: Path) -> None:
    """Files of every kind of network. An older version wrote some of them."""
    models = {name: network(2, 3, trained=2, **options) for name, options in WITH_INNER_BIASES.items()}
    for overrun in ("last", "mean", "batch"):
        norm = lnrnn.BatchNormSpec(max_steps=3, overrun=overrun, momentum=None, eps=0.25)
        models[overrun] = network(2, 3, cell="LSTM", trained=2, norm=norm)
    models["layers"] = network(
        2, 3, cell="GRU", num_layers=2, bidirectional=True, batch_first=True, bias=False
    )
    models["layers, batch"] = network(2, 3, trained=2, num_layers=2, norm="batch", nonlinearity="relu")
    models["bfloat16"] = network(2, 3).to_dtype("bfloat16")
    models["int8"], models["8 bits"] = (network(2, 3).to_dtype("int8", bits) for bits in (None, 8))
    models["blocks"] = sparse(network(8, 16, norm=None), 0.3)
    models["zoneout"] = network(2, 3, cell="LSTM", num_layers=2, dropout=0.25)
    models["zoneout"].zoneout = 0.1, 0.5
    for k, model in enumerate(models.values()):
        model.save(folder / f"{k}.safetensors")
    for path in (TESTS / "data").glob("*.safetensors"):
        (folder / path.name).write_bytes(path.read_bytes())


def onnx_files(folder: Path) -> None:
    """Files with a node, files of networks in plain operators, and some of the graphs of tests/cases."""
    rng, models = np.random.default_rng(0), []
    for kind in ("RNN", "LSTM", "GRU"):
        models += [recurrent(rng, kind), recurrent(rng, kind, D=2, lengths=True, states=True)]
    for path in sorted(set(FOLDER.glob("*.txt")) - {FOLDER / "cells.txt"}):
        models += [case.model() for case in read(path)[::20]]
    for k, model in enumerate(models):
        (folder / f"{k}.onnx").write_bytes(model.SerializeToString())
    for k, options in enumerate(VARIANTS.values()):
        lnrnn.onnx.to_onnx(network(2, 3, trained=2, **options), folder / f"network{k}.onnx")


def frames(folder: Path) -> None:
    """Calls of a pool in the bytes of fuzz_frames.py: random ones."""
    for k in range(20):
        (folder / str(k)).write_bytes(np.random.default_rng(k).bytes(200))


WRITERS = {"fuzz_model_file": model_files, "fuzz_onnx_file": onnx_files, "fuzz_frames": frames}


def write(folder: Path, name: str) -> list[Path]:
    """Writes the seeds of a fuzzer into folder/name. Returns their paths."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    WRITERS[name](folder / name)
    return sorted((folder / name).iterdir())


if __name__ == "__main__":
    for each in WRITERS:
        write(Path(sys.argv[1]), each)
