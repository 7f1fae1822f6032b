"""Defines races of training steps. The public functions below return a Case, except `gemm`.

A training step is forward and backward over all T time steps, and tables divide its time by T. worker.py
calls these functions with the number of threads and the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from case import Case, Limit, Unavailable, tolerances
from cells import CELLS
from peers_gemm import SIDE, products
from peers_rnn import builders
from peers_training import PLAIN, SAME_CELL, torch_module
from race import Call
from training_problem import Problem, problem

# The largest permitted ratios of two times. REPACKING: the time of a step after all parameters were set,
# divided by the time of a step with unchanged parameters. Setting them packs the weights again. TORCH: the
# time of a step by lnrnn.torch divided by that of a step in NumPy; lnrnn.torch may take TORCH_CALL seconds
# more.
REPACKING, TORCH, TORCH_CALL = 1.05, 1.05, 100e-6

# The tolerance in float32 roundings of a result's largest value. Right answers of all libraries differ by 50
# at most, up to H = 1024. A wrong formula causes errors a thousand times as large.
ROUNDINGS = 100

# torch.compile does not race. With torch 2.13.0 on a Zen 5 core, LN-LSTM, B=32 H=256 T=50, the loop takes
# 72 ms, a loop over a compiled step 67 ms, the compiled loop 64 ms.
NOT_COMPILED = (
    "compiles a step for 7 to 18 s a shape, or the unrolled loop for 98 s, and is faster by a tenth at most"
)


def gemm(problem: Problem, threads: int) -> tuple[Limit, dict[str, str]]:
    """Returns as limit the time of a training step's six matrix products, at the rate of the fastest library.
    Also returns {library: why it does not race}."""
    calls, left_out = products(threads)
    loops = {f"GEMM {name}": call for name, call in calls.items()}
    share = problem.operations / (2 * SIDE**3)

    def seconds(took):
        limit.name = min(loops, key=lambda name: np.median(took[name]))
        return share * took[limit.name]

    limit = Limit("GEMM", loops, seconds)
    return limit, {f"GEMM {name}": why for name, why in left_out.items()}


def _model(problem: Problem):
    norm = None if problem.plain else "layer"
    hidden, inputs = problem.gy.shape[2], problem.x.shape[2]
    model = getattr(lnrnn, problem.cell.NAME)(inputs, hidden, norm=norm)
    model.load_state_dict({f"{name}_l0": value for name, value in problem.p.items()})
    return model


def _step(problem: Problem, model, *, padded=False, before=lambda: None) -> Call:
    """Returns the training step of a model, as the documentation shows it. padded: all sequences have T
    steps, with gy = 0 past their ends. before: a function that each call runs first."""
    x, gy, lengths = problem.x, problem.gy, problem.lengths
    if padded:
        gy, lengths = gy * problem.alive, None
    h0 = tuple(s[None] for s in problem.states)
    h0 = h0 if len(h0) > 1 else h0[0]

    def call():
        before()
        y, h, tape = model.forward_train(x, h0, lengths)
        return y, *model.backward(tape, gy)

    def answer():
        y, gx, gh0, grads = call()
        gstates = gh0 if isinstance(gh0, tuple) else (gh0,)
        grads = problem.for_peers({name.removesuffix("_l0"): g for name, g in grads.items()})
        return problem.results(y * problem.alive if padded else y, gx, [g[0] for g in gstates], grads)

    return Call(call, answer=answer)


def _case(problem: Problem, threads: int, ours: dict[str, Call], peers=None, left_out=None, **more) -> Case:
    answer = problem.answer()
    limit, without = gemm(problem, threads)
    return Case(
        ours, peers or {}, answer, tolerances(answer, np.float32, ROUNDINGS), limit, len(problem.x),
        left_out=without | (left_out or {}), **more,
    )  # fmt: skip


def _torch_plain(cell, batch, hidden, steps, threads, ragged) -> dict:
    """Returns {name: builder} of torch.nn's cell without a norm, which has less work than other peers."""

    def build():
        other = problem(cell, batch, hidden, steps, ragged=ragged, plain=True)
        call = torch_module(other, threads)
        call.reference = other.answer()
        call.tolerance = tolerances(call.reference, np.float32, ROUNDINGS)
        return call

    return {"torch.nn plain": build}


