"""Prints how much the results of ONNX files differ from those of their networks, as docs/onnx.md shows it.

    python tests/benchmarks/onnx_differences.py                 15 s; needs onnx, onnxruntime and openvino

A difference is the largest one of y and of the last states, divided by the largest value of the same array.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "support"))

import lnrnn  # noqa: E402
from networks import VARIANTS, calm, network  # noqa: E402
from onnx_runtimes import Case, opened, unsupported  # noqa: E402

D, H, LAYERS, T, B = 40, 128, 2, 100, 4
RUNTIMES = ("onnxruntime", "openvino", "reference")


def kind(rnn):
    if type(rnn).__name__ == "SLSTM":
        return "Scan, SLSTM"
    if rnn.norm is not None:
        return f"Scan, {'batch' if isinstance(rnn.norm, lnrnn.BatchNormSpec) else 'layer'} norm"
    plain = type(rnn).__name__ in ("RNN", "LSTM", "GRU") and not getattr(rnn, "proj_size", 0)
    return "nodes RNN, LSTM, GRU" if plain else "Scan, no norm"


def differences(rnn, path):
    """Returns {runtime that supports the file: difference}."""
    lnrnn.to_onnx(rnn, path)
    case = Case.drawn(np.random.default_rng(3), rnn, T, B)
    found = {}
    for runtime in RUNTIMES:
        if not unsupported(runtime, path):
            pairs = zip(opened(runtime, path)(case.feeds), case.want, strict=True)
            found[runtime] = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    return found


def main():
    largest = {}
    for make in (network, calm):
        for options in VARIANTS.values():
            rnn = make(D, H, trained=T, num_layers=LAYERS, **options)
            with tempfile.TemporaryDirectory() as folder:
                for runtime, value in differences(rnn, Path(folder) / "m.onnx").items():
                    key = make.__name__, kind(rnn), runtime
                    largest[key] = max(value, largest.get(key, 0))
    for name in ("network", "calm"):
        print(f"\n{name} of tests/support/networks.py: {', '.join(RUNTIMES)}")
        for row in sorted({each for make, each, _ in largest if make == name}):
            print(f"  {row:22}", *(f"{largest[name, row, runtime]:.1e}" for runtime in RUNTIMES))


if __name__ == "__main__":
    main()
