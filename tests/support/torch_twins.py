"""Modules of lnrnn.torch of every cell and norm, with random parameters, and their inputs and outputs."""

from __future__ import annotations

import pytest

import lnrnn
from helpers import absolute_error
from lnrnn.rnn import cells
from networks import CELLS, WITH_INNER_BIASES

torch = pytest.importorskip("torch")

T, B, I, H = 7, 4, 3, 12  # noqa: E741 - the letters of the shapes in the documentation
LENGTHS = [4, T, 0, 1]
OF_TORCH = tuple(cell for cell in CELLS if hasattr(torch.nn, cell))
Layer, Batch = lnrnn.LayerNormSpec, lnrnn.BatchNormSpec
# The cells and norms of networks.py, without other options.
NETWORKS = [
    (variant["cell"], variant.get("norm", "layer"))
    for variant in WITH_INNER_BIASES.values()
    if {*variant} <= {"cell", "norm", "nonlinearity"}
]
NETWORKS += [(f"{cell} relu", norm) for cell, of in cells.CELLS.items()
             if "nonlinearity" in {*of.options} - {*of.written}
             for norm in (None, "layer", Layer("joint"), Layer("gate"))]  # fmt: skip
NETWORKS += [("LSTM projected", norm) for norm in (None, Layer(eps=0.1), "batch")]
NETWORKS += [("LSTM peepholes", norm) for norm in (None, Layer("gate", "carry", eps=0.1), "batch")]
NETWORKS += [(f"{cell} hard", None) for cell in CELLS if "gate_activation" in cells.CELLS[cell].options]
NETWORKS += [(f"{cell} reset", norm) for cell in CELLS if "reset_after" in cells.CELLS[cell].options
             for norm in (None, Layer(inner_bias=True, eps=0.1), "batch")]  # fmt: skip
# An SLSTM has no batch norm, so it is not in CELLS.
NETWORKS += [("SLSTM", norm) for norm in (None, "layer", Layer(eps=0.1))]
# Networks that the tests make with several heads.
HEADED = [
    (cell, norm)
    for cell in CELLS
    if "num_heads" in cells.CELLS[cell].options
    for norm in (None, "batch", Layer(), Layer("joint"), Layer("gate"))
]


def class_of(cell):
    """Returns the name of the class for a cell of NETWORKS, and more options."""
    options = {"": {}, "projected": dict(proj_size=5), "hard": dict(gate_activation="hard_sigmoid"),
               "peepholes": dict(peepholes=True), "reset": dict(reset_after=False),
               "relu": dict(nonlinearity="relu")}  # fmt: skip
    name, _, more = cell.partition(" ")
    return name, options[more]


def twin(cell, norm="layer", *, seed=0, steps=0, dtype=None, **options):
    """Returns a module of lnrnn.torch with random parameters, and with statistics of `steps` steps."""
    cell, more = class_of(cell)
    module = getattr(lnrnn.torch, cell)(I, H, norm=norm, seed=seed, dtype=dtype, **options, **more)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.uniform_(*((0.5, 1.5) if name.startswith("gain") else (-0.6, 0.6)), generator=generator)
        if steps and module.sides:
            x = torch.randn(
                *((16, steps) if module.batch_first else (steps, 16)), I, dtype=dtype, generator=generator
            )
            module.train()(x)
    return module.eval()


def inputs(rng, module, B=B):
    n = module.num_layers * module.num_directions
    states = tuple(rng.uniform(-0.9, 0.9, (n, B, width)) for width in module.architecture.state_widths)
    if len(states) == 4:
        states = (*states[:2], rng.uniform(0.5, 2, (n, B, H)), states[3])
    return rng.standard_normal((T, B, I)), states


def tensors(x, states, dtype):
    states = tuple(torch.tensor(s, dtype=dtype) for s in states)
    return torch.tensor(x, dtype=dtype), states if len(states) > 1 else states[0]


def compare(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        for c, d in zip(*(v if isinstance(v, tuple) else (v,) for v in (a, b)), strict=True):
            c, d = (v.detach().numpy() if isinstance(v, torch.Tensor) else v for v in (c, d))
            assert absolute_error(c, d) < tolerance


def states_of(end):
    """Returns the last states as a tuple of one, two or four tensors."""
    return end if isinstance(end, tuple) else (end,)


def weighed(results):
    """Returns the sum of all results of a call, with random weights."""
    generator = torch.Generator().manual_seed(3)
    return sum((v * torch.randn(v.shape, generator=generator)).sum() for v in results)


def called(call, x, state, lengths, wanted):
    """Returns y, the last states, and the gradients of x, of initial states and of the tensors `wanted`."""
    x = x.detach().requires_grad_()
    start = [s.detach().requires_grad_() for s in states_of(state)]
    y, end = call(x, tuple(start) if len(start) > 1 else start[0], lengths)
    results = [y, *states_of(end)]
    return results, torch.autograd.grad(weighed(results), [x, *start, *wanted])