def normalised(threads, cell, batch, hidden, steps, ragged=False):
    """Races cells with layer norm. ragged: lengths are uniform in 1..T."""
    cell = CELLS[cell]
    task = problem(cell, batch, hidden, steps, ragged=ragged)
    model = _model(task)
    ours = {"lnrnn": _step(task, model)}
    if ragged:
        ours["lnrnn padded"] = _step(task, model, padded=True)
    peers = builders(SAME_CELL, task, threads) | _torch_plain(cell, batch, hidden, steps, threads, ragged)
    left_out = {"torch.compile": NOT_COMPILED}
    return _case(task, threads, ours, peers, left_out, other_work=("torch.nn plain",))


def plain(threads, cell, batch, hidden, steps, ragged=False):
    """Races cells without a norm. Loops in torch do not race, because they are slower than torch.nn."""
    task = problem(CELLS[cell], batch, hidden, steps, ragged=ragged, plain=True)
    return _case(task, threads, {"lnrnn": _step(task, _model(task))}, builders(PLAIN, task, threads))


def repacking(threads, cell, batch, hidden, steps):
    """Races a step after all parameters were set, as by an optimiser, against a step with unchanged
    parameters.
    """
    task = problem(CELLS[cell], batch, hidden, steps)
    model = _model(task)
    state = model.state_dict()
    ours = {
        "lnrnn": _step(task, model),
        "lnrnn repacking": _step(task, model, before=partial(model.load_state_dict, state)),
    }
    return _case(task, threads, ours, bounds={"lnrnn repacking": REPACKING})


def torch_modules(threads, cell, batch, hidden, steps):
    """Races lnrnn.torch's module, on lnrnn's engine and with torch's operations, against the step in
    NumPy."""
    task = problem(CELLS[cell], batch, hidden, steps)
    ours = {"lnrnn": _step(task, _model(task))}
    ours |= {name: _module_step(task, engine) for name, engine in engines().items()}
    return _case(task, threads, ours, bounds={"lnrnn.torch": TORCH}, grace=TORCH_CALL)


def engines() -> dict[str, dict]:
    """Returns {contender: arguments of lnrnn.torch's modules}."""
    try:
        import lnrnn.torch  # noqa: F401
    except ImportError as missing:
        raise Unavailable(str(missing)) from None
    return {"lnrnn.torch": {}, "lnrnn.torch plain": {"engine": "torch"}}


def _module_step(problem: Problem, engine: dict) -> Call:
    import torch

    import lnrnn.torch

    cell, names = problem.cell, sorted(problem.p)
    module = getattr(lnrnn.torch, cell.NAME)(problem.x.shape[2], problem.gy.shape[2], **engine)
    module.load_state_dict({f"{name}_l0": torch.from_numpy(v) for name, v in problem.p.items()})
    x, *states = (
        torch.tensor(v, requires_grad=True) for v in (problem.x, *(s[None] for s in problem.states))
    )
    h0 = tuple(states) if len(states) > 1 else states[0]
    leaves = [x, *states, *(getattr(module, f"{name}_l0") for name in names)]
    gy = torch.from_numpy(problem.gy)

    def call():
        with torch.enable_grad():
            y = module(x, h0)[0]
            return y, *torch.autograd.grad(y, leaves, gy)

    def answer():
        y, gx, *rest = (v.detach().numpy() for v in call())
        grads = dict(zip(names, rest[cell.STATES :], strict=True))
        return problem.results(y, gx, [g[0] for g in rest[: cell.STATES]], problem.for_peers(grads))

    return Call(call, answer=answer)
